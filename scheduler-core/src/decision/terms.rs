//! How attempts stand and end, and why: the values inside decisions.

use std::fmt;

use tidegate_model::{AttemptId, JobId, NodeId, Span, Timestamp, UserId};

use crate::money::{Amount, Weight};

/// How a live attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Inside its protected time, or on its way to it.
    Protected,
    /// Past it, and still charged.
    Funded,
    /// Outside the budget: neither charged nor protected.
    Free,
}

impl fmt::Display for Standing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Protected => "Protected",
            Self::Funded => "Funded",
            Self::Free => "Free",
        })
    }
}

/// On which terms an attempt is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Protected or Free.
    pub standing: Standing,
    /// How long it is protected once it runs; zero of a free one.
    pub protect: Span,
    /// What one of its GPUs costs.
    pub weight: Weight,
    /// Whether it is small.
    pub small: bool,
}

impl Terms {
    /// Of work outside every budget.
    pub const FREE: Self = Self {
        standing: Standing::Free,
        protect: Span::ZERO,
        weight: Weight::REFERENCE,
        small: false,
    };
}

/// A span of an attempt that is not charged after all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excused {
    /// From when.
    pub from: Timestamp,
    /// To when.
    pub until: Timestamp,
    /// Why.
    pub why: Excuse,
}

/// Why a span is not charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excuse {
    /// It saved because we asked.
    Saved,
    /// What it did since its last commit was lost with hardware.
    Fault,
}

/// Why an attempt is asked to save and leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveReason {
    /// Another attempt has its GPUs.
    Displaced {
        /// Which.
        by: AttemptId,
        /// By which right.
        grounds: Grounds,
    },
    /// Its node takes no work.
    Drained {
        /// Which.
        node: NodeId,
    },
    /// Its job is a rehearsal: it is to be seen whether it saves, leaves and goes on.
    Rehearsed,
}

/// The right by which an attempt was displaced, with its numbers at that instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grounds {
    /// Which rule.
    pub rule: Right,
    /// The claimant's claim with what it asks, and the budget it is held against.
    pub claimant: (Amount, Amount),
    /// The victim's.
    pub victim: (Amount, Amount),
}

impl Grounds {
    /// Of a rule that compares no figures.
    pub(crate) fn plain(rule: Right) -> Self {
        let none = (Amount::ZERO, Amount::ZERO);
        Self { rule, claimant: none, victim: none }
    }
}

/// The rule, with its figures where it compares any.
impl fmt::Display for Grounds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((claim, budget), (other_claim, other_budget)) = (self.claimant, self.victim);
        self.rule.fmt(out)?;
        if budget == Amount::ZERO {
            return Ok(());
        }
        write!(out, " ({claim} of {budget} against {other_claim} of {other_budget} GPU-hours)")
    }
}

/// The rules by which one attempt may displace another (2-scheduling, "Who may displace whom").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Free work yields to protected demand.
    Free,
    /// The claimant's account is further below its budget.
    Ratio,
    /// Within one account: the claimant's user has the smaller claim.
    SmallerClaim,
    /// Within one user: the claimant comes first in the own order.
    OwnOrder,
    /// A small job displaces any Funded one.
    Small,
    /// The instant of a firm reservation has come.
    Reservation,
}

impl fmt::Display for Right {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Free => "free work yields to protected work",
            Self::Ratio => "the other account is further below its budget",
            Self::SmallerClaim => "the other user has had less of this account",
            Self::OwnOrder => "its owner put the other job first",
            Self::Small => "a small job may displace any that is past its protected time",
            Self::Reservation => "the instant of a firm reservation has come",
        })
    }
}

/// Why a firm reservation moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveCause {
    /// It can be had earlier.
    Earlier,
    /// One of its nodes is lost, silent or takes no work.
    NodeGone,
    /// What held its nodes was let go later than its limit.
    LateRelease,
}

impl fmt::Display for MoveCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Earlier => "its nodes come free earlier",
            Self::NodeGone => "one of its nodes left service",
            Self::LateRelease => "its nodes were let go later than their limit",
        })
    }
}

/// Why a job is not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParkReason {
    /// Somebody said so.
    Asked {
        /// Who.
        by: UserId,
    },
    /// So many attempts in a row ended without a new commit.
    NoProgress {
        /// How many.
        attempts: u32,
    },
    /// A job it waits for did not end as it must.
    DependencyFailed {
        /// Which.
        job: JobId,
    },
}

impl fmt::Display for ParkReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked { by } => write!(out, "by {by}"),
            Self::NoProgress { attempts } => {
                write!(out, "{attempts} attempts in a row ended without a new commit")
            }
            Self::DependencyFailed { job } => {
                write!(out, "{job}, which it waits for, did not end as it must")
            }
        }
    }
}

/// How far a save came that the write gate let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveStep {
    /// A node said that its ranks were asked, in whichever way they can be.
    Acknowledged,
    /// A node measured that it writes.
    FirstByte,
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
    /// It has no way to save, and is asked to leave.
    CannotSave,
    /// It was asked to save, and its grace is over.
    GraceOver,
    /// It has saved, and has not left by itself.
    Stays,
    /// The GPUs it waited for are not to be had any more.
    PlanFailed,
    /// Its job is a rehearsal, and has shown what it could.
    Rehearsed,
}

impl fmt::Display for StopReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Cancelled => "the job was cancelled",
            Self::GangBroken => "a task of its gang ended abnormally",
            Self::StartTimeout => "its gang did not start in time",
            Self::CannotSave => "it is to leave, and has no way to save",
            Self::GraceOver => "it was asked to save, and its grace is over",
            Self::Stays => "it has saved, and did not leave by itself",
            Self::PlanFailed => "the GPUs it waited for are not to be had",
            Self::Rehearsed => "its rehearsal is over",
        })
    }
}

/// How an attempt ended.
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
    /// It was asked to save, and committed.
    Saved,
    /// It was asked to save and left as if it had, but no commit of it is known.
    Unknown,
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
