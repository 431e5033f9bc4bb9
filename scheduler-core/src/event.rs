//! What happens to the core: past-tense facts, as the shell has checked them.

use tidegate_model::{
    AccountPath, AskSeen, Bandwidth, Commit, JobId, JobSpec, NodeFacts, NodeName, SaveSeen,
    StorageName, SubmitKey, TaskId, TaskSeen, Timestamp, UserId,
};

use crate::accounts::{Cut, Role, Size};
use crate::gate::GateRule;
use crate::money::Amount;
use crate::policy::PolicyChange;

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
        /// How far requests to save came.
        saves: Vec<(TaskId, SaveSeen)>,
        /// The newest checkpoints that its tasks said are complete.
        commits: Vec<(TaskId, Commit)>,
        /// The newest asks of its tasks, and how far they came.
        asks: Vec<(TaskId, AskSeen)>,
    },
    /// A person asked that a node take no new work.
    DrainRequested {
        /// Which.
        node: NodeName,
        /// Who asks.
        by: UserId,
        /// Why; mandatory.
        reason: String,
        /// When it is to be empty. Names who is protected beyond it; breaks nobody.
        wanted_by: Option<Timestamp>,
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
    /// A person said that a node will not come back.
    NodeRemovalRequested {
        /// Which.
        node: NodeName,
        /// Who says so.
        by: UserId,
    },
    /// A person asked for something about accounts.
    AccountRequested {
        /// Who asks.
        by: UserId,
        /// For what.
        request: AccountRequest,
    },
    /// A person asked for something about a waiting job.
    JobRequested {
        /// Which.
        job: JobId,
        /// Who asks.
        by: UserId,
        /// For what.
        request: JobRequest,
    },
    /// A person asked for something about a write gate.
    GateRequested {
        /// Of which target.
        storage: StorageName,
        /// Who asks.
        by: UserId,
        /// For what.
        request: GateRequest,
    },
    /// Somebody wants this policy.
    PolicyChanged(PolicyChange),
    /// A node measured that a task writes. Told of those only whose attempts are to save.
    WritingSeen {
        /// Which.
        task: TaskId,
    },
    /// An instant that [`Core::next_deadline`](crate::Core::next_deadline) named has come.
    DeadlineReached,
}

impl Event {
    /// Whether somebody may be able to start by it, whatever is decided on it. Of what agents say
    /// of tasks, and of what users submit, only what it brings about matters.
    pub(crate) fn asks_for_a_pass(&self) -> bool {
        !matches!(
            self,
            Self::NodeReported { complete: false, facts: None, .. }
                | Self::JobSubmitted { .. }
                | Self::WritingSeen { .. }
        )
    }
}

/// What people ask about accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountRequest {
    /// Make the account, or change its budget.
    Set {
        /// Which.
        account: AccountPath,
        /// Its budget.
        size: Size,
        /// How a cut comes into force.
        cut: Cut,
    },
    /// Move GPU-time between accounts.
    Transfer {
        /// Whose.
        from: AccountPath,
        /// To whom.
        to: AccountPath,
        /// How much, per window.
        amount: Amount,
        /// Else it lapses after one window.
        permanent: bool,
        /// Made by the client: the same key and user makes one transfer.
        key: Option<SubmitKey>,
    },
    /// Ask for another budget; open to all who may submit.
    Ask {
        /// For which account.
        account: AccountPath,
        /// The budget wanted.
        size: Size,
        /// Why.
        reason: String,
    },
    /// Answer what a user asked.
    Answer {
        /// Of which account.
        account: AccountPath,
        /// Who had asked.
        asked_by: UserId,
        /// Whether it is granted.
        grant: bool,
        /// What the one who answers was shown; another is not answered. None = whatever it is.
        size: Option<Size>,
    },
    /// Take the account out of use.
    Delete {
        /// Which.
        account: AccountPath,
    },
    /// Give or take a role.
    SetRole {
        /// Where; none = at the root.
        account: Option<AccountPath>,
        /// Who.
        user: UserId,
        /// What; none = nothing.
        role: Option<Role>,
    },
}

/// What people ask about a write gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateRequest {
    /// Limit it so. Who writes goes on as it may; who comes next is held to it.
    Set(GateRule),
    /// Let nobody write who does not yet.
    Pause {
        /// Why; mandatory.
        reason: String,
    },
    /// Let them write again.
    Resume,
}

/// What people ask about waiting jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRequest {
    /// Do not start it.
    Park,
    /// Start it again.
    Release,
    /// Let it become an elder although it asks more than half of its account's limit.
    AllowElder,
    /// Give up its firm reservation.
    DropReservation,
}

/// What is noted but never journaled; empty after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// The node's agent was heard, whatever it said.
    NodeHeard {
        /// Which.
        node: NodeName,
    },
    /// What a task writes, by its node's measure.
    TaskWrites {
        /// Which.
        task: TaskId,
        /// Bytes per second; zero = nothing any more.
        rate: Bandwidth,
    },
    /// A task's GPUs have been under 5 % busy since an instant, or are busy again.
    TaskIdle {
        /// Which.
        task: TaskId,
        /// Since when; none = busy.
        since: Option<Timestamp>,
    },
    /// A task has asked, as a decision says that was made on it. Of its ask more may be known.
    TaskAsked {
        /// Which.
        task: TaskId,
        /// What it must have asked.
        seen: AskSeen,
    },
}
