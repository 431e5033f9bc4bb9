//! Who starts next: first come, all or nothing, nobody past an earlier job that could be served.

use tidegate_model::{AttemptId, Timestamp};

use crate::books::{Books, Job, JobState};
use crate::decide::gang::{self, Ask, Offer};
use crate::decision::Decision;
use crate::observations::{NodeState, Observations};

/// The next gang to be placed, if one can be.
pub(crate) fn next(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    if books.pending_jobs() == 0 {
        return None;
    }
    let offers = idle_offers(books, seen, now);
    for job in books.queue().filter(|job| is_due(job, now)) {
        if let Some(places) = gang::place(books, ask(job), &offers) {
            let number = u32::try_from(job.attempts.len()).ok()?.checked_add(1)?;
            let attempt = AttemptId { job: job.id, number };
            return Some(Decision::AttemptPlanned { attempt, places });
        }
        if waits_for_ends(books, job, &offers) {
            return None;
        }
    }
    None
}

fn ask(job: &Job) -> Ask<'_> {
    Ask { user: job.user, spec: &job.spec }
}

/// Whether the end of work alone would let the job start. Such a job holds up those behind it;
/// one that needs a node back does not.
pub(crate) fn waits_for_ends(books: &Books, job: &Job, offers: &[Offer<'_>]) -> bool {
    let emptied: Vec<_> = offers
        .iter()
        .map(|offer| Offer { node: offer.node, gpus: gang::size(offer.node) })
        .collect();
    gang::choose_nodes(books, ask(job), &emptied).is_some()
}

pub(crate) fn is_due(job: &Job, now: Timestamp) -> bool {
    match job.state {
        JobState::Pending { not_before } => not_before <= now,
        JobState::Active { .. } | JobState::Ended { .. } => false,
    }
}

/// The nodes that take work, with their idle GPUs.
pub(crate) fn idle_offers<'books>(
    books: &'books Books,
    seen: &Observations,
    now: Timestamp,
) -> Vec<Offer<'books>> {
    let ready = books
        .nodes
        .values()
        .filter(|node| seen.state(node, books.policy.silent_after, now) == NodeState::Ready);
    ready
        .map(|node| Offer { node, gpus: u32::try_from(node.idle().count()).unwrap_or(u32::MAX) })
        .collect()
}
