//! Bookkeeping: applies one decision. No choice is left here, and nothing else changes the books.
//! A decision that does not fit the books is a broken invariant: the shell stops and restores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::{
    AttemptId, DecisionSeq, Epoch, JobId, JobSpec, NodeFacts, NodeId, NodeName, Span, SubmitKey,
    TaskExit, TaskId, Timestamp, UserId,
};

use crate::books::{Attempt, Books, Drain, Job, JobState, Node, Place, StopOrder, Task};
use crate::decision::{Decision, JobOutcome, Outcome, StopReason};

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
            Decision::PolicySet(policy) => {
                self.policy = policy.clone();
                Ok(())
            }
            Decision::NodeAdmitted { node, name } => self.admit(*node, name),
            Decision::NodeRefreshed { node, facts } => {
                self.node(*node).map(|node| node.facts = facts.clone())
            }
            Decision::DrainBegan { node, by, reason } => {
                let drain = Drain { by: *by, reason: reason.clone(), since: stamp.at };
                self.node(*node).map(|node| node.drain = Some(drain))
            }
            Decision::DrainEnded { node, by: _ } => self.node(*node).map(|node| node.drain = None),
            Decision::JobAccepted { job, key, user, spec } => {
                self.accept(Job::accepted(*job, (*user, *key), spec, stamp.at))
            }
            Decision::JobCancelled { job, by } => self.cancel(*job, *by),
            Decision::JobRequeued { job, not_before, own_failure, streak } => {
                self.requeue(*job, *not_before, *own_failure, *streak)
            }
            Decision::JobEnded { job, outcome } => self.end_job(stamp, *job, *outcome),
            Decision::JobForgotten(job) => self.forget(*job),
            Decision::AttemptPlanned { attempt, places } => self.plan(stamp, *attempt, places),
            Decision::AttemptGranted(attempt) => self.grant(stamp, *attempt),
            Decision::AttemptRunning(attempt) => self.run(stamp, *attempt),
            Decision::StopOrdered { attempt, why } => self.order_stop(stamp, *attempt, *why),
            Decision::AttemptEnded { attempt, outcome } => {
                self.end_attempt(stamp, *attempt, *outcome)
            }
            Decision::TaskPrepared { task, port } => self.prepare(*task, *port),
            Decision::TaskStarted(task) => self.start(*task),
            Decision::TaskEnded { task, exit, ran } => self.end_task(stamp, *task, exit, *ran),
            Decision::TaskReleased(task) => self.release(*task),
            Decision::Refused(_) | Decision::SubmitRepeated(_) => Ok(()),
        };
        applied.map_err(|why| Broken { decision: Box::new(decision.clone()), why })
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Applied {
        ensure(self.epoch < Some(epoch), "an epoch only grows")?;
        self.epoch = Some(epoch);
        Ok(())
    }

    fn admit(&mut self, node: NodeId, name: &NodeName) -> Applied {
        ensure(node.0 > self.last_node, "a node's number is never reused")?;
        self.last_node = node.0;
        self.restore_node(Node::admitted(node, name.clone()))
    }

    fn accept(&mut self, job: Job) -> Applied {
        ensure(job.id.0 > self.last_job, "a job's id is never reused")?;
        self.last_job = job.id.0;
        self.restore_job(job)
    }

    fn cancel(&mut self, job: JobId, by: UserId) -> Applied {
        let entry = self.job(job)?;
        ensure(!matches!(entry.state, JobState::Ended { .. }), "an ended job is not cancelled")?;
        entry.cancelled_by = Some(by);
        Ok(())
    }

    fn requeue(
        &mut self,
        job: JobId,
        not_before: Timestamp,
        own_failure: bool,
        streak: u32,
    ) -> Applied {
        let entry = self.job(job)?;
        ensure(matches!(entry.state, JobState::Active { .. }), "only an active job requeues")?;
        entry.failures = entry.failures.saturating_add(u32::from(own_failure));
        entry.streak = streak;
        entry.state = JobState::Pending { not_before };
        let place = (entry.submitted, job);
        self.index.queue.insert(place);
        self.index.backoffs.insert((not_before, job));
        Ok(())
    }

    fn end_job(&mut self, stamp: Stamp, job: JobId, outcome: JobOutcome) -> Applied {
        let entry = self.job(job)?;
        ensure(!matches!(entry.state, JobState::Ended { .. }), "a job ends once")?;
        self.enter(job, JobState::Ended { outcome, at: stamp.at })?;
        self.index.ended.insert((stamp.at, job));
        Ok(())
    }

    fn forget(&mut self, job: JobId) -> Applied {
        let entry = self.jobs.remove(&job).ok_or("no such job")?;
        let JobState::Ended { at, .. } = entry.state else {
            return Err("only an ended job is forgotten");
        };
        ensure(!entry.has_live_attempt(), "a job that holds something is not forgotten")?;
        self.index.ended.remove(&(at, job));
        self.index.keys.remove(&(entry.user, entry.key));
        Ok(())
    }

    /// Takes a job's new state, and out of the indexes that its old one had.
    fn enter(&mut self, job: JobId, state: JobState) -> Applied {
        let entry = self.job(job)?;
        let submitted = entry.submitted;
        let left = std::mem::replace(&mut entry.state, state);
        if let JobState::Pending { not_before } = left {
            self.index.queue.remove(&(submitted, job));
            self.index.backoffs.remove(&(not_before, job));
        }
        Ok(())
    }

    fn grant(&mut self, stamp: Stamp, attempt: AttemptId) -> Applied {
        let entry = self.attempt_mut(attempt)?;
        ensure(entry.granted.is_none(), "an attempt is granted once")?;
        ensure(entry.tasks.iter().all(|task| task.port.is_some()), "all tasks are prepared")?;
        entry.granted = Some(stamp.at);
        Ok(())
    }

    fn run(&mut self, stamp: Stamp, attempt: AttemptId) -> Applied {
        let entry = self.attempt_mut(attempt)?;
        ensure(entry.granted.is_some(), "only a granted attempt runs")?;
        ensure(entry.running.is_none(), "an attempt begins to run once")?;
        entry.running = Some(stamp.at);
        self.no_longer_starting(attempt)
    }

    fn end_attempt(&mut self, stamp: Stamp, attempt: AttemptId, outcome: Outcome) -> Applied {
        let entry = self.attempt_mut(attempt)?;
        ensure(entry.is_live(), "an attempt ends once")?;
        ensure(entry.tasks.iter().all(|task| task.released), "all tasks are released")?;
        entry.ended = Some((stamp.at, outcome));
        self.index.live.remove(&attempt);
        self.no_longer_starting(attempt)
    }

    fn order_stop(&mut self, stamp: Stamp, attempt: AttemptId, why: StopReason) -> Applied {
        let entry = self.attempt_mut(attempt)?;
        ensure(entry.is_live(), "an ended attempt is not stopped")?;
        ensure(entry.stop.is_none(), "an attempt is told to stop once")?;
        entry.stop = Some(StopOrder { why, decision: stamp.seq });
        self.no_longer_starting(attempt)
    }

    fn no_longer_starting(&mut self, attempt: AttemptId) -> Applied {
        let planned = self.attempt_mut(attempt)?.planned;
        self.index.starting.remove(&(planned, attempt));
        Ok(())
    }

    fn plan(&mut self, stamp: Stamp, attempt: AttemptId, places: &[Place]) -> Applied {
        ensure(!places.is_empty(), "a gang has a task")?;
        let entry = self.job(attempt.job)?;
        ensure(matches!(entry.state, JobState::Pending { .. }), "only a pending job is planned")?;
        let next = u32::try_from(entry.attempts.len()).ok().and_then(|n| n.checked_add(1));
        ensure(next == Some(attempt.number), "attempts are numbered in order")?;
        entry.attempts.push(Attempt {
            id: attempt,
            planned: stamp.at,
            granted: None,
            running: None,
            stop: None,
            ended: None,
            tasks: places.iter().cloned().map(Task::planned).collect(),
        });
        self.enter(attempt.job, JobState::Active { attempt: attempt.number })?;
        self.index.live.insert(attempt);
        self.index.starting.insert((stamp.at, attempt));
        for (index, place) in (0..).zip(places) {
            self.hold(TaskId { attempt, index }, place)?;
        }
        Ok(())
    }

    fn hold(&mut self, task: TaskId, place: &Place) -> Applied {
        let node = self.node(place.node)?;
        ensure(!place.gpus.is_empty(), "a task has a GPU")?;
        ensure(node.tasks.insert(task), "a task is placed once")?;
        for gpu in &place.gpus {
            let holder = node.held.insert(gpu.clone(), task);
            ensure(holder.is_none(), "a GPU has one holder")?;
        }
        Ok(())
    }

    fn prepare(&mut self, task: TaskId, port: u16) -> Applied {
        let entry = self.task_mut(task)?;
        ensure(entry.port.is_none(), "a task is prepared once")?;
        entry.port = Some(port);
        Ok(())
    }

    fn start(&mut self, task: TaskId) -> Applied {
        ensure(self.attempt_mut(task.attempt)?.granted.is_some(), "starts follow the grant")?;
        let entry = self.task_mut(task)?;
        ensure(!entry.started, "a task starts once")?;
        entry.started = true;
        Ok(())
    }

    fn end_task(&mut self, stamp: Stamp, task: TaskId, exit: &TaskExit, ran: Span) -> Applied {
        let entry = self.task_mut(task)?;
        ensure(entry.exit.is_none(), "a task ends once")?;
        entry.exit = Some(exit.clone());
        entry.ended_by = Some(stamp.seq);
        entry.ran = ran;
        Ok(())
    }

    fn release(&mut self, task: TaskId) -> Applied {
        let entry = self.task_mut(task)?;
        ensure(entry.exit.is_some(), "what has not ended is not released")?;
        ensure(!entry.released, "a task is released once")?;
        entry.released = true;
        let place = entry.place.clone();
        let node = self.node(place.node)?;
        ensure(node.tasks.remove(&task), "a placed task is on its node")?;
        for gpu in &place.gpus {
            ensure(node.held.remove(gpu) == Some(task), "a task releases what it holds")?;
        }
        Ok(())
    }

    fn node(&mut self, id: NodeId) -> Result<&mut Node, &'static str> {
        self.nodes.get_mut(&id).map(Arc::make_mut).ok_or("no such node")
    }

    fn job(&mut self, id: JobId) -> Result<&mut Job, &'static str> {
        self.jobs.get_mut(&id).map(Arc::make_mut).ok_or("no such job")
    }

    fn attempt_mut(&mut self, id: AttemptId) -> Result<&mut Attempt, &'static str> {
        let index = id.number.checked_sub(1).and_then(|index| usize::try_from(index).ok());
        let attempts = &mut self.job(id.job)?.attempts;
        index.and_then(|index| attempts.get_mut(index)).ok_or("no such attempt")
    }

    fn task_mut(&mut self, id: TaskId) -> Result<&mut Task, &'static str> {
        let index = usize::try_from(id.index).map_err(|_too_large| "no such task")?;
        self.attempt_mut(id.attempt)?.tasks.get_mut(index).ok_or("no such task")
    }

    /// Puts a job of a snapshot back, with the indexes that `evolve` would have kept. The nodes
    /// come first.
    ///
    /// # Errors
    /// If it does not fit the books.
    pub fn restore_job(&mut self, job: Job) -> Result<(), &'static str> {
        ensure(job.id.0 <= self.last_job, "a job's id is not beyond the last")?;
        let known = self.index.keys.insert((job.user, job.key), job.id);
        ensure(known.is_none(), "a key answers one job")?;
        match job.state {
            JobState::Pending { not_before } => {
                self.index.queue.insert((job.submitted, job.id));
                if !job.attempts.is_empty() {
                    self.index.backoffs.insert((not_before, job.id));
                }
            }
            JobState::Active { .. } => {}
            JobState::Ended { at, .. } => {
                self.index.ended.insert((at, job.id));
            }
        }
        for attempt in job.attempts.iter().filter(|attempt| attempt.is_live()) {
            self.index.live.insert(attempt.id);
            if attempt.running.is_none() && attempt.stop.is_none() {
                self.index.starting.insert((attempt.planned, attempt.id));
            }
            for (id, task) in attempt.tasks().filter(|(_, task)| !task.released) {
                self.hold(id, &task.place)?;
            }
        }
        ensure(self.jobs.insert(job.id, Arc::new(job)).is_none(), "a job stands once in a snapshot")
    }

    /// Puts a node of a snapshot back.
    ///
    /// # Errors
    /// If it does not fit the books.
    pub fn restore_node(&mut self, node: Node) -> Result<(), &'static str> {
        ensure(node.id.0 <= self.last_node, "a node's number is not beyond the last")?;
        let known = self.index.names.insert(node.name.clone(), node.id);
        ensure(known.is_none(), "a node's name is its own")?;
        ensure(
            self.nodes.insert(node.id, Arc::new(node)).is_none(),
            "a node stands once in a snapshot",
        )
    }
}

impl Node {
    /// A node of which only the name is known.
    #[must_use]
    pub fn admitted(id: NodeId, name: NodeName) -> Self {
        let (held, tasks) = (BTreeMap::new(), BTreeSet::new());
        Self { id, name, facts: NodeFacts::default(), drain: None, held, tasks }
    }
}

impl Job {
    fn accepted(
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
            cancelled_by: None,
            failures: 0,
            streak: 0,
            state: JobState::Pending { not_before: at },
            attempts: Vec::new(),
        }
    }
}

fn ensure(holds: bool, rule: &'static str) -> Applied {
    if holds { Ok(()) } else { Err(rule) }
}
