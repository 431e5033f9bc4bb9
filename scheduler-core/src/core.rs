//! The core: applies events, restores from decisions, knows its next deadline.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{AttemptId, JobId, NodeId, Order, Span, TaskId, TaskSeen, Timestamp};

use crate::audit::{self, Violation};
use crate::books::Books;
use crate::decide;
use crate::decide::leave::DrainTimes;
use crate::decision::Decision;
use crate::event::{Event, Observation};
use crate::evolve::{Broken, Stamp};
use crate::explain::{self, Explanation};
use crate::gate_status::{self, GateStatus};
use crate::observations::{NodeState, Observations};
use crate::wanted;

/// The scheduler: books, and what is seen but never journaled.
#[derive(Debug, Clone, Default)]
pub struct Core {
    books: Books,
    seen: Observations,
    examined: u64,
}

impl Core {
    /// A core over restored books. Nothing has been seen yet: every node is Unconfirmed.
    #[must_use]
    pub fn restored(books: Books) -> Self {
        Self { books, ..Self::default() }
    }

    /// A core over the books of a past instant. What was seen then is not kept: every node is taken
    /// as just heard, but those that are known to have been silent.
    #[must_use]
    pub fn of_the_past(books: Books, at: Timestamp, silent: &BTreeSet<NodeId>) -> Self {
        let seen = Observations::assumed(&books, at, silent);
        Self { books, seen, examined: 0 }
    }

    /// The books.
    #[must_use]
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// What is seen but never journaled.
    #[must_use]
    pub fn seen(&self) -> &Observations {
        &self.seen
    }

    /// Jobs that passes have looked at closely, since the start.
    #[must_use]
    pub fn examined(&self) -> u64 {
        self.examined
    }

    /// Resolves one event and applies what it resolved. `stamp.seq` is the record that these
    /// decisions will become; time never runs backwards.
    ///
    /// # Errors
    /// If a decision does not fit the books: an invariant is broken, the shell must stop.
    pub fn apply(&mut self, stamp: Stamp, event: &Event) -> Result<Vec<Decision>, Broken> {
        let (touched, ended) = (BTreeSet::new(), Vec::new());
        let pass = event.asks_for_a_pass();
        let mut turn = Turn { core: self, stamp, decided: Vec::new(), touched, ended, pass };
        if *event != Event::LeaderStarted {
            // What was due before the event is booked at its own instant first.
            turn.stand()?;
        }
        decide::respond(&mut turn, event)?;
        turn.settle()?;
        Ok(turn.decided)
    }

    /// Finds out what is news to those who wait with an ask: when their turn to write is expected.
    /// Once after all events of one instant, before [`Core::wanted_of`] is asked for; returns the nodes
    /// that are told something else than before.
    pub fn tell(&mut self, now: Timestamp) -> BTreeSet<NodeId> {
        let mut nodes = BTreeSet::new();
        for (task, told) in decide::gate::untold(&self.books, &self.seen, now) {
            self.seen.tell(task, told);
            nodes.extend(self.books.task(task).map(|of| of.place.node));
        }
        nodes
    }

    /// Whether anybody has asked: else nobody is to be told.
    #[must_use]
    pub fn anybody_asks(&self) -> bool {
        self.seen.asks().any(|(_, noted)| !noted.seen.done)
    }

    /// Whether it is a report that says nothing new but what tasks ask, of a node that is not silent.
    #[must_use]
    pub fn only_asks(&self, now: Timestamp, event: &Event) -> bool {
        let Event::NodeReported { node, complete: false, facts: None, tasks, saves, commits, asks } =
            event
        else {
            return false;
        };
        let silent = |node| decide::gate::is_silent(&self.books, &self.seen, node, now);
        let runs = |id: TaskId| {
            self.books.task(id).is_some_and(|task| task.started && task.exit.is_none())
        };
        !asks.is_empty()
            && saves.len().max(commits.len()) == 0
            && tasks.iter().all(|(id, seen)| *seen == TaskSeen::Running && runs(*id))
            && self.books.node_named(node).is_some_and(|node| !silent(node.id))
    }

    /// Notes a report that [only asks](Core::only_asks). What follows from it is decided with the next
    /// event, which must come at the same instant: of a thousand who ask together the gate is looked at
    /// once.
    pub fn note_asks(&mut self, now: Timestamp, event: &Event) {
        self.seen.note_report(&self.books, now, event);
    }

    /// Notes what is never journaled.
    pub fn observe(&mut self, now: Timestamp, observation: &Observation) {
        self.seen.observe(&self.books, now, observation);
    }

    /// The next instant after `now` at which [`Event::DeadlineReached`] may change anything.
    #[must_use]
    pub fn next_deadline(&self, now: Timestamp) -> Option<Timestamp> {
        let Books { index, policy, .. } = &self.books;
        // What is due already was worked off in the pass that saw it due; what stays (a job kept
        // by a silent node) waits for an event, not for time.
        let after = |span: Span| Timestamp(now.0.saturating_sub(span.0).saturating_add(1));
        let backoffs = index.backoffs.range((after(Span::ZERO), JobId(0))..);
        let ended = index.ended.range((after(policy.keep_ended), JobId(0))..);
        // Budgets refill while nothing happens.
        let waits = index.waiting.any_protected();
        let next_pass = waits.then(|| now.plus(policy.sharing.pass_every));
        let reserved = index.reservations.iter().filter_map(|(_, job)| {
            self.books.jobs.get(job)?.reservation.as_ref().map(|held| held.at)
        });
        let deadlines = [
            backoffs.map(|(at, _)| *at).next(),
            ended.map(|(at, _)| at.plus(policy.keep_ended)).next(),
            decide::deadline::next_late(&self.books, now),
            self.seen.next_silence(policy.silent_after, now),
            decide::standing::next_deadline(&self.books, now),
            decide::leave::next_deadline(&self.books, now),
            decide::rehearsal::next_deadline(&self.books, now),
            decide::gate::next_deadline(&self.books, &self.seen, now),
            next_pass,
            reserved.filter(|at| *at > now).min(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Recounts the books from scratch; empty unless an invariant is broken.
    #[must_use]
    pub fn audit(&self, now: Timestamp) -> Vec<Violation> {
        audit::audit(&self.books, now)
    }

    /// Why the job is where it is.
    #[must_use]
    pub fn explain(&self, now: Timestamp, job: JobId) -> Option<Explanation> {
        explain::explain(&self.books, &self.seen, now, job)
    }

    /// Everything the node is wanted to do; what it does not name is left alone.
    #[must_use]
    pub fn wanted_of(&self, node: NodeId) -> BTreeMap<TaskId, Order> {
        wanted::wanted_of(&self.books, &self.seen, node)
    }

    /// When a node that takes no work is empty.
    #[must_use]
    pub fn drain_times(&self, now: Timestamp, node: NodeId) -> Option<DrainTimes> {
        decide::leave::drain_times(&self.books, node, now)
    }

    /// By when a job with a firm reservation has its GPUs, at the latest: its instant, and the gate's
    /// backlog, grace, kill and time to verify of whoever must leave. None without a reservation.
    #[must_use]
    pub fn latest_of(&self, now: Timestamp, job: JobId) -> Option<Timestamp> {
        decide::published::latest(&self.books, &self.seen, now, job)
    }

    /// All write gates that have limits or are used, by name.
    #[must_use]
    pub fn gates(&self, now: Timestamp) -> Vec<GateStatus> {
        gate_status::all(&self.books, &self.seen, now)
    }

    /// The node's state at `now`.
    #[must_use]
    pub fn node_state(&self, now: Timestamp, node: NodeId) -> Option<NodeState> {
        let node = self.books.nodes.get(&node)?;
        Some(self.seen.state(node, self.books.policy.silent_after, now))
    }
}

/// One application of one event: decisions are applied as they are made, so that each is made on
/// books that hold those before it.
pub(crate) struct Turn<'core> {
    core: &'core mut Core,
    stamp: Stamp,
    decided: Vec<Decision>,
    touched: BTreeSet<AttemptId>,
    /// Jobs that ended in this turn.
    ended: Vec<JobId>,
    /// Whether anything happened by which somebody could start now who could not before.
    pass: bool,
}

impl Turn<'_> {
    pub(crate) fn books(&self) -> &Books {
        &self.core.books
    }

    pub(crate) fn seen(&self) -> &Observations {
        &self.core.seen
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.stamp.at
    }

    /// Applies one decision and keeps it for the caller.
    pub(crate) fn take(&mut self, decision: Decision) -> Result<(), Broken> {
        self.core.books.evolve(self.stamp, &decision)?;
        self.touched.extend(decision.attempt());
        self.pass |= !decision.is_quiet();
        if let Decision::JobEnded { job, .. } = &decision {
            self.ended.push(*job);
        }
        self.decided.push(decision);
        Ok(())
    }

    /// Marks an attempt whose circumstances changed without a decision about it.
    pub(crate) fn touch(&mut self, attempt: AttemptId) {
        self.touched.insert(attempt);
    }

    /// Forgets what the leadership before saw.
    pub(crate) fn begin(&mut self) {
        self.core.seen.begin(self.stamp.at);
    }

    pub(crate) fn note_report(&mut self, node: NodeId, event: &Event) {
        let before = self.core.node_state(self.stamp.at, node);
        self.core.seen.note_report(&self.core.books, self.stamp.at, event);
        // A node that was silent may take work again.
        self.pass |= self.core.node_state(self.stamp.at, node) != before;
    }

    pub(crate) fn note_saves(&mut self, event: &Event) {
        self.core.seen.note_saves(event);
    }

    /// Books every change of standing that is due, at its own instant.
    fn stand(&mut self) -> Result<(), Broken> {
        while let Some(decision) = decide::standing::next(&self.core.books, self.stamp.at) {
            self.take(decision)?;
        }
        Ok(())
    }

    /// Decides until nothing is left to decide. Every decision brings its attempt or job closer to
    /// its end, so this ends.
    fn settle(&mut self) -> Result<(), Broken> {
        loop {
            self.follow()?;
            self.stand()?;
            let Turn { core, stamp, .. } = &*self;
            let gate = || decide::gate::next(&core.books, &core.seen, stamp.at);
            let rehearsed = || decide::rehearsal::next(&core.books, stamp.at);
            if let Some(decision) =
                decide::leave::next(&core.books).or_else(rehearsed).or_else(gate)
            {
                self.take(decision)?;
                continue;
            }
            if !std::mem::take(&mut self.pass) {
                return Ok(());
            }
            let Turn { core, stamp, .. } = &*self;
            let found = decide::pass::next(&core.books, &core.seen, stamp.at);
            self.core.examined = self.core.examined.saturating_add(found.examined);
            for decision in found.decisions {
                self.take(decision)?;
            }
            self.pass &= !found.settled;
        }
    }

    /// What follows for the attempts and jobs that something was decided about.
    fn follow(&mut self) -> Result<(), Broken> {
        loop {
            if let Some(job) = self.ended.pop() {
                decide::request::park_dependents(self, job)?;
                continue;
            }
            let Some(attempt) = self.touched.first().copied() else { return Ok(()) };
            let Turn { core, stamp, .. } = &*self;
            match decide::attempt::next(&core.books, &core.seen, stamp.at, attempt) {
                Some(decision) => self.take(decision)?,
                None => {
                    self.touched.remove(&attempt);
                }
            }
        }
    }
}
