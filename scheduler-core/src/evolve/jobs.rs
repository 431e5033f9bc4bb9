//! Jobs: their place in the queue, their end, their reservation.

use std::sync::Arc;

use tidegate_model::{JobId, JobSpec, Span, SubmitKey, Timestamp, UserId};

use super::{Applied, Stamp, ensure};
use crate::accounts::AccountId;
use crate::books::{Attempt, Books, Cancelled, Job, JobState, Reservation};
use crate::charge::{self, Charge};
use crate::decision::{Decision, JobOutcome, Standing};

impl Books {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    pub(super) fn evolve_job(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::JobAccepted { job, key, user, spec } => {
                ensure(job.0 > self.last_job, "a job's id is never reused")?;
                self.last_job = job.0;
                let account = self.account_of(&spec.account)?;
                let mut entry = Job::accepted(*job, (*user, *key), spec, stamp.at);
                entry.account = account;
                let ended =
                    |one: &JobId, success: bool| match self.jobs.get(one).map(|job| job.state) {
                        Some(JobState::Ended { outcome, .. }) => {
                            outcome == JobOutcome::Done || !success
                        }
                        Some(JobState::Pending { .. } | JobState::Active { .. }) => false,
                        None => true,
                    };
                let after = spec.after.iter().filter(|after| !ended(&after.job, after.success));
                entry.waits_for = after.map(|after| after.job).collect();
                self.restore_job(entry)
            }
            Decision::JobCancelled { job, by } => self.change_job(*job, |entry| {
                ensure(entry.is_alive(), "an ended job is not cancelled")?;
                entry.cancelled = Some(Box::new(Cancelled { by: *by, at: Some(stamp.at) }));
                Ok(())
            }),
            Decision::JobRequeued { job, not_before, own_failure, streak, stalled, carried } => {
                self.change_job(*job, |entry| {
                    let active = matches!(entry.state, JobState::Active { .. });
                    ensure(active, "only an active job requeues")?;
                    entry.failures = entry.failures.saturating_add(u32::from(*own_failure));
                    entry.streak = *streak;
                    entry.stalled = *stalled;
                    entry.carried = *carried;
                    if entry.attempts.last().is_some_and(was_charged) {
                        entry.waits_since = stamp.at;
                    }
                    entry.state = JobState::Pending { not_before: *not_before };
                    Ok(())
                })
            }
            Decision::JobEnded { job, outcome } => self.end_job(stamp, *job, *outcome),
            Decision::JobForgotten(job) => self.forget(*job),
            Decision::RehearsalJudged { recipe, shown } => {
                self.change_job(shown.job, |entry| {
                    ensure(entry.is_alive(), "an ended rehearsal is not judged")?;
                    ensure(entry.judged.is_none(), "a rehearsal is judged once")?;
                    entry.judged = Some(shown.verdict());
                    Ok(())
                })?;
                self.rehearsals.keep(*recipe, (**shown).clone());
                self.rehearsals.keep_of_job((**shown).clone());
                Ok(())
            }
            Decision::JobParked { job, why } => self.change_job(*job, |entry| {
                ensure(entry.is_alive(), "an ended job is not parked")?;
                entry.parked = Some(*why);
                entry.reservation = None;
                entry.elder = None;
                Ok(())
            }),
            Decision::JobUnparked { job, by: _ } => self.change_job(*job, |entry| {
                ensure(entry.parked.is_some(), "only a parked job is released")?;
                entry.parked = None;
                entry.stalled = 0;
                entry.waits_for.clear();
                Ok(())
            }),
            _ => self.evolve_elder(stamp, decision),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    fn evolve_elder(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::ElderNamed { job, at } => {
                self.change_job(*job, |entry| {
                    ensure(entry.elder.is_none(), "an elder is named once")?;
                    entry.elder = Some(*at);
                    Ok(())
                })?;
                let account = self.jobs.get(job).map(|entry| entry.account);
                let account = account.and_then(|account| self.accounts.note(account));
                account.ok_or("a job has an account")?.elder_named = Some(*at);
                Ok(())
            }
            Decision::ElderAllowed { job, by: _ } => self.change_job(*job, |entry| {
                entry.elder_allowed = true;
                Ok(())
            }),
            Decision::ReservationMade { job, nodes, at, pledge } => {
                let nodes = nodes.clone();
                let last = self.index.reservations.last().map_or(0, |(order, _)| *order);
                let (made, order) = (stamp.at, last.saturating_add(1));
                let held = Reservation { made, order, nodes, at: *at, pledge: *pledge };
                self.reserve(*job, held)
            }
            Decision::ReservationMoved { job, nodes, at, cause: _ } => {
                self.change_job(*job, |entry| {
                    let held = entry.reservation.as_mut().ok_or("only a reservation moves")?;
                    held.nodes.clone_from(nodes);
                    held.at = *at;
                    Ok(())
                })
            }
            Decision::ReservationDropped { job, by: _ } => self.change_job(*job, |entry| {
                ensure(entry.reservation.take().is_some(), "only a reservation is dropped")?;
                entry.elder = None;
                entry.waits_since = stamp.at;
                Ok(())
            }),
            _ => Err("not about a job"),
        }
    }

    fn reserve(&mut self, job: JobId, reservation: Reservation) -> Applied {
        self.change_job(job, |entry| {
            ensure(entry.elder.is_some(), "only an elder reserves")?;
            ensure(entry.reservation.is_none(), "an elder has one reservation")?;
            entry.reservation = Some(Box::new(reservation));
            Ok(())
        })
    }

    fn end_job(&mut self, stamp: Stamp, job: JobId, outcome: JobOutcome) -> Applied {
        self.change_job(job, |entry| {
            ensure(entry.is_alive(), "a job ends once")?;
            entry.state = JobState::Ended { outcome, at: stamp.at };
            entry.reservation = None;
            entry.carried = None;
            entry.elder = None;
            entry.waits_for.clear();
            Ok(())
        })?;
        let dependents = self.index.dependents.range((job, JobId(0))..=(job, JobId(u64::MAX)));
        let dependents: Vec<_> = dependents.map(|(_, dependent)| *dependent).collect();
        for dependent in dependents {
            self.change_job(dependent, |entry| {
                let mut of = entry.spec.after.iter().filter(|after| after.job == job);
                if of.all(|after| !after.success || outcome == JobOutcome::Done) {
                    entry.waits_for.remove(&job);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn forget(&mut self, job: JobId) -> Applied {
        let entry = self.jobs.remove(&job).ok_or("no such job")?;
        ensure(!entry.is_alive(), "only an ended job is forgotten")?;
        ensure(!entry.has_live_attempt(), "a job that holds something is not forgotten")?;
        self.index.leave(&entry, &self.policy.sharing);
        self.rehearsals.forget(job);
        Ok(())
    }

    /// Puts a job of a snapshot back, with the indexes that `evolve` would have kept. The nodes
    /// and accounts come first; what accounts were charged is stored with them.
    ///
    /// # Errors
    /// If it does not fit the books.
    pub fn restore_job(&mut self, job: Job) -> Result<(), &'static str> {
        ensure(job.id.0 <= self.last_job, "a job's id is not beyond the last")?;
        ensure(self.index.job_of(job.user, job.key).is_none(), "a key answers one job")?;
        ensure(self.accounts.get(job.account).is_some(), "a job has an account")?;
        self.index.enter(&job, &self.policy.sharing);
        for attempt in job.attempts.iter().filter(|attempt| attempt.is_live()) {
            for (id, task) in attempt.tasks().filter(|(_, task)| !task.released) {
                self.hold(id, &task.place)?;
            }
        }
        ensure(self.jobs.insert(job.id, Arc::new(job)).is_none(), "a job stands once in a snapshot")
    }

    /// Books what restored jobs promise: pledges follow from the jobs and are not stored.
    pub fn restore_pledges(&mut self) {
        let jobs: Vec<_> = self.jobs.values().cloned().collect();
        for job in jobs {
            let mut now = Charge::of(&job, Attempt::is_live);
            now.points.clear();
            let before = Charge::default();
            charge::rebook(&mut self.accounts, (job.account, job.user), &before, &now);
        }
    }
}

fn was_charged(attempt: &Attempt) -> bool {
    attempt.held.iter().any(|held| held.standing != Standing::Free)
}

impl Job {
    /// Whether it has not ended.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, JobState::Ended { .. })
    }

    pub(crate) fn accepted(
        id: JobId,
        (user, key): (UserId, SubmitKey),
        spec: &JobSpec,
        at: Timestamp,
    ) -> Self {
        Self {
            id,
            key,
            user,
            spec: spec.clone(),
            submitted: at,
            cancelled: None,
            failures: 0,
            streak: 0,
            account: AccountId::default(),
            waits_since: at,
            stalled: 0,
            parked: None,
            elder: None,
            elder_allowed: false,
            reservation: None,
            waits_for: std::collections::BTreeSet::new(),
            carried: None::<Span>,
            commits: None,
            judged: None,
            state: JobState::Pending { not_before: at },
            attempts: Vec::new(),
        }
    }
}
