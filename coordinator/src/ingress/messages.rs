//! Views as messages.

use scheduler_core::{
    Attempt, AttemptState, Explanation, Job, JobOutcome, JobState, Node, NodeState, Outcome,
    Reason, Task,
};
use tidegate_model::{NodeId, TaskSeen};
use tidegate_proto::v1;

use crate::view::View;

pub(super) fn job(view: &View, job: &Job) -> v1::JobView {
    let ended_ms = match job.state {
        JobState::Ended { at, .. } => Some(at.0),
        JobState::Pending { .. } | JobState::Active { .. } => None,
    };
    v1::JobView {
        job: job.id.to_string(),
        uid: job.user.0,
        spec: Some(job.spec.clone().into()),
        state: job_state(job.state).into(),
        submitted_ms: job.submitted.0,
        ended_ms,
        attempts: job.attempts.iter().map(|attempt| attempt_view(view, attempt)).collect(),
        cancel_requested: job.cancelled_by.is_some(),
        reason: String::new(),
    }
}

/// The one line of [`Explanation`] for lists.
pub(super) fn reason_line(explanation: &Explanation) -> String {
    let line = explanation.lines.first().map(String::as_str).unwrap_or_default();
    format!("{}: {line}", reason(explanation.reason))
}

pub(super) fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::AwaitingTurn => "AwaitingTurn",
        Reason::AwaitingNodes => "AwaitingNodes",
        Reason::AwaitingRestart => "AwaitingRestart",
        Reason::Unsatisfiable => "Unsatisfiable",
        Reason::Starting => "Starting",
        Reason::Running => "Running",
        Reason::Stopping => "Stopping",
        Reason::Ended => "Ended",
    }
}

fn job_state(state: JobState) -> v1::JobState {
    match state {
        JobState::Pending { .. } => v1::JobState::Pending,
        JobState::Active { .. } => v1::JobState::Active,
        JobState::Ended { outcome: JobOutcome::Done, .. } => v1::JobState::Done,
        JobState::Ended { outcome: JobOutcome::Failed, .. } => v1::JobState::Failed,
        JobState::Ended { outcome: JobOutcome::Cancelled, .. } => v1::JobState::Cancelled,
    }
}

fn attempt_state(state: AttemptState) -> v1::AttemptState {
    match state {
        AttemptState::Planned => v1::AttemptState::Planned,
        AttemptState::Granted => v1::AttemptState::Granted,
        AttemptState::Starting => v1::AttemptState::Starting,
        AttemptState::Running => v1::AttemptState::Running,
        AttemptState::Stopping => v1::AttemptState::Stopping,
        AttemptState::Verifying => v1::AttemptState::Verifying,
        AttemptState::Ended(Outcome::Done) => v1::AttemptState::Done,
        AttemptState::Ended(Outcome::Failed) => v1::AttemptState::Failed,
        AttemptState::Ended(Outcome::Unsaved) => v1::AttemptState::Unsaved,
        AttemptState::Ended(Outcome::Lost) => v1::AttemptState::Lost,
    }
}

fn attempt_view(view: &View, attempt: &Attempt) -> v1::AttemptView {
    let tasks = attempt.tasks().map(|(id, task)| v1::TaskView {
        task: id.to_string(),
        node: node_name(view, task.place.node),
        gpus: task.place.gpus.iter().map(ToString::to_string).collect(),
        state: task_state(task),
    });
    v1::AttemptView {
        attempt: attempt.id.to_string(),
        state: attempt_state(attempt.state()).into(),
        planned_ms: attempt.planned.0,
        running_ms: attempt.running.map(|at| at.0),
        ended_ms: attempt.ended.map(|(at, _)| at.0),
        why: attempt.why_over(view.core.books()).unwrap_or_default(),
        tasks: tasks.collect(),
    }
}

fn task_state(task: &Task) -> String {
    match &task.exit {
        Some(exit) if task.released => exit.to_string(),
        Some(exit) => format!("{exit}; being verified gone"),
        None if task.started => "running".to_owned(),
        None if task.port.is_some() => "prepared".to_owned(),
        None => "planned".to_owned(),
    }
}

fn node_name(view: &View, id: NodeId) -> String {
    let node = view.core.books().nodes.get(&id);
    node.map_or_else(|| id.to_string(), |node| node.name.to_string())
}

pub(super) fn node(view: &View, node: &Node) -> v1::NodeView {
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
        address: node.facts.address.clone(),
        block: node.facts.block.clone(),
        reason: node.drain.as_ref().map(|drain| drain.reason.clone()).unwrap_or_default(),
        owner_uid: node.drain.as_ref().map(|drain| drain.by.0),
        since_ms: node.drain.as_ref().map(|drain| drain.since.0),
        unknown_tasks: unknown.collect(),
        tasks: node.tasks.iter().map(ToString::to_string).collect(),
    }
}

fn node_state(state: NodeState) -> v1::NodeState {
    match state {
        NodeState::Unconfirmed => v1::NodeState::Unconfirmed,
        NodeState::Ready => v1::NodeState::Ready,
        NodeState::Draining => v1::NodeState::Draining,
        NodeState::Drained => v1::NodeState::Drained,
        NodeState::Unreachable => v1::NodeState::Unreachable,
    }
}

pub(super) fn status(view: &View) -> v1::StatusReply {
    let books = view.core.books();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let ready = books
        .nodes
        .values()
        .filter(|node| view.core.node_state(view.at, node.id) == Some(NodeState::Ready));
    let active = books.live_jobs().saturating_sub(books.pending_jobs());
    v1::StatusReply {
        cluster: view.cluster.to_string(),
        epoch: books.epoch.map_or(0, |epoch| epoch.0),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        journal_seq: view.seq.0,
        nodes: count(books.nodes.len()),
        nodes_ready: count(ready.count()),
        gpus: count(books.nodes.values().map(|node| node.facts.gpus.len()).sum()),
        gpus_idle: count(books.nodes.values().map(|node| node.idle().count()).sum()),
        jobs_pending: count(books.pending_jobs()),
        jobs_active: count(active),
        closed: view.closed.clone().unwrap_or_default(),
    }
}
