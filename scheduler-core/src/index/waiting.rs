//! Waiting jobs by what they ask, so that a pass skips in one look what cannot start.

use std::collections::btree_map::{Entry, Range};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZero;
use std::sync::Arc;

use tidegate_model::{GpuCount, JobId, Span, UserId};

use crate::accounts::AccountId;
use crate::books::Job;
use crate::policy::Sharing;

/// Where a job stands among those of its user in one account: own order, id. Ids are given in the
/// order of submission.
pub(crate) type Place = (i32, JobId);

/// Jobs that wait for time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Waiting {
    /// By account.
    pub(crate) leaves: BTreeMap<AccountId, Arc<LeafQueue>>,
}

/// Jobs that wait in one account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LeafQueue {
    /// By user.
    pub(crate) users: BTreeMap<UserId, Arc<UserQueue>>,
    /// Whose job was submitted first: it breaks ties between accounts.
    pub(crate) oldest: Option<JobId>,
    /// GPU-milliseconds of protected time asked by jobs that are not small, and by how many.
    ordinary: BTreeMap<u64, u32>,
    /// Likewise by small jobs.
    small: BTreeMap<u64, u32>,
    /// How many wait for protected time, and for how many free time would do.
    pub(crate) protected: u32,
    pub(crate) free: u32,
    /// What is asked for, and by how many.
    pub(crate) cells: BTreeMap<Wanted, u32>,
}

impl LeafQueue {
    /// GPU-milliseconds of protected time asked by small jobs or by the others, from `least` on.
    pub(crate) fn asks(&self, small: bool, least: u64) -> impl Iterator<Item = u64> {
        let asks = if small { &self.small } else { &self.ordinary };
        asks.range(least..).map(|(ask, _)| *ask)
    }

    fn asks_of(&mut self, cell: &Wanted) -> &mut BTreeMap<u64, u32> {
        if cell.small { &mut self.small } else { &mut self.ordinary }
    }
}

/// Jobs of one user that wait in one account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct UserQueue {
    /// How long each wants to be protected.
    wishes: BTreeMap<Wish, Span>,
    /// All, the first submitted first. Takes a third of what a set does, and jobs leave mostly from
    /// the front.
    submits: VecDeque<JobId>,
}

/// What a job asks for, and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wish {
    wanted: Wanted,
    // Not a `Place`, which would be padded: there is a wish for each of 100,000 jobs.
    own_order: i32,
    job: JobId,
}

/// Those of one user that want the same, by place, and how long each is to be protected.
pub(crate) type Wishes<'books> = Range<'books, Wish, Span>;

impl Wish {
    pub(crate) fn place(&self) -> Place {
        (self.own_order, self.job)
    }
}

impl UserQueue {
    /// The job that was submitted first: it breaks ties between users.
    pub(crate) fn oldest(&self) -> Option<JobId> {
        self.submits.front().copied()
    }

    pub(crate) fn that_want(&self, wanted: Wanted) -> Wishes<'_> {
        let first = Wish { wanted, own_order: i32::MIN, job: JobId(0) };
        let last = Wish { wanted, own_order: i32::MAX, job: JobId(u64::MAX) };
        self.wishes.range(first..=last)
    }

    fn insert(&mut self, wish: Wish, protect: Span) {
        self.wishes.insert(wish, protect);
        if let Err(at) = self.submits.binary_search(&wish.job) {
            self.submits.insert(at, wish.job);
        }
    }

    /// Whether it was there.
    fn remove(&mut self, wish: &Wish) -> bool {
        if let Ok(at) = self.submits.binary_search(&wish.job) {
            self.submits.remove(at);
        }
        self.wishes.remove(wish).is_some()
    }
}

/// What kinds of time a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WaitsFor {
    /// It is to be protected.
    Protected,
    /// Likewise, and it runs free until then.
    Either,
    /// It is free work.
    Free,
}

impl WaitsFor {
    pub(super) fn of(job: &Job) -> Option<Self> {
        let free = job.is_startable() && job.runs_free();
        match (job.wants_protected(), free) {
            (true, true) => Some(Self::Either),
            (true, false) => Some(Self::Protected),
            (false, true) => Some(Self::Free),
            (false, false) => None,
        }
    }

    /// Whether protected time is waited for.
    pub(crate) fn is_for_protected(self) -> bool {
        self != Self::Free
    }

    /// Whether free time would do.
    pub(crate) fn is_for_free(self) -> bool {
        self != Self::Protected
    }
}

/// What of waiting jobs tells at a glance that none of them can start: a pass looks at a few cells
/// in place of thousands of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    pub(crate) waits: WaitsFor,
    pub(crate) gpus: GpuCount,
    per_node: Option<NonZero<u32>>,
    pub(crate) small: bool,
    choice: Choice,
    /// In which power of four their protection lies.
    band: u8,
}

/// Which GPUs would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Choice {
    /// Those on which they run free already.
    Own,
    /// Any of any blocks.
    Any,
    /// Those of one kind or of few blocks.
    Some,
}

impl Choice {
    fn of(job: &Job) -> Self {
        let any = job.spec.gpu_type.is_none() && job.spec.max_blocks.is_none();
        match (job.waiting_run().is_some(), any) {
            (true, _) => Self::Own,
            (false, true) => Self::Any,
            (false, false) => Self::Some,
        }
    }
}

impl Wanted {
    fn of(job: &Job, waits: WaitsFor, protect: Span, sharing: &Sharing) -> Self {
        Self {
            waits,
            gpus: job.spec.gpus,
            per_node: job.spec.gpus_per_node.and_then(|count| NonZero::new(count.0)),
            small: sharing.is_small(job.spec.gpus, job.spec.min_runtime),
            choice: Choice::of(job),
            band: protect.0.checked_ilog2().map_or(0, |log| u8::try_from(log / 2).unwrap_or(0)),
        }
    }

    /// What a job asks, if it waits for time.
    pub(crate) fn in_line(job: &Job, sharing: &Sharing) -> Option<Self> {
        let protect = job.carried.unwrap_or(job.spec.min_runtime);
        WaitsFor::of(job).map(|waits| Self::of(job, waits, protect, sharing))
    }

    /// They name GPUs on each node.
    pub(crate) fn per_node(&self) -> Option<GpuCount> {
        self.per_node.map(|count| GpuCount(count.get()))
    }

    /// Without the rights of a small job.
    pub(crate) fn ordinary(self) -> Self {
        Self { small: false, ..self }
    }

    /// They run free already and ask for no other GPUs.
    pub(crate) fn runs(&self) -> bool {
        self.choice == Choice::Own
    }

    /// They take any GPUs of any blocks.
    pub(crate) fn is_plain(&self) -> bool {
        self.choice == Choice::Any
    }

    /// None of its jobs wants to be protected for less.
    pub(crate) fn least_protection(&self) -> Span {
        let least = 1_u64.checked_shl(u32::from(self.band).saturating_mul(2));
        if self.band == 0 { Span::ZERO } else { Span(least.unwrap_or(u64::MAX)) }
    }
}

impl Waiting {
    /// Whether anybody waits for protected time.
    pub(crate) fn any_protected(&self) -> bool {
        self.leaves.values().any(|leaf| leaf.protected > 0)
    }

    pub(super) fn insert(&mut self, job: &Job, waits: WaitsFor, sharing: &Sharing) {
        let leaf = Arc::make_mut(self.leaves.entry(job.account).or_default());
        let protect = protection(job);
        let cell = Wanted::of(job, waits, protect, sharing);
        if waits.is_for_protected() {
            one_more(leaf.asks_of(&cell), ask(&cell, protect));
        }
        leaf.protected = leaf.protected.saturating_add(waits.is_for_protected().into());
        leaf.free = leaf.free.saturating_add(waits.is_for_free().into());
        one_more(&mut leaf.cells, cell);
        let user = Arc::make_mut(leaf.users.entry(job.user).or_default());
        user.insert(wish(job, cell), protect);
        leaf.oldest = Some(leaf.oldest.map_or(job.id, |oldest| oldest.min(job.id)));
    }

    pub(super) fn remove(&mut self, job: &Job, waits: WaitsFor, sharing: &Sharing) {
        let Some(leaf) = self.leaves.get_mut(&job.account).map(Arc::make_mut) else { return };
        let Some(user) = leaf.users.get_mut(&job.user).map(Arc::make_mut) else { return };
        let protect = protection(job);
        let cell = Wanted::of(job, waits, protect, sharing);
        if !user.remove(&wish(job, cell)) {
            return;
        }
        if user.wishes.is_empty() {
            leaf.users.remove(&job.user);
        }
        if leaf.oldest == Some(job.id) {
            leaf.oldest = leaf.users.values().filter_map(|user| user.oldest()).min();
        }
        if waits.is_for_protected() {
            one_less(leaf.asks_of(&cell), ask(&cell, protect));
        }
        leaf.protected = leaf.protected.saturating_sub(waits.is_for_protected().into());
        leaf.free = leaf.free.saturating_sub(waits.is_for_free().into());
        one_less(&mut leaf.cells, cell);
        if leaf.users.is_empty() {
            self.leaves.remove(&job.account);
        }
    }
}

/// How long the job is to be protected when it starts.
fn protection(job: &Job) -> Span {
    job.carried.unwrap_or(job.spec.min_runtime)
}

pub(super) fn one_more<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}

pub(super) fn one_less<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() = count.get().saturating_sub(1);
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// More than fits is more than any budget.
fn ask(cell: &Wanted, protect: Span) -> u64 {
    u64::try_from(cell.gpus.held_for(protect).0).unwrap_or(u64::MAX)
}

fn wish(job: &Job, wanted: Wanted) -> Wish {
    Wish { wanted, own_order: job.spec.own_order, job: job.id }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On 64 bits. A job of more than 520 bytes takes 16 more in most allocators, and 100,000 wait.
    #[test]
    fn what_there_is_of_every_waiting_job_is_small() {
        assert!(size_of::<Job>() <= 520, "{}", size_of::<Job>());
        assert!(size_of::<(Wish, Span)>() <= 32, "{}", size_of::<(Wish, Span)>());
    }

    #[test]
    fn the_oldest_is_who_was_submitted_first_in_whatever_order_jobs_come_and_go() {
        let wanted = Wanted {
            waits: WaitsFor::Free,
            gpus: GpuCount(1),
            per_node: None,
            small: true,
            choice: Choice::Any,
            band: 0,
        };
        let wish = |job| Wish { wanted, own_order: 0, job: JobId(job) };
        let mut queue = UserQueue::default();
        for job in [7, 9, 3, 8] {
            queue.insert(wish(job), Span::ZERO);
        }
        let mut check = |leaves: u64, expected: Option<u64>| {
            assert!(queue.remove(&wish(leaves)));
            assert_eq!(queue.oldest(), expected.map(JobId), "{leaves} has left");
        };
        check(8, Some(3));
        check(3, Some(7));
        check(7, Some(9));
        check(9, None);
    }
}
