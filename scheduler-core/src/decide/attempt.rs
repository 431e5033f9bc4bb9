//! What follows for one attempt, and for its job when the attempt is over.

use std::sync::Arc;

use tidegate_model::{AttemptId, NodeId, SaveDelivery, Span, TaskExit, Timestamp, WriteClass};

use crate::books::{Attempt, Books, Job, JobState, Node, Task};
use crate::decide::leave::{grace_ends, stays_until};
use crate::decide::rehearsal;
use crate::decide::spots::{save_grace, start_limit};
use crate::decision::{
    Decision, Excuse, Excused, JobOutcome, Outcome, ParkReason, Standing, StopReason,
};
use crate::observations::{NodeState, Noted, Observations};
use crate::rehearsal::Verdict;

/// The next decision about the attempt or its job, if one is due.
pub(crate) fn next(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    id: AttemptId,
) -> Option<Decision> {
    let job = books.jobs.get(&id.job)?;
    let attempt = job.attempt(id.number)?;
    let view = View { books, seen, now, job, attempt };
    if attempt.is_live()
        && let Some(decision) = view.next_of_gang()
    {
        return Some(decision);
    }
    let newest = job.state == JobState::Active { attempt: id.number };
    if newest { view.next_of_job() } else { None }
}

struct View<'a> {
    books: &'a Books,
    seen: &'a Observations,
    now: Timestamp,
    job: &'a Job,
    attempt: &'a Attempt,
}

impl View<'_> {
    fn next_of_gang(&self) -> Option<Decision> {
        let attempt = self.attempt;
        let id = attempt.id;
        if attempt.tasks.iter().all(|task| task.released) {
            return Some(self.ended());
        }
        if let Some(decision) = self.next_unprepared() {
            return Some(decision);
        }
        let all_ended = attempt.tasks.iter().all(|task| task.exit.is_some());
        if attempt.stop.is_some() || all_ended {
            return None;
        }
        if let Some(why) = self.reason_to_stop() {
            return Some(Decision::StopOrdered { attempt: id, why });
        }
        if attempt.granted.is_none() {
            let prepared = attempt.tasks.iter().all(|task| task.port.is_some());
            return (prepared && attempt.ready.is_some()).then(|| self.granted());
        }
        (attempt.running.is_none() && self.all_ran()).then_some(Decision::AttemptRunning(id))
    }

    /// A task that is already done has run, though its start was never seen.
    fn all_ran(&self) -> bool {
        self.attempt.tasks.iter().all(|task| task.started || task.exit.is_some())
    }

    /// The attempt before can commit nothing once its successor has the GPUs.
    fn granted(&self) -> Decision {
        let before = self
            .job
            .attempts
            .iter()
            .rev()
            .find(|one| one.id.number < self.attempt.id.number && !one.commits_closed);
        match before {
            Some(before) => Decision::CommitsClosed(before.id),
            None => Decision::AttemptGranted(self.attempt.id),
        }
    }

    fn reason_to_stop(&self) -> Option<StopReason> {
        let (books, attempt) = (self.books, self.attempt);
        let timeout = start_limit(books, self.job);
        let late = attempt.ready.is_some_and(|ready| self.now.since(ready) >= timeout)
            && attempt.tasks.iter().all(|task| self.is_heard_of(task.place.node));
        let shut = |node: &Arc<Node>| node.drain.is_some() || node.closed().is_some();
        let shut =
            attempt.tasks.iter().any(|task| books.nodes.get(&task.place.node).is_some_and(shut));
        if self.job.cancelled.is_some() {
            return Some(StopReason::Cancelled);
        }
        if self.job.judged.is_some() {
            return Some(StopReason::Rehearsed);
        }
        if let Some(save) = attempt.save {
            let over = |at: Option<Timestamp>| at.is_some_and(|at| at <= self.now);
            return if self.job.spec.checkpoint.is_none() {
                Some(StopReason::CannotSave)
            } else if over(stays_until(books, attempt)) {
                Some(StopReason::Stays)
            } else if over(grace_ends(books, self.job, attempt)) {
                Some(StopReason::GraceOver)
            } else if save.said().is_none() && attempt.is_broken() {
                Some(StopReason::GangBroken)
            } else {
                // Whoever saves on has what is left of the grace; commits decide.
                None
            };
        }
        if attempt.is_broken() {
            Some(StopReason::GangBroken)
        } else if late && attempt.running.is_none() && !self.all_ran() {
            Some(StopReason::StartTimeout)
        } else if attempt.granted.is_none() && shut {
            Some(StopReason::PlanFailed)
        } else {
            None
        }
    }

    /// A node that has not spoken since the coordinator began may have run what it was told long
    /// ago.
    fn is_heard_of(&self, node: NodeId) -> bool {
        self.books.nodes.get(&node).is_none_or(|node| {
            let state = self.seen.state(node, self.books.policy.silent_after, self.now);
            state != NodeState::Unconfirmed
        })
    }

    fn ended(&self) -> Decision {
        let (attempt, outcome) = (self.attempt, self.outcome());
        let released = self.released();
        let span = |from: Timestamp, why| {
            (from < released).then_some(Excused { from, until: released, why })
        };
        let excused = match (outcome, attempt.save.and_then(|save| save.said())) {
            (Outcome::Saved, Some(told)) => span(told, Excuse::Saved),
            (Outcome::Lost, _) => self.last_safe().and_then(|from| span(from, Excuse::Fault)),
            _ => None,
        };
        Decision::AttemptEnded { attempt: attempt.id, outcome, released, excused }
    }

    /// From when its work is lost if it is lost now: its last commit, or when it began to run.
    fn last_safe(&self) -> Option<Timestamp> {
        self.attempt.committed.max(self.attempt.running)
    }

    /// When its GPUs were free again: by its agents' monotonic clocks, and not after now. Of a
    /// task whose end nobody saw, now.
    fn released(&self) -> Timestamp {
        let unseen = |exit: &TaskExit| matches!(exit, TaskExit::Lost(_));
        let tasks = &self.attempt.tasks;
        let Some(running) = self.attempt.running else { return self.now };
        if tasks.iter().filter_map(|task| task.exit.as_ref()).any(unseen) {
            return self.now;
        }
        let longest = tasks.iter().map(|task| task.ran).max().unwrap_or(Span::ZERO);
        running.plus(longest).min(self.now)
    }

    /// How an attempt ended whose tasks have all ended, or are out of reach.
    fn outcome(&self) -> Outcome {
        let attempt = self.attempt;
        if let Some(told) = attempt.save.and_then(|save| save.said()) {
            return self.outcome_of_save(told);
        }
        let by_us = attempt.stop.is_some_and(|stop| stop.why != StopReason::GangBroken);
        match attempt.breaker().map(|(_, task)| &task.exit) {
            _ if by_us => Outcome::Unsaved,
            Some(Some(TaskExit::Lost(_))) => Outcome::Lost,
            Some(_) => Outcome::Failed,
            None => Outcome::Done,
        }
    }

    /// Commits decide, never an exit code alone. Exit 0 means done only if nobody was signalled.
    fn outcome_of_save(&self, admitted: Timestamp) -> Outcome {
        let attempt = self.attempt;
        let of_final = |noted: &Noted| noted.seen.ask.class == WriteClass::Final;
        let is_last = self.seen.asks_of(attempt.id).any(|(_, noted)| of_final(noted));
        let well = |task: &Task| task.exit.as_ref().is_some_and(TaskExit::is_success);
        if is_last && attempt.tasks.iter().all(well) {
            // It had said that it is done after this.
            return Outcome::Done;
        }
        if attempt.committed.is_some_and(|at| at >= admitted) {
            return Outcome::Saved;
        }
        let exits = || attempt.tasks.iter().filter_map(|task| task.exit.as_ref());
        // What a silent node keeps has no end that anybody saw.
        let all_ended = attempt.tasks.iter().all(|task| task.exit.is_some());
        if !all_ended || exits().any(|exit| matches!(exit, TaskExit::Lost(_))) {
            return Outcome::Lost;
        }
        let told = attempt.tasks().any(|(id, _)| {
            let delivery = self.seen.save_of(id).map(|save| save.delivery);
            matches!(
                delivery,
                None | Some(SaveDelivery::Signalled { .. } | SaveDelivery::MaybeSent)
            )
        });
        if !told && exits().all(TaskExit::is_success) {
            return Outcome::Done;
        }
        let saved_codes = self.job.spec.checkpoint.as_ref().map(|offer| &offer.saved_codes);
        let as_if_saved = |exit: &TaskExit| match exit {
            TaskExit::Exited(0) => true,
            TaskExit::Exited(code) => saved_codes.is_some_and(|codes| codes.contains(code)),
            TaskExit::Signaled(_) | TaskExit::NeverStarted(_) | TaskExit::Lost(_) => false,
        };
        if exits().all(as_if_saved) { Outcome::Unknown } else { Outcome::Unsaved }
    }

    fn next_of_job(&self) -> Option<Decision> {
        let (books, job, attempt) = (self.books, self.job, self.attempt);
        let outcome = match attempt.ended {
            Some((_, outcome)) => outcome,
            // A gang is over when one task is lost or failed. Where a silent node keeps the rest,
            // the job does not wait for it: what still runs there is told to stop when the node
            // returns.
            None if self.only_silent_nodes_hold() => self.outcome(),
            None => return None,
        };
        let end = |outcome| Some(Decision::JobEnded { job: job.id, outcome });
        if job.spec.rehearsal().is_some() && job.cancelled.is_none() {
            return self.next_of_rehearsal(outcome);
        }
        let own_failure = match outcome {
            Outcome::Done => return end(JobOutcome::Done),
            Outcome::Failed => true,
            Outcome::Unsaved | Outcome::Lost | Outcome::Saved | Outcome::Unknown => false,
        };
        if job.cancelled.is_some() {
            // Nothing of a cancelled job may be left behind a silent node and called ended.
            return if attempt.is_live() { None } else { end(JobOutcome::Cancelled) };
        }
        if own_failure && job.failures >= job.spec.max_restarts {
            return end(JobOutcome::Failed);
        }
        let stalled = self.stalled(outcome);
        if stalled >= books.policy.sharing.no_progress_limit && job.parked.is_none() {
            let why = ParkReason::NoProgress { attempts: stalled };
            return Some(Decision::JobParked { job: job.id, why });
        }
        Some(self.requeued(outcome, own_failure, stalled))
    }

    /// A rehearsal ends when it is judged; until then it is started again.
    fn next_of_rehearsal(&self, outcome: Outcome) -> Option<Decision> {
        let Self { seen, now, job, attempt, .. } = *self;
        if let Some(verdict) = job.judged {
            let outcome = match verdict {
                Verdict::Passed => JobOutcome::Done,
                Verdict::Failed => JobOutcome::Failed,
            };
            // Nothing of it may be left behind a silent node and called ended.
            return (!attempt.is_live()).then_some(Decision::JobEnded { job: job.id, outcome });
        }
        let judged = rehearsal::judged(seen, now, (job, attempt), outcome);
        Some(judged.unwrap_or_else(|| self.requeued(outcome, false, job.stalled)))
    }

    fn requeued(&self, outcome: Outcome, own_failure: bool, stalled: u32) -> Decision {
        let (policy, job, now) = (&self.books.policy, self.job, self.now);
        let ran = self.attempt.running;
        let lasted = ran.is_some_and(|at| now.since(at) >= policy.steady_after);
        // Who left because we asked is not failing.
        let asked = self.attempt.save.is_some() && !own_failure && outcome != Outcome::Lost;
        let streak = match (asked, lasted) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => job.streak.saturating_add(1),
        };
        // Lost hardware is no fault of the job: its first restart comes at once.
        let exponent = if own_failure { streak } else { streak.saturating_sub(1) };
        let not_before = now.plus(policy.backoff(exponent));
        let carried = self.carried(outcome);
        Decision::JobRequeued { job: job.id, not_before, own_failure, streak, stalled, carried }
    }

    /// Attempts in a row that ran and brought no new commit, of jobs that can commit. Lost hardware is
    /// no fault of the job: such an attempt counts for nothing.
    fn stalled(&self, outcome: Outcome) -> u32 {
        let ours = self.attempt.stop.is_some_and(|stop| {
            matches!(stop.why, StopReason::StartTimeout | StopReason::PlanFailed)
        });
        // Who ran free while it waits, and was given less than the grace it asked for, had no chance.
        let hurried = self.job.spec.min_runtime > Span::ZERO && self.attempt.save.is_some() && {
            let own = self.job.spec.checkpoint.as_ref().map(|offer| offer.grace);
            own.is_some_and(|own| save_grace(self.books, self.job, self.attempt) < own)
        };
        let counts = self.job.spec.checkpoint.is_some() && outcome != Outcome::Lost;
        if self.attempt.committed.is_some() {
            0
        } else if counts && self.attempt.running.is_some() && !ours && !hurried {
            self.job.stalled.saturating_add(1)
        } else {
            self.job.stalled
        }
    }

    /// What is left of the protection of an attempt that we, or a fault, ended inside it, with
    /// what it lost since its last commit.
    fn carried(&self, outcome: Outcome) -> Option<Span> {
        let attempt = self.attempt;
        let ours = match outcome {
            Outcome::Lost => true,
            Outcome::Unsaved => attempt.stop.is_some_and(|stop| {
                matches!(stop.why, StopReason::StartTimeout | StopReason::PlanFailed)
            }),
            Outcome::Done | Outcome::Failed | Outcome::Saved | Outcome::Unknown => false,
        };
        let protect = attempt.terms.protect;
        if !attempt.was_protected() {
            // What it inherited and could not use while it ran free is still owed.
            return self.job.carried;
        }
        if !ours {
            return None;
        }
        let Some(running) = attempt.running else { return Some(protect) };
        let protected = attempt.held.iter().find(|held| held.standing == Standing::Protected)?;
        let until = match (attempt.standing, protected.until) {
            (Standing::Protected, _) => protected.from.plus(self.protection()),
            (Standing::Funded | Standing::Free, _) => return None,
        };
        let released = attempt.held.last().and_then(|held| held.until).unwrap_or(self.now);
        let safe = attempt.committed.unwrap_or(running).max(protected.from).min(released);
        let rest = until.since(safe);
        (rest > Span::ZERO).then_some(rest)
    }

    /// How long this attempt's protection is from its beginning.
    fn protection(&self) -> Span {
        if self.attempt.terms.protect > Span::ZERO {
            self.attempt.terms.protect
        } else {
            self.job.spec.min_runtime
        }
    }

    fn only_silent_nodes_hold(&self) -> bool {
        let silent = |id| {
            self.books.nodes.get(&id).is_some_and(|node| {
                let state = self.seen.state(node, self.books.policy.silent_after, self.now);
                state == NodeState::Unreachable
            })
        };
        let attempt = self.attempt;
        let mut left = attempt.tasks.iter().filter(|task| !task.released).peekable();
        let over = attempt.stop.is_some() || attempt.is_broken();
        over && left.peek().is_some() && left.all(|task| silent(task.place.node))
    }

    /// A closed node cannot write down that it will not prepare a task. It need not: without its
    /// word the gang was never granted, and nobody may start any of it.
    fn next_unprepared(&self) -> Option<Decision> {
        self.attempt.stop?;
        let closed = |node| self.books.nodes.get(&node).is_some_and(|node| node.closed().is_some());
        let mut left = self.attempt.tasks().filter(|(_, task)| !task.released);
        let (task, known) =
            left.find(|(_, task)| task.port.is_none() && closed(task.place.node))?;
        if known.exit.is_some() {
            return Some(Decision::TaskReleased(task));
        }
        let exit = TaskExit::NeverStarted("stopped before it was prepared".to_owned());
        Some(Decision::TaskEnded { task, exit, ran: Span::ZERO })
    }
}
