//! Jobs, attempts, tasks.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_model::{AttemptId, Bytes, JobId, Span, Timestamp};
use tidegate_proto::{WireError, parsed, required, v1};

use crate::view::users::Users;

/// A job as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Job {
    #[serde(serialize_with = "as_text")]
    pub(crate) job: JobId,
    pub(crate) user: String,
    pub(crate) uid: u32,
    #[serde(flatten)]
    pub(crate) spec: Spec,
    pub(crate) state: JobState,
    #[serde(serialize_with = "as_ms")]
    pub(crate) submitted_ms: Timestamp,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) ended_ms: Option<Timestamp>,
    pub(crate) cancel_requested: bool,
    pub(crate) reason: String,
    /// In the order of their numbers.
    pub(crate) attempts: Vec<Attempt>,
}

/// What was asked for. The keys are those of a job file, with units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) account: String,
    pub(crate) command: Vec<String>,
    pub(crate) working_dir: String,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) gpus: u32,
    pub(crate) gpus_per_node: Option<u32>,
    pub(crate) tasks: &'static str,
    #[serde(rename = "min_runtime_ms", serialize_with = "span_as_ms")]
    pub(crate) min_runtime: Span,
    #[serde(rename = "grace_ms", serialize_with = "span_as_ms")]
    pub(crate) grace: Span,
    pub(crate) max_restarts: u32,
    pub(crate) checkpoint_dir: Option<String>,
    #[serde(rename = "log_cap_bytes", serialize_with = "size_as_bytes")]
    pub(crate) log_cap: Bytes,
}

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobState {
    Pending,
    Active,
    Done,
    Failed,
    Cancelled,
    /// A state that a newer coordinator knows.
    Unknown,
}

/// Where an attempt is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AttemptState {
    Planned,
    Granted,
    Starting,
    Running,
    Stopping,
    Verifying,
    Done,
    Failed,
    Unsaved,
    Lost,
    /// A state that a newer coordinator knows.
    Unknown,
}

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Attempt {
    #[serde(serialize_with = "as_text")]
    pub(crate) attempt: AttemptId,
    pub(crate) state: AttemptState,
    #[serde(serialize_with = "as_ms")]
    pub(crate) planned_ms: Timestamp,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) running_ms: Option<Timestamp>,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) ended_ms: Option<Timestamp>,
    pub(crate) why: String,
    pub(crate) tasks: Vec<Task>,
}

/// One task of an attempt, by the coordinator's words: nothing is decided by them here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Task {
    pub(crate) task: String,
    pub(crate) node: String,
    pub(crate) gpus: Vec<String>,
    pub(crate) state: String,
}

impl JobState {
    pub(crate) fn is_ended(self) -> bool {
        match self {
            Self::Done | Self::Failed | Self::Cancelled => true,
            Self::Pending | Self::Active | Self::Unknown => false,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

impl AttemptState {
    pub(crate) fn is_ended(self) -> bool {
        match self {
            Self::Done | Self::Failed | Self::Unsaved | Self::Lost => true,
            Self::Planned
            | Self::Granted
            | Self::Starting
            | Self::Running
            | Self::Stopping
            | Self::Verifying
            | Self::Unknown => false,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Granted => "granted",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Verifying => "verifying",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Unsaved => "unsaved",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }
}

impl Job {
    /// Reads the coordinator's view.
    ///
    /// # Errors
    /// If a field that every job has is missing or malformed.
    pub(crate) fn read(wire: v1::JobView, users: &mut Users) -> Result<Self, WireError> {
        let attempts = wire.attempts.into_iter().map(Attempt::read).collect::<Result<_, _>>()?;
        Ok(Self {
            job: parsed(&wire.job, "JobView.job")?,
            user: users.name(wire.uid),
            uid: wire.uid,
            state: job_state(wire.state),
            spec: required(wire.spec, "JobView.spec")?.into(),
            submitted_ms: Timestamp(wire.submitted_ms),
            ended_ms: wire.ended_ms.map(Timestamp),
            cancel_requested: wire.cancel_requested,
            reason: wire.reason,
            attempts,
        })
    }

    pub(crate) fn newest(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    pub(crate) fn attempt(&self, number: u32) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.attempt.number == number)
    }

    /// The first attempt after this one.
    pub(crate) fn after(&self, number: u32) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.attempt.number > number)
    }
}

impl Attempt {
    fn read(wire: v1::AttemptView) -> Result<Self, WireError> {
        Ok(Self {
            attempt: parsed(&wire.attempt, "AttemptView.attempt")?,
            state: attempt_state(wire.state),
            planned_ms: Timestamp(wire.planned_ms),
            running_ms: wire.running_ms.map(Timestamp),
            ended_ms: wire.ended_ms.map(Timestamp),
            why: wire.why,
            tasks: wire.tasks.into_iter().map(Task::from).collect(),
        })
    }
}

impl From<v1::TaskView> for Task {
    fn from(wire: v1::TaskView) -> Self {
        let v1::TaskView { task, node, gpus, state } = wire;
        Self { task, node, gpus, state }
    }
}

/// Not checked again: a job that the coordinator holds is shown, whatever today's limits are.
impl From<v1::JobSpec> for Spec {
    fn from(wire: v1::JobSpec) -> Self {
        Self {
            tasks: layout_word(wire.layout()),
            name: wire.name,
            account: wire.account,
            command: wire.command,
            working_dir: wire.working_dir,
            env: wire.env.into_iter().map(|var| (var.name, var.value)).collect(),
            gpus: wire.gpus,
            gpus_per_node: wire.gpus_per_node,
            min_runtime: Span(wire.min_runtime_ms),
            grace: Span(wire.grace_ms),
            max_restarts: wire.max_restarts,
            checkpoint_dir: wire.checkpoint_dir,
            log_cap: Bytes(wire.log_cap_bytes),
        }
    }
}

fn layout_word(layout: v1::TaskLayout) -> &'static str {
    match layout {
        v1::TaskLayout::PerNode => "per-node",
        v1::TaskLayout::PerGpu => "per-gpu",
        v1::TaskLayout::Unspecified => "unknown",
    }
}

fn job_state(wire: i32) -> JobState {
    match v1::JobState::try_from(wire) {
        Ok(v1::JobState::Pending) => JobState::Pending,
        Ok(v1::JobState::Active) => JobState::Active,
        Ok(v1::JobState::Done) => JobState::Done,
        Ok(v1::JobState::Failed) => JobState::Failed,
        Ok(v1::JobState::Cancelled) => JobState::Cancelled,
        Ok(v1::JobState::Unspecified) | Err(_) => JobState::Unknown,
    }
}

fn attempt_state(wire: i32) -> AttemptState {
    match v1::AttemptState::try_from(wire) {
        Ok(v1::AttemptState::Planned) => AttemptState::Planned,
        Ok(v1::AttemptState::Granted) => AttemptState::Granted,
        Ok(v1::AttemptState::Starting) => AttemptState::Starting,
        Ok(v1::AttemptState::Running) => AttemptState::Running,
        Ok(v1::AttemptState::Stopping) => AttemptState::Stopping,
        Ok(v1::AttemptState::Verifying) => AttemptState::Verifying,
        Ok(v1::AttemptState::Done) => AttemptState::Done,
        Ok(v1::AttemptState::Failed) => AttemptState::Failed,
        Ok(v1::AttemptState::Unsaved) => AttemptState::Unsaved,
        Ok(v1::AttemptState::Lost) => AttemptState::Lost,
        Ok(v1::AttemptState::Unspecified) | Err(_) => AttemptState::Unknown,
    }
}

/// For ids, whose JSON is their text.
pub(crate) fn as_text<S: serde::Serializer>(id: &impl ToString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&id.to_string())
}

fn as_ms<S: serde::Serializer>(at: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(at.0)
}

fn as_ms_or_null<S: serde::Serializer>(at: &Option<Timestamp>, out: S) -> Result<S::Ok, S::Error> {
    at.map(|at| at.0).serialize(out)
}

fn span_as_ms<S: serde::Serializer>(span: &Span, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(span.0)
}

fn size_as_bytes<S: serde::Serializer>(size: &Bytes, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(size.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_without_its_spec_is_refused_and_a_newer_state_is_shown_as_unknown() {
        let wire = v1::JobView { job: "job-7".into(), ..v1::JobView::default() };
        let told = Job::read(wire, &mut Users::knowing(&[(0, "root")])).unwrap_err();
        assert_eq!(told.to_string(), "JobView.spec is missing");
        assert_eq!(job_state(99), JobState::Unknown);
        assert_eq!(attempt_state(99), AttemptState::Unknown);
    }

    #[test]
    fn a_states_word_is_its_json() {
        let json = |state| serde_json::to_value(state).unwrap();
        for state in [JobState::Pending, JobState::Active, JobState::Cancelled, JobState::Unknown] {
            assert_eq!(json(state), state.word());
        }
    }
}
