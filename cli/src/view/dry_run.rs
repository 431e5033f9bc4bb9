//! What would happen to a job.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_model::{Span, Timestamp};
use tidegate_proto::{WireError, v1};

use crate::amount::GpuTime;
use crate::view::state::{Standing, standing};
use crate::view::{as_ms_or_null, span_as_ms};

/// What one min runtime would bring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct DryRun {
    #[serde(rename = "min_runtime_ms", serialize_with = "span_as_ms")]
    pub(crate) min_runtime: Span,
    /// Whether it is the one that the job asks.
    pub(crate) own: bool,
    pub(crate) small: bool,
    pub(crate) pledge_gpu_us: GpuTime,
    /// How it would stand at once; null = it would wait.
    pub(crate) starts: Option<Standing>,
    /// When it is expected to have its GPUs.
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) at_ms: Option<Timestamp>,
    /// Null = it never would by itself.
    #[serde(serialize_with = "as_ms_or_null")]
    pub(crate) elder_at_ms: Option<Timestamp>,
    /// Why it would be refused.
    pub(crate) refused: Option<String>,
    pub(crate) reason: String,
    pub(crate) lines: Vec<String>,
    pub(crate) numbers: BTreeMap<String, u64>,
}

impl DryRun {
    /// Reads the coordinator's view; `asked` is the min runtime of the job.
    ///
    /// # Errors
    /// If its pledge is malformed.
    pub(crate) fn read(wire: v1::DryRun, asked: Span) -> Result<Self, WireError> {
        let min_runtime = Span(wire.min_runtime_ms);
        Ok(Self {
            min_runtime,
            own: min_runtime == asked,
            small: wire.small,
            pledge_gpu_us: GpuTime::read(&wire.pledge, "DryRun.pledge")?,
            starts: standing(wire.starts),
            at_ms: wire.at_ms.map(Timestamp),
            elder_at_ms: wire.elder_at_ms.map(Timestamp),
            refused: (!wire.refused.is_empty()).then_some(wire.refused),
            reason: wire.reason,
            lines: wire.lines,
            numbers: wire.numbers.into_iter().collect(),
        })
    }

    /// What it asks is more than its account could ever fund.
    pub(crate) fn is_beyond_budget(&self) -> bool {
        self.reason == "Unsatisfiable" && self.numbers.contains_key("limit_gpu_ms")
    }
}
