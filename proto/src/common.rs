//! Conversions of the messages that the API, the link and the journal share.

use tidegate_model::{
    ArrayPlace, Bytes, Dependency, Gpu, GpuCount, Idle, JobSpec, MAX_DEPENDENCIES, NodeFacts, Span,
    TaskExit, TaskLayout, TaskSeen, UserId, WhileWaiting,
};

use crate::v1;
use crate::wire_error::{WireError, narrowed, optional, parsed, required};

/// Most GPUs one node can have; the densest sold today have 16, with MIG slices 112.
pub const MAX_GPUS_PER_NODE: usize = 128;

pub(crate) fn layout(value: i32, field: &'static str) -> Result<TaskLayout, WireError> {
    match v1::TaskLayout::try_from(value) {
        Ok(v1::TaskLayout::PerNode) => Ok(TaskLayout::PerNode),
        Ok(v1::TaskLayout::PerGpu) => Ok(TaskLayout::PerGpu),
        Ok(v1::TaskLayout::Unspecified) => Err(WireError::Missing { field }),
        Err(_) => Err(WireError::UnknownEnum { field, value }),
    }
}

impl From<TaskLayout> for v1::TaskLayout {
    fn from(layout: TaskLayout) -> Self {
        match layout {
            TaskLayout::PerNode => Self::PerNode,
            TaskLayout::PerGpu => Self::PerGpu,
        }
    }
}

pub(crate) fn env_pairs(vars: Vec<v1::EnvVar>) -> Vec<(String, String)> {
    vars.into_iter().map(|var| (var.name, var.value)).collect()
}

pub(crate) fn env_vars(pairs: Vec<(String, String)>) -> Vec<v1::EnvVar> {
    pairs.into_iter().map(|(name, value)| v1::EnvVar { name, value }).collect()
}

impl TryFrom<v1::JobSpec> for JobSpec {
    type Error = WireError;

    fn try_from(wire: v1::JobSpec) -> Result<Self, WireError> {
        let spec = Self {
            name: wire.name,
            account: parsed(&wire.account, "JobSpec.account")?,
            command: wire.command,
            working_dir: wire.working_dir,
            env: env_pairs(wire.env),
            gpus: GpuCount(wire.gpus),
            gpus_per_node: wire.gpus_per_node.map(GpuCount),
            layout: layout(wire.layout, "JobSpec.layout")?,
            min_runtime: Span(wire.min_runtime_ms),
            grace: Span(wire.grace_ms),
            max_restarts: wire.max_restarts,
            checkpoint_dir: wire.checkpoint_dir.map(Into::into),
            log_cap: Bytes(wire.log_cap_bytes),
            gpu_type: optional(&wire.gpu_type, "JobSpec.gpu_type")?,
            max_blocks: Some(wire.max_blocks).filter(|blocks| *blocks > 0),
            own_order: wire.own_order,
            while_waiting: while_waiting(wire.while_waiting)?,
            checkpoint: wire.checkpoint.map(TryInto::try_into).transpose()?,
            after: dependencies(wire.after)?,
            notify_url: wire.notify_url.map(Into::into),
            pty: wire.pty,
            whole_cluster: wire.whole_cluster,
            array: wire.array.map(TryInto::try_into).transpose()?.map(Box::new),
        };
        Ok(spec.checked()?)
    }
}

impl From<JobSpec> for v1::JobSpec {
    fn from(spec: JobSpec) -> Self {
        Self {
            name: spec.name,
            account: spec.account.to_string(),
            command: spec.command,
            working_dir: spec.working_dir,
            env: env_vars(spec.env),
            gpus: spec.gpus.0,
            gpus_per_node: spec.gpus_per_node.map(|count| count.0),
            layout: v1::TaskLayout::from(spec.layout).into(),
            min_runtime_ms: spec.min_runtime.0,
            grace_ms: spec.grace.0,
            max_restarts: spec.max_restarts,
            checkpoint_dir: spec.checkpoint_dir.map(Into::into),
            log_cap_bytes: spec.log_cap.0,
            gpu_type: spec.gpu_type.map(|kind| kind.to_string()).unwrap_or_default(),
            max_blocks: spec.max_blocks.unwrap_or(0),
            own_order: spec.own_order,
            while_waiting: v1::WhileWaiting::from(spec.while_waiting).into(),
            checkpoint: spec.checkpoint.map(Into::into),
            after: spec.after.into_iter().map(Into::into).collect(),
            notify_url: spec.notify_url.map(Into::into),
            pty: spec.pty,
            whole_cluster: spec.whole_cluster,
            array: spec.array.map(|array| (*array).into()),
        }
    }
}

fn while_waiting(value: i32) -> Result<WhileWaiting, WireError> {
    match v1::WhileWaiting::try_from(value) {
        Ok(v1::WhileWaiting::Unspecified) => Ok(WhileWaiting::Free),
        Ok(v1::WhileWaiting::Wait) => Ok(WhileWaiting::Wait),
        Err(_) => Err(WireError::UnknownEnum { field: "JobSpec.while_waiting", value }),
    }
}

impl From<WhileWaiting> for v1::WhileWaiting {
    fn from(choice: WhileWaiting) -> Self {
        match choice {
            WhileWaiting::Free => Self::Unspecified,
            WhileWaiting::Wait => Self::Wait,
        }
    }
}

fn dependencies(wire: Vec<v1::Dependency>) -> Result<Vec<Dependency>, WireError> {
    bounded(wire.len(), MAX_DEPENDENCIES, "JobSpec.after")?;
    let dependency = |v1::Dependency { job, success }| {
        Ok(Dependency { job: parsed(&job, "Dependency.job")?, success })
    };
    wire.into_iter().map(dependency).collect()
}

impl From<Dependency> for v1::Dependency {
    fn from(Dependency { job, success }: Dependency) -> Self {
        Self { job: job.to_string(), success }
    }
}

impl TryFrom<v1::ArrayPlace> for ArrayPlace {
    type Error = WireError;

    fn try_from(v1::ArrayPlace { key, at_a_time }: v1::ArrayPlace) -> Result<Self, WireError> {
        Ok(Self { key: parsed(&key, "ArrayPlace.key")?, at_a_time })
    }
}

impl From<ArrayPlace> for v1::ArrayPlace {
    fn from(ArrayPlace { key, at_a_time }: ArrayPlace) -> Self {
        Self { key: key.to_string(), at_a_time }
    }
}

impl TryFrom<v1::Gpu> for Gpu {
    type Error = WireError;

    fn try_from(wire: v1::Gpu) -> Result<Self, WireError> {
        Ok(Self {
            uuid: parsed(&wire.uuid, "Gpu.uuid")?,
            product: wire.product,
            memory: Bytes(wire.memory_bytes),
        })
    }
}

impl From<Gpu> for v1::Gpu {
    fn from(gpu: Gpu) -> Self {
        let Gpu { uuid, product, memory } = gpu;
        Self { uuid: uuid.to_string(), product, memory_bytes: memory.0 }
    }
}

impl TryFrom<v1::TaskExit> for TaskExit {
    type Error = WireError;

    fn try_from(wire: v1::TaskExit) -> Result<Self, WireError> {
        use v1::task_exit::How;
        Ok(match required(wire.how, "TaskExit.how")? {
            How::Exited(code) => Self::Exited(narrowed(code, "TaskExit.exited")?),
            How::Signaled(signal) => Self::Signaled(narrowed(signal, "TaskExit.signaled")?),
            How::NeverStarted(why) => Self::NeverStarted(why),
            How::Lost(why) => Self::Lost(why),
        })
    }
}

impl From<TaskExit> for v1::TaskExit {
    fn from(exit: TaskExit) -> Self {
        use v1::task_exit::How;
        let how = match exit {
            TaskExit::Exited(code) => How::Exited(code.into()),
            TaskExit::Signaled(signal) => How::Signaled(signal.into()),
            TaskExit::NeverStarted(why) => How::NeverStarted(why),
            TaskExit::Lost(why) => How::Lost(why),
        };
        Self { how: Some(how) }
    }
}

impl TryFrom<v1::TaskSeen> for TaskSeen {
    type Error = WireError;

    fn try_from(wire: v1::TaskSeen) -> Result<Self, WireError> {
        use v1::task_seen::State;
        Ok(match required(wire.state, "TaskSeen.state")? {
            State::Prepared(prepared) => {
                Self::Prepared { port: narrowed(prepared.port, "TaskSeen.Prepared.port")? }
            }
            State::Starting(v1::task_seen::Starting {}) => Self::Starting,
            State::Running(v1::task_seen::Running {}) => Self::Running,
            State::Ended(ended) => Self::Ended {
                exit: required(ended.exit, "TaskSeen.Ended.exit")?.try_into()?,
                released: ended.released,
                ran: Span(ended.ran_ms),
                idle: ended.idle.map(Into::into),
            },
            State::Missing(v1::task_seen::Missing {}) => Self::Missing,
            State::Gone(v1::task_seen::Gone {}) => Self::Gone,
        })
    }
}

impl From<TaskSeen> for v1::TaskSeen {
    fn from(seen: TaskSeen) -> Self {
        use v1::task_seen::{Ended, Gone, Missing, Prepared, Running, Starting, State};
        let state = match seen {
            TaskSeen::Prepared { port } => State::Prepared(Prepared { port: port.into() }),
            TaskSeen::Starting => State::Starting(Starting {}),
            TaskSeen::Running => State::Running(Running {}),
            TaskSeen::Ended { exit, released, ran, idle } => State::Ended(Ended {
                exit: Some(exit.into()),
                released,
                ran_ms: ran.0,
                idle: idle.map(Into::into),
            }),
            TaskSeen::Missing => State::Missing(Missing {}),
            TaskSeen::Gone => State::Gone(Gone {}),
        };
        Self { state: Some(state) }
    }
}

impl From<v1::Idle> for Idle {
    fn from(v1::Idle { idle_ms, of_ms }: v1::Idle) -> Self {
        Self { idle: Span(idle_ms), of: Span(of_ms) }
    }
}

impl From<Idle> for v1::Idle {
    fn from(Idle { idle, of }: Idle) -> Self {
        Self { idle_ms: idle.0, of_ms: of.0 }
    }
}

impl TryFrom<v1::NodeFacts> for NodeFacts {
    type Error = WireError;

    fn try_from(wire: v1::NodeFacts) -> Result<Self, WireError> {
        let v1::NodeFacts {
            boot_id,
            gpus,
            gpu_note,
            address,
            block,
            memory_bytes,
            cpus,
            only_uid,
            closed,
        } = wire;
        if boot_id.is_empty() {
            return Err(WireError::Missing { field: "NodeFacts.boot_id" });
        }
        bounded(gpus.len(), MAX_GPUS_PER_NODE, "NodeFacts.gpus")?;
        let gpus = gpus.into_iter().map(Gpu::try_from).collect::<Result<Vec<_>, _>>()?;
        let memory = Bytes(memory_bytes);
        let only_user = only_uid.map(UserId);
        Ok(Self { boot_id, gpus, gpu_note, address, block, memory, cpus, only_user, closed })
    }
}

impl From<NodeFacts> for v1::NodeFacts {
    fn from(facts: NodeFacts) -> Self {
        let NodeFacts { boot_id, gpus, gpu_note, address, block, memory, cpus, only_user, closed } =
            facts;
        let gpus = gpus.into_iter().map(Into::into).collect();
        let (memory_bytes, only_uid) = (memory.0, only_user.map(|user| user.0));
        Self { boot_id, gpus, gpu_note, address, block, memory_bytes, cpus, only_uid, closed }
    }
}

pub(crate) fn bounded(count: usize, most: usize, field: &'static str) -> Result<(), WireError> {
    if count > most {
        let why = format!("{count} entries; at most {most} are accepted");
        return Err(WireError::Invalid { field, why });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
