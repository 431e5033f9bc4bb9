//! Nodes and their drains.

use scheduler_core::{Books, Node, NodeState, Standing};
use tidegate_model::{AttemptId, NodeName, TaskSeen, Timestamp};
use tidegate_proto::v1;

use crate::view::View;

/// A node as readers see it.
pub(crate) fn node(view: &View, node: &Node) -> v1::NodeView {
    let times = node.drain.as_ref().and_then(|_| view.core.drain_times(view.at, node.id));
    let books = view.core.books();
    let seen = view.core.seen().node(node.id).map(|seen| &seen.tasks).into_iter().flatten();
    let unknown = seen
        .filter(|(task, state)| books.task(**task).is_none() && !matches!(state, TaskSeen::Gone))
        .map(|(task, _)| task.to_string());
    v1::NodeView {
        node: node.name.to_string(),
        id: node.id.to_string(),
        state: view.core.node_state(view.at, node.id).map_or(0, |state| node_state(state).into()),
        gpus: node.facts.gpus.iter().cloned().map(Into::into).collect(),
        idle: u32::try_from(node.idle().count()).unwrap_or(u32::MAX),
        gpu_note: node.facts.gpu_note.clone(),
        closed: node.facts.closed.clone(),
        address: node.facts.address.clone(),
        block: node.facts.block.clone(),
        reason: node.drain.as_ref().map(|drain| drain.reason.clone()).unwrap_or_default(),
        owner_uid: node.drain.as_ref().map(|drain| drain.by.0),
        since_ms: node.drain.as_ref().map(|drain| drain.since.0),
        unknown_tasks: unknown.collect(),
        tasks: node.tasks.iter().map(ToString::to_string).collect(),
        wanted_by_ms: node.drain.as_ref().and_then(|drain| drain.wanted_by).map(|at| at.0),
        saves_from_ms: times.map(|times| times.saves_from.0),
        empty_by_ms: times.map(|times| times.empty_by.0),
    }
}

fn node_state(state: NodeState) -> v1::NodeState {
    match state {
        NodeState::Unconfirmed => v1::NodeState::Unconfirmed,
        NodeState::Ready => v1::NodeState::Ready,
        NodeState::Draining => v1::NodeState::Draining,
        NodeState::Drained => v1::NodeState::Drained,
        NodeState::Closed => v1::NodeState::Closed,
        NodeState::Unreachable => v1::NodeState::Unreachable,
    }
}

/// What a drain has to wait for.
pub(crate) fn drain(view: &View, name: &NodeName, wanted_by: Option<Timestamp>) -> v1::DrainReply {
    let books = view.core.books();
    let Some(node) = books.node_named(name) else { return v1::DrainReply::default() };
    let times = view.core.drain_times(view.at, node.id);
    let mut attempts: Vec<AttemptId> = node.tasks.iter().map(|task| task.attempt).collect();
    attempts.dedup();
    let beyond = attempts.into_iter().filter_map(|id| {
        let until = protected_until(books, id, view.at)?;
        let uid = books.jobs.get(&id.job)?.user.0;
        let late = wanted_by.is_some_and(|by| until > by);
        let attempt = id.to_string();
        late.then_some(v1::ProtectedAttempt { attempt, uid, until_ms: until.0 })
    });
    v1::DrainReply {
        tasks_left: u32::try_from(node.tasks.len()).unwrap_or(u32::MAX),
        saves_from_ms: times.map_or(view.at.0, |times| times.saves_from.0),
        empty_by_ms: times.map_or(view.at.0, |times| times.empty_by.0),
        protected_beyond: beyond.collect(),
    }
}

/// Until when an attempt is protected, if it is: one that starts, at the latest.
fn protected_until(books: &Books, id: AttemptId, now: Timestamp) -> Option<Timestamp> {
    let attempt = books.attempt(id).filter(|one| one.standing == Standing::Protected)?;
    let latest = || {
        let ready = attempt.ready.unwrap_or(now);
        ready.plus(books.policy.start_timeout).plus(attempt.terms.protect)
    };
    Some(attempt.promised_until.unwrap_or_else(latest))
}
