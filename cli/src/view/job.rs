//! Jobs, attempts, tasks.

use serde::Serialize;
use tidegate_model::{AttemptId, JobId, Timestamp};
use tidegate_proto::{WireError, parsed, required, v1};

use crate::amount::GpuTime;
use crate::view::rehearsal::Rehearsal;
use crate::view::spec::Spec;
use crate::view::state::{AttemptState, JobState, Standing, attempt_state, job_state, standing};
use crate::view::users::Users;
use crate::view::{as_ms, as_ms_or_null, as_text};

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
    /// Of the attempt under way; null = none is.
    pub(crate) standing: Option<Standing>,
    /// Until when its time is promised.
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) promised_until_ms: Option<Timestamp>,
    /// Why it is not started until it is released.
    pub(crate) parked: Option<String>,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) elder_since_ms: Option<Timestamp>,
    pub(crate) elder_allowed: bool,
    pub(crate) reservation: Option<Reservation>,
    /// The newest checkpoint that counts.
    pub(crate) commit: Option<Commit>,
    pub(crate) waits_for: Vec<String>,
    #[serde(serialize_with = "as_ms")]
    pub(crate) waits_since_ms: Timestamp,
    /// Attempts in a row that ended without a new commit.
    pub(crate) stalled: u32,
    /// Since when its GPUs have been idle; null = they are not.
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) idle_since_ms: Option<Timestamp>,
    /// What it has shown, if it is a rehearsal that was judged.
    pub(crate) rehearsal: Option<Rehearsal>,
    /// In the order of their numbers.
    pub(crate) attempts: Vec<Attempt>,
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
    pub(crate) standing: Option<Standing>,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) promised_until_ms: Option<Timestamp>,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) granted_ms: Option<Timestamp>,
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) committed_ms: Option<Timestamp>,
    /// The request to save and leave, if there was one.
    pub(crate) save: Option<Save>,
    pub(crate) protected_gpu_us: GpuTime,
    pub(crate) funded_gpu_us: GpuTime,
    pub(crate) free_gpu_us: GpuTime,
    /// What of it is not charged after all.
    pub(crate) excused_gpu_us: GpuTime,
    pub(crate) tasks: Vec<Task>,
}

/// A request to save and leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Save {
    /// The record of the journal that ordered it.
    pub(crate) request: String,
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
    /// When the write gate let it save.
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) admitted_ms: Option<Timestamp>,
    pub(crate) why: String,
}

/// Nodes promised to a waiting job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Reservation {
    #[serde(serialize_with = "as_ms")]
    pub(crate) made_ms: Timestamp,
    /// From when.
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
    /// When it has its GPUs at the latest; none if the coordinator is older and does not say.
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) latest_ms: Option<Timestamp>,
    pub(crate) nodes: Vec<ReservedNode>,
    pub(crate) pledge_gpu_us: GpuTime,
}

/// A part of a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ReservedNode {
    pub(crate) node: String,
    pub(crate) gpus: u32,
}

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Commit {
    pub(crate) attempt: String,
    pub(crate) step: u64,
    pub(crate) path: String,
    pub(crate) bytes: u64,
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
}

/// One task of an attempt, by the coordinator's words: nothing is decided by them here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Task {
    pub(crate) task: String,
    pub(crate) node: String,
    pub(crate) gpus: Vec<String>,
    pub(crate) state: String,
}

impl Job {
    /// Reads the coordinator's view.
    ///
    /// # Errors
    /// If a field that every job has is missing or malformed.
    pub(crate) fn read(wire: v1::JobView, users: &mut Users) -> Result<Self, WireError> {
        let attempts = wire.attempts.into_iter().map(Attempt::read).collect::<Result<_, _>>()?;
        let mut spec = Spec::from(required(wire.spec, "JobView.spec")?);
        if !wire.account.is_empty() {
            spec.account = wire.account;
        }
        Ok(Self {
            job: parsed(&wire.job, "JobView.job")?,
            user: users.name(wire.uid),
            uid: wire.uid,
            state: job_state(wire.state),
            spec,
            submitted_ms: Timestamp(wire.submitted_ms),
            ended_ms: wire.ended_ms.map(Timestamp),
            cancel_requested: wire.cancel_requested,
            reason: wire.reason,
            standing: standing(wire.standing),
            promised_until_ms: wire.promised_until_ms.map(Timestamp),
            parked: (!wire.parked.is_empty()).then_some(wire.parked),
            elder_since_ms: wire.elder_since_ms.map(Timestamp),
            elder_allowed: wire.elder_allowed,
            reservation: wire.reservation.map(Reservation::read).transpose()?,
            commit: wire.commit.map(Commit::from),
            waits_for: wire.waits_for,
            waits_since_ms: Timestamp(wire.waits_since_ms),
            stalled: wire.stalled,
            idle_since_ms: wire.idle_since_ms.map(Timestamp),
            rehearsal: wire.rehearsal.map(Rehearsal::from),
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
    /// What its account is charged for it, over its whole life.
    pub(crate) fn charged(&self) -> GpuTime {
        let excused = GpuTime(self.excused_gpu_us.0.saturating_neg());
        self.protected_gpu_us.plus(self.funded_gpu_us).plus(excused)
    }

    fn read(wire: v1::AttemptView) -> Result<Self, WireError> {
        Ok(Self {
            attempt: parsed(&wire.attempt, "AttemptView.attempt")?,
            state: attempt_state(wire.state),
            planned_ms: Timestamp(wire.planned_ms),
            running_ms: wire.running_ms.map(Timestamp),
            ended_ms: wire.ended_ms.map(Timestamp),
            why: wire.why,
            standing: standing(wire.standing),
            promised_until_ms: wire.promised_until_ms.map(Timestamp),
            granted_ms: wire.granted_ms.map(Timestamp),
            committed_ms: wire.committed_ms.map(Timestamp),
            save: wire.save.map(Save::from),
            protected_gpu_us: GpuTime::read(&wire.protected, "AttemptView.protected")?,
            funded_gpu_us: GpuTime::read(&wire.funded, "AttemptView.funded")?,
            free_gpu_us: GpuTime::read(&wire.free, "AttemptView.free")?,
            excused_gpu_us: GpuTime::read(&wire.excused, "AttemptView.excused")?,
            tasks: wire.tasks.into_iter().map(Task::from).collect(),
        })
    }
}

impl Reservation {
    fn read(wire: v1::ReservationView) -> Result<Self, WireError> {
        let node = |v1::ReservedNode { node, gpus }| ReservedNode { node, gpus };
        Ok(Self {
            made_ms: Timestamp(wire.made_ms),
            at_ms: Timestamp(wire.at_ms),
            latest_ms: wire.latest_ms.map(Timestamp),
            nodes: wire.nodes.into_iter().map(node).collect(),
            pledge_gpu_us: GpuTime::read(&wire.pledge, "ReservationView.pledge")?,
        })
    }
}

impl From<v1::CommitView> for Commit {
    fn from(wire: v1::CommitView) -> Self {
        let v1::CommitView { attempt, step, path, bytes, at_ms } = wire;
        Self { attempt, step, path, bytes, at_ms: Timestamp(at_ms) }
    }
}

impl From<v1::SaveView> for Save {
    fn from(wire: v1::SaveView) -> Self {
        let v1::SaveView { request, at_ms, admitted_ms, why } = wire;
        Self { request, at_ms: Timestamp(at_ms), admitted_ms: admitted_ms.map(Timestamp), why }
    }
}

impl From<v1::TaskView> for Task {
    fn from(wire: v1::TaskView) -> Self {
        let v1::TaskView { task, node, gpus, state } = wire;
        Self { task, node, gpus, state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_without_its_spec_is_refused() {
        let wire = v1::JobView { job: "job-7".into(), ..v1::JobView::default() };
        let told = Job::read(wire, &mut Users::knowing(&[(0, "root")])).unwrap_err();
        assert_eq!(told.to_string(), "JobView.spec is missing");
    }
}
