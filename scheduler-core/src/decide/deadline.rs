//! What time alone brings: silence, start timeouts, the end of a back-off, forgetting.

use tidegate_model::{AttemptId, JobId};

use crate::core::Turn;
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
    let timeout = books.policy.start_timeout;
    let late =
        books.index.starting.iter().take_while(|(planned, _)| now.since(*planned) >= timeout);
    let silent = books.nodes.values().filter(|node| {
        let state = turn.seen().state(node, books.policy.silent_after, now);
        state == NodeState::Unreachable
    });
    let on_silent = silent.flat_map(|node| &node.tasks).map(|task| task.attempt);
    late.map(|(_, attempt)| *attempt).chain(on_silent).collect()
}

fn forgettable(turn: &Turn<'_>) -> Vec<JobId> {
    let (books, now) = (turn.books(), turn.now());
    let kept = books.policy.keep_ended;
    let due = books.index.ended.iter().take_while(|(ended, _)| now.since(*ended) >= kept);
    let idle = |job: &JobId| books.jobs.get(job).is_some_and(|job| !job.has_live_attempt());
    due.map(|(_, job)| *job).filter(idle).take(FORGET_AT_ONCE).collect()
}
