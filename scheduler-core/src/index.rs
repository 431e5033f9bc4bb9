//! What is derived from the books so that a pass need not walk 100,000 jobs.
//!
//! Everything a job contributes is a pure function of the job ([`Index::enter`]); a change takes
//! the old contribution out ([`Index::leave`]) and puts the new one in. `audit` recounts all.

mod waiting;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::{
    AttemptId, DecisionSeq, JobId, NodeId, NodeName, Span, SubmitKey, Timestamp, UserId,
};

pub(crate) use self::waiting::{LeafQueue, Place, UserQueue, Waiting, WaitsFor, Wanted, Wishes};
use self::waiting::{one_less, one_more};
use crate::accounts::AccountId;
use crate::books::{Attempt, Job, JobState, Node};
use crate::decision::Standing;
use crate::policy::{Kind, Policy, Sharing};

/// Derived from the maps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Index {
    /// Nodes by name.
    pub(crate) names: BTreeMap<NodeName, NodeId>,
    /// What nodes there are, and how many alike.
    pub(crate) makes: BTreeMap<Make, u32>,
    /// Nodes that take no new work.
    pub(crate) drained: BTreeSet<NodeId>,
    /// Jobs by client key, of each user.
    pub(crate) keys: BTreeMap<UserId, Arc<BTreeMap<SubmitKey, JobId>>>,
    /// How many jobs are pending.
    pub(crate) pending: usize,
    /// Pending jobs that may not start before an instant.
    pub(crate) backoffs: BTreeSet<(Timestamp, JobId)>,
    /// Attempts that hold or may hold something.
    pub(crate) live: BTreeSet<AttemptId>,
    /// Attempts that have their GPUs, have not run yet and are not told to stop, by the instant
    /// they got them.
    pub(crate) starting: BTreeSet<(Timestamp, AttemptId)>,
    /// Ended jobs by the instant they ended.
    pub(crate) ended: BTreeSet<(Timestamp, JobId)>,
    /// Who waits for time, protected or free, by account and user.
    pub(crate) waiting: Waiting,
    /// Ordinary jobs that may become elders, by account and since when they wait.
    pub(crate) ordinary: BTreeMap<AccountId, Arc<BTreeSet<(Timestamp, JobId)>>>,
    /// Elders that wait, by account, the oldest first.
    pub(crate) elders: BTreeMap<AccountId, Arc<BTreeSet<(Timestamp, JobId)>>>,
    /// Pending jobs that inherit protection, by account.
    pub(crate) carried: BTreeMap<AccountId, Arc<BTreeSet<JobId>>>,
    /// Jobs that wait for another: (the other, who waits).
    pub(crate) dependents: BTreeSet<(JobId, JobId)>,
    /// Live attempts whose promised time ends, by that instant.
    pub(crate) promises: BTreeSet<(Timestamp, AttemptId)>,
    /// Live attempts that somebody entitled may displace.
    pub(crate) displaceable: BTreeSet<AttemptId>,
    /// Of them those that are charged, the newest grant last.
    pub(crate) funded: BTreeSet<(Timestamp, AttemptId)>,
    /// Of them those that were protected before and may return, by submit time.
    pub(crate) returning: BTreeSet<(Timestamp, AttemptId)>,
    /// Attempts that are asked to save and are not told to stop, by request.
    pub(crate) saving: BTreeSet<(DecisionSeq, AttemptId)>,
    /// Attempts that may write, or are reckoned to, by since when.
    pub(crate) writing: BTreeSet<(Timestamp, AttemptId)>,
    /// Firm reservations, the oldest first.
    pub(crate) reservations: BTreeSet<(u64, JobId)>,
    /// Jobs of arrays that run only so many at a time, which hold one of these places.
    pub(crate) arrays: BTreeMap<(UserId, SubmitKey), u32>,
    /// Rehearsals that have an attempt under way and are not judged.
    pub(crate) rehearsals: BTreeSet<JobId>,
    /// GPUs in the hands of protected attempts, by attempt.
    pub(crate) protected_gpus: u64,
}

/// All of a node that a gang's form depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Make {
    pub(crate) kind: Kind,
    /// Its GPUs.
    pub(crate) size: u32,
    /// Whose tasks alone it runs.
    pub(crate) only_user: Option<UserId>,
}

impl Make {
    fn of(node: &Node, policy: &Policy) -> Self {
        let only_user = node.facts.only_user;
        Self { kind: node.kind(policy), size: node.size().0, only_user }
    }

    pub(crate) fn serves(&self, user: UserId) -> bool {
        self.only_user.is_none_or(|only| only == user)
    }
}

impl Job {
    /// Whether it is a rehearsal that has something to show yet.
    fn is_rehearsed(&self) -> bool {
        let active = matches!(self.state, JobState::Active { .. });
        active && self.spec.rehearsal().is_some() && self.judged.is_none()
    }

    /// Whether it is in the queue and nothing but its turn keeps it from starting.
    pub(crate) fn is_startable(&self) -> bool {
        let pending = matches!(self.state, JobState::Pending { .. });
        pending && self.parked.is_none() && self.waits_for.is_empty() && self.cancelled.is_none()
    }

    /// Of which array it holds one of the places: while it runs, and while nodes are promised to it.
    fn array_place(&self) -> Option<(UserId, SubmitKey)> {
        let holds = matches!(self.state, JobState::Active { .. }) || self.reservation.is_some();
        self.spec.array.as_ref().filter(|_| holds).map(|array| (self.user, array.key))
    }

    /// Its attempt, if it runs free while the job waits for protected time.
    pub(crate) fn waiting_run(&self) -> Option<&Attempt> {
        let attempt = self.active_attempt()?;
        let waits = self.spec.min_runtime > Span::ZERO
            && attempt.running.is_some()
            && attempt.is_displaceable()
            && !attempt.was_protected();
        waits.then_some(attempt)
    }

    fn wants_protected(&self) -> bool {
        let pending = self.spec.min_runtime > Span::ZERO && self.is_startable();
        pending || self.waiting_run().is_some()
    }

    /// Whether it still waits for protected time, whatever its Free run is doing.
    fn has_not_begun(&self) -> bool {
        let free = |run: &Attempt| run.standing == Standing::Free && !run.was_protected();
        let runs_free = self.active_attempt().is_some_and(free);
        let kept = self.parked.is_some() || self.cancelled.is_some();
        self.is_startable() || runs_free && !kept
    }

    /// Whether it is ordinary: with a min runtime, and not small.
    pub(crate) fn is_ordinary(&self, sharing: &Sharing) -> bool {
        let m = self.spec.min_runtime;
        m > Span::ZERO && !sharing.is_small(self.spec.gpus, m)
    }
}

impl Index {
    /// The job that the user's key answers.
    pub(crate) fn job_of(&self, user: UserId, key: SubmitKey) -> Option<JobId> {
        self.keys.get(&user)?.get(&key).copied()
    }

    /// Takes in what a node contributes.
    pub(crate) fn enter_node(&mut self, node: &Node, policy: &Policy) {
        self.names.insert(node.name.clone(), node.id);
        one_more(&mut self.makes, Make::of(node, policy));
        self.drained.extend(node.drain.is_some().then_some(node.id));
    }

    /// Takes out what a node contributed.
    pub(crate) fn leave_node(&mut self, node: &Node, policy: &Policy) {
        self.names.remove(&node.name);
        one_less(&mut self.makes, Make::of(node, policy));
        self.drained.remove(&node.id);
    }

    /// Takes in what a job contributes.
    pub(crate) fn enter(&mut self, job: &Job, sharing: &Sharing) {
        Arc::make_mut(self.keys.entry(job.user).or_default()).insert(job.key, job.id);
        match job.state {
            JobState::Pending { not_before } => {
                self.pending = self.pending.saturating_add(1);
                if !job.attempts.is_empty() {
                    self.backoffs.insert((not_before, job.id));
                }
            }
            JobState::Active { .. } => {}
            JobState::Ended { at, .. } => {
                self.ended.insert((at, job.id));
            }
        }
        if let Some(array) = job.array_place() {
            one_more(&mut self.arrays, array);
        }
        self.rehearsals.extend(job.is_rehearsed().then_some(job.id));
        self.dependents.extend(job.waits_for.iter().map(|other| (*other, job.id)));
        self.enter_waiting(job, sharing);
        for attempt in job.attempts.iter().filter(|attempt| attempt.is_live()) {
            self.enter_attempt(job, attempt);
        }
    }

    fn enter_waiting(&mut self, job: &Job, sharing: &Sharing) {
        if let Some(waits) = WaitsFor::of(job) {
            self.waiting.insert(job, waits, sharing);
        }
        if job.has_not_begun() && job.is_ordinary(sharing) {
            let elders = if job.elder.is_some() { &mut self.elders } else { &mut self.ordinary };
            let since = job.elder.unwrap_or(job.waits_since);
            Arc::make_mut(elders.entry(job.account).or_default()).insert((since, job.id));
        }
        if job.is_startable() && job.carried.is_some() {
            Arc::make_mut(self.carried.entry(job.account).or_default()).insert(job.id);
        }
        if let Some(reservation) = &job.reservation {
            self.reservations.insert((reservation.order, job.id));
        }
    }

    fn enter_attempt(&mut self, job: &Job, attempt: &Attempt) {
        let id = attempt.id;
        self.live.insert(id);
        if let (Some(ready), None, None) = (attempt.ready, attempt.running, attempt.stop) {
            self.starting.insert((ready, id));
        }
        self.promises.extend(attempt.promised_until.map(|until| (until, id)));
        if attempt.standing == Standing::Protected {
            self.protected_gpus = self.protected_gpus.saturating_add(attempt.gpus().0.into());
        }
        if let (Some(save), None) = (attempt.save, attempt.stop) {
            self.saving.insert((save.decision, id));
        }
        self.writing.extend(attempt.writing.map(|writing| (writing.since, id)));
        if attempt.is_displaceable() {
            self.displaceable.insert(id);
            match attempt.standing {
                Standing::Funded => {
                    self.funded.insert((attempt.planned, id));
                }
                Standing::Free if attempt.was_protected() && attempt.running.is_some() => {
                    self.returning.insert((job.submitted, id));
                }
                Standing::Free | Standing::Protected => {}
            }
        }
    }

    /// Takes out what a job contributed.
    pub(crate) fn leave(&mut self, job: &Job, sharing: &Sharing) {
        if let Entry::Occupied(mut keys) = self.keys.entry(job.user) {
            Arc::make_mut(keys.get_mut()).remove(&job.key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
        match job.state {
            JobState::Pending { not_before } => {
                self.pending = self.pending.saturating_sub(1);
                self.backoffs.remove(&(not_before, job.id));
            }
            JobState::Active { .. } => {}
            JobState::Ended { at, .. } => {
                self.ended.remove(&(at, job.id));
            }
        }
        if let Some(array) = job.array_place() {
            one_less(&mut self.arrays, array);
        }
        if job.spec.rehearsal().is_some() {
            self.rehearsals.remove(&job.id);
        }
        for other in &job.waits_for {
            self.dependents.remove(&(*other, job.id));
        }
        self.leave_waiting(job, sharing);
        for attempt in job.attempts.iter().filter(|attempt| attempt.is_live()) {
            self.leave_attempt(job, attempt);
        }
    }

    fn leave_waiting(&mut self, job: &Job, sharing: &Sharing) {
        if let Some(waits) = WaitsFor::of(job) {
            self.waiting.remove(job, waits, sharing);
        }
        if job.has_not_begun() && job.is_ordinary(sharing) {
            let elders = if job.elder.is_some() { &mut self.elders } else { &mut self.ordinary };
            let since = job.elder.unwrap_or(job.waits_since);
            remove_from(elders, job.account, &(since, job.id));
        }
        if job.is_startable() && job.carried.is_some() {
            remove_from(&mut self.carried, job.account, &job.id);
        }
        if let Some(reservation) = &job.reservation {
            self.reservations.remove(&(reservation.order, job.id));
        }
    }

    fn leave_attempt(&mut self, job: &Job, attempt: &Attempt) {
        let id = attempt.id;
        self.live.remove(&id);
        if let Some(ready) = attempt.ready {
            self.starting.remove(&(ready, id));
        }
        if let Some(until) = attempt.promised_until {
            self.promises.remove(&(until, id));
        }
        if attempt.standing == Standing::Protected {
            self.protected_gpus = self.protected_gpus.saturating_sub(attempt.gpus().0.into());
        }
        if let Some(save) = attempt.save {
            self.saving.remove(&(save.decision, id));
        }
        if let Some(writing) = attempt.writing {
            self.writing.remove(&(writing.since, id));
        }
        self.displaceable.remove(&id);
        self.funded.remove(&(attempt.planned, id));
        self.returning.remove(&(job.submitted, id));
    }
}

fn remove_from<T: Ord + Clone>(
    all: &mut BTreeMap<AccountId, Arc<BTreeSet<T>>>,
    of: AccountId,
    one: &T,
) {
    if let Some(set) = all.get_mut(&of).map(Arc::make_mut) {
        set.remove(one);
        if set.is_empty() {
            all.remove(&of);
        }
    }
}
