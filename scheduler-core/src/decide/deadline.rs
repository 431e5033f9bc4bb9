//! What time alone brings: silence, start timeouts, the end of a back-off, forgetting.

use tidegate_model::{AttemptId, JobId, Timestamp};

use crate::books::Books;
use crate::core::Turn;
use crate::decide::leave;
use crate::decide::spots::start_limit;
use crate::decision::Decision;
use crate::evolve::Broken;
use crate::observations::NodeState;

/// Most jobs forgotten in one turn, so that a turn after a long rest stays short.
const FORGET_AT_ONCE: usize = 1000;

pub(super) fn work_off(turn: &mut Turn<'_>) -> Result<(), Broken> {
    for attempt in overdue(turn) {
        turn.touch(attempt);
    }
    for job in forgettable(turn) {
        turn.take(Decision::JobForgotten(job))?;
    }
    Ok(())
}

/// Attempts that did not start in time, and those with tasks on silent nodes.
fn overdue(turn: &Turn<'_>) -> Vec<AttemptId> {
    let (books, now) = (turn.books(), turn.now());
    let late = starts(books).filter(|(at, _)| *at <= now);
    let silent = books.nodes.values().filter(|node| {
        let state = turn.seen().state(node, books.policy.silent_after, now);
        state == NodeState::Unreachable
    });
    let on_silent = silent.flat_map(|node| &node.tasks).map(|task| task.attempt);
    let saving = leave::overdue(books, now);
    late.map(|(_, attempt)| attempt).chain(on_silent).chain(saving).collect()
}

/// Attempts that have their GPUs and do not run yet, and when each is late.
fn starts(books: &Books) -> impl Iterator<Item = (Timestamp, AttemptId)> {
    books.index.starting.iter().filter_map(|(ready, id)| {
        let job = books.jobs.get(&id.job)?;
        Some((ready.plus(start_limit(books, job)), *id))
    })
}

/// The next instant after `now` at which an attempt is late to start.
pub(crate) fn next_late(books: &Books, now: Timestamp) -> Option<Timestamp> {
    starts(books).map(|(at, _)| at).filter(|at| *at > now).min()
}

fn forgettable(turn: &Turn<'_>) -> Vec<JobId> {
    let (books, now) = (turn.books(), turn.now());
    let kept = books.policy.keep_ended;
    let due = books.index.ended.iter().take_while(|(ended, _)| now.since(*ended) >= kept);
    let idle = |job: &JobId| books.jobs.get(job).is_some_and(|job| !job.has_live_attempt());
    due.map(|(_, job)| *job).filter(idle).take(FORGET_AT_ONCE).collect()
}
