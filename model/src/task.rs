//! What a node says of itself and its tasks.

use std::fmt;

use crate::ids::UserId;
use crate::names::GpuUuid;
use crate::time::Span;
use crate::units::Bytes;

/// One GPU as the driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its identity for life.
    pub uuid: GpuUuid,
    /// The product name; simulated ones say so in it.
    pub product: String,
    /// Its memory.
    pub memory: Bytes,
}

/// What a node is, as its agent says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeFacts {
    /// The kernel's boot id: another one means that everything that ran there is gone.
    pub boot_id: String,
    /// In the order of the driver.
    pub gpus: Vec<Gpu>,
    /// Why there are none, or empty.
    pub gpu_note: String,
    /// Where other nodes' ranks reach it.
    pub address: String,
    /// Nodes under one leaf switch or NVLink domain share it; empty = not labelled.
    pub block: String,
    /// Main memory.
    pub memory: Bytes,
    /// Logical CPUs.
    pub cpus: u32,
    /// The only user whose tasks it can run; none = those of any.
    pub only_user: Option<UserId>,
    /// Why it takes no new work, or empty. What runs there runs on.
    pub closed: String,
}

/// How a task's process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskExit {
    /// It exited with this code.
    Exited(u8),
    /// It was killed by this signal.
    Signaled(u8),
    /// It never ran: what failed before the user's program was executed.
    NeverStarted(String),
    /// Its end was not seen: its shim died, its node rebooted, its record is gone.
    Lost(String),
}

impl TaskExit {
    /// Whether the task did what it was started for.
    #[must_use]
    pub fn is_success(&self) -> bool {
        *self == Self::Exited(0)
    }
}

impl fmt::Display for TaskExit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(out, "exit code {code}"),
            Self::Signaled(signal) => write!(out, "killed by signal {signal}"),
            Self::NeverStarted(why) => write!(out, "could not start: {why}"),
            Self::Lost(why) => write!(out, "lost: {why}"),
        }
    }
}

/// How long a task had its GPUs for nothing, as far as anybody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Idle {
    /// How long all of them were busy for less than 5 % of the time.
    pub idle: Span,
    /// Of so much time in which they were looked at.
    pub of: Span,
}

/// What an agent says of one task. Facts only; what follows from them is decided elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskSeen {
    /// Its GPUs are verified free and set aside; the order is in the agent's ledger.
    Prepared {
        /// A port on this node that rank 0 may listen on.
        port: u16,
    },
    /// The intent to start it is durable; its process is not yet seen.
    Starting,
    /// Its process runs.
    Running,
    /// Its process has ended.
    Ended {
        /// How.
        exit: TaskExit,
        /// No process of it is left and its GPUs are free again.
        released: bool,
        /// How long it ran, by the node's monotonic clock.
        ran: Span,
        /// How long its GPUs were idle; none = nobody looked.
        idle: Option<Idle>,
    },
    /// The agent has no record of a task that the plan takes for granted.
    Missing,
    /// The agent has dropped its record, as it was told to.
    Gone,
}
