//! Decisions about one job in sentences, with the rule and its numbers.

use scheduler_core::{Books, Decision, Outcome, SaveReason};
use tidegate_model::{JobId, NodeId};

use tidegate_model::rfc3339_ms;

/// What was decided, if it is about the job and says where it is. `books` hold it already.
pub(crate) fn about(books: &Books, job: JobId, decision: &Decision) -> Option<String> {
    if decision.attempt().is_some_and(|attempt| attempt.job == job) {
        return of_attempt(books, decision);
    }
    let (whose, told) = of_job(decision)?;
    (whose == job).then_some(told)
}

/// Why an attempt is asked to save and leave.
pub(crate) fn save_reason(books: &Books, why: SaveReason) -> String {
    match why {
        SaveReason::Displaced { by, grounds } => {
            let user = books.jobs.get(&by.job).map(|job| format!(" of {}", job.user));
            format!("{by}{} has its GPUs: {grounds}", user.unwrap_or_default())
        }
        SaveReason::Drained { node } => format!("{} takes no work", node_name(books, node)),
        SaveReason::Rehearsed => "it is rehearsed".to_owned(),
    }
}

/// How an attempt ended.
pub(crate) fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Failed => "failed",
        Outcome::Unsaved => "ended by the scheduler, with no commit known of it",
        Outcome::Lost => "lost with its node or its processes",
        Outcome::Saved => "saved as it was asked to",
        Outcome::Unknown => "left as it was asked to, with no commit known of it",
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the others are steps of one task, or no stop")]
fn of_attempt(books: &Books, decision: &Decision) -> Option<String> {
    let id = decision.attempt()?;
    Some(match decision {
        Decision::AttemptPlanned { places, terms, .. } => {
            let gpus: usize = places.iter().map(|place| place.gpus.len()).sum();
            let mut nodes: Vec<_> = places.iter().map(|place| place.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let standing = terms.standing;
            match nodes.as_slice() {
                [one] => format!("{id} got {gpus} GPUs of {}, {standing}", node_name(books, *one)),
                nodes => format!("{id} got {gpus} GPUs of {} nodes, {standing}", nodes.len()),
            }
        }
        Decision::AttemptRunning(_) => format!("{id}: all its tasks ran"),
        Decision::StandingChanged { at, to, promised_until, .. } => {
            let until = promised_until.map(|until| format!(" until {}", rfc3339_ms(until)));
            format!("{id} stood {to}{} from {}", until.unwrap_or_default(), rfc3339_ms(*at))
        }
        Decision::SaveOrdered { why, .. } => {
            format!("{id} was asked to save and leave: {}", save_reason(books, *why))
        }
        Decision::SaveWithdrawn(_) => format!("{id}: the request to save was taken back"),
        Decision::SaveTold(_) => format!("{id} was told to save, before its turn to write"),
        Decision::SaveAdmitted { .. } => format!("{id} was let save"),
        Decision::CheckpointCommitted { commit, .. } => {
            format!("{id} committed step {}", commit.step)
        }
        Decision::StopOrdered { why, .. } => format!("{id} was stopped because {why}"),
        Decision::TaskEnded { task, exit, .. } if !exit.is_success() => {
            let node = books.task(*task).map(|task| node_name(books, task.place.node));
            format!("{task} on {} ended with {exit}", node.unwrap_or_default())
        }
        Decision::AttemptEnded { outcome: how, .. } => format!("{id} ended: {}", outcome(*how)),
        _ => return None,
    })
}

#[allow(clippy::wildcard_enum_match_arm, reason = "the others are about no job")]
fn of_job(decision: &Decision) -> Option<(JobId, String)> {
    Some(match decision {
        Decision::JobAccepted { job, user, .. } => (*job, format!("submitted by {user}")),
        Decision::JobCancelled { job, by } => (*job, format!("cancelled by {by}")),
        Decision::RehearsalJudged { shown, .. } => (shown.job, format!("rehearsal: {shown}")),
        Decision::JobRequeued { job, not_before, own_failure, .. } => {
            let why = if *own_failure { "after a failure of its own" } else { "in its place" };
            (*job, format!("in the queue again {why}, not before {}", rfc3339_ms(*not_before)))
        }
        Decision::JobEnded { job, outcome } => {
            (*job, format!("over: {}", format!("{outcome:?}").to_lowercase()))
        }
        Decision::JobParked { job, why } => (*job, format!("parked: {why}")),
        Decision::JobUnparked { job, by } => (*job, format!("released by {by}")),
        Decision::ElderNamed { job, at } => {
            (*job, format!("elder of its account from {}", rfc3339_ms(*at)))
        }
        Decision::ElderAllowed { job, by } => (*job, format!("{by} let it become an elder")),
        Decision::ReservationMade { job, nodes, at, pledge } => {
            let (nodes, at) = (nodes.len(), rfc3339_ms(*at));
            let pledge = format!("{pledge} GPU-hours set aside");
            (*job, format!("a firm reservation of {nodes} nodes from {at} on, {pledge}"))
        }
        Decision::ReservationMoved { job, at, cause, .. } => {
            (*job, format!("its reservation moved to {}: {cause}", rfc3339_ms(*at)))
        }
        Decision::ReservationDropped { job, by } => {
            (*job, format!("its reservation was dropped by {by}"))
        }
        _ => return None,
    })
}

fn node_name(books: &Books, id: NodeId) -> String {
    let name = books.node_name(id);
    name.map_or_else(|| "a node since removed".to_owned(), ToString::to_string)
}
