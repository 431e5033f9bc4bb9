//! What a rehearsal has shown.

use serde::Serialize;
use tidegate_model::{Span, Timestamp};
use tidegate_proto::v1;

use crate::view::{as_ms, span_as_ms};

/// What a rehearsal has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Rehearsal {
    pub(crate) job: String,
    /// When it was judged.
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
    pub(crate) gpus: u32,
    pub(crate) nodes: u32,
    pub(crate) passed: bool,
    /// Why it failed.
    pub(crate) why: Option<String>,
    /// All of it in one sentence.
    pub(crate) told: String,
    /// Null = it did not save.
    pub(crate) save: Option<Save>,
    /// The first step committed after the new start; null = it did not come to that.
    pub(crate) resumed_step: Option<u64>,
}

/// How it saved when it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Save {
    pub(crate) step: u64,
    pub(crate) bytes: u64,
    /// From the request until it was let save.
    #[serde(rename = "waited_ms", serialize_with = "span_as_ms")]
    pub(crate) waited: Span,
    /// From there to the commit.
    #[serde(rename = "took_ms", serialize_with = "span_as_ms")]
    pub(crate) took: Span,
    /// From there until it had left.
    #[serde(rename = "left_ms", serialize_with = "span_as_ms")]
    pub(crate) left: Span,
}

impl From<v1::RehearsalView> for Rehearsal {
    fn from(wire: v1::RehearsalView) -> Self {
        let save = |save: v1::RehearsedSaveView| Save {
            step: save.step,
            bytes: save.bytes,
            waited: Span(save.waited_ms),
            took: Span(save.took_ms),
            left: Span(save.left_ms),
        };
        Self {
            job: wire.job,
            at_ms: Timestamp(wire.at_ms),
            gpus: wire.gpus,
            nodes: wire.nodes,
            passed: wire.passed,
            why: (!wire.why.is_empty()).then_some(wire.why),
            told: wire.told,
            save: wire.save.map(save),
            resumed_step: wire.resumed_step,
        }
    }
}
