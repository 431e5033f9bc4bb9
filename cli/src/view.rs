//! What the coordinator shows, read once: past here nothing is absent that must be there, and
//! every view is also the JSON document of its command. Keys are stable: add, never rename. GPU-time
//! is in reference-GPU microseconds there (`…_gpu_us`), instants and spans in milliseconds.

pub(crate) mod account;
pub(crate) mod checkpoints;
pub(crate) mod dry_run;
pub(crate) mod gate;
pub(crate) mod job;
pub(crate) mod node;
pub(crate) mod rehearsal;
pub(crate) mod report;
pub(crate) mod spec;
pub(crate) mod state;
pub(crate) mod users;
pub(crate) mod warning;

use serde::{Serialize, Serializer};
use tidegate_model::{Bytes, Span, Timestamp};

/// For ids, whose JSON is their text.
pub(crate) fn as_text<S: Serializer>(id: &impl ToString, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&id.to_string())
}

pub(crate) fn as_ms<S: Serializer>(at: &Timestamp, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(at.0)
}

pub(crate) fn as_ms_or_null<S: Serializer>(
    at: &Option<Timestamp>,
    out: S,
) -> Result<S::Ok, S::Error> {
    at.map(|at| at.0).serialize(out)
}

pub(crate) fn span_as_ms<S: Serializer>(span: &Span, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(span.0)
}

pub(crate) fn size_as_bytes<S: Serializer>(size: &Bytes, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(size.0)
}
