//! What is known of a job's checkpoints.

use serde::Serialize;
use tidegate_proto::{WireError, required, v1};

use crate::view::job::Commit;
use crate::view::state::{AttemptState, attempt_state};

/// All of them, and what became of each request to save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Checkpoints {
    pub(crate) job: String,
    /// Oldest first.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// So many before those are not kept.
    pub(crate) older: u64,
    /// In the order of the attempts.
    pub(crate) requests: Vec<Request>,
}

/// One commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Checkpoint {
    #[serde(flatten)]
    pub(crate) commit: Commit,
    pub(crate) known_by: Source,
    /// The request that it answers.
    pub(crate) request: Option<String>,
    /// The next attempt resumes from it.
    pub(crate) counts: bool,
}

/// How a commit is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The job said so on its socket.
    Job,
    /// In a way that a newer coordinator knows.
    Unknown,
}

/// A request to save. Spans are from the instant before them in the order of the keys that is known
/// to everybody: from the request to `told`, from `told` to all that follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Request {
    pub(crate) request: String,
    pub(crate) attempt: String,
    pub(crate) why: String,
    pub(crate) at_ms: u64,
    /// When the write gate let it save, and its ranks were told.
    pub(crate) told_ms: Option<u64>,
    pub(crate) acknowledged_ms: Option<u64>,
    pub(crate) first_byte_ms: Option<u64>,
    pub(crate) committed_ms: Option<u64>,
    pub(crate) ended_ms: Option<u64>,
    pub(crate) told_after_ms: Option<u64>,
    pub(crate) acknowledged_after_ms: Option<u64>,
    pub(crate) first_byte_after_ms: Option<u64>,
    pub(crate) committed_after_ms: Option<u64>,
    pub(crate) ended_after_ms: Option<u64>,
    /// How its attempt ended: saved, unsaved or unknown; where it is while it lives.
    pub(crate) became: AttemptState,
}

impl Checkpoints {
    /// Reads the coordinator's answer.
    ///
    /// # Errors
    /// If a part that each has is missing.
    pub(crate) fn read(wire: v1::ListCheckpointsReply) -> Result<Self, WireError> {
        let v1::ListCheckpointsReply { job, checkpoints, older, requests } = wire;
        let checkpoints = checkpoints.into_iter().map(Checkpoint::read);
        Ok(Self {
            job,
            checkpoints: checkpoints.collect::<Result<_, _>>()?,
            older,
            requests: requests.into_iter().map(Request::read).collect::<Result<_, _>>()?,
        })
    }
}

impl Checkpoint {
    fn read(wire: v1::CheckpointView) -> Result<Self, WireError> {
        let known_by = match wire.source() {
            v1::CommitSource::Job => Source::Job,
            v1::CommitSource::Unspecified => Source::Unknown,
        };
        Ok(Self {
            commit: required(wire.commit, "CheckpointView.commit")?.into(),
            known_by,
            request: (!wire.request.is_empty()).then_some(wire.request),
            counts: wire.counts,
        })
    }
}

impl Request {
    fn read(wire: v1::SaveStory) -> Result<Self, WireError> {
        let v1::SaveView { request, at_ms, admitted_ms: told_ms, why } =
            required(wire.save, "SaveStory.save")?;
        let v1::SaveStory { acknowledged_ms, first_byte_ms, committed_ms, ended_ms, .. } = wire;
        let after = |at: Option<u64>| at.zip(told_ms).map(|(at, told)| at.saturating_sub(told));
        Ok(Self {
            request,
            attempt: wire.attempt,
            why,
            at_ms,
            told_ms,
            acknowledged_ms,
            first_byte_ms,
            committed_ms,
            ended_ms,
            told_after_ms: told_ms.map(|told| told.saturating_sub(at_ms)),
            acknowledged_after_ms: after(acknowledged_ms),
            first_byte_after_ms: after(first_byte_ms),
            committed_after_ms: after(committed_ms),
            ended_after_ms: after(ended_ms),
            became: attempt_state(wire.state),
        })
    }
}
