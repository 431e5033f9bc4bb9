//! The engine's turn: decide, make durable, only then let anybody see it.
//!
//! No thread, clock, socket or file here: time and the journal are given. The same code runs in
//! the coordinator's engine thread and in the seeded simulation.

use std::collections::BTreeSet;

use scheduler_core::{
    Broken, Core, Decision, Event, NodeState, Observation, Policy, Refusal, Stamp,
};
use tidegate_model::{ClusterId, DecisionSeq, Epoch, JobId, NodeId, NodeName, Span, Timestamp};
use tidegate_proto::link::NodePlan;

use crate::journal::{Entry, Journal, JournalError, codec, snapshot};
use crate::outbox::Outbox;
use crate::store::Restored;

/// Most events in one turn, and so in one append: at 100 us an event a turn stays under 30 ms.
pub const MAX_EVENTS_PER_TURN: usize = 256;

/// Between two looks at who waits at gates: shorter than anybody notices, longer than a turn.
const TELL_EVERY: Span = Span(20);

/// Records between two snapshots: replaying as many takes well under a second.
pub const RECORDS_PER_SNAPSHOT: u64 = 10_000;

/// Why the engine stops. Nothing of the turn was seen by anybody; a restart restores.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The turn's records are not, or not surely, durable.
    #[error("the journal failed")]
    Journal(#[from] JournalError),
    /// A decision did not fit the books.
    #[error("an invariant is broken")]
    Broken(#[from] Broken),
}

/// What was decided on one event of a turn, for whoever asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The job that the submit made or had made before.
    Submitted {
        /// Which.
        job: JobId,
        /// Whether the key had been answered before.
        repeated: bool,
    },
    /// Something changed, durably.
    Changed,
    /// Nothing had to change.
    AsItWas,
    /// Nothing was changed, for this reason.
    Refused(Refusal),
}

/// What a turn lets others see.
#[derive(Debug, Default)]
pub struct Outcome {
    /// One for each event, in order.
    pub answers: Vec<Answer>,
    /// Plans that are news.
    pub plans: Vec<(NodeName, NodePlan)>,
}

/// The core with its journal, under one leadership.
#[derive(Debug)]
pub struct Engine<J> {
    core: Core,
    journal: J,
    outbox: Outbox,
    next: DecisionSeq,
    last: Timestamp,
    since_snapshot: u64,
    /// When those who wait with an ask were told of their turns last, and whether that is owed again.
    told: Timestamp,
    owes_word: bool,
}

impl<J: Journal> Engine<J> {
    /// Begins a new leadership over what `journal` restored to, at `at`. A new store begins with
    /// `first_policy`, in the same append: there is never a store without one.
    ///
    /// # Errors
    /// If the leadership could not be made durable. One that is not is none: plans of two leaders
    /// could not be told apart.
    pub fn start(
        journal: J,
        restored: Restored,
        at: Timestamp,
        first_policy: &Policy,
    ) -> Result<Self, EngineError> {
        let Restored { core, next, last, since_snapshot } = restored;
        let mut events = vec![Event::LeaderStarted];
        if core.books().epoch.is_none() {
            events.push(Event::PolicyChanged(first_policy.clone().into()));
        }
        let outbox = Outbox::new(journal.cluster());
        let mut engine = Self {
            core,
            journal,
            outbox,
            next,
            last,
            since_snapshot,
            told: Timestamp(0),
            owes_word: false,
        };
        engine.turn(at, &events)?;
        Ok(engine)
    }

    /// Resolves the events in order, makes the outcome durable, then returns what may be seen.
    /// Time never runs backwards: an earlier `now` is taken as the last one.
    ///
    /// # Errors
    /// [`EngineError`]; the engine must not be used again.
    pub fn turn(&mut self, now: Timestamp, events: &[Event]) -> Result<Outcome, EngineError> {
        self.last = self.last.max(now);
        let mut outcome = Outcome::default();
        let mut batch: Vec<Entry> = Vec::new();
        let mut touched: BTreeSet<NodeId> = BTreeSet::new();
        for (at, event) in events.iter().enumerate() {
            let asks = |one: &Event| self.core.only_asks(self.last, one);
            if asks(event) && events.get(at.saturating_add(1)).is_some_and(asks) {
                self.core.note_asks(self.last, event);
                self.touch(event, &[], &mut touched);
                outcome.answers.push(answer(&[]));
                continue;
            }
            let stamp = Stamp { at: self.last, seq: self.next };
            let decisions = self.core.apply(stamp, event)?;
            self.touch(event, &decisions, &mut touched);
            let answer = answer(&decisions);
            outcome.answers.push(answer);
            if decisions.iter().any(Decision::is_durable) {
                let bytes = codec::encode(stamp, self.epoch(), event, &decisions);
                batch.push((stamp.seq, bytes));
                self.next = DecisionSeq(self.next.0.saturating_add(1));
            }
        }
        if !batch.is_empty() {
            self.journal.append(&batch)?;
            self.count(batch.len());
        }
        touched.extend(self.tell());
        for node in touched {
            let name = self.core.books().nodes.get(&node).map(|node| node.name.clone());
            let plan = self.outbox.changed(&self.core, node);
            outcome.plans.extend(name.zip(plan));
        }
        Ok(outcome)
    }

    /// Who waits at a gate is told once for all events of a while: a schedule looks at all that wait.
    fn tell(&mut self) -> BTreeSet<NodeId> {
        let is_soon = self.last.since(self.told) < TELL_EVERY;
        self.owes_word = is_soon && self.core.anybody_asks();
        if is_soon {
            return BTreeSet::new();
        }
        self.told = self.last;
        self.core.tell(self.last)
    }

    /// Writes a snapshot if enough records have come since the last.
    ///
    /// # Errors
    /// If it could not be written; the engine must not be used again.
    pub fn snapshot_if_due(&mut self) -> Result<(), EngineError> {
        if self.since_snapshot < RECORDS_PER_SNAPSHOT {
            return Ok(());
        }
        let seq = DecisionSeq(self.next.0.saturating_sub(1));
        let bytes = snapshot::encode(Stamp { at: self.last, seq }, self.core.books());
        self.journal.snapshot(seq, &bytes)?;
        self.since_snapshot = 0;
        Ok(())
    }

    /// Notes what is never journaled.
    pub fn observe(&mut self, at: Timestamp, observation: &Observation) {
        self.core.observe(at, observation);
    }

    /// Whether a node has not been heard for the policy's span.
    #[must_use]
    pub fn anyone_silent(&self) -> bool {
        let nodes = self.core.books().nodes.keys();
        let unreachable = Some(NodeState::Unreachable);
        nodes.into_iter().any(|node| self.core.node_state(self.last, *node) == unreachable)
    }

    /// Whether this node has not been heard for the policy's span.
    #[must_use]
    pub fn is_silent(&self, node: &NodeName) -> bool {
        let node = self.core.books().node_named(node);
        let state = node.and_then(|node| self.core.node_state(self.last, node.id));
        state == Some(NodeState::Unreachable)
    }

    /// The node's plan as it stands, for an agent that has just connected.
    #[must_use]
    pub fn plan_of(&self, node: &NodeName) -> Option<NodePlan> {
        self.outbox.current(&self.core, self.core.books().node_named(node)?.id)
    }

    /// The core, to be read.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The store's identity.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.journal.cluster()
    }

    /// The leadership; [`Engine::start`] began it.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.core.books().epoch.unwrap_or(Epoch(0))
    }

    /// The newest record.
    #[must_use]
    pub fn last_seq(&self) -> DecisionSeq {
        DecisionSeq(self.next.0.saturating_sub(1))
    }

    /// The engine's time: the newest instant it was given.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.last
    }

    /// The next instant at which a turn is due; with [`Event::DeadlineReached`] if
    /// [`Engine::has_deadline_by`] says so.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let word = self.owes_word.then(|| self.told.plus(TELL_EVERY));
        self.core.next_deadline(self.last).into_iter().chain(word).min()
    }

    /// Whether [`Event::DeadlineReached`] may change anything at `now`.
    #[must_use]
    pub fn has_deadline_by(&self, now: Timestamp) -> bool {
        self.core.next_deadline(self.last).is_some_and(|at| at <= now)
    }

    fn count(&mut self, records: usize) {
        let records = u64::try_from(records).unwrap_or(u64::MAX);
        self.since_snapshot = self.since_snapshot.saturating_add(records);
    }

    /// Nodes whose plan may have changed: the one that reported (what it holds decides what it is
    /// told to forget), that of a task, those of a gang. Not all of a gang for each of its tasks:
    /// a thousand nodes that report one after the other would cost a million plans.
    fn touch(&self, event: &Event, decisions: &[Decision], touched: &mut BTreeSet<NodeId>) {
        let books = self.core.books();
        if let Event::NodeReported { node, .. } = event {
            touched.extend(books.node_named(node).map(|node| node.id));
        }
        for decision in decisions {
            if let Some(task) = decision.task() {
                touched.extend(books.task(task).map(|task| task.place.node));
            } else if let Some(attempt) = decision.attempt().and_then(|id| books.attempt(id)) {
                touched.extend(attempt.tasks.iter().map(|task| task.place.node));
            }
        }
    }
}

fn answer(decisions: &[Decision]) -> Answer {
    let asked = decisions.iter().find_map(|decision| decision.answers());
    match asked {
        Some(Ok((job, repeated))) => Answer::Submitted { job, repeated },
        Some(Err(refusal)) => Answer::Refused(refusal.clone()),
        None if decisions.is_empty() => Answer::AsItWas,
        None => Answer::Changed,
    }
}
