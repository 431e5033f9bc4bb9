//! What the core decides: past-tense outcomes. The meaning of a released decision never changes;
//! a new meaning is a new variant.

mod refusal;
mod terms;

use tidegate_model::{
    AttemptId, Bandwidth, Bytes, Commit, Epoch, GpuCount, Idle, JobId, JobSpec, NodeFacts, NodeId,
    NodeName, Span, StorageName, SubmitKey, TaskExit, TaskId, Timestamp, UserId,
};

use crate::accounts::{AccountId, Cut, Role, Size};
use crate::books::{PermitOf, Place};
use crate::gate::GateRule;
use crate::money::Amount;
use crate::policy::{Author, Policy};
use crate::rehearsal::{Recipe, Rehearsal};

pub use self::refusal::Refusal;
pub use self::terms::{
    Excuse, Excused, Grounds, JobOutcome, MoveCause, Outcome, ParkReason, Right, SaveReason,
    SaveStep, Standing, StopReason, Terms,
};

/// One outcome. All but the last two change the books and are journaled.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A new leadership over the store.
    EpochBegan(Epoch),
    /// The policy is now this.
    PolicySet {
        /// All of it.
        policy: Policy,
        /// By whom.
        by: Author,
    },
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
        /// When it is to be empty, for people; it ends no protection.
        wanted_by: Option<Timestamp>,
    },
    /// A node takes work again.
    DrainEnded {
        /// Which.
        node: NodeId,
        /// Who lifted it.
        by: UserId,
    },
    /// A node is no part of the cluster any more; what was installed with it is not shared out.
    NodeRemoved {
        /// Which.
        node: NodeId,
        /// By whom.
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
        /// On which terms it runs.
        terms: Terms,
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
    /// How long its GPUs were idle, of a task that has ended.
    TaskIdled {
        /// Which.
        task: TaskId,
        /// As its node measured it.
        idle: Idle,
    },
    /// No process of the task is left; its GPUs are idle.
    TaskReleased(TaskId),
    /// The gang holds nothing any more.
    AttemptEnded {
        /// Which.
        attempt: AttemptId,
        /// How.
        outcome: Outcome,
        /// When its GPUs were free again; not after the decision.
        released: Timestamp,
        /// What of its time is not charged after all.
        excused: Option<Excused>,
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
        /// Attempts in a row that ended without a new commit.
        stalled: u32,
        /// The protection that its next attempt inherits from one that we ended inside its own.
        carried: Option<Span>,
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
    /// An account is part of the tree.
    AccountMade {
        /// Its number, never reused.
        account: AccountId,
        /// Below which.
        parent: AccountId,
        /// The last label of its path.
        label: String,
        /// Its budget.
        size: Size,
        /// By whom.
        by: UserId,
    },
    /// An account has another budget.
    BudgetSet {
        /// Whose.
        account: AccountId,
        /// The new one.
        size: Size,
        /// How a cut comes into force.
        cut: Cut,
        /// By whom.
        by: UserId,
    },
    /// GPU-time moved from one account to another.
    BudgetTransferred {
        /// Whose it was.
        from: AccountId,
        /// Whose it is.
        to: AccountId,
        /// How much, per window.
        amount: Amount,
        /// When it lapses; none = never.
        until: Option<Timestamp>,
        /// By whom.
        by: UserId,
        /// Under which key of theirs.
        key: Option<SubmitKey>,
    },
    /// Somebody asked for more.
    BudgetAsked {
        /// For which account.
        account: AccountId,
        /// The budget wanted.
        size: Size,
        /// Why.
        reason: String,
        /// By whom.
        by: UserId,
    },
    /// What was asked is granted (a `BudgetSet` goes before) or not.
    BudgetAnswered {
        /// Of which account.
        account: AccountId,
        /// Who had asked.
        asked_by: UserId,
        /// Whether it was granted.
        granted: bool,
        /// By whom.
        by: UserId,
    },
    /// An account is out of use; what it spent stays with its ancestors.
    AccountDeleted {
        /// Which.
        account: AccountId,
        /// By whom.
        by: UserId,
    },
    /// A user may do this in an account and below.
    RoleSet {
        /// Where.
        account: AccountId,
        /// Who.
        user: UserId,
        /// What; none = nothing more than elsewhere.
        role: Option<Role>,
        /// By whom.
        by: UserId,
    },
    /// An account's claim reached its limit, or fell below it.
    LimitCrossed {
        /// Whose.
        account: AccountId,
        /// The instant.
        at: Timestamp,
        /// Whether it is now at or above it.
        above: bool,
    },
    /// A live attempt stands otherwise.
    StandingChanged {
        /// Which.
        attempt: AttemptId,
        /// The exact instant, not after the decision.
        at: Timestamp,
        /// How it stands from then on.
        to: Standing,
        /// Until when its time is promised, if it is.
        promised_until: Option<Timestamp>,
    },
    /// The longest-waiting ordinary job of its account has waited long enough.
    ElderNamed {
        /// Which.
        job: JobId,
        /// The exact instant, not after the decision.
        at: Timestamp,
    },
    /// A job too large to become an elder by itself may, because its manager says so.
    ElderAllowed {
        /// Which.
        job: JobId,
        /// By whom.
        by: UserId,
    },
    /// An elder has nodes from a stated instant, and its pledge is held.
    ReservationMade {
        /// Whose.
        job: JobId,
        /// The nodes, and how many GPUs of each.
        nodes: Vec<(NodeId, GpuCount)>,
        /// From when.
        at: Timestamp,
        /// What it pledges.
        pledge: Amount,
    },
    /// A reservation has other nodes or another instant.
    ReservationMoved {
        /// Whose.
        job: JobId,
        /// The nodes, and how many GPUs of each.
        nodes: Vec<(NodeId, GpuCount)>,
        /// From when.
        at: Timestamp,
        /// Why.
        cause: MoveCause,
    },
    /// A reservation is gone; the job waits on.
    ReservationDropped {
        /// Whose.
        job: JobId,
        /// By whom.
        by: UserId,
    },
    /// An attempt is to save and leave.
    SaveOrdered {
        /// Which.
        attempt: AttemptId,
        /// Why.
        why: SaveReason,
    },
    /// The request was taken back before anybody was told to save.
    SaveWithdrawn(AttemptId),
    /// The attempt is told to save before its turn at the gate: it asks before it writes.
    SaveTold(AttemptId),
    /// The write gate lets the attempt save now.
    SaveAdmitted {
        /// Which.
        attempt: AttemptId,
        /// What it is expected to write.
        bytes: Bytes,
        /// At which rate it is reckoned to; none = its target has no cap.
        rate: Option<Bandwidth>,
    },
    /// A task's ask is answered: its gang may write, or read its checkpoint back.
    PermitGranted {
        /// Which ask of which task.
        permit: PermitOf,
        /// How much.
        bytes: Bytes,
        /// At most at this rate; none = its target has no cap.
        rate: Option<Bandwidth>,
        /// Whether it comes out of what is kept for those who wait too long.
        pooled: bool,
    },
    /// Who writes or reads may do so at another rate, or is reckoned to.
    WriteRated {
        /// Which.
        attempt: AttemptId,
        /// At most.
        rate: Bandwidth,
        /// Whether it comes out of what is kept for silent nodes.
        pooled: bool,
        /// What it may go on with until its node says that its job was told; none = no more than that.
        still: Option<Bandwidth>,
    },
    /// The attempt writes or reads no more: what was kept for it is free. Of one without a permit or a later
    /// commit: it said that it asks, and did not.
    WriteEnded(AttemptId),
    /// What checkpoints may write to a target is another cap than its rule's, by what permits say of it; the
    /// rule's again, if it is that.
    CapAdapted {
        /// Which target.
        storage: StorageName,
        /// The cap.
        cap: Bandwidth,
    },
    /// A storage target has these limits.
    GateSet {
        /// Which.
        storage: StorageName,
        /// All of them.
        rule: GateRule,
        /// By whom.
        by: UserId,
    },
    /// Nobody is let write to a target any more until it is resumed; who writes goes on.
    GatePaused {
        /// Which.
        storage: StorageName,
        /// By whom.
        by: UserId,
        /// Why.
        reason: String,
    },
    /// A paused target is written to again.
    GateResumed {
        /// Which.
        storage: StorageName,
        /// By whom.
        by: UserId,
    },
    /// A save that was let through has come so far.
    SaveNoted {
        /// Of which attempt.
        attempt: AttemptId,
        /// How far.
        step: SaveStep,
    },
    /// A checkpoint counts.
    CheckpointCommitted {
        /// Of which attempt.
        attempt: AttemptId,
        /// Which.
        commit: Box<Commit>,
    },
    /// The attempt can commit nothing any more: its successor is granted.
    CommitsClosed(AttemptId),
    /// A job is not started until it is released.
    JobParked {
        /// Which.
        job: JobId,
        /// Why.
        why: ParkReason,
    },
    /// A parked job may start again.
    JobUnparked {
        /// Which.
        job: JobId,
        /// By whom.
        by: UserId,
    },
    /// A rehearsal has shown what it could, and is to end.
    RehearsalJudged {
        /// Of what.
        recipe: Recipe,
        /// What it has shown, and which job it was.
        shown: Box<Rehearsal>,
    },
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

    /// Whether nobody can start by it who could not before.
    pub(crate) fn is_quiet(&self) -> bool {
        matches!(
            self,
            Self::TaskPrepared { .. }
                | Self::AttemptGranted(_)
                | Self::TaskStarted(_)
                | Self::TaskIdled { .. }
                | Self::CommitsClosed(_)
                | Self::CheckpointCommitted { .. }
                | Self::SaveTold(_)
                | Self::SaveAdmitted { .. }
                | Self::SaveNoted { .. }
                | Self::PermitGranted { .. }
                | Self::WriteRated { .. }
                | Self::WriteEnded(_)
                | Self::GateSet { .. }
                | Self::CapAdapted { .. }
                | Self::GatePaused { .. }
                | Self::GateResumed { .. }
                | Self::RehearsalJudged { .. }
                | Self::Refused(_)
                | Self::SubmitRepeated(_)
        )
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
        | Self::TaskIdled { task, .. }
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
            | Self::SaveOrdered { attempt, .. }
            | Self::SaveWithdrawn(attempt)
            | Self::SaveTold(attempt)
            | Self::SaveAdmitted { attempt, .. }
            | Self::SaveNoted { attempt, .. }
            | Self::WriteRated { attempt, .. }
            | Self::WriteEnded(attempt)
            | Self::CheckpointCommitted { attempt, .. }
            | Self::CommitsClosed(attempt)
            | Self::StandingChanged { attempt, .. }
            | Self::AttemptEnded { attempt, .. } => Some(*attempt),
            Self::TaskPrepared { task, .. }
            | Self::TaskStarted(task)
            | Self::TaskEnded { task, .. }
            | Self::TaskIdled { task, .. }
            | Self::TaskReleased(task) => Some(task.attempt),
            Self::PermitGranted { permit, .. } => Some(permit.task.attempt),
            Self::EpochBegan(_)
            | Self::PolicySet { .. }
            | Self::NodeAdmitted { .. }
            | Self::NodeRefreshed { .. }
            | Self::DrainBegan { .. }
            | Self::DrainEnded { .. }
            | Self::NodeRemoved { .. }
            | Self::JobAccepted { .. }
            | Self::JobCancelled { .. }
            | Self::JobRequeued { .. }
            | Self::JobEnded { .. }
            | Self::JobForgotten(_)
            | Self::JobParked { .. }
            | Self::JobUnparked { .. }
            | Self::AccountMade { .. }
            | Self::BudgetSet { .. }
            | Self::BudgetTransferred { .. }
            | Self::BudgetAsked { .. }
            | Self::BudgetAnswered { .. }
            | Self::AccountDeleted { .. }
            | Self::RoleSet { .. }
            | Self::LimitCrossed { .. }
            | Self::ElderNamed { .. }
            | Self::ElderAllowed { .. }
            | Self::ReservationMade { .. }
            | Self::ReservationMoved { .. }
            | Self::ReservationDropped { .. }
            | Self::GateSet { .. }
            | Self::CapAdapted { .. }
            | Self::GatePaused { .. }
            | Self::GateResumed { .. }
            | Self::RehearsalJudged { .. }
            | Self::Refused(_)
            | Self::SubmitRepeated(_) => None,
        }
    }
}
