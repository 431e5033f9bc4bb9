//! Records: what is decided, as bytes that keep their meaning for ever.

use prost::Message;
use scheduler_core::{Decision, Event, Stamp};
use tidegate_model::{DecisionSeq, Epoch, Timestamp};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::{WireError, required};

use super::JournalError;

mod event;
pub(crate) mod parts;
mod read;
pub(in crate::journal) mod rehearsal;
mod written;

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
        event: Some(event::message(event)),
        decisions: decisions.iter().filter_map(written::message).collect(),
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
        .map(|wire| read::from_message(stamp.at, required(wire.decision, "Decision.decision")?))
        .collect();
    let decisions = decisions.map_err(|error| damaged(error.to_string()))?;
    Ok(Record { stamp, epoch: Epoch(record.epoch), decisions })
}
