//! What was asked for.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_model::{Bytes, Span};
use tidegate_proto::v1;

use crate::view::{size_as_bytes, span_as_ms};

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
    /// Null = any.
    pub(crate) gpu_type: Option<String>,
    /// Null = as few as possible.
    pub(crate) max_blocks: Option<u32>,
    pub(crate) order: i32,
    pub(crate) while_waiting: &'static str,
    /// Null = it cannot be asked to save.
    pub(crate) checkpoint: Option<Checkpoint>,
    pub(crate) after: Vec<After>,
    /// Null = nobody is told. Its place only: the rest is a secret.
    pub(crate) notify_url: Option<String>,
    /// It has a terminal to attach to.
    pub(crate) pty: bool,
    /// It may hold more than one gang may, by an admin's leave.
    pub(crate) whole_cluster: bool,
    /// Null = of no array, or of one that runs as many as it can.
    pub(crate) array: Option<Array>,
}

/// The array that it is one of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Array {
    pub(crate) key: String,
    /// So many of it run at a time.
    pub(crate) at_a_time: u32,
}

/// How it saves when it is asked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Checkpoint {
    /// Null = by file and socket only.
    pub(crate) signal: Option<String>,
    pub(crate) target: &'static str,
    #[serde(rename = "grace_ms", serialize_with = "span_as_ms")]
    pub(crate) grace: Span,
    pub(crate) bytes: Option<u64>,
    pub(crate) storage: String,
    pub(crate) saved_codes: Vec<u32>,
    /// Null = not declared.
    pub(crate) asks_within_ms: Option<u64>,
    /// After which time a rehearsal is asked to save; null = it is none.
    pub(crate) ask_after_ms: Option<u64>,
}

/// A job that must end first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct After {
    pub(crate) job: String,
    /// Whether it must be done; else any end will do.
    pub(crate) success: bool,
}

/// Not checked again: a job that the coordinator holds is shown, whatever today's limits are.
impl From<v1::JobSpec> for Spec {
    fn from(wire: v1::JobSpec) -> Self {
        Self {
            tasks: layout_word(wire.layout()),
            while_waiting: while_waiting_word(wire.while_waiting()),
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
            gpu_type: (!wire.gpu_type.is_empty()).then_some(wire.gpu_type),
            max_blocks: (wire.max_blocks > 0).then_some(wire.max_blocks),
            order: wire.own_order,
            checkpoint: wire.checkpoint.map(Checkpoint::from),
            after: wire.after.into_iter().map(After::from).collect(),
            notify_url: wire.notify_url,
            pty: wire.pty,
            whole_cluster: wire.whole_cluster,
            array: wire.array.map(|v1::ArrayPlace { key, at_a_time }| Array { key, at_a_time }),
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

fn while_waiting_word(choice: v1::WhileWaiting) -> &'static str {
    match choice {
        v1::WhileWaiting::Unspecified => "free",
        v1::WhileWaiting::Wait => "wait",
    }
}

impl From<v1::CheckpointOffer> for Checkpoint {
    fn from(wire: v1::CheckpointOffer) -> Self {
        Self {
            target: target_word(wire.target()),
            signal: wire.signal,
            grace: Span(wire.grace_ms),
            bytes: wire.bytes,
            storage: wire.storage,
            saved_codes: wire.saved_codes,
            asks_within_ms: wire.asks_within_ms,
            ask_after_ms: wire.ask_after_ms,
        }
    }
}

fn target_word(target: v1::SaveTarget) -> &'static str {
    match target {
        v1::SaveTarget::Ranks => "ranks",
        v1::SaveTarget::Rank0 => "rank0",
        v1::SaveTarget::Task => "task",
        v1::SaveTarget::Unspecified => "unknown",
    }
}

impl From<v1::Dependency> for After {
    fn from(v1::Dependency { job, success }: v1::Dependency) -> Self {
        Self { job, success }
    }
}
