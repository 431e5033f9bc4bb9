//! What a node is told about its tasks. Decided by the scheduler, carried by the link, done by the
//! agent.

use crate::checkpoint::Save;
use crate::ids::{DecisionSeq, UserId};
use crate::job::TaskLayout;
use crate::names::GpuUuid;
use crate::permit::Permit;
use crate::time::Span;
use crate::units::Bytes;

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
    /// It is to save and leave; stays until it has.
    pub save: Option<Save>,
    /// The answer to its newest ask; none = it asked nothing that is open.
    pub permit: Option<Permit>,
    /// It gets a terminal instead of pipes.
    pub pty: bool,
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
