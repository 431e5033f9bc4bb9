//! Waiting jobs by what they ask, so that a pass skips in one look what cannot start.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{GpuCount, JobId, Span, Timestamp, UserId};

use crate::accounts::AccountId;
use crate::books::Job;
use crate::policy::Sharing;

/// Where a job stands among those of its user in one account: own order, submit time, id.
pub(crate) type Place = (i32, Timestamp, JobId);

/// Jobs that wait for time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Waiting {
    /// By account.
    pub(crate) leaves: BTreeMap<AccountId, LeafQueue>,
}

/// Jobs that wait in one account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LeafQueue {
    /// By user.
    pub(crate) users: BTreeMap<UserId, UserQueue>,
    /// Whose job was submitted first: it breaks ties between accounts.
    pub(crate) oldest: Option<(Timestamp, JobId)>,
    /// GPU-milliseconds of protected time asked, small jobs apart, and by how many.
    pub(crate) asks: BTreeMap<(bool, u64), u32>,
    /// How many wait for protected time, and for how many free time would do.
    pub(crate) protected: u32,
    pub(crate) free: u32,
    /// What is asked for, and by how many.
    pub(crate) cells: BTreeMap<Wanted, u32>,
}

/// Jobs of one user that wait in one account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct UserQueue {
    /// How long each wants to be protected, by what it asks for and its place.
    pub(crate) wishes: BTreeMap<(Wanted, Place), Span>,
    /// All, by submit time: the first breaks ties between users.
    pub(crate) submits: BTreeSet<(Timestamp, JobId)>,
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
    /// They name GPUs on each node.
    pub(crate) per_node: Option<GpuCount>,
    pub(crate) small: bool,
    /// They run free already and ask for no other GPUs.
    pub(crate) runs: bool,
    /// They take any GPUs of any blocks.
    pub(crate) plain: bool,
    /// In which power of four their protection lies.
    band: u8,
}

impl Wanted {
    fn of(job: &Job, waits: WaitsFor, protect: Span, sharing: &Sharing) -> Self {
        Self {
            waits,
            gpus: job.spec.gpus,
            per_node: job.spec.gpus_per_node,
            small: sharing.is_small(job.spec.gpus, job.spec.min_runtime),
            runs: job.waiting_run().is_some(),
            plain: job.spec.gpu_type.is_none() && job.spec.max_blocks.is_none(),
            band: protect.0.checked_ilog2().map_or(0, |log| u8::try_from(log / 2).unwrap_or(0)),
        }
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
        let leaf = self.leaves.entry(job.account).or_default();
        let protect = protection(job);
        let cell = Wanted::of(job, waits, protect, sharing);
        if waits.is_for_protected() {
            one_more(&mut leaf.asks, (cell.small, ask(&cell, protect)));
        }
        leaf.protected = leaf.protected.saturating_add(waits.is_for_protected().into());
        leaf.free = leaf.free.saturating_add(waits.is_for_free().into());
        one_more(&mut leaf.cells, cell);
        let user = leaf.users.entry(job.user).or_default();
        user.wishes.insert((cell, place(job)), protect);
        let submit = (job.submitted, job.id);
        user.submits.insert(submit);
        leaf.oldest = Some(leaf.oldest.map_or(submit, |oldest| oldest.min(submit)));
    }

    pub(super) fn remove(&mut self, job: &Job, waits: WaitsFor, sharing: &Sharing) {
        let Some(leaf) = self.leaves.get_mut(&job.account) else { return };
        let Some(user) = leaf.users.get_mut(&job.user) else { return };
        let protect = protection(job);
        let cell = Wanted::of(job, waits, protect, sharing);
        if user.wishes.remove(&(cell, place(job))).is_none() {
            return;
        }
        let submit = (job.submitted, job.id);
        user.submits.remove(&submit);
        if user.wishes.is_empty() {
            leaf.users.remove(&job.user);
        }
        if leaf.oldest == Some(submit) {
            let first = leaf.users.values().filter_map(|user| user.submits.first().copied());
            leaf.oldest = first.min();
        }
        if waits.is_for_protected() {
            one_less(&mut leaf.asks, (cell.small, ask(&cell, protect)));
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

fn place(job: &Job) -> Place {
    (job.spec.own_order, job.submitted, job.id)
}
