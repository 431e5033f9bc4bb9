//! What processes do by themselves: start, finish, commit, save, end.

use tidegate_model::{
    AttemptId, Commit, DecisionSeq, JobId, Span, TaskExit, TaskId, Timestamp, WriteClass,
};

use super::{Observer, World};
use crate::agent::{Agent, Consequence, SAVED};
use crate::work::{Asks, OnSave, Work};

/// What processes do by themselves, when its time has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    Started(TaskId),
    Ended {
        task: TaskId,
        killed: bool,
    },
    Finished(AttemptId),
    Commits(AttemptId),
    Saved(AttemptId, DecisionSeq),
    /// Of who was told to save and asks before it writes.
    StepEnds(AttemptId, DecisionSeq),
    /// What was asked for may be written.
    Written(AttemptId),
    /// Somebody may have written all that it has to.
    Served(u64),
}

impl<O: Observer> World<O> {
    pub(super) fn follow(&mut self, consequence: Consequence) {
        let now = self.now;
        match consequence {
            Consequence::Start(task) => {
                let delay = self.work(task.attempt.job, |work| work.start);
                self.soon(delay, Timer::Started(task));
            }
            Consequence::Stop(task, grace) => {
                let delay = self.work(task.attempt.job, |work| work.stop);
                let killed = delay > grace;
                self.soon(delay.min(grace), Timer::Ended { task, killed });
            }
            Consequence::Save(attempt, request) => {
                let Some(work) = self.works.get_mut(&attempt.job) else { return };
                if work.on_save == OnSave::Ignore {
                    return;
                }
                if work.asks != Asks::Nothing {
                    let step = work.asks_after;
                    return self.soon(step, Timer::StepEnds(attempt, request));
                }
                if !work.trains(attempt) {
                    return;
                }
                work.pause(now);
                let (at, bytes) = (now.plus(work.save), work.bytes);
                let saved = Timer::Saved(attempt, request);
                if !self.flow(attempt, bytes, None, saved) {
                    self.set(Some(at), saved);
                }
            }
            Consequence::Permit(task, permit) => self.permitted(task, &permit),
        }
    }

    fn work(&self, job: JobId, what: impl Fn(&Work) -> Span) -> Span {
        self.works.get(&job).map_or(Span::ZERO, what)
    }

    /// At once if there is no delay.
    fn soon(&mut self, delay: Span, timer: Timer) {
        if delay == Span::ZERO {
            self.ring(timer);
        } else {
            self.set(Some(self.now.plus(delay)), timer);
        }
    }

    pub(super) fn set(&mut self, at: Option<Timestamp>, timer: Timer) {
        self.timers_set = self.timers_set.saturating_add(1);
        self.timers.extend(at.map(|at| ((at, self.timers_set), timer)));
    }

    pub(super) fn set_periodic(&mut self, attempt: AttemptId) {
        let every = self.works.get(&attempt.job).and_then(|work| work.commit_every);
        self.set(every.map(|every| self.now.plus(every)), Timer::Commits(attempt));
    }

    pub(super) fn ring(&mut self, timer: Timer) {
        let now = self.now;
        match timer {
            Timer::Started(task) => self.on_node_of(task, |agent| agent.started(task, now)),
            Timer::Ended { task, killed } => {
                self.on_node_of(task, |agent| agent.end_stopped(task, killed, now));
            }
            Timer::Finished(attempt) => {
                let work = self.works.get(&attempt.job);
                if work.is_some_and(|work| work.trains(attempt) && work.is_done(now)) {
                    self.end_all(attempt, 0);
                }
            }
            Timer::Commits(attempt) => {
                let asks =
                    self.works.get(&attempt.job).is_some_and(|work| work.asks != Asks::Nothing);
                if asks {
                    self.write(attempt, WriteClass::Periodic);
                } else if self.commit_now(attempt) {
                    self.set_periodic(attempt);
                }
            }
            Timer::Saved(attempt, request) => {
                // Who was killed while it saved has saved nothing.
                let runs = self.first_runs(attempt);
                let work = self.works.get_mut(&attempt.job).filter(|_| runs);
                let Some(work) = work else { return };
                match work.on_save {
                    stays @ (OnSave::Commit | OnSave::Stay) => {
                        let step = work.saved();
                        self.say_commit(attempt, step, Some(request));
                        if stays == OnSave::Stay {
                            self.train(attempt);
                        } else {
                            self.end_all(attempt, SAVED);
                        }
                    }
                    OnSave::Leave => self.end_all(attempt, 0),
                    OnSave::Ignore => {}
                }
            }
            Timer::StepEnds(attempt, request) => self.write_and_leave(attempt, request),
            Timer::Written(attempt) => self.written(attempt),
            Timer::Served(version) => self.served(version),
        }
    }

    pub(super) fn on_node_of(&mut self, task: TaskId, act: impl FnOnce(&mut Agent)) {
        let Some(node) = self.replay.task(task).map(|entry| entry.place.node) else { return };
        if let Some(agent) = self.agents.get_mut(&node) {
            act(agent);
            self.stale.insert(node);
        }
    }

    /// All processes of the attempt exit with that code.
    pub(super) fn end_all(&mut self, attempt: AttemptId, code: u8) {
        let tasks: Vec<_> = self
            .replay
            .attempt(attempt)
            .map(|one| one.tasks().map(|(task, _)| task).collect())
            .unwrap_or_default();
        let now = self.now;
        for task in tasks {
            self.on_node_of(task, |agent| agent.end(task, TaskExit::Exited(code), now));
        }
    }

    /// The attempt commits unasked, if it trains and its first process runs.
    pub(super) fn commit_now(&mut self, attempt: AttemptId) -> bool {
        let (runs, now) = (self.first_runs(attempt), self.now);
        let work = self.works.get_mut(&attempt.job).filter(|work| runs && work.trains(attempt));
        let Some(step) = work.map(|work| work.commit(now)) else { return false };
        self.say_commit(attempt, step, None);
        true
    }

    pub(super) fn first_runs(&self, attempt: AttemptId) -> bool {
        let first = self.replay.task(TaskId { attempt, index: 0 }).map(|task| task.place.node);
        let agent = first.and_then(|node| self.agents.get(&node));
        agent.is_some_and(|agent| agent.runs(attempt))
    }

    pub(super) fn say_commit(
        &mut self,
        attempt: AttemptId,
        step: u64,
        request: Option<DecisionSeq>,
    ) {
        let bytes = self.works.get(&attempt.job).map(|work| work.bytes).unwrap_or_default();
        let commit = Commit { step, path: format!("/w/{step}"), bytes, request };
        let task = TaskId { attempt, index: 0 };
        self.on_node_of(task, |agent| agent.committed(task, commit));
    }
}
