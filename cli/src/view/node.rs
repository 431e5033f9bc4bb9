//! Nodes and the cluster.

use std::collections::BTreeSet;

use serde::Serialize;
use tidegate_model::{TaskId, Timestamp};
use tidegate_proto::v1;

use crate::show::text::counted;
use crate::show::time::{until, until_latest};
use crate::view::users::Users;

/// How the product name of a simulated GPU ends.
const SIMULATED: &str = "(simulated)";

/// A node as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Node {
    pub(crate) node: String,
    pub(crate) id: String,
    pub(crate) state: NodeState,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) gpus_idle: u32,
    pub(crate) gpu_note: String,
    /// Why its agent takes no new work; null while it does.
    pub(crate) closed: Option<String>,
    pub(crate) address: String,
    pub(crate) block: String,
    /// Of the drain; null if the node is not drained by anybody.
    pub(crate) drain: Option<Drain>,
    pub(crate) tasks: Vec<String>,
    /// Tasks it reports that no plan knows.
    pub(crate) unknown_tasks: Vec<String>,
}

/// One GPU of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) product: String,
    pub(crate) memory_bytes: u64,
    pub(crate) simulated: bool,
}

/// Why a node takes no new work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Drain {
    pub(crate) reason: String,
    pub(crate) owner: Option<String>,
    pub(crate) owner_uid: Option<u32>,
    pub(crate) since_ms: Option<u64>,
    /// When it is wanted empty.
    pub(crate) wanted_by_ms: Option<u64>,
    /// When the last protection there ends.
    pub(crate) saves_from_ms: Option<u64>,
    /// By when it is empty at the latest.
    pub(crate) empty_by_ms: Option<u64>,
}

/// Whether a node takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeState {
    Unconfirmed,
    Ready,
    Draining,
    Drained,
    Closed,
    Unreachable,
    /// A state that a newer coordinator knows.
    Unknown,
}

impl NodeState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unconfirmed => "unconfirmed",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Closed => "closed",
            Self::Unreachable => "unreachable",
            Self::Unknown => "unknown",
        }
    }
}

impl Node {
    pub(crate) fn read(wire: v1::NodeView, users: &mut Users) -> Self {
        let drain = (!wire.reason.is_empty() || wire.since_ms.is_some()).then(|| Drain {
            reason: wire.reason,
            owner: wire.owner_uid.map(|uid| users.name(uid)),
            owner_uid: wire.owner_uid,
            since_ms: wire.since_ms,
            wanted_by_ms: wire.wanted_by_ms,
            saves_from_ms: wire.saves_from_ms,
            empty_by_ms: wire.empty_by_ms,
        });
        Self {
            node: wire.node,
            id: wire.id,
            state: node_state(wire.state),
            gpus: wire.gpus.into_iter().map(Gpu::from).collect(),
            gpus_idle: wire.idle,
            gpu_note: wire.gpu_note,
            closed: (!wire.closed.is_empty()).then_some(wire.closed),
            address: wire.address,
            block: wire.block,
            drain,
            tasks: wire.tasks,
            unknown_tasks: wire.unknown_tasks,
        }
    }

    /// The jobs with a task on the node, in the order of their numbers. A task whose id this
    /// version cannot read stands for itself.
    pub(crate) fn jobs(&self) -> Vec<String> {
        let mut jobs = BTreeSet::new();
        let mut unread = Vec::new();
        for task in &self.tasks {
            match task.parse::<TaskId>() {
                Ok(id) => drop(jobs.insert(id.attempt.job)),
                Err(_) => unread.push(task.clone()),
            }
        }
        jobs.iter().map(ToString::to_string).chain(unread).collect()
    }

    /// What somebody who looks at the node should know, in a few words.
    pub(crate) fn note(&self, now: Timestamp) -> String {
        let draining = self.drain.as_ref().filter(|_| self.state == NodeState::Draining);
        let empties = draining.and_then(|drain| {
            let at = |ms: u64| until(Timestamp(ms), now);
            let empty_by = until_latest(Timestamp(drain.empty_by_ms?), now);
            let wanted = drain.wanted_by_ms.map(|ms| format!(", wanted by {}", at(ms)));
            Some(format!(
                "saves from {}, empty by {empty_by}{}",
                at(drain.saves_from_ms?),
                wanted.unwrap_or_default()
            ))
        });
        let simulated = self.gpus.iter().any(|gpu| gpu.simulated).then(|| "simulated".to_owned());
        let unknown = u64::try_from(self.unknown_tasks.len()).unwrap_or(u64::MAX);
        let unknown = (unknown > 0).then(|| counted(unknown, "unknown task"));
        let gpus = (!self.gpu_note.is_empty()).then(|| self.gpu_note.clone());
        let closed = self.closed.clone();
        [empties, closed, simulated, gpus, unknown]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl From<v1::Gpu> for Gpu {
    fn from(wire: v1::Gpu) -> Self {
        let simulated = wire.product.contains(SIMULATED);
        let v1::Gpu { uuid, product, memory_bytes } = wire;
        Self { uuid, product, memory_bytes, simulated }
    }
}

fn node_state(wire: i32) -> NodeState {
    match v1::NodeState::try_from(wire) {
        Ok(v1::NodeState::Unconfirmed) => NodeState::Unconfirmed,
        Ok(v1::NodeState::Ready) => NodeState::Ready,
        Ok(v1::NodeState::Draining) => NodeState::Draining,
        Ok(v1::NodeState::Drained) => NodeState::Drained,
        Ok(v1::NodeState::Closed) => NodeState::Closed,
        Ok(v1::NodeState::Unreachable) => NodeState::Unreachable,
        Ok(v1::NodeState::Unspecified) | Err(_) => NodeState::Unknown,
    }
}

/// The cluster as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Cluster {
    pub(crate) cluster: String,
    pub(crate) coordinator_version: String,
    pub(crate) epoch: u64,
    pub(crate) journal_seq: u64,
    pub(crate) nodes: u32,
    pub(crate) nodes_ready: u32,
    pub(crate) gpus: u32,
    pub(crate) gpus_idle: u32,
    pub(crate) jobs_pending: u32,
    pub(crate) jobs_active: u32,
    /// Why new work is answered "unavailable"; null while it is taken.
    pub(crate) closed: Option<String>,
}

impl From<v1::StatusReply> for Cluster {
    fn from(wire: v1::StatusReply) -> Self {
        Self {
            cluster: wire.cluster,
            coordinator_version: wire.version,
            epoch: wire.epoch,
            journal_seq: wire.journal_seq,
            nodes: wire.nodes,
            nodes_ready: wire.nodes_ready,
            gpus: wire.gpus,
            gpus_idle: wire.gpus_idle,
            jobs_pending: wire.jobs_pending,
            jobs_active: wire.jobs_active,
            closed: (!wire.closed.is_empty()).then_some(wire.closed),
        }
    }
}
