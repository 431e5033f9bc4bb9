//! The books: what is known for sure, changed only by `evolve`.
//!
//! Indexes beside the maps are derived (`index`); `audit` recounts them.

mod task;
mod writing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;
use tidegate_model::{
    AttemptId, DecisionSeq, Epoch, Gpu, GpuCount, GpuUuid, JobId, JobSpec, NodeFacts, NodeId,
    NodeName, Span, StorageName, SubmitKey, TaskExit, TaskId, Timestamp, UserId, WhileWaiting,
};

pub use self::task::{Place, Task};
pub use self::writing::{PermitOf, Writing};
use crate::accounts::{AccountId, Accounts, Size};
use crate::commits::{Commits, Committed};
use crate::decision::{
    Excused, JobOutcome, Outcome, ParkReason, SaveReason, Standing, StopReason, Terms,
};
use crate::gate::Gate;
use crate::index::Index;
use crate::money::Amount;
use crate::policy::{Kind, Policy, PolicyEdit};
use crate::rehearsal::{Rehearsals, Verdict};

/// Names of removed nodes that are kept: more than anybody replaces while jobs are kept.
pub(crate) const REMOVED_KEPT: usize = 1024;

/// Everything that a restart must bring back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Books {
    /// The leadership; 0 before the first.
    pub epoch: Option<Epoch>,
    /// The rules in force.
    pub policy: Policy,
    /// Since when and by whom; none of a store whose snapshot does not say.
    pub policy_edit: Option<PolicyEdit>,
    /// By id. Shared with the copies that readers hold; a change copies one entry.
    pub nodes: BTreeMap<NodeId, Arc<Node>>,
    /// Names of nodes since removed, the newest 1,024, for jobs that ran on them.
    pub removed: BTreeMap<NodeId, NodeName>,
    /// By id. Shared likewise.
    pub jobs: OrdMap<JobId, Arc<Job>>,
    /// The budget tree and what was spent.
    pub accounts: Accounts,
    /// What users asked for and nobody has answered, by account and user.
    pub asked: BTreeMap<(AccountId, UserId), BudgetAsk>,
    /// What was answered to it within the last hour, for whoever has not heard that it was.
    pub answered: BTreeMap<(AccountId, UserId), BudgetAnswer>,
    /// The write gates that somebody has set, by storage target; others have no cap.
    pub gates: BTreeMap<StorageName, Gate>,
    /// What rehearsals have shown, by recipe.
    pub rehearsals: Rehearsals,
    /// The number the next job gets, less one: ids are never reused.
    pub last_job: u64,
    /// The number the next node gets, less one.
    pub last_node: u32,
    pub(crate) index: Index,
}

/// A wish for another budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetAsk {
    /// The budget wanted.
    pub size: Size,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Timestamp,
}

/// How long an answered wish is known: longer than anybody repeats an answer.
pub(crate) const ANSWER_KEPT: Span = Span::hours(1);

/// What became of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetAnswer {
    /// What was wanted.
    pub size: Size,
    /// Whether it was given.
    pub granted: bool,
    /// By whom it was answered.
    pub by: UserId,
    /// When.
    pub at: Timestamp,
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

    /// An attempt with its job.
    pub(crate) fn with_job(&self, id: AttemptId) -> Option<(&Job, &Attempt)> {
        let job = self.jobs.get(&id.job)?;
        Some((job, job.attempt(id.number)?))
    }

    /// How many of the job's array hold a place, if as many do as may and the job does not.
    pub(crate) fn array_full(&self, job: &Job) -> Option<u32> {
        let array = job.spec.array.as_ref()?;
        let waits = matches!(job.state, JobState::Pending { .. }) && job.reservation.is_none();
        let held = self.index.arrays.get(&(job.user, array.key)).copied().unwrap_or(0);
        (waits && held >= array.at_a_time).then_some(held)
    }

    /// The name of a node, of one since removed too; none of what was removed long ago.
    #[must_use]
    pub fn node_name(&self, id: NodeId) -> Option<&NodeName> {
        self.nodes.get(&id).map(|node| &node.name).or_else(|| self.removed.get(&id))
    }

    /// GPUs of all nodes, in service or not.
    pub(crate) fn installed_gpus(&self) -> u64 {
        let makes = self.index.makes.iter();
        let gpus = makes.map(|(make, count)| u64::from(make.size).saturating_mul((*count).into()));
        gpus.fold(0, u64::saturating_add)
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

    /// Pending jobs by submit time. Looks at all jobs, ended ones too.
    pub fn queue(&self) -> impl Iterator<Item = &Job> {
        let jobs = self.jobs.values().map(Arc::as_ref);
        jobs.filter(|job| matches!(job.state, JobState::Pending { .. }))
    }

    /// Jobs that have not ended.
    #[must_use]
    pub fn live_jobs(&self) -> usize {
        self.jobs.len().saturating_sub(self.index.ended.len())
    }

    /// How many jobs are pending.
    #[must_use]
    pub fn pending_jobs(&self) -> usize {
        self.index.pending
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
    /// Who gets which GPU once its holder has let go.
    pub heirs: BTreeMap<GpuUuid, TaskId>,
    /// Tasks placed here and not released.
    pub tasks: BTreeSet<TaskId>,
}

impl Node {
    /// Whether it can run tasks of that user.
    #[must_use]
    pub fn serves(&self, user: UserId) -> bool {
        self.facts.only_user.is_none_or(|only| only == user)
    }

    /// Why it takes no new work although nobody drains it, as its agent says.
    #[must_use]
    pub fn closed(&self) -> Option<&str> {
        Some(self.facts.closed.as_str()).filter(|why| !why.is_empty())
    }

    /// GPUs that nobody holds, in the driver's order.
    pub fn idle(&self) -> impl Iterator<Item = &Gpu> {
        self.facts.gpus.iter().filter(|gpu| !self.held.contains_key(&gpu.uuid))
    }

    /// How many GPUs it has.
    #[must_use]
    pub fn size(&self) -> GpuCount {
        GpuCount(u32::try_from(self.facts.gpus.len()).unwrap_or(u32::MAX))
    }

    /// The kind of its GPUs: that of its first.
    #[must_use]
    pub fn kind(&self, policy: &Policy) -> Kind {
        let first = self.facts.gpus.first();
        first.map_or_else(Kind::default, |gpu| policy.sharing.kind_of(&gpu.product))
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
    /// When it is wanted empty.
    pub wanted_by: Option<Timestamp>,
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
    /// Who cancelled it, and when.
    pub cancelled: Option<Box<Cancelled>>,
    /// Attempts that failed by themselves.
    pub failures: u32,
    /// Attempts in a row that did not last.
    pub streak: u32,
    /// The account it is charged to.
    pub account: AccountId,
    /// Since when it waits: its submission, or the end of its last protected or funded attempt.
    pub waits_since: Timestamp,
    /// Attempts in a row that ended without a new commit.
    pub stalled: u32,
    /// Why it is not started, if so.
    pub parked: Option<ParkReason>,
    /// Since when it is its account's elder.
    pub elder: Option<Timestamp>,
    /// Whether it may become one whatever it asks.
    pub elder_allowed: bool,
    /// Nodes promised to it.
    pub reservation: Option<Box<Reservation>>,
    /// Jobs that must end before it may start, of those it names.
    pub waits_for: BTreeSet<JobId>,
    /// Protection its next attempt inherits.
    pub carried: Option<Span>,
    /// Its checkpoints; none = there is none.
    pub commits: Option<Box<Commits>>,
    /// Of a rehearsal, how it was judged; what it has shown is kept with its recipe. None = it is not
    /// over, or ended without.
    pub judged: Option<Verdict>,
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

    /// Its newest checkpoint: the next attempt resumes from it.
    #[must_use]
    pub fn commit(&self) -> Option<&Committed> {
        self.commits.as_ref()?.newest()
    }

    /// The attempt that is under way.
    #[must_use]
    pub fn active_attempt(&self) -> Option<&Attempt> {
        match self.state {
            JobState::Active { attempt } => self.attempt(attempt),
            JobState::Pending { .. } | JobState::Ended { .. } => None,
        }
    }

    /// Whether it may run free until it is funded.
    #[must_use]
    pub fn runs_free(&self) -> bool {
        let waits_free = self.spec.while_waiting == WhileWaiting::Free;
        self.spec.min_runtime == Span::ZERO || waits_free && self.spec.checkpoint.is_some()
    }

    /// Whether an attempt holds or may hold something.
    #[must_use]
    pub fn has_live_attempt(&self) -> bool {
        self.attempts.iter().any(Attempt::is_live)
    }
}

/// A job is to end because somebody said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled {
    /// Who.
    pub by: UserId,
    /// When; none of one whose snapshot does not say.
    pub at: Option<Timestamp>,
}

/// Nodes promised to a waiting job from an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// When it was made.
    pub made: Timestamp,
    /// Older ones go first: grows with every one that is made while others stand.
    pub order: u64,
    /// The nodes, and how many GPUs of each.
    pub nodes: Vec<(NodeId, GpuCount)>,
    /// From when.
    pub at: Timestamp,
    /// What it pledges.
    pub pledge: Amount,
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
    /// On which terms it was planned.
    pub terms: Terms,
    /// How it stands.
    pub standing: Standing,
    /// Until when its time is promised: the end of its protection, or of a return.
    pub promised_until: Option<Timestamp>,
    /// How it stood, from the instant all its tasks ran; the last span is open while it runs.
    pub held: Vec<Held>,
    /// What of it is not charged after all.
    pub excused: Vec<Excused>,
    /// Since when all its GPUs are its own; none while others still hold some.
    pub ready: Option<Timestamp>,
    /// Whether and why it is asked to save and leave.
    pub save: Option<SaveOrder>,
    /// When it last committed.
    pub committed: Option<Timestamp>,
    /// Whether it can commit no more.
    pub commits_closed: bool,
    /// What it may write now, or is reckoned to.
    pub writing: Option<Writing>,
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

/// How an attempt stood for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// How.
    pub standing: Standing,
    /// From when.
    pub from: Timestamp,
    /// To when; none = still.
    pub until: Option<Timestamp>,
}

/// A request to save and leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveOrder {
    /// Why.
    pub why: SaveReason,
    /// The journal record of the request: its id.
    pub decision: DecisionSeq,
    /// When it was made.
    pub at: Timestamp,
    /// When it was told before its turn, as it asks before it writes.
    pub told: Option<Timestamp>,
    /// When the write gate let it save.
    pub admitted: Option<Timestamp>,
    /// When a node said that its ranks were asked; none = not, or it was not kept.
    pub acknowledged: Option<Timestamp>,
    /// When a node measured that it wrote; none = not, or it was not kept.
    pub first_byte: Option<Timestamp>,
    /// When it first committed what it was asked for.
    pub committed: Option<Timestamp>,
    /// What it was let through with, if it said that it asks, did not, and so gave its place at the gate
    /// back. It has it again when a node measures that it writes.
    pub given_back: Option<Writing>,
}

impl SaveOrder {
    /// When its nodes were told of it: before its turn at the gate, or with it.
    #[must_use]
    pub fn said(&self) -> Option<Timestamp> {
        self.told.or(self.admitted)
    }
}

/// Where an attempt is.
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
    /// It is to save, and runs on until the write gate lets it.
    Paced,
    /// It is saving.
    Saving,
    /// Told to end, or broken.
    Stopping,
    /// All tasks have ended; not all are verified gone.
    Verifying,
    /// Over.
    Ended(Outcome),
}

impl AttemptState {
    /// Every state but the outcomes, for coverage counts.
    pub const LIVE: [Self; 8] = [
        Self::Planned,
        Self::Granted,
        Self::Starting,
        Self::Running,
        Self::Paced,
        Self::Saving,
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
        } else if self.stop.is_some() {
            AttemptState::Stopping
        } else if let Some(save) = &self.save {
            if save.said().is_some() { AttemptState::Saving } else { AttemptState::Paced }
        } else if self.is_broken() {
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

    /// GPUs of the whole gang.
    #[must_use]
    pub fn gpus(&self) -> GpuCount {
        let gpus = self.tasks.iter().map(|task| task.place.gpus.len());
        gpus.map(|gpus| GpuCount(u32::try_from(gpus).unwrap_or(u32::MAX))).sum()
    }

    /// Whether it was protected at any time, or is planned to be.
    #[must_use]
    pub fn was_protected(&self) -> bool {
        self.terms.standing == Standing::Protected
            || self.held.iter().any(|held| held.standing == Standing::Protected)
    }

    /// Whether somebody entitled may displace it now.
    #[must_use]
    pub fn is_displaceable(&self) -> bool {
        let leaving = self.stop.is_some() || self.save.is_some() || self.ended.is_some();
        self.standing != Standing::Protected && !leaving && !self.is_broken()
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
