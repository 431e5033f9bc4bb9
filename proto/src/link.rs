//! Checked values of the agent link: hello, report, plan.

use std::collections::BTreeMap;

use tidegate_model::{
    AskSeen, Bandwidth, Bytes, ClusterId, Commit, DecisionSeq, Epoch, Generation, GpuUuid,
    NodeName, SaveSeen, Span, TaskId, TaskSeen, UserId,
};

pub use crate::checkpoint::{MAX_COMMIT_PATH, path_refusal};
use crate::common::{bounded, env_pairs, env_vars, layout};
use crate::v1;
use crate::wire_error::{WireError, narrowed, parsed, required};
pub use tidegate_model::{Launch, NodeFacts, Order, Stop};

/// Most tasks one node can hold: one per GPU and as many still ending. Bounds a report and a plan.
pub const MAX_TASKS_PER_NODE: usize = 1024;
pub use crate::common::MAX_GPUS_PER_NODE;

/// What an agent says: everything (the first of a stream) or what has changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Whether a task that is not named is unknown to the agent.
    pub complete: bool,
    /// In every complete report, and whenever they change.
    pub facts: Option<NodeFacts>,
    /// By task.
    pub tasks: BTreeMap<TaskId, TaskReport>,
    /// The newest plan the agent has accepted.
    pub applied: Option<(Epoch, Generation)>,
    /// For how long the GPUs of tasks have been idle; none = they are busy again.
    pub idle: BTreeMap<TaskId, Option<Span>>,
    /// Answered with the same number when it has come; 0 = no permits are to be renewed.
    pub renew: u64,
    /// What tasks write, measured.
    pub writes: BTreeMap<TaskId, Bandwidth>,
}

/// What an agent says of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReport {
    /// How it stands.
    pub seen: TaskSeen,
    /// The newest request to save that it was told of; none = none that is known here.
    pub save: Option<SaveSeen>,
    /// Its newest checkpoint; none = none that is known here.
    pub commit: Option<Commit>,
    /// Its newest ask for a permit to write; none = none that is known here.
    pub ask: Option<AskSeen>,
}

impl From<TaskSeen> for TaskReport {
    /// Of a task that was not asked to save, has committed nothing and asks nothing.
    fn from(seen: TaskSeen) -> Self {
        Self { seen, save: None, commit: None, ask: None }
    }
}

/// One task's line of a report.
///
/// # Errors
/// If a part is missing or malformed.
pub fn task_report(wire: v1::TaskReport) -> Result<(TaskId, TaskReport), WireError> {
    let v1::TaskReport { task, seen, save, commit, ask } = wire;
    let report = TaskReport {
        seen: required(seen, "TaskReport.seen")?.try_into()?,
        save: save.map(SaveSeen::try_from).transpose()?,
        commit: commit.map(Commit::try_from).transpose()?,
        ask: ask.map(AskSeen::try_from).transpose()?,
    };
    Ok((parsed(&task, "TaskReport.task")?, report))
}

/// The inverse of [`task_report`].
#[must_use]
pub fn task_report_message((task, report): (TaskId, TaskReport)) -> v1::TaskReport {
    let TaskReport { seen, save, commit, ask } = report;
    v1::TaskReport {
        task: task.to_string(),
        seen: Some(seen.into()),
        save: save.map(Into::into),
        commit: commit.map(Into::into),
        ask: ask.map(Into::into),
    }
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
        bounded(wire.idle.len(), MAX_TASKS_PER_NODE, "Report.idle")?;
        let idle =
            |v1::TaskIdle { task, for_ms }| Ok((parsed(&task, "TaskIdle.task")?, for_ms.map(Span)));
        let idle = wire.idle.into_iter().map(idle).collect::<Result<_, WireError>>()?;
        bounded(wire.writes.len(), MAX_TASKS_PER_NODE, "Report.writes")?;
        let writes = |v1::TaskWrites { task, bytes_per_s }| {
            Ok((parsed(&task, "TaskWrites.task")?, Bandwidth(bytes_per_s)))
        };
        let writes = wire.writes.into_iter().map(writes).collect::<Result<_, WireError>>()?;
        let (complete, renew) = (wire.complete, wire.renew);
        Ok(Self { complete, facts, tasks, applied, idle, renew, writes })
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
            idle: report.idle.into_iter().map(idle_message).collect(),
            renew: report.renew,
            writes: report.writes.into_iter().map(writes_message).collect(),
        }
    }
}

fn writes_message((task, rate): (TaskId, Bandwidth)) -> v1::TaskWrites {
    v1::TaskWrites { task: task.to_string(), bytes_per_s: rate.0 }
}

fn idle_message((task, span): (TaskId, Option<Span>)) -> v1::TaskIdle {
    v1::TaskIdle { task: task.to_string(), for_ms: span.map(|span| span.0) }
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
            save: wire.save.map(TryInto::try_into).transpose()?,
            permit: wire.permit.map(TryInto::try_into).transpose()?,
            pty: wire.pty,
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
            save: launch.save.map(Into::into),
            permit: launch.permit.map(Into::into),
            pty: launch.pty,
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
    /// Whether it can give tasks terminals and open them.
    pub terminals: bool,
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
        let v1::Hello { agent_version, terminals, .. } = wire;
        Ok(Self { cluster, node, agent_version, terminals })
    }
}

fn gpu_uuids(texts: &[String], field: &'static str) -> Result<Vec<GpuUuid>, WireError> {
    bounded(texts.len(), MAX_GPUS_PER_NODE, field)?;
    texts.iter().map(|text| parsed(text, field)).collect()
}

fn texts(gpus: &[GpuUuid]) -> Vec<String> {
    gpus.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
