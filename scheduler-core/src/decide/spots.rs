//! The nodes as a pass sees them: what is idle, what is coming, who could yield, who has a
//! reservation there.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{
    AttemptId, DecisionSeq, GpuCount, GpuUuid, JobId, NodeId, Span, TaskId, Timestamp,
};

use crate::books::{Attempt, Books, Job, Node};
use crate::decide::victims::expected_restore;
use crate::decision::Standing;
use crate::observations::{NodeState, Observations};
use crate::policy::Kind;

/// One node that takes work.
#[derive(Debug, Clone)]
pub(crate) struct Spot<'books> {
    pub(crate) node: &'books Node,
    pub(crate) kind: Kind,
    /// GPUs that nobody holds.
    pub(crate) idle: u32,
    /// GPUs whose holders are leaving, and that nobody inherits yet.
    pub(crate) coming: u32,
    /// When the last of them comes, at the latest.
    pub(crate) coming_by: Timestamp,
    /// Who holds the others, as far as nobody inherits them.
    pub(crate) occupants: Vec<Occupant<'books>>,
    /// The firm reservations that have it, the oldest first, with their instants.
    pub(crate) firm: Vec<(Timestamp, JobId)>,
    /// Expected starts that need it: from when, and until when the last of them is protected.
    pub(crate) expected: Option<(Timestamp, Timestamp)>,
    /// GPUs that this pass has given away.
    pub(crate) taken: BTreeSet<GpuUuid>,
}

/// An attempt on a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupant<'books> {
    pub(crate) job: &'books Job,
    pub(crate) attempt: &'books Attempt,
    /// Its GPUs there that nobody inherits.
    pub(crate) gpus: u32,
}

/// All nodes that take work, in order of their numbers.
pub(crate) fn spots<'books>(
    books: &'books Books,
    seen: &Observations,
    now: Timestamp,
) -> Vec<Spot<'books>> {
    let mut firm: BTreeMap<NodeId, Vec<(Timestamp, JobId)>> = BTreeMap::new();
    for (_, id) in &books.index.reservations {
        let reservation = books.jobs.get(id).and_then(|job| job.reservation.as_ref());
        for (node, _) in reservation.iter().flat_map(|one| &one.nodes) {
            let at = reservation.map_or(now, |one| one.at);
            firm.entry(*node).or_default().push((at, *id));
        }
    }
    let silent_after = books.policy.silent_after;
    let ready =
        books.nodes.values().filter(|n| seen.state(n, silent_after, now) == NodeState::Ready);
    let mut known = Residents::default();
    let firm = |node: &Node| firm.get(&node.id).cloned().unwrap_or_default();
    ready.map(|node| spot(books, (node, firm(node)), now, &mut known)).collect()
}

fn spot<'books>(
    books: &'books Books,
    (node, firm): (&'books Node, Vec<(Timestamp, JobId)>),
    now: Timestamp,
    known: &mut Residents<'books>,
) -> Spot<'books> {
    let held = u32::try_from(node.held.len()).unwrap_or(u32::MAX);
    let idle = node.size().0.saturating_sub(held);
    let mut spot = Spot {
        node,
        kind: node.kind(&books.policy),
        idle,
        coming: 0,
        coming_by: now,
        occupants: Vec::new(),
        firm,
        expected: None,
        taken: BTreeSet::new(),
    };
    for task in &node.tasks {
        let Some(resident) = known.of(books, task.attempt) else { continue };
        let gpus = unpromised(resident.attempt, node, *task);
        if gpus == 0 {
            continue;
        }
        let (job, attempt) = (resident.job, resident.attempt);
        if resident.leaving {
            spot.coming = spot.coming.saturating_add(gpus);
            spot.coming_by = spot.coming_by.max(gone_by(books, job, attempt, now));
            continue;
        }
        match spot.occupants.iter_mut().find(|one| one.attempt.id == attempt.id) {
            Some(known) => known.gpus = known.gpus.saturating_add(gpus),
            None => spot.occupants.push(Occupant { job, attempt, gpus }),
        }
    }
    spot
}

/// An attempt that has tasks on nodes, looked up once a pass: a gang is on many.
#[derive(Debug, Clone, Copy)]
struct Resident<'books> {
    job: &'books Job,
    attempt: &'books Attempt,
    leaving: bool,
}

#[derive(Debug, Default)]
struct Residents<'books> {
    known: BTreeMap<AttemptId, Option<Resident<'books>>>,
}

impl<'books> Residents<'books> {
    fn of(&mut self, books: &'books Books, id: AttemptId) -> Option<Resident<'books>> {
        *self.known.entry(id).or_insert_with(|| {
            let (job, attempt) = books.with_job(id)?;
            Some(Resident { job, attempt, leaving: is_leaving(attempt) })
        })
    }
}

/// GPUs that the task holds and nobody inherits.
fn unpromised(attempt: &Attempt, node: &Node, task: TaskId) -> u32 {
    let index = usize::try_from(task.index).unwrap_or(usize::MAX);
    let Some(entry) = attempt.tasks.get(index) else { return 0 };
    if node.heirs.is_empty() {
        return u32::try_from(entry.place.gpus.len()).unwrap_or(u32::MAX);
    }
    let own = |gpu: &&GpuUuid| node.held.get(*gpu) == Some(&task) && !node.heirs.contains_key(*gpu);
    u32::try_from(entry.place.gpus.iter().filter(own).count()).unwrap_or(u32::MAX)
}

fn is_leaving(attempt: &Attempt) -> bool {
    attempt.stop.is_some()
        || attempt.save.is_some()
        || attempt.is_broken()
        || attempt.tasks.iter().all(|task| task.exit.is_some())
}

/// When an attempt that is leaving is gone at the latest: the rest of its grace, the time between
/// TERM and KILL, then the time to verify. A request that the gate has not admitted counts its whole
/// grace from when it is at the latest.
pub(crate) fn gone_by(books: &Books, job: &Job, attempt: &Attempt, now: Timestamp) -> Timestamp {
    let grace = save_grace(books, job, attempt);
    let verify = books.policy.sharing.verify_limit;
    let since = match attempt.save {
        Some(save) => save.admitted.unwrap_or_else(|| gate_by(books, job, save.decision, now)),
        None => now,
    };
    let kill = job.spec.grace;
    since.plus(grace).plus(kill).plus(verify).max(now)
}

/// When the write gate admits a request at the latest: after whole rounds of those before it.
fn gate_by(books: &Books, job: &Job, request: DecisionSeq, now: Timestamp) -> Timestamp {
    let storage = job.spec.checkpoint.as_ref().map(|offer| &offer.storage);
    let before = books.index.saving.iter().filter_map(|(decision, id)| {
        let (other, attempt) = books.with_job(*id)?;
        let same = other.spec.checkpoint.as_ref().map(|offer| &offer.storage) == storage;
        // Of one decision all are asked at once: the smaller ids first.
        let earlier = *decision <= request && attempt.id.job != job.id;
        (same && earlier).then(|| save_grace(books, other, attempt))
    });
    let graces: Vec<_> = before.collect();
    let width = u64::from(books.policy.sharing.gate_width.max(1));
    let rounds = u64::try_from(graces.len()).unwrap_or(u64::MAX) / width;
    let longest = graces.into_iter().max().unwrap_or(Span::ZERO);
    now.plus(Span(longest.0.saturating_mul(rounds)))
}

/// The time an attempt has from the request to its end.
pub(crate) fn save_grace(books: &Books, job: &Job, attempt: &Attempt) -> Span {
    let free_grace = books.policy.sharing.free_grace;
    match &job.spec.checkpoint {
        None => Span::ZERO,
        Some(offer) if attempt.was_protected() => offer.grace,
        Some(offer) => offer.grace.min(free_grace),
    }
}

impl<'books> Spot<'books> {
    /// What is idle, coming, or held by those of whom `yields` holds.
    pub(crate) fn with(&self, yields: impl Fn(&Attempt) -> bool) -> u32 {
        let yielding = self.occupants.iter().filter(|one| yields(one.attempt));
        let sum = self.idle.saturating_add(self.coming);
        yielding.map(|one| one.gpus).fold(sum, u32::saturating_add)
    }

    /// Everything that is not protected and not promised to another.
    pub(crate) fn most(&self) -> u32 {
        self.with(Attempt::is_displaceable)
    }

    /// What is idle, coming, or in the hands of free work.
    pub(crate) fn without_funded(&self) -> u32 {
        self.with(|one| one.is_displaceable() && one.standing == Standing::Free)
    }

    /// Whether protected work of `claimant` that may last until `until` may go here: nobody goes
    /// past a firm reservation that is older than its own, nor past an expected start.
    pub(crate) fn admits(&self, claimant: JobId, until: Timestamp) -> bool {
        self.before_firm(claimant, until) && self.expected.is_none_or(|(at, _)| until <= at)
    }

    pub(crate) fn before_firm(&self, claimant: JobId, until: Timestamp) -> bool {
        let older = self.firm.iter().take_while(|(_, of)| *of != claimant);
        older.map(|(at, _)| *at).all(|at| until <= at)
    }

    /// When all that could yield here has left at the latest, if it were asked now.
    pub(crate) fn emptied_by(&self, books: &Books, now: Timestamp) -> Timestamp {
        let yields = self.occupants.iter().filter(|one| one.attempt.is_displaceable());
        let gone = yields.map(|one| gone_by(books, one.job, one.attempt, now));
        gone.chain([self.coming_by]).max().unwrap_or(now)
    }

    /// When `wanted` GPUs of it are to be had by a firm reservation, at the latest.
    pub(crate) fn firm_instant(
        &self,
        books: &Books,
        job: JobId,
        wanted: GpuCount,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let mut known: Vec<(Timestamp, u32)> =
            vec![(now, self.idle), (self.coming_by, self.coming)];
        for one in &self.occupants {
            let start = start_limit(books, one.job);
            known.push((yields_at(one.attempt, start, now), one.gpus));
        }
        let own = first_enough(&mut known, wanted.0)?;
        // Older ones go first, each after those before it: it starts, runs its min runtime, and
        // then yields.
        let older = self.firm.iter().take_while(|(_, of)| *of != job);
        let ends = older.filter_map(|(at, of)| {
            let older = books.jobs.get(of)?;
            let grace = older.spec.checkpoint.as_ref().map_or(Span::ZERO, |one| one.grace);
            let start = start_limit(books, older);
            let runs = older.spec.min_runtime.0.saturating_add(start.0).saturating_add(grace.0);
            Some(at.plus(Span(runs)))
        });
        Some(ends.max().map_or(own, |ends| own.max(ends)))
    }

    /// GPUs of the node for a new task: idle ones, then those that are coming, then victims'.
    pub(crate) fn gpus(
        &self,
        books: &Books,
        wanted: u32,
        victims: &BTreeSet<AttemptId>,
    ) -> Vec<GpuUuid> {
        let class = |gpu: &GpuUuid| match self.node.held.get(gpu) {
            None if self.taken.contains(gpu) => None,
            None => Some(0_u8),
            Some(_) if self.node.heirs.contains_key(gpu) => None,
            Some(task) => match books.attempt(task.attempt) {
                Some(holder) if is_leaving(holder) => Some(1),
                Some(_) if victims.contains(&task.attempt) => Some(2),
                Some(_) | None => None,
            },
        };
        let all = self.node.facts.gpus.iter();
        let mut usable: Vec<_> =
            all.filter_map(|gpu| Some((class(&gpu.uuid)?, &gpu.uuid))).collect();
        usable.sort_by_key(|(class, _)| *class);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        usable.into_iter().take(wanted).map(|(_, gpu)| gpu.clone()).collect()
    }
}

/// From the instant an attempt has its GPUs to all its tasks running: the policy's limit, or twice
/// what the job took to start the last time, its restore included.
pub(crate) fn start_limit(books: &Books, job: &Job) -> Span {
    let restore = expected_restore(job);
    books.policy.start_timeout.max(Span(restore.0.saturating_mul(2)))
}

/// When an attempt may be displaced by a firm reservation.
pub(crate) fn yields_at(attempt: &Attempt, start_timeout: Span, now: Timestamp) -> Timestamp {
    match (attempt.standing, attempt.promised_until) {
        (Standing::Protected, Some(until)) => until.max(now),
        (Standing::Protected, None) => {
            let ready = attempt.ready.unwrap_or(now);
            ready.plus(start_timeout).plus(attempt.terms.protect).max(now)
        }
        (Standing::Funded | Standing::Free, _) => now,
    }
}

/// The instant by which `wanted` GPUs have come.
pub(crate) fn first_enough(known: &mut [(Timestamp, u32)], wanted: u32) -> Option<Timestamp> {
    known.sort_unstable();
    let mut have = 0_u32;
    known.iter().find_map(|(at, gpus)| {
        have = have.saturating_add(*gpus);
        (have >= wanted).then_some(*at)
    })
}
