//! Records: what is decided, as bytes that keep their meaning for ever.

use prost::Message;
use scheduler_core::{Decision, Event, Stamp};
use tidegate_model::{DecisionSeq, Epoch, Timestamp};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::link::task_report_message;
use tidegate_proto::{WireError, required};

use super::JournalError;

mod decision;
pub(super) mod parts;

/// A record, read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place and instant.
    pub stamp: Stamp,
    /// The leadership that wrote it.
    pub epoch: Epoch,
    /// What was decided.
    pub decisions: Vec<Decision>,
}

/// One record as bytes.
#[must_use]
pub fn encode(stamp: Stamp, epoch: Epoch, event: &Event, decisions: &[Decision]) -> Vec<u8> {
    let record = wire::Record {
        seq: stamp.seq.0,
        at_ms: stamp.at.0,
        epoch: epoch.0,
        event: Some(event_message(event)),
        decisions: decisions.iter().filter_map(decision::message).collect(),
    };
    record.encode_to_vec()
}

/// Reads one record.
///
/// # Errors
/// [`JournalError::Damaged`] if it is not one that this version can read.
pub fn decode(seq: DecisionSeq, bytes: &[u8]) -> Result<Record, JournalError> {
    let damaged = |why: String| JournalError::Damaged { at: seq.0, why };
    let record = wire::Record::decode(bytes).map_err(|error| damaged(error.to_string()))?;
    if record.seq != seq.0 {
        return Err(damaged(format!("it says that it is record {}", record.seq)));
    }
    let stamp = Stamp { at: Timestamp(record.at_ms), seq };
    let decisions: Result<_, WireError> = record
        .decisions
        .into_iter()
        .map(|wire| decision::from_message(required(wire.decision, "Decision.decision")?))
        .collect();
    let decisions = decisions.map_err(|error| damaged(error.to_string()))?;
    Ok(Record { stamp, epoch: Epoch(record.epoch), decisions })
}

/// The event, for audit: who asked or reported what. What follows is in the decisions.
fn event_message(event: &Event) -> wire::Event {
    use wire::event::{self, Event as Kind};
    let kind = match event {
        Event::LeaderStarted => Kind::LeaderStarted(event::LeaderStarted {}),
        Event::JobSubmitted { key, user, spec: _ } => {
            Kind::JobSubmitted(event::JobSubmitted { key: key.to_string(), user: user.0 })
        }
        Event::CancelRequested { job, by } => {
            Kind::CancelRequested(event::CancelRequested { job: job.to_string(), by: by.0 })
        }
        Event::NodeReported { node, complete, facts: _, tasks } => {
            let tasks = tasks.iter().cloned().map(task_report_message).collect();
            let (node, complete) = (node.to_string(), *complete);
            Kind::NodeReported(event::NodeReported { node, complete, tasks })
        }
        Event::DrainRequested { node, by, reason: _ } => {
            Kind::DrainRequested(event::DrainRequested { node: node.to_string(), by: by.0 })
        }
        Event::ResumeRequested { node, by } => {
            Kind::ResumeRequested(event::ResumeRequested { node: node.to_string(), by: by.0 })
        }
        Event::NodeDeclaredLost { node, by } => {
            Kind::NodeDeclaredLost(event::NodeDeclaredLost { node: node.to_string(), by: by.0 })
        }
        Event::PolicyChanged(_) => Kind::PolicyChanged(event::PolicyChanged {}),
        Event::DeadlineReached => Kind::DeadlineReached(event::DeadlineReached {}),
    };
    wire::Event { event: Some(kind) }
}
