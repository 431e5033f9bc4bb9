//! What happens to the core: past-tense facts, as the shell has checked them.

use tidegate_model::{JobId, JobSpec, NodeFacts, NodeName, SubmitKey, TaskId, TaskSeen, UserId};

use crate::policy::Policy;

/// One fact that something may be decided on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A coordinator took over the store.
    LeaderStarted,
    /// A user asked for a job. The user is who the connection says.
    JobSubmitted {
        /// Made by the client; the same key and user answers the same job.
        key: SubmitKey,
        /// Who asks.
        user: UserId,
        /// What is asked, within its limits. Boxed: most events are small.
        spec: Box<JobSpec>,
    },
    /// A user asked that a job end.
    CancelRequested {
        /// Which.
        job: JobId,
        /// Who asks.
        by: UserId,
    },
    /// A node's agent spoke. The node is who the connection says.
    NodeReported {
        /// Which.
        node: NodeName,
        /// Whether a task that is not named is unknown to the agent.
        complete: bool,
        /// In every complete report, and whenever they change.
        facts: Option<NodeFacts>,
        /// What it says of its tasks.
        tasks: Vec<(TaskId, TaskSeen)>,
    },
    /// A person asked that a node take no new work.
    DrainRequested {
        /// Which.
        node: NodeName,
        /// Who asks.
        by: UserId,
        /// Why; mandatory.
        reason: String,
    },
    /// A person asked that a node take work again.
    ResumeRequested {
        /// Which.
        node: NodeName,
        /// Who asks.
        by: UserId,
    },
    /// A person said that a silent node is gone with all that ran on it.
    NodeDeclaredLost {
        /// Which.
        node: NodeName,
        /// Who says so.
        by: UserId,
    },
    /// The policy is now this.
    PolicyChanged(Policy),
    /// An instant that [`Core::next_deadline`](crate::Core::next_deadline) named has come.
    DeadlineReached,
}

/// What is noted but never journaled; empty after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// The node's agent was heard, whatever it said.
    NodeHeard {
        /// Which.
        node: NodeName,
    },
}
