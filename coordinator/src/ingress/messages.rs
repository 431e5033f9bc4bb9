//! Views as messages.

pub(super) mod accounts;
pub(super) mod checkpoints;
pub(super) mod gates;
pub(super) mod nodes;
pub(super) mod rehearsals;
pub(super) mod report;

use std::collections::HashMap;

use scheduler_core::{
    Attempt, AttemptState, Committed, DryRun, Explanation, Job, JobOutcome, JobState, NodeState,
    Outcome, Reason, Reservation, SaveOrder, SaveReason, Task, totals,
};
use tidegate_model::{JobId, NodeId};
use tidegate_proto::{amount_bytes, v1};

use crate::notices::allow;
use crate::translate::standing_message;
use crate::view::View;

pub(super) fn job(view: &View, job: &Job) -> v1::JobView {
    let ended_ms = match job.state {
        JobState::Ended { at, .. } => Some(at.0),
        JobState::Pending { .. } | JobState::Active { .. } => None,
    };
    let active = job.active_attempt().filter(|attempt| attempt.is_live());
    v1::JobView {
        job: job.id.to_string(),
        uid: job.user.0,
        spec: Some(spec(job)),
        state: job_state(job.state).into(),
        submitted_ms: job.submitted.0,
        ended_ms,
        attempts: job.attempts.iter().map(|attempt| attempt_view(view, attempt)).collect(),
        cancel_requested: job.cancelled.is_some(),
        reason: String::new(),
        account: view.core.books().accounts.name(job.account),
        standing: active.map_or(0, |attempt| standing_message(attempt.standing).into()),
        promised_until_ms: active.and_then(|attempt| attempt.promised_until).map(|at| at.0),
        parked: job.parked.map(|why| why.to_string()).unwrap_or_default(),
        elder_since_ms: job.elder.map(|at| at.0),
        elder_allowed: job.elder_allowed,
        reservation: job.reservation.as_ref().map(|held| reservation(view, job.id, held)),
        commit: job.commit().map(commit),
        waits_for: job.waits_for.iter().map(ToString::to_string).collect(),
        waits_since_ms: job.waits_since.0,
        stalled: job.stalled,
        idle_since_ms: active
            .and_then(|attempt| view.core.seen().idle_since(attempt.id))
            .map(|since| since.0),
        rehearsal: job.shown(view.core.books()).map(rehearsals::view),
    }
}

/// What became of a request to end a job.
pub(super) fn cancelled(job: &Job, changed: bool) -> v1::CancelReply {
    let ended_ms = match job.state {
        JobState::Ended { at, .. } => Some(at.0),
        JobState::Pending { .. } | JobState::Active { .. } => None,
    };
    v1::CancelReply {
        already_ended: ended_ms.is_some() && !changed,
        changed,
        state: job_state(job.state).into(),
        ended_ms,
        cancelled_by_uid: job.cancelled.as_ref().map(|one| one.by.0),
        cancelled_ms: job.cancelled.as_ref().and_then(|one| one.at).map(|at| at.0),
    }
}

/// What was asked for, as everybody may read it: an address for notices is a secret behind its host.
fn spec(job: &Job) -> v1::JobSpec {
    let mut spec: v1::JobSpec = job.spec.clone().into();
    spec.notify_url = spec.notify_url.map(|url| allow::shown(&url));
    spec
}

fn reservation(view: &View, job: JobId, held: &Reservation) -> v1::ReservationView {
    let nodes = held
        .nodes
        .iter()
        .map(|(node, gpus)| v1::ReservedNode { node: node_name(view, *node), gpus: gpus.0 });
    v1::ReservationView {
        made_ms: held.made.0,
        at_ms: held.at.0,
        nodes: nodes.collect(),
        pledge: amount_bytes(held.pledge.0),
        latest_ms: view.core.latest_of(view.at, job).map(|at| at.0),
    }
}

fn commit(commit: &Committed) -> v1::CommitView {
    v1::CommitView {
        attempt: commit.attempt.to_string(),
        step: commit.step,
        path: commit.path.clone(),
        bytes: commit.bytes.0,
        at_ms: commit.at.0,
    }
}

/// What one min runtime would bring.
pub(super) fn dry_run(run: &DryRun) -> v1::DryRun {
    let mut message = v1::DryRun {
        min_runtime_ms: run.min_runtime.0,
        small: run.small,
        pledge: amount_bytes(run.pledge.0),
        starts: run.starts.map_or(0, |standing| standing_message(standing).into()),
        at_ms: run.at.map(|at| at.0),
        elder_at_ms: run.elder_at.map(|at| at.0),
        ..v1::DryRun::default()
    };
    match &run.why {
        Ok(explanation) => {
            reason(explanation.reason).clone_into(&mut message.reason);
            message.lines.clone_from(&explanation.lines);
            message.numbers = numbers(explanation);
        }
        Err(refusal) => message.refused = refusal.to_string(),
    }
    message
}

/// The numbers of an explanation, for programs.
pub(super) fn numbers(explanation: &Explanation) -> HashMap<String, u64> {
    explanation.numbers.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// The one line of [`Explanation`] for lists.
pub(super) fn reason_line(explanation: &Explanation) -> String {
    let line = explanation.lines.first().map(String::as_str).unwrap_or_default();
    format!("{}: {line}", reason(explanation.reason))
}

pub(super) fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::AwaitingBudget => "AwaitingBudget",
        Reason::AwaitingTurn => "AwaitingTurn",
        Reason::AwaitingReservation => "AwaitingReservation",
        Reason::AwaitingCheckpoint => "AwaitingCheckpoint",
        Reason::AwaitingNodes => "AwaitingNodes",
        Reason::AwaitingRestart => "AwaitingRestart",
        Reason::AwaitingJobs => "AwaitingJobs",
        Reason::Parked => "Parked",
        Reason::Unsatisfiable => "Unsatisfiable",
        Reason::Starting => "Starting",
        Reason::Running => "Running",
        Reason::Saving => "Saving",
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
        AttemptState::Paced => v1::AttemptState::Paced,
        AttemptState::Saving => v1::AttemptState::Saving,
        AttemptState::Stopping => v1::AttemptState::Stopping,
        AttemptState::Verifying => v1::AttemptState::Verifying,
        AttemptState::Ended(Outcome::Done) => v1::AttemptState::Done,
        AttemptState::Ended(Outcome::Failed) => v1::AttemptState::Failed,
        AttemptState::Ended(Outcome::Unsaved) => v1::AttemptState::Unsaved,
        AttemptState::Ended(Outcome::Lost) => v1::AttemptState::Lost,
        AttemptState::Ended(Outcome::Saved) => v1::AttemptState::Saved,
        AttemptState::Ended(Outcome::Unknown) => v1::AttemptState::Unknown,
    }
}

fn attempt_view(view: &View, attempt: &Attempt) -> v1::AttemptView {
    let tasks = attempt.tasks().map(|(id, task)| v1::TaskView {
        task: id.to_string(),
        node: node_name(view, task.place.node),
        gpus: task.place.gpus.iter().map(ToString::to_string).collect(),
        state: task_state(task),
    });
    let [protected, funded, free, excused] = totals(attempt, view.at);
    v1::AttemptView {
        attempt: attempt.id.to_string(),
        state: attempt_state(attempt.state()).into(),
        planned_ms: attempt.planned.0,
        running_ms: attempt.running.map(|at| at.0),
        ended_ms: attempt.ended.map(|(at, _)| at.0),
        why: attempt.why_over(view.core.books()).unwrap_or_default(),
        tasks: tasks.collect(),
        standing: standing_message(attempt.standing).into(),
        promised_until_ms: attempt.promised_until.map(|at| at.0),
        save: attempt.save.map(|order| save(view, order)),
        granted_ms: attempt.granted.map(|at| at.0),
        protected: amount_bytes(protected.0),
        funded: amount_bytes(funded.0),
        free: amount_bytes(free.0),
        excused: amount_bytes(excused.0),
        committed_ms: attempt.committed.map(|at| at.0),
    }
}

fn save(view: &View, order: SaveOrder) -> v1::SaveView {
    let why = match order.why {
        SaveReason::Displaced { by, grounds } => format!("{by} has its GPUs: {grounds}"),
        SaveReason::Drained { node } => format!("{} takes no work", node_name(view, node)),
        SaveReason::Rehearsed => "it is rehearsed".to_owned(),
    };
    v1::SaveView {
        request: order.decision.to_string(),
        at_ms: order.at.0,
        admitted_ms: order.said().map(|at| at.0),
        why,
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
    let name = view.core.books().node_name(id);
    // Its number would look like a name.
    name.map_or_else(|| "a node since removed".to_owned(), ToString::to_string)
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
