//! What follows for one attempt, and for its job when the attempt is over.

use tidegate_model::{AttemptId, TaskExit, Timestamp};

use crate::books::{Attempt, Books, Job, JobState};
use crate::decision::{Decision, JobOutcome, Outcome, StopReason};
use crate::observations::{NodeState, Observations};

/// The next decision about the attempt or its job, if one is due.
pub(crate) fn next(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    id: AttemptId,
) -> Option<Decision> {
    let job = books.jobs.get(&id.job)?;
    let attempt = job.attempt(id.number)?;
    if attempt.is_live()
        && let Some(decision) = next_of_gang(books, now, job, attempt)
    {
        return Some(decision);
    }
    let newest = job.state == JobState::Active { attempt: id.number };
    if newest { next_of_job(books, seen, now, job, attempt) } else { None }
}

fn next_of_gang(books: &Books, now: Timestamp, job: &Job, attempt: &Attempt) -> Option<Decision> {
    let id = attempt.id;
    if attempt.tasks.iter().all(|task| task.released) {
        return Some(Decision::AttemptEnded { attempt: id, outcome: outcome(attempt) });
    }
    let all_ended = attempt.tasks.iter().all(|task| task.exit.is_some());
    if attempt.stop.is_some() || all_ended {
        return None;
    }
    let timeout = books.policy.start_timeout;
    let late = attempt.running.is_none() && now.since(attempt.planned) >= timeout;
    let stop = |why| Some(Decision::StopOrdered { attempt: id, why });
    if job.cancelled_by.is_some() {
        stop(StopReason::Cancelled)
    } else if attempt.is_broken() {
        stop(StopReason::GangBroken)
    } else if late {
        stop(StopReason::StartTimeout)
    } else if attempt.granted.is_none() {
        let prepared = attempt.tasks.iter().all(|task| task.port.is_some());
        prepared.then_some(Decision::AttemptGranted(id))
    } else {
        // A task that is already done has run, though its start was never seen.
        let ran = attempt.tasks.iter().all(|task| task.started || task.exit.is_some());
        (attempt.running.is_none() && ran).then_some(Decision::AttemptRunning(id))
    }
}

/// How an attempt ended whose tasks have all ended, or are out of reach.
fn outcome(attempt: &Attempt) -> Outcome {
    let by_us = attempt.stop.is_some_and(|stop| match stop.why {
        StopReason::Cancelled | StopReason::StartTimeout => true,
        StopReason::GangBroken => false,
    });
    match attempt.breaker().map(|(_, task)| &task.exit) {
        _ if by_us => Outcome::Unsaved,
        Some(Some(TaskExit::Lost(_))) => Outcome::Lost,
        Some(_) => Outcome::Failed,
        None => Outcome::Done,
    }
}

fn next_of_job(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    job: &Job,
    attempt: &Attempt,
) -> Option<Decision> {
    let outcome = match attempt.ended {
        Some((_, outcome)) => outcome,
        // A gang is over when one task is lost or failed. Where a silent node keeps the rest, the
        // job does not wait for it: what still runs there is told to stop when the node returns.
        None if only_silent_nodes_hold(books, seen, now, attempt) => outcome(attempt),
        None => return None,
    };
    let end = |outcome| Some(Decision::JobEnded { job: job.id, outcome });
    let own_failure = match outcome {
        Outcome::Done => return end(JobOutcome::Done),
        Outcome::Failed => true,
        Outcome::Unsaved | Outcome::Lost => false,
    };
    if job.cancelled_by.is_some() {
        // Nothing of a cancelled job may be left behind a silent node and called ended.
        return if attempt.is_live() { None } else { end(JobOutcome::Cancelled) };
    }
    if own_failure && job.failures >= job.spec.max_restarts {
        return end(JobOutcome::Failed);
    }
    let lasted = attempt.running.is_some_and(|at| now.since(at) >= books.policy.steady_after);
    let streak = if lasted { 1 } else { job.streak.saturating_add(1) };
    // Lost hardware is no fault of the job: its first restart comes at once.
    let exponent = if own_failure { streak } else { streak.saturating_sub(1) };
    let not_before = now.plus(books.policy.backoff(exponent));
    Some(Decision::JobRequeued { job: job.id, not_before, own_failure, streak })
}

fn only_silent_nodes_hold(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    attempt: &Attempt,
) -> bool {
    let silent = |id| {
        books.nodes.get(&id).is_some_and(|node| {
            seen.state(node, books.policy.silent_after, now) == NodeState::Unreachable
        })
    };
    let mut left = attempt.tasks.iter().filter(|task| !task.released).peekable();
    let over = attempt.stop.is_some() || attempt.is_broken();
    over && left.peek().is_some() && left.all(|task| silent(task.place.node))
}
