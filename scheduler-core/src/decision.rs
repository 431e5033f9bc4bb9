//! What the core decides: past-tense outcomes. The meaning of a released decision never changes;
//! a new meaning is a new variant.

use std::fmt;

use tidegate_model::{
    AttemptId, Epoch, JobId, JobSpec, NodeFacts, NodeId, NodeName, Span, SubmitKey, TaskExit,
    TaskId, Timestamp, UserId,
};

use crate::books::Place;
use crate::policy::Policy;

/// One outcome. All but the last two change the books and are journaled.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A new leadership over the store.
    EpochBegan(Epoch),
    /// The policy is now this.
    PolicySet(Policy),
    /// A node is part of the cluster.
    NodeAdmitted {
        /// Its number, never reused.
        node: NodeId,
        /// Its name.
        name: NodeName,
    },
    /// A node is now as it says.
    NodeRefreshed {
        /// Which.
        node: NodeId,
        /// What it says.
        facts: NodeFacts,
    },
    /// A node takes no new work.
    DrainBegan {
        /// Which.
        node: NodeId,
        /// Whose drain.
        by: UserId,
        /// Why.
        reason: String,
    },
    /// A node takes work again.
    DrainEnded {
        /// Which.
        node: NodeId,
        /// Who lifted it.
        by: UserId,
    },
    /// A job has an id and a place in the queue, for life.
    JobAccepted {
        /// Its id, never reused.
        job: JobId,
        /// The client's key.
        key: SubmitKey,
        /// Whose it is.
        user: UserId,
        /// What it asks.
        spec: Box<JobSpec>,
    },
    /// A job is to end because somebody said so.
    JobCancelled {
        /// Which.
        job: JobId,
        /// By whom.
        by: UserId,
    },
    /// A gang has its nodes and GPUs by name.
    AttemptPlanned {
        /// Which.
        attempt: AttemptId,
        /// One for each task, in rank order.
        places: Vec<Place>,
    },
    /// A task's GPUs are verified free and set aside on its node.
    TaskPrepared {
        /// Which.
        task: TaskId,
        /// The port rank 0 may listen on there.
        port: u16,
    },
    /// All GPUs of the gang are verified free and its own.
    AttemptGranted(AttemptId),
    /// A task's process runs.
    TaskStarted(TaskId),
    /// All tasks of the gang run.
    AttemptRunning(AttemptId),
    /// The gang's tasks are to end.
    StopOrdered {
        /// Which.
        attempt: AttemptId,
        /// Why.
        why: StopReason,
    },
    /// A task's process has ended.
    TaskEnded {
        /// Which.
        task: TaskId,
        /// How.
        exit: TaskExit,
        /// How long it ran, by its node's monotonic clock.
        ran: Span,
    },
    /// No process of the task is left; its GPUs are idle.
    TaskReleased(TaskId),
    /// The gang holds nothing any more.
    AttemptEnded {
        /// Which.
        attempt: AttemptId,
        /// How.
        outcome: Outcome,
    },
    /// The job is back in its place in the queue.
    JobRequeued {
        /// Which.
        job: JobId,
        /// Not to be started before.
        not_before: Timestamp,
        /// Whether the attempt counts against the job's restarts.
        own_failure: bool,
        /// Attempts in a row that did not last; the exponent of the back-off.
        streak: u32,
    },
    /// The job is over.
    JobEnded {
        /// Which.
        job: JobId,
        /// How.
        outcome: JobOutcome,
    },
    /// An ended job has left the books; its id and key with it.
    JobForgotten(JobId),
    /// The request was refused; nothing changed. Not journaled.
    Refused(Refusal),
    /// The submit had been answered before. Not journaled.
    SubmitRepeated(JobId),
}

impl Decision {
    /// Whether it changes the books, and so must be durable before anybody hears of it.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        !matches!(self, Self::Refused(_) | Self::SubmitRepeated(_))
    }

    /// What it tells whoever submitted: the job and whether the key was known, or why not.
    #[must_use]
    pub fn answers(&self) -> Option<Result<(JobId, bool), &Refusal>> {
        if let Self::JobAccepted { job, .. } = self {
            Some(Ok((*job, false)))
        } else if let Self::SubmitRepeated(job) = self {
            Some(Ok((*job, true)))
        } else if let Self::Refused(refusal) = self {
            Some(Err(refusal))
        } else {
            None
        }
    }

    /// The task it is about, if it is about one.
    #[must_use]
    pub fn task(&self) -> Option<TaskId> {
        if let Self::TaskPrepared { task, .. }
        | Self::TaskStarted(task)
        | Self::TaskEnded { task, .. }
        | Self::TaskReleased(task) = self
        {
            Some(*task)
        } else {
            None
        }
    }

    /// The attempt it is about, if it is about one.
    #[must_use]
    pub fn attempt(&self) -> Option<AttemptId> {
        match self {
            Self::AttemptPlanned { attempt, .. }
            | Self::AttemptGranted(attempt)
            | Self::AttemptRunning(attempt)
            | Self::StopOrdered { attempt, .. }
            | Self::AttemptEnded { attempt, .. } => Some(*attempt),
            Self::TaskPrepared { task, .. }
            | Self::TaskStarted(task)
            | Self::TaskEnded { task, .. }
            | Self::TaskReleased(task) => Some(task.attempt),
            Self::EpochBegan(_)
            | Self::PolicySet(_)
            | Self::NodeAdmitted { .. }
            | Self::NodeRefreshed { .. }
            | Self::DrainBegan { .. }
            | Self::DrainEnded { .. }
            | Self::JobAccepted { .. }
            | Self::JobCancelled { .. }
            | Self::JobRequeued { .. }
            | Self::JobEnded { .. }
            | Self::JobForgotten(_)
            | Self::Refused(_)
            | Self::SubmitRepeated(_) => None,
        }
    }
}

/// Why a gang was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody cancelled the job.
    Cancelled,
    /// One of its tasks ended abnormally, and a gang stops as a whole.
    GangBroken,
    /// Not all of its tasks ran within the policy's start timeout.
    StartTimeout,
}

impl fmt::Display for StopReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Cancelled => "the job was cancelled",
            Self::GangBroken => "a task of its gang ended abnormally",
            Self::StartTimeout => "its gang did not start in time",
        })
    }
}

/// How an attempt ended. `Saved` and `Unknown` come with checkpoint requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// All tasks exited with 0.
    Done,
    /// A task failed by itself.
    Failed,
    /// It was ended by us, and no commit of it is known.
    Unsaved,
    /// The end of a task was not seen: a dead shim, a rebooted or lost node.
    Lost,
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobOutcome {
    /// An attempt was done.
    Done,
    /// It failed more often than it may be restarted.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

/// Why a request changed nothing: what was wrong and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No such job, or it ended more than the kept span ago.
    NoSuchJob(JobId),
    /// No such node.
    NoSuchNode(NodeName),
    /// Only the owner or an admin may.
    NotYours(JobId),
    /// Only an admin may.
    AdminOnly,
    /// The key was used for a job with another spec.
    KeyReused {
        /// The job that has the key.
        job: JobId,
    },
    /// No gang of this cluster's nodes could ever serve it.
    Unsatisfiable {
        /// With the figures, and what would be accepted.
        why: String,
    },
    /// No node has reported GPUs yet; asking again later may succeed.
    NoGpusYet,
    /// The queue is full; asking again later may succeed.
    QueueFull {
        /// How many jobs may be alive at once.
        limit: u32,
    },
    /// A drain needs a reason.
    ReasonMissing,
    /// The node is heard from; only a silent node can be declared lost.
    NodeNotSilent(NodeName),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchJob(job) => {
                write!(out, "{job} is not known here; `tidegate jobs --all` lists what is")
            }
            Self::NoSuchNode(node) => {
                write!(out, "no node is named {node}; `tidegate nodes` lists them")
            }
            Self::NotYours(job) => {
                write!(out, "{job} belongs to another user; its owner or an admin may do this")
            }
            Self::AdminOnly => out.write_str("only an admin of the cluster may do this"),
            Self::KeyReused { job } => {
                write!(out, "the submit key was used for {job} with another spec; use a new key")
            }
            Self::Unsatisfiable { why } => out.write_str(why),
            Self::NoGpusYet => {
                out.write_str("no node has reported GPUs yet; try again when one has")
            }
            Self::QueueFull { limit } => {
                write!(out, "{limit} jobs are alive, as many as the policy allows; try again later")
            }
            Self::ReasonMissing => out.write_str("a drain needs a reason; give --reason TEXT"),
            Self::NodeNotSilent(node) => {
                write!(out, "{node} is heard from; only a silent node can be declared lost")
            }
        }
    }
}
