//! Checked values of the agent link: hello, report, plan.

use std::collections::BTreeMap;

use tidegate_model::{
    Bytes, ClusterId, DecisionSeq, Epoch, Generation, Gpu, GpuUuid, NodeName, Span, TaskId,
    TaskLayout, TaskSeen, UserId,
};

use crate::common::{env_pairs, env_vars, layout};
pub use crate::common::{task_report, task_report_message};
use crate::v1;
use crate::wire_error::{WireError, narrowed, parsed, required};

/// Most tasks one node can hold: one per GPU and as many still ending. Bounds a report and a plan.
pub const MAX_TASKS_PER_NODE: usize = 1024;
/// Most GPUs one node can have; the densest sold today have 16, with MIG slices 112.
pub const MAX_GPUS_PER_NODE: usize = 128;

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// The kernel's boot id.
    pub boot_id: String,
    /// In the order of the driver.
    pub gpus: Vec<Gpu>,
    /// Why there are none, or empty.
    pub gpu_note: String,
    /// Where other nodes' ranks reach this one.
    pub address: String,
    /// The block it is labelled with, or empty.
    pub block: String,
    /// Main memory.
    pub memory: Bytes,
    /// Logical CPUs.
    pub cpus: u32,
    /// The only user whose tasks it can run; none = those of any.
    pub only_user: Option<UserId>,
}

impl TryFrom<v1::NodeFacts> for NodeFacts {
    type Error = WireError;

    fn try_from(wire: v1::NodeFacts) -> Result<Self, WireError> {
        let v1::NodeFacts { boot_id, gpus, gpu_note, address, block, memory_bytes, cpus, only_uid } =
            wire;
        if boot_id.is_empty() {
            return Err(WireError::Missing { field: "NodeFacts.boot_id" });
        }
        bounded(gpus.len(), MAX_GPUS_PER_NODE, "NodeFacts.gpus")?;
        let gpus = gpus.into_iter().map(Gpu::try_from).collect::<Result<Vec<_>, _>>()?;
        let memory = Bytes(memory_bytes);
        let only_user = only_uid.map(UserId);
        Ok(Self { boot_id, gpus, gpu_note, address, block, memory, cpus, only_user })
    }
}

impl From<NodeFacts> for v1::NodeFacts {
    fn from(facts: NodeFacts) -> Self {
        let NodeFacts { boot_id, gpus, gpu_note, address, block, memory, cpus, only_user } = facts;
        let gpus = gpus.into_iter().map(Into::into).collect();
        let (memory_bytes, only_uid) = (memory.0, only_user.map(|user| user.0));
        Self { boot_id, gpus, gpu_note, address, block, memory_bytes, cpus, only_uid }
    }
}

/// What an agent says: everything (the first of a stream) or what has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Whether a task that is not named is unknown to the agent.
    pub complete: bool,
    /// In every complete report, and whenever they change.
    pub facts: Option<NodeFacts>,
    /// By task.
    pub tasks: BTreeMap<TaskId, TaskSeen>,
    /// The newest plan the agent has accepted.
    pub applied: Option<(Epoch, Generation)>,
}

impl TryFrom<v1::Report> for Report {
    type Error = WireError;

    fn try_from(wire: v1::Report) -> Result<Self, WireError> {
        bounded(wire.tasks.len(), MAX_TASKS_PER_NODE, "Report.tasks")?;
        let facts = wire.facts.map(NodeFacts::try_from).transpose()?;
        if wire.complete && facts.is_none() {
            return Err(WireError::Missing { field: "Report.facts" });
        }
        let tasks = wire.tasks.into_iter().map(task_report).collect::<Result<_, _>>()?;
        let applied = (Epoch(wire.applied_epoch), Generation(wire.applied_generation));
        let applied = (wire.applied_epoch > 0).then_some(applied);
        Ok(Self { complete: wire.complete, facts, tasks, applied })
    }
}

impl From<Report> for v1::Report {
    fn from(report: Report) -> Self {
        let (epoch, generation) = report.applied.unwrap_or((Epoch(0), Generation(0)));
        Self {
            complete: report.complete,
            facts: report.facts.map(Into::into),
            tasks: report.tasks.into_iter().map(task_report_message).collect(),
            applied_epoch: epoch.0,
            applied_generation: generation.0,
        }
    }
}

/// Everything the coordinator wants of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePlan {
    /// The cluster that speaks.
    pub cluster: ClusterId,
    /// Its leadership.
    pub epoch: Epoch,
    /// The plan's version in this leadership.
    pub generation: Generation,
    /// By task; a task that is not named is left alone.
    pub tasks: BTreeMap<TaskId, Order>,
}

/// What is wanted of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Verify that these GPUs are free, set them aside, find a port.
    Prepare(Vec<GpuUuid>),
    /// Start it, once. Boxed: a plan holds many small orders and few launches.
    Run(Box<Launch>),
    /// End it.
    Stop(Stop),
    /// Drop its record: its end is durable at the coordinator.
    Forget,
}

/// All that is needed to start one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// As whom.
    pub user: UserId,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Where.
    pub working_dir: String,
    /// The job's own variables.
    pub env: Vec<(String, String)>,
    /// The task's GPUs.
    pub gpus: Vec<GpuUuid>,
    /// One task per node or per GPU.
    pub layout: TaskLayout,
    /// Of the task's first rank.
    pub rank: u32,
    /// Of the task's first rank on its node.
    pub local_rank: u32,
    /// Ranks (GPUs) of the gang.
    pub world_size: u32,
    /// Ranks (GPUs) on this node.
    pub local_world_size: u32,
    /// The node's place in the gang.
    pub node_rank: u32,
    /// Nodes of the gang.
    pub nodes: u32,
    /// Where rank 0 is reached.
    pub master_addr: String,
    /// The port set aside for rank 0.
    pub master_port: u16,
    /// Where the job keeps its checkpoints.
    pub checkpoint_dir: String,
    /// What is kept of each output stream.
    pub log_cap: Bytes,
}

/// The order to end a task: TERM, wait, KILL, verify.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The journal record that ordered it.
    pub decision: DecisionSeq,
    /// Between TERM and KILL.
    pub grace: Span,
    /// For people.
    pub why: String,
}

impl TryFrom<v1::NodePlan> for NodePlan {
    type Error = WireError;

    fn try_from(wire: v1::NodePlan) -> Result<Self, WireError> {
        bounded(wire.tasks.len(), MAX_TASKS_PER_NODE, "NodePlan.tasks")?;
        let mut tasks = BTreeMap::new();
        for order in wire.tasks {
            let task: TaskId = parsed(&order.task, "TaskOrder.task")?;
            let order = required(order.order, "TaskOrder.order")?.try_into()?;
            if tasks.insert(task, order).is_some() {
                let why = format!("{task} is named twice");
                return Err(WireError::Invalid { field: "NodePlan.tasks", why });
            }
        }
        Ok(Self {
            cluster: parsed(&wire.cluster, "NodePlan.cluster")?,
            epoch: Epoch(wire.epoch),
            generation: Generation(wire.generation),
            tasks,
        })
    }
}

impl From<NodePlan> for v1::NodePlan {
    fn from(plan: NodePlan) -> Self {
        let order = |(task, order): (TaskId, Order)| v1::TaskOrder {
            task: task.to_string(),
            order: Some(order.into()),
        };
        Self {
            cluster: plan.cluster.to_string(),
            epoch: plan.epoch.0,
            generation: plan.generation.0,
            tasks: plan.tasks.into_iter().map(order).collect(),
        }
    }
}

impl TryFrom<v1::task_order::Order> for Order {
    type Error = WireError;

    fn try_from(wire: v1::task_order::Order) -> Result<Self, WireError> {
        Ok(match wire {
            v1::task_order::Order::Prepare(v1::Prepare { gpus }) => {
                Self::Prepare(gpu_uuids(&gpus, "Prepare.gpus")?)
            }
            v1::task_order::Order::Run(run) => Self::Run(Box::new(run.try_into()?)),
            v1::task_order::Order::Stop(v1::Stop { decision, grace_ms, why }) => {
                Self::Stop(Stop { decision: DecisionSeq(decision), grace: Span(grace_ms), why })
            }
            v1::task_order::Order::Forget(v1::Forget {}) => Self::Forget,
        })
    }
}

impl From<Order> for v1::task_order::Order {
    fn from(order: Order) -> Self {
        match order {
            Order::Prepare(gpus) => Self::Prepare(v1::Prepare { gpus: texts(&gpus) }),
            Order::Run(launch) => Self::Run((*launch).into()),
            Order::Stop(Stop { decision, grace, why }) => {
                Self::Stop(v1::Stop { decision: decision.0, grace_ms: grace.0, why })
            }
            Order::Forget => Self::Forget(v1::Forget {}),
        }
    }
}

impl TryFrom<v1::Run> for Launch {
    type Error = WireError;

    fn try_from(wire: v1::Run) -> Result<Self, WireError> {
        if wire.command.first().is_none_or(String::is_empty) {
            return Err(WireError::Missing { field: "Run.command" });
        }
        if wire.master_addr.is_empty() {
            return Err(WireError::Missing { field: "Run.master_addr" });
        }
        Ok(Self {
            user: UserId(wire.uid),
            command: wire.command,
            working_dir: wire.working_dir,
            env: env_pairs(wire.env),
            gpus: gpu_uuids(&wire.gpus, "Run.gpus")?,
            layout: layout(wire.layout, "Run.layout")?,
            rank: wire.rank,
            local_rank: wire.local_rank,
            world_size: wire.world_size,
            local_world_size: wire.local_world_size,
            node_rank: wire.node_rank,
            nodes: wire.nodes,
            master_addr: wire.master_addr,
            master_port: narrowed(wire.master_port, "Run.master_port")?,
            checkpoint_dir: wire.checkpoint_dir,
            log_cap: Bytes(wire.log_cap_bytes),
        })
    }
}

impl From<Launch> for v1::Run {
    fn from(launch: Launch) -> Self {
        Self {
            uid: launch.user.0,
            command: launch.command,
            working_dir: launch.working_dir,
            env: env_vars(launch.env),
            gpus: texts(&launch.gpus),
            layout: v1::TaskLayout::from(launch.layout).into(),
            rank: launch.rank,
            local_rank: launch.local_rank,
            world_size: launch.world_size,
            local_world_size: launch.local_world_size,
            node_rank: launch.node_rank,
            nodes: launch.nodes,
            master_addr: launch.master_addr,
            master_port: launch.master_port.into(),
            checkpoint_dir: launch.checkpoint_dir,
            log_cap_bytes: launch.log_cap.0,
        }
    }
}

/// The first message of a stream, checked but for the cluster, which the coordinator compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The cluster the agent obeys; none before its first welcome.
    pub cluster: Option<ClusterId>,
    /// The node's name.
    pub node: NodeName,
    /// For people.
    pub agent_version: String,
}

impl TryFrom<v1::Hello> for Hello {
    type Error = WireError;

    fn try_from(wire: v1::Hello) -> Result<Self, WireError> {
        if wire.protocol != crate::LINK_PROTOCOL {
            let (theirs, ours) = (wire.protocol, crate::LINK_PROTOCOL);
            let why = format!("version {theirs} is not spoken here; version {ours} is");
            return Err(WireError::Invalid { field: "Hello.protocol", why });
        }
        let cluster = match wire.cluster.as_str() {
            "" => None,
            text => Some(parsed(text, "Hello.cluster")?),
        };
        let node = parsed(&wire.node, "Hello.node")?;
        Ok(Self { cluster, node, agent_version: wire.agent_version })
    }
}

fn gpu_uuids(texts: &[String], field: &'static str) -> Result<Vec<GpuUuid>, WireError> {
    bounded(texts.len(), MAX_GPUS_PER_NODE, field)?;
    texts.iter().map(|text| parsed(text, field)).collect()
}

fn texts(gpus: &[GpuUuid]) -> Vec<String> {
    gpus.iter().map(ToString::to_string).collect()
}

fn bounded(count: usize, most: usize, field: &'static str) -> Result<(), WireError> {
    if count > most {
        let why = format!("{count} entries; at most {most} are accepted");
        return Err(WireError::Invalid { field, why });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
