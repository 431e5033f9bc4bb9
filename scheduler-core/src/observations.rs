//! What is seen but not journaled: who was heard, and what agents say they hold. Empty after a
//! restart, and then the careful assumption holds: a node is Unconfirmed until it has reported.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::{
    AskSeen, AttemptId, Bandwidth, NodeId, SaveSeen, Span, StorageName, TaskId, TaskSeen, Timestamp,
};

use crate::books::{Books, Node};
use crate::decide::gate::GateId;
use crate::event::{Event, Observation};
use crate::gate::Flow;

/// The volatile part of the core.
#[derive(Debug, Clone, Default)]
pub struct Observations {
    /// When this leadership began: who has not reported a while after it is silent, not new.
    began: Timestamp,
    nodes: BTreeMap<NodeId, SeenNode>,
    /// How far requests to save came, as agents last said.
    saves: BTreeMap<TaskId, SaveSeen>,
    /// The newest ask of each task, and of which tasks of each storage target's jobs there are some, by
    /// whether they are to write or to read.
    asks: BTreeMap<TaskId, Noted>,
    asking: BTreeMap<Flow, BTreeMap<StorageName, BTreeSet<TaskId>>>,
    /// What tasks write, by their nodes' measure.
    writes: BTreeMap<TaskId, Bandwidth>,
    /// When a task was last seen to stop writing.
    wrote: BTreeMap<TaskId, Timestamp>,
    /// Since when the GPUs of a task have been idle.
    idle: BTreeMap<TaskId, Timestamp>,
}

/// An ask as it was last heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) seen: AskSeen,
    /// When it was made, by our clock.
    pub(crate) since: Timestamp,
    /// What its job was told of its turn.
    pub(crate) told: Option<Told>,
    /// When it was first heard that an ask of the task was over: this one, or the one before it.
    pub(crate) ended: Option<Timestamp>,
}

/// When somebody's turn to write comes, as it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// So many are before it.
    pub(crate) position: u32,
    /// From `at`.
    pub(crate) wait: Span,
    pub(crate) at: Timestamp,
}

/// A task is idle once its GPUs have been under 5 % busy for this long (2-scheduling, "Victim
/// cost").
pub(crate) const IDLE_AFTER: Span = Span::minutes(30);

/// What was seen of one node under this leadership.
#[derive(Debug, Clone, Default)]
pub struct SeenNode {
    /// When its agent last spoke.
    pub heard: Timestamp,
    /// Since when it has: of what was before its first words it may know nothing.
    pub since: Timestamp,
    /// Tasks its agent has records of, as it last said.
    pub tasks: BTreeMap<TaskId, TaskSeen>,
}

/// A node's state, from the books and from what is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeState {
    /// Its agent has not reported under this leadership.
    Unconfirmed,
    /// Takes work.
    Ready,
    /// Takes no new work; something runs on it.
    Draining,
    /// Takes no new work; empty.
    Drained,
    /// Takes no new work, as its agent says. What runs there runs on.
    Closed,
    /// Not heard for the policy's span. What ran there is kept.
    Unreachable,
}

impl Observations {
    /// What may be assumed of a past instant, of which only the books are known: every node was
    /// just heard but these.
    pub(crate) fn assumed(books: &Books, at: Timestamp, silent: &BTreeSet<NodeId>) -> Self {
        let heard = books.nodes.keys().filter(|node| !silent.contains(node));
        let seen =
            |node: &NodeId| (*node, SeenNode { heard: at, since: at, tasks: BTreeMap::new() });
        Self { nodes: heard.map(seen).collect(), ..Self::default() }
    }

    /// What was seen of the node, if it has reported.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&SeenNode> {
        self.nodes.get(&node)
    }

    /// The node's state at `now`.
    #[must_use]
    pub fn state(&self, node: &Node, silent_after: Span, now: Timestamp) -> NodeState {
        self.state_as(self.nodes.get(&node.id), node, silent_after, now)
    }

    /// Of the nodes those that take work, in order.
    pub(crate) fn ready<'books>(
        &self,
        books: &'books Books,
        now: Timestamp,
    ) -> impl Iterator<Item = &'books Arc<Node>> {
        let silent_after = books.policy.silent_after;
        // Both are in the order of the numbers: one walk in place of a search for each.
        let mut all = self.nodes.iter().peekable();
        books.nodes.values().filter(move |node| {
            while all.next_if(|(id, _)| **id < node.id).is_some() {}
            let seen = all.next_if(|(id, _)| **id == node.id).map(|(_, seen)| seen);
            self.state_as(seen, node, silent_after, now) == NodeState::Ready
        })
    }

    fn state_as(
        &self,
        seen: Option<&SeenNode>,
        node: &Node,
        silent_after: Span,
        now: Timestamp,
    ) -> NodeState {
        match seen {
            None if now.since(self.began) >= silent_after => NodeState::Unreachable,
            None => NodeState::Unconfirmed,
            Some(seen) if now.since(seen.heard) >= silent_after => NodeState::Unreachable,
            Some(_) if node.drain.is_none() && node.closed().is_none() => NodeState::Ready,
            Some(_) if node.drain.is_none() => NodeState::Closed,
            Some(_) if node.tasks.is_empty() => NodeState::Drained,
            Some(_) => NodeState::Draining,
        }
    }

    /// The next instant after `now` at which a node becomes unreachable if it stays silent.
    pub(crate) fn next_silence(&self, silent_after: Span, now: Timestamp) -> Option<Timestamp> {
        let heard = self.nodes.values().map(|seen| seen.heard);
        let edges = heard.chain([self.began]).map(|since| since.plus(silent_after));
        edges.filter(|edge| *edge > now).min()
    }

    pub(crate) fn observe(&mut self, books: &Books, now: Timestamp, observation: &Observation) {
        match observation {
            Observation::NodeHeard { node } => {
                let known = books.node_named(node).and_then(|node| self.nodes.get_mut(&node.id));
                if let Some(seen) = known {
                    seen.heard = seen.heard.max(now);
                }
            }
            Observation::TaskIdle { task, since: Some(since) } if books.task(*task).is_some() => {
                self.idle.insert(*task, *since);
            }
            // Of what is not known nothing is kept.
            Observation::TaskIdle { task: _, since: Some(_) } => {}
            Observation::TaskIdle { task, since: None } => {
                self.idle.remove(task);
            }
            Observation::TaskWrites { task, rate } if books.task(*task).is_some() => {
                let before = self.writes.insert(*task, *rate);
                if *rate == Bandwidth(0) && before.is_some_and(|before| before > Bandwidth(0)) {
                    self.wrote.insert(*task, now);
                }
            }
            Observation::TaskWrites { task: _, rate: _ } => {}
            Observation::TaskAsked { task, seen } => {
                let known = self.asks.get(task).map(|noted| noted.seen.ask.number);
                if known != Some(seen.ask.number) && books.task(*task).is_some() {
                    self.note_ask(books, now, *task, *seen);
                }
            }
        }
    }

    pub(crate) fn begin(&mut self, now: Timestamp) {
        *self = Self { began: now, ..Self::default() };
    }

    /// How far the newest request to save came on the task's node.
    #[must_use]
    pub fn save_of(&self, task: TaskId) -> Option<&SaveSeen> {
        self.saves.get(&task)
    }

    /// Whether any of the attempt's tasks has had idle GPUs for long.
    #[must_use]
    pub fn is_idle(&self, attempt: AttemptId, now: Timestamp) -> bool {
        self.idle_since(attempt).is_some_and(|since| now.since(since) >= IDLE_AFTER)
    }

    /// Since when one of the attempt's tasks has had idle GPUs: that one which has for longest.
    #[must_use]
    pub fn idle_since(&self, attempt: AttemptId) -> Option<Timestamp> {
        let tasks = TaskId { attempt, index: 0 }..=TaskId { attempt, index: u32::MAX };
        self.idle.range(tasks).map(|(_, since)| *since).min()
    }

    pub(crate) fn note_saves(&mut self, event: &Event) {
        let Event::NodeReported { saves, .. } = event else { return };
        self.saves.extend(saves.iter().cloned());
    }

    /// Notes what a report says its agent holds. The node must be in the books by then.
    pub(crate) fn note_report(&mut self, books: &Books, now: Timestamp, event: &Event) {
        let Event::NodeReported { node, complete, tasks, .. } = event else { return };
        let Some(node) = books.node_named(node) else { return };
        if !complete && !self.nodes.contains_key(&node.id) {
            // Changes without the whole before them say nothing reliable.
            return;
        }
        let seen = self.nodes.entry(node.id).or_default();
        seen.heard = seen.heard.max(now);
        if *complete {
            seen.since = now;
            seen.tasks.clear();
        }
        for (task, state) in tasks {
            match state {
                TaskSeen::Gone => {
                    self.saves.remove(task);
                    self.idle.remove(task);
                    self.writes.remove(task);
                    self.wrote.remove(task);
                    seen.tasks.remove(task)
                }
                TaskSeen::Missing
                | TaskSeen::Prepared { .. }
                | TaskSeen::Starting
                | TaskSeen::Running
                | TaskSeen::Ended { .. } => seen.tasks.insert(*task, state.clone()),
            };
        }
        let gone = tasks.iter().filter(|(_, state)| *state == TaskSeen::Gone);
        gone.for_each(|(task, _)| self.drop_ask(*task));
        self.note_asks(books, now, node.id, event);
    }
}

/// Asks for permits, and what is written.
impl Observations {
    pub(crate) fn writes(&self) -> impl Iterator<Item = (TaskId, Bandwidth)> {
        self.writes.iter().map(|(task, rate)| (*task, *rate))
    }

    pub(crate) fn asks(&self) -> impl Iterator<Item = (TaskId, &Noted)> {
        self.asks.iter().map(|(task, noted)| (*task, noted))
    }

    pub(crate) fn asks_of(&self, attempt: AttemptId) -> impl Iterator<Item = (TaskId, &Noted)> {
        let tasks = TaskId { attempt, index: 0 }..=TaskId { attempt, index: u32::MAX };
        self.asks.range(tasks).map(|(task, noted)| (*task, noted))
    }

    pub(crate) fn ask_of(&self, task: TaskId) -> Option<&Noted> {
        self.asks.get(&task)
    }

    /// When the node's agent last spoke; under this leadership it may have done so before it began.
    pub(crate) fn last_word(&self, node: NodeId) -> Timestamp {
        self.nodes.get(&node).map_or(self.began, |seen| seen.heard)
    }

    /// What the jobs of those that wait are told of their turns.
    pub(crate) fn tell(&mut self, task: TaskId, told: Told) {
        if let Some(noted) = self.asks.get_mut(&task) {
            noted.told = Some(told);
        }
    }

    /// Notes what a report says of asks. A complete one says all.
    fn note_asks(&mut self, books: &Books, now: Timestamp, node: NodeId, event: &Event) {
        let Event::NodeReported { complete, asks, .. } = event else { return };
        let here = |task: TaskId| books.task(task).is_some_and(|of| of.place.node == node);
        if *complete {
            let gone: Vec<_> = self.asks.keys().copied().filter(|task| here(*task)).collect();
            gone.into_iter().for_each(|task| self.drop_ask(task));
        }
        for (task, seen) in asks.iter().filter(|(task, _)| here(*task)) {
            self.note_ask(books, now, *task, *seen);
        }
    }

    fn note_ask(&mut self, books: &Books, now: Timestamp, task: TaskId, seen: AskSeen) {
        let since = Timestamp(now.0.saturating_sub(seen.waited.0));
        let before = self.asks.get(&task);
        let known = before.filter(|old| old.seen.ask.number == seen.ask.number);
        let since = known.map_or(since, |old| old.since);
        let told = known.and_then(|old| old.told);
        let is_new = known.is_none();
        // A later ask ends the one before it.
        let ends = before.is_some_and(|old| !old.seen.done) && (seen.done || is_new);
        let unheard = before.is_none() && seen.done;
        let ended = before.and_then(|old| old.ended);
        let ended = if ends || unheard { Some(now) } else { ended };
        self.asks.insert(task, Noted { seen, since, told, ended });
        let job = books.jobs.get(&task.attempt.job);
        if let Some(storage) = job.and_then(|job| job.storage()).cloned() {
            let flow = Flow::of(seen.ask.class);
            if is_new {
                self.forget_asking(task);
            }
            self.asking.entry(flow).or_default().entry(storage).or_default().insert(task);
        }
    }

    fn drop_ask(&mut self, task: TaskId) {
        if self.asks.remove(&task).is_some() {
            self.forget_asking(task);
        }
    }

    fn forget_asking(&mut self, task: TaskId) {
        for storages in self.asking.values_mut() {
            storages.retain(|_, tasks| {
                tasks.remove(&task);
                !tasks.is_empty()
            });
        }
    }

    /// What the tasks of an attempt write, by their nodes' measure.
    pub(crate) fn writes_of(&self, attempt: AttemptId) -> impl Iterator<Item = Bandwidth> {
        let tasks = TaskId { attempt, index: 0 }..=TaskId { attempt, index: u32::MAX };
        self.writes.range(tasks).map(|(_, rate)| *rate)
    }

    /// Since when a task of that node has not been seen to write; none while it does, or nobody looks.
    pub(crate) fn quiet_since(&self, task: TaskId, node: NodeId) -> Option<Timestamp> {
        let writes = self.writes.get(&task).is_some_and(|rate| *rate > Bandwidth(0));
        let looks = self.nodes.get(&node).filter(|_| !writes)?.since;
        Some(looks.max(self.wrote.get(&task).copied().unwrap_or(looks)))
    }

    /// Gates that somebody has asked at.
    pub(crate) fn asked_gates(&self) -> impl Iterator<Item = GateId<'_>> {
        self.asking.iter().flat_map(|(flow, storages)| {
            storages.keys().map(|storage| GateId { storage, flow: *flow })
        })
    }

    /// Tasks that have asked at one.
    pub(crate) fn asking(&self, at: GateId<'_>) -> impl Iterator<Item = TaskId> {
        let storages = self.asking.get(&at.flow);
        let tasks = storages.and_then(|storages| storages.get(at.storage));
        tasks.into_iter().flatten().copied()
    }
}
