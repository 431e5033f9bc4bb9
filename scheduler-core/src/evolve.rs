//! Bookkeeping: applies one decision. No choice is left here, and nothing else changes the books.
//! A decision that does not fit the books is a broken invariant: the shell stops and restores.

mod accounts;
mod attempts;
mod gates;
mod jobs;
mod nodes;

pub(crate) use self::accounts::MAX_TRANSFERS;

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_model::{AttemptId, DecisionSeq, Epoch, JobId, TaskId, Timestamp};

use crate::books::{Attempt, Books, Job, Task};
use crate::charge::{self, Charge};
use crate::decision::Decision;
use crate::index::Index;
use crate::policy::{Author, Policy, PolicyEdit};

/// When and where in the journal a decision stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The instant it was made.
    pub at: Timestamp,
    /// Its record.
    pub seq: DecisionSeq,
}

/// A decision that does not fit the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// What was to be applied.
    pub decision: Box<Decision>,
    /// What is wrong with it.
    pub why: &'static str,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?} does not fit the books: {}", self.decision, self.why)
    }
}

impl std::error::Error for Broken {}

type Applied = Result<(), &'static str>;

impl Books {
    /// Applies one decision.
    ///
    /// # Errors
    /// If it does not fit. The books are then of no use.
    pub fn evolve(&mut self, stamp: Stamp, decision: &Decision) -> Result<(), Broken> {
        let applied = match decision {
            Decision::EpochBegan(epoch) => self.begin_epoch(*epoch),
            Decision::PolicySet { policy, by } => self.set_policy(stamp, policy, *by),
            Decision::NodeAdmitted { .. }
            | Decision::NodeRefreshed { .. }
            | Decision::DrainBegan { .. }
            | Decision::DrainEnded { .. }
            | Decision::NodeRemoved { .. } => self.evolve_node(stamp, decision),
            Decision::AccountMade { .. }
            | Decision::BudgetSet { .. }
            | Decision::BudgetTransferred { .. }
            | Decision::BudgetAsked { .. }
            | Decision::BudgetAnswered { .. }
            | Decision::AccountDeleted { .. }
            | Decision::RoleSet { .. }
            | Decision::LimitCrossed { .. } => self.evolve_account(stamp, decision),
            Decision::JobAccepted { .. }
            | Decision::JobCancelled { .. }
            | Decision::JobRequeued { .. }
            | Decision::JobEnded { .. }
            | Decision::JobForgotten(_)
            | Decision::RehearsalJudged { .. }
            | Decision::JobParked { .. }
            | Decision::JobUnparked { .. }
            | Decision::ElderNamed { .. }
            | Decision::ElderAllowed { .. }
            | Decision::ReservationMade { .. }
            | Decision::ReservationMoved { .. }
            | Decision::ReservationDropped { .. } => self.evolve_job(stamp, decision),
            Decision::AttemptPlanned { .. }
            | Decision::AttemptGranted(_)
            | Decision::AttemptRunning(_)
            | Decision::StandingChanged { .. }
            | Decision::SaveOrdered { .. }
            | Decision::SaveWithdrawn(_)
            | Decision::SaveTold(_)
            | Decision::SaveAdmitted { .. }
            | Decision::SaveNoted { .. }
            | Decision::PermitGranted { .. }
            | Decision::WriteRated { .. }
            | Decision::WriteEnded(_)
            | Decision::CheckpointCommitted { .. }
            | Decision::CommitsClosed(_)
            | Decision::StopOrdered { .. }
            | Decision::AttemptEnded { .. }
            | Decision::TaskPrepared { .. }
            | Decision::TaskStarted(_)
            | Decision::TaskEnded { .. }
            | Decision::TaskIdled { .. }
            | Decision::TaskReleased(_) => self.evolve_attempt(stamp, decision),
            Decision::GateSet { .. }
            | Decision::CapAdapted { .. }
            | Decision::GatePaused { .. }
            | Decision::GateResumed { .. } => self.evolve_gate(stamp, decision),
            Decision::Refused(_) | Decision::SubmitRepeated(_) => Ok(()),
        };
        applied.map_err(|why| Broken { decision: Box::new(decision.clone()), why })
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Applied {
        ensure(self.epoch < Some(epoch), "an epoch only grows")?;
        self.epoch = Some(epoch);
        Ok(())
    }

    /// What is small and what a GPU costs may be other than before, so all indexes are rebuilt.
    fn set_policy(&mut self, stamp: Stamp, policy: &Policy, by: Author) -> Applied {
        self.policy = policy.clone();
        self.policy_edit = Some(PolicyEdit { record: stamp.seq, at: stamp.at, by });
        self.reindex();
        Ok(())
    }

    /// Builds all indexes from the maps.
    pub(crate) fn reindex(&mut self) {
        let mut index = Index::default();
        for node in self.nodes.values() {
            index.enter_node(node, &self.policy);
        }
        for job in self.jobs.values() {
            index.enter(job, &self.policy.sharing);
        }
        self.index = index;
        self.count_installed();
    }

    /// Changes one job, and with it the indexes and what its account is charged.
    fn change_job(&mut self, id: JobId, by: impl FnOnce(&mut Job) -> Applied) -> Applied {
        let sharing = &self.policy.sharing;
        let entry = self.jobs.get_mut(&id).ok_or("no such job")?;
        let live: BTreeSet<u32> =
            entry.attempts.iter().filter(|one| one.is_live()).map(|one| one.id.number).collect();
        let counts = |one: &Attempt| one.is_live() || live.contains(&one.id.number);
        let before = Charge::of(entry, counts);
        self.index.leave(entry, sharing);
        let entry = Arc::make_mut(entry);
        by(entry)?;
        self.index.enter(entry, sharing);
        let after = Charge::of(entry, counts);
        charge::rebook(&mut self.accounts, (entry.account, entry.user), &before, &after);
        Ok(())
    }

    fn change_attempt(
        &mut self,
        id: AttemptId,
        by: impl FnOnce(&mut Attempt) -> Applied,
    ) -> Applied {
        self.change_job(id.job, |job| by(attempt_of(job, id)?))
    }

    /// Changes what of a task neither an index nor a charge depends on.
    fn change_task(&mut self, id: TaskId, by: impl FnOnce(&mut Task) -> Applied) -> Applied {
        let job = self.jobs.get_mut(&id.attempt.job).map(Arc::make_mut).ok_or("no such job")?;
        by(task_of(attempt_of(job, id.attempt)?, id)?)
    }
}

fn attempt_of(job: &mut Job, id: AttemptId) -> Result<&mut Attempt, &'static str> {
    let index = id.number.checked_sub(1).and_then(|index| usize::try_from(index).ok());
    index.and_then(|index| job.attempts.get_mut(index)).ok_or("no such attempt")
}

fn task_of(attempt: &mut Attempt, id: TaskId) -> Result<&mut Task, &'static str> {
    let index = usize::try_from(id.index).map_err(|_too_large| "no such task")?;
    attempt.tasks.get_mut(index).ok_or("no such task")
}

fn ensure(holds: bool, rule: &'static str) -> Applied {
    if holds { Ok(()) } else { Err(rule) }
}
