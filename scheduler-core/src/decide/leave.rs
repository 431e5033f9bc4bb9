//! Who has to leave: drains, and requests whose cause is gone. When it may save is the gate's
//! (`decide::gate`).

use tidegate_model::{AttemptId, NodeId, Timestamp};

use crate::books::{Attempt, Books, Job, SaveOrder};
use crate::decide::published;
use crate::decide::spots::{Backlog, save_grace, start_limit, yields_at};
use crate::decision::{Decision, SaveReason};

/// The next request to leave, or withdrawal.
pub(crate) fn next(books: &Books) -> Option<Decision> {
    drained(books).or_else(|| withdrawn(books, &Asked::all(books)))
}

/// An attempt that is asked to save and is not told to stop.
struct Asked<'books> {
    id: AttemptId,
    save: SaveOrder,
    /// For whom it leaves, if for a start.
    heir: Option<&'books Attempt>,
}

impl<'books> Asked<'books> {
    /// In the order of the requests.
    fn all(books: &'books Books) -> Vec<Self> {
        let mut asked: Vec<Self> = Vec::with_capacity(books.index.saving.len());
        for (_, id) in &books.index.saving {
            let Some(save) = books.attempt(*id).and_then(|attempt| attempt.save) else { continue };
            // All whom one gang displaces stand together.
            let alike = asked.last().filter(|last| last.save.why.heir() == save.why.heir());
            let heir = match alike {
                Some(last) => last.heir,
                None => save.why.heir().and_then(|by| books.attempt(by)),
            };
            asked.push(Self { id: *id, save, heir });
        }
        asked
    }

    fn is_unsaid(&self) -> bool {
        self.save.said().is_none()
    }
}

impl SaveReason {
    fn heir(self) -> Option<AttemptId> {
        match self {
            Self::Displaced { by, .. } => Some(by),
            Self::Drained { .. } | Self::Rehearsed => None,
        }
    }
}

/// On a node that takes no work, who is not protected is asked at once.
fn drained(books: &Books) -> Option<Decision> {
    let drained = books.index.drained.iter().filter_map(|node| books.nodes.get(node));
    drained.flat_map(|node| node.tasks.iter().map(move |task| (node.id, task))).find_map(
        |(node, task)| {
            let attempt = books.attempt(task.attempt)?;
            // What does not run yet is stopped as a plan that failed.
            let leaves = attempt.is_displaceable() && attempt.running.is_some();
            let why = SaveReason::Drained { node };
            leaves.then_some(Decision::SaveOrdered { attempt: attempt.id, why })
        },
    )
}

/// A request whose cause is gone is taken back while nobody was told.
fn withdrawn(books: &Books, asked: &[Asked<'_>]) -> Option<Decision> {
    let needed = |one: &&Asked<'_>| match one.save.why {
        // It leaves for a reservation of its own.
        SaveReason::Displaced { by, .. } if by.job == one.id.job => true,
        SaveReason::Displaced { .. } => {
            one.heir.is_some_and(|heir| heir.stop.is_none() && heir.is_live())
        }
        SaveReason::Drained { node } => {
            books.nodes.get(&node).is_some_and(|node| node.drain.is_some())
        }
        SaveReason::Rehearsed => true,
    };
    let mut unsaid = asked.iter().filter(|one| one.is_unsaid());
    unsaid.find(|one| !needed(one)).map(|one| Decision::SaveWithdrawn(one.id))
}

/// Attempts that save, and when each one is stopped if it has not left.
fn graces(books: &Books) -> impl Iterator<Item = (Timestamp, AttemptId)> {
    books.index.saving.iter().filter_map(|(_, id)| {
        let (job, attempt) = books.with_job(*id)?;
        Some((left_by(books, job, attempt)?, *id))
    })
}

/// The next instant at which a saving attempt is stopped, after `now`.
pub(crate) fn next_deadline(books: &Books, now: Timestamp) -> Option<Timestamp> {
    graces(books).map(|(at, _)| at).filter(|at| *at > now).min()
}

/// Attempts that are to be stopped, as they have not left.
pub(crate) fn overdue(books: &Books, now: Timestamp) -> Vec<AttemptId> {
    graces(books).filter(|(at, _)| *at <= now).map(|(_, id)| id).collect()
}

/// When an attempt that saves has left, or is stopped.
pub(crate) fn left_by(books: &Books, job: &Job, attempt: &Attempt) -> Option<Timestamp> {
    Some(left_or(books, attempt, grace_ends(books, job, attempt)?))
}

/// The same of one whose grace is over at `ends`.
pub(crate) fn left_or(books: &Books, attempt: &Attempt, ends: Timestamp) -> Timestamp {
    stays_until(books, attempt).map_or(ends, |stays| stays.min(ends))
}

/// When who has committed what it was asked for is stopped: a job that saves and trains on holds its
/// GPUs for nothing.
pub(crate) fn stays_until(books: &Books, attempt: &Attempt) -> Option<Timestamp> {
    let committed = attempt.save?.committed?;
    Some(committed.plus(books.policy.sharing.leave_limit))
}

/// When the grace of an attempt that saves is over.
pub(crate) fn grace_ends(books: &Books, job: &Job, attempt: &Attempt) -> Option<Timestamp> {
    let admitted = attempt.save?.admitted?;
    Some(admitted.plus(save_grace(books, job, attempt)))
}

/// What a node's drain waits for: from when the last of its protected attempts may be asked to
/// save, and by when the node is empty at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainTimes {
    /// The last end of a protection there.
    pub saves_from: Timestamp,
    /// With the gate's backlog, and the grace and the time to verify of whoever takes longest.
    pub empty_by: Timestamp,
}

/// When a node that takes no work is empty: as every instant that is told "at the latest"
/// (`published`).
pub(crate) fn drain_times(books: &Books, node: NodeId, now: Timestamp) -> Option<DrainTimes> {
    let node = books.nodes.get(&node)?;
    let mut times = DrainTimes { saves_from: now, empty_by: now };
    let mut leaving: Vec<_> =
        node.tasks.iter().filter_map(|task| books.with_job(task.attempt)).collect();
    leaving.dedup_by_key(|(_, attempt)| attempt.id);
    let backlog = Backlog::of(books, now);
    for (job, attempt) in &leaving {
        let from = yields_at(attempt, start_limit(books, job), now);
        times.saves_from = times.saves_from.max(from);
        let by = published::leaves_by(books, &backlog, now, (job, attempt), &leaving);
        times.empty_by = times.empty_by.max(by);
    }
    Some(times)
}
