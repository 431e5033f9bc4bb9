//! The books: what is known for sure, changed only by `evolve`.
//!
//! Indexes beside the maps (the queue, deadlines, held GPUs) are derived; `audit` recounts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::{
    AttemptId, DecisionSeq, Epoch, Gpu, GpuUuid, JobId, JobSpec, NodeFacts, NodeId, NodeName, Span,
    SubmitKey, TaskExit, TaskId, Timestamp, UserId,
};

use crate::decision::{JobOutcome, Outcome, StopReason};
use crate::policy::Policy;

/// Everything that a restart must bring back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Books {
    /// The leadership; 0 before the first.
    pub epoch: Option<Epoch>,
    /// The rules in force.
    pub policy: Policy,
    /// By id. Shared with the copies that readers hold; a change copies one entry.
    pub nodes: BTreeMap<NodeId, Arc<Node>>,
    /// By id. Shared likewise.
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    /// The number the next job gets, less one: ids are never reused.
    pub last_job: u64,
    /// The number the next node gets, less one.
    pub last_node: u32,
    pub(crate) index: Index,
}

/// Derived from the maps; kept because a pass may not walk 100,000 jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Index {
    /// Nodes by name.
    pub(crate) names: BTreeMap<NodeName, NodeId>,
    /// Jobs by client key.
    pub(crate) keys: BTreeMap<(UserId, SubmitKey), JobId>,
    /// Pending jobs in the order they are considered.
    pub(crate) queue: BTreeSet<(Timestamp, JobId)>,
    /// Pending jobs that may not start before an instant.
    pub(crate) backoffs: BTreeSet<(Timestamp, JobId)>,
    /// Attempts that hold or may hold something.
    pub(crate) live: BTreeSet<AttemptId>,
    /// Attempts that have not run yet and are not told to stop, by the instant they were planned.
    pub(crate) starting: BTreeSet<(Timestamp, AttemptId)>,
    /// Ended jobs by the instant they ended.
    pub(crate) ended: BTreeSet<(Timestamp, JobId)>,
}

impl Books {
    /// The node of that name.
    #[must_use]
    pub fn node_named(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(self.index.names.get(name)?).map(Arc::as_ref)
    }

    /// One attempt of one job.
    #[must_use]
    pub fn attempt(&self, id: AttemptId) -> Option<&Attempt> {
        self.jobs.get(&id.job)?.attempt(id.number)
    }

    /// One task of one attempt.
    #[must_use]
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.attempt(id.attempt)?.tasks.get(usize::try_from(id.index).ok()?)
    }

    /// Attempts that hold or may hold something, in order of their ids.
    pub fn live_attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.index.live.iter().filter_map(|id| self.attempt(*id))
    }

    /// Pending jobs in the order they are considered.
    pub fn queue(&self) -> impl Iterator<Item = &Job> {
        self.index.queue.iter().filter_map(|(_, job)| self.jobs.get(job)).map(Arc::as_ref)
    }

    /// Jobs that have not ended.
    #[must_use]
    pub fn live_jobs(&self) -> usize {
        self.jobs.len().saturating_sub(self.index.ended.len())
    }

    /// How many jobs are pending.
    #[must_use]
    pub fn pending_jobs(&self) -> usize {
        self.index.queue.len()
    }
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: NodeName,
    /// As it last said.
    pub facts: NodeFacts,
    /// Why it takes no new work, if so.
    pub drain: Option<Drain>,
    /// Who holds which GPU.
    pub held: BTreeMap<GpuUuid, TaskId>,
    /// Tasks placed here and not released.
    pub tasks: BTreeSet<TaskId>,
}

impl Node {
    /// Whether it can run tasks of that user.
    #[must_use]
    pub fn serves(&self, user: UserId) -> bool {
        self.facts.only_user.is_none_or(|only| only == user)
    }

    /// GPUs that nobody holds, in the driver's order.
    pub fn idle(&self) -> impl Iterator<Item = &Gpu> {
        self.facts.gpus.iter().filter(|gpu| !self.held.contains_key(&gpu.uuid))
    }
}

/// A node takes no new work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Whose.
    pub by: UserId,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// The client's key.
    pub key: SubmitKey,
    /// Whose.
    pub user: UserId,
    /// What it asks.
    pub spec: JobSpec,
    /// Its place in the queue, for life.
    pub submitted: Timestamp,
    /// Who cancelled it.
    pub cancelled_by: Option<UserId>,
    /// Attempts that failed by themselves.
    pub failures: u32,
    /// Attempts in a row that did not last.
    pub streak: u32,
    /// Where it is.
    pub state: JobState,
    /// All attempts, oldest first; the last may be live, and an older one while a node is silent.
    pub attempts: Vec<Attempt>,
}

impl Job {
    /// The attempt of that number, counted from 1.
    #[must_use]
    pub fn attempt(&self, number: u32) -> Option<&Attempt> {
        self.attempts.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// Whether an attempt holds or may hold something.
    #[must_use]
    pub fn has_live_attempt(&self) -> bool {
        self.attempts.iter().any(Attempt::is_live)
    }
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// In the queue; not to be started before an instant.
    Pending {
        /// The end of a back-off, or the submit time.
        not_before: Timestamp,
    },
    /// Its newest attempt is under way.
    Active {
        /// That attempt's number.
        attempt: u32,
    },
    /// Over.
    Ended {
        /// How.
        outcome: JobOutcome,
        /// When.
        at: Timestamp,
    },
}

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its id.
    pub id: AttemptId,
    /// When its nodes were chosen.
    pub planned: Timestamp,
    /// When all its GPUs were verified free.
    pub granted: Option<Timestamp>,
    /// When all its tasks ran.
    pub running: Option<Timestamp>,
    /// Whether and why it is told to end.
    pub stop: Option<StopOrder>,
    /// When it let go of everything, and how it ended.
    pub ended: Option<(Timestamp, Outcome)>,
    /// In rank order; never empty.
    pub tasks: Vec<Task>,
}

/// An order to end a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOrder {
    /// Why.
    pub why: StopReason,
    /// The journal record of the order.
    pub decision: DecisionSeq,
}

/// Where an attempt is. `Paced` and `Saving` come with checkpoint requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttemptState {
    /// Nodes are chosen.
    Planned,
    /// GPUs are verified free and its own.
    Granted,
    /// Some tasks run.
    Starting,
    /// All tasks run.
    Running,
    /// Told to end, or broken.
    Stopping,
    /// All tasks have ended; not all are verified gone.
    Verifying,
    /// Over.
    Ended(Outcome),
}

impl AttemptState {
    /// Every state but the outcomes, for coverage counts.
    pub const LIVE: [Self; 6] = [
        Self::Planned,
        Self::Granted,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Verifying,
    ];
}

impl Attempt {
    /// Whether it holds or may hold something.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether a task ended otherwise than with exit code 0.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.tasks.iter().any(Task::ended_abnormally)
    }

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> AttemptState {
        if let Some((_, outcome)) = self.ended {
            AttemptState::Ended(outcome)
        } else if self.tasks.iter().all(|task| task.exit.is_some()) {
            AttemptState::Verifying
        } else if self.stop.is_some() || self.is_broken() {
            AttemptState::Stopping
        } else if self.running.is_some() {
            AttemptState::Running
        } else if self.tasks.iter().any(|task| task.started) {
            AttemptState::Starting
        } else if self.granted.is_some() {
            AttemptState::Granted
        } else {
            AttemptState::Planned
        }
    }

    /// Its tasks with their ids.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        (0..).zip(&self.tasks).map(|(index, task)| (TaskId { attempt: self.id, index }, task))
    }

    /// The task that broke the gang: one that was lost before one that failed, since ranks fail
    /// when a peer is gone and are often heard of first; among alike the first.
    #[must_use]
    pub fn breaker(&self) -> Option<(TaskId, &Task)> {
        let broken = self.tasks().filter(|(_, task)| task.ended_abnormally());
        broken.min_by_key(|(id, task)| {
            let lost = matches!(task.exit, Some(TaskExit::Lost(_)));
            (!lost, task.ended_by, *id)
        })
    }
}

/// A task's node and GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub node: NodeId,
    /// Which; never empty.
    pub gpus: Vec<GpuUuid>,
}

/// One task of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its node and GPUs.
    pub place: Place,
    /// The port set aside on its node, once it is prepared.
    pub port: Option<u16>,
    /// Whether its process was seen to run.
    pub started: bool,
    /// How it ended.
    pub exit: Option<TaskExit>,
    /// The journal record that says so.
    pub ended_by: Option<DecisionSeq>,
    /// How long it ran, by its node's monotonic clock.
    pub ran: Span,
    /// Whether its GPUs are idle again.
    pub released: bool,
}

impl Task {
    /// A task that is only planned.
    #[must_use]
    pub fn planned(place: Place) -> Self {
        Self {
            place,
            port: None,
            started: false,
            exit: None,
            ended_by: None,
            ran: Span::ZERO,
            released: false,
        }
    }

    fn ended_abnormally(&self) -> bool {
        self.exit.as_ref().is_some_and(|exit| !exit.is_success())
    }
}
