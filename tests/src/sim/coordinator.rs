//! The coordinator in the simulation: the real engine over the simulated disk, its inbox, and the
//! people and agents that talk to it.

use std::collections::{BTreeMap, BTreeSet};

use scheduler_core::{Event, Observation, Policy};
use tidegate_coordinator::engine::{Answer, Engine};
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Entry, Journal, JournalError, Sink};
use tidegate_coordinator::store;
use tidegate_model::{
    AccountPath, Bytes, ClusterId, DecisionSeq, GpuCount, JobId, JobSpec, NodeName, Span,
    SubmitKey, TaskLayout, Timestamp, UserId,
};
use tidegate_proto::link::{NodePlan, Report};

use super::disk::Disk;
use super::world::{GRACE, Happening, World, short};
use super::{Options, Planted};

/// Jobs that people keep alive.
const ALIVE: usize = 24;
/// People are root here: everything they ask is allowed.
const PERSON: UserId = UserId(0);

/// The journal with the planted bugs that concern it.
#[derive(Debug)]
pub(super) struct SimJournal {
    inner: RedbJournal,
    /// Publish before append: the last batch lies here while it is already visible.
    held_back: Option<Vec<Entry>>,
}

impl Journal for SimJournal {
    fn cluster(&self) -> ClusterId {
        self.inner.cluster()
    }

    fn append(&mut self, batch: &[Entry]) -> Result<(), JournalError> {
        match &mut self.held_back {
            None => self.inner.append(batch),
            Some(held) => {
                let before = std::mem::replace(held, batch.to_vec());
                if before.is_empty() { Ok(()) } else { self.inner.append(&before) }
            }
        }
    }

    fn read(&self, from: DecisionSeq, each: Sink<'_>) -> Result<(), JournalError> {
        self.inner.read(from, each)
    }

    fn snapshot(&mut self, at: DecisionSeq, books: &[u8]) -> Result<(), JournalError> {
        self.inner.snapshot(at, books)
    }

    fn latest_snapshot(&self) -> Result<Option<Entry>, JournalError> {
        self.inner.latest_snapshot()
    }

    fn oldest(&self) -> Result<Option<DecisionSeq>, JournalError> {
        self.inner.oldest()
    }
}

/// Where the coordinator dies in its next turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnCrash {
    /// The events are lost, and nobody heard of anything.
    BeforeAppend,
    /// The turn is durable, and nobody heard of it.
    AfterAppend,
}

/// The coordinator, and what people wait for.
#[derive(Debug)]
pub(super) struct Coordinator {
    disk: Disk,
    engine: Option<Engine<SimJournal>>,
    inbox: Vec<Event>,
    turn_queued: bool,
    pub(super) dies_in_turn: Option<TurnCrash>,
    /// Submits without an answer: people repeat them with the same key.
    waiting: BTreeMap<SubmitKey, JobSpec>,
    answered: BTreeMap<SubmitKey, JobId>,
    next_key: u128,
    /// The connection of each node, as the coordinator knows it.
    sessions: BTreeMap<NodeName, u64>,
    deadline: Option<Timestamp>,
    pub(super) most_alive: usize,
}

impl Coordinator {
    pub(super) fn new(options: Options) -> Self {
        Self {
            disk: Disk::new(options.planted == Some(Planted::SyncDropped)),
            engine: None,
            inbox: Vec::new(),
            turn_queued: false,
            dies_in_turn: None,
            waiting: BTreeMap::new(),
            answered: BTreeMap::new(),
            next_key: 1,
            sessions: BTreeMap::new(),
            deadline: None,
            most_alive: 0,
        }
    }

    pub(super) fn engine(&self) -> Option<&Engine<SimJournal>> {
        self.engine.as_ref()
    }

    pub(super) fn unanswered(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn alive_jobs(&self) -> String {
        let jobs = self.engine.iter().flat_map(|engine| engine.core().books().jobs.values());
        let alive = jobs.filter(|job| !matches!(job.state, scheduler_core::JobState::Ended { .. }));
        alive.take(5).map(|job| format!("{job:?}")).collect::<Vec<_>>().join("\n")
    }

    /// Puts an event into the inbox; whether a turn must be queued for it.
    pub(super) fn take(&mut self, event: Event) -> bool {
        if self.engine.is_none() {
            return false;
        }
        self.inbox.push(event);
        !std::mem::replace(&mut self.turn_queued, true)
    }

    fn gone(&mut self) {
        self.engine = None;
        self.inbox.clear();
        self.turn_queued = false;
        self.sessions.clear();
        self.deadline = None;
    }
}

fn policy() -> Policy {
    Policy {
        start_timeout: Span::seconds(60),
        keep_ended: Span::minutes(1),
        silent_after: Span::seconds(2),
        restart_backoff_max: Span::seconds(10),
        ..Policy::default()
    }
}

fn failed(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words.push_str(": ");
        words.push_str(&cause.to_string());
        source = cause.source();
    }
    words
}

impl World {
    pub(super) fn start_coordinator(&mut self) -> Result<(), String> {
        if self.coordinator.engine.is_some() {
            return Ok(());
        }
        let inner = RedbJournal::on_backend(self.coordinator.disk.clone(), ClusterId(7));
        let inner = inner.map_err(|error| format!("the store is lost: {}", failed(&error)))?;
        let late = self.options.planted == Some(Planted::PublishBeforeAppend);
        let journal = SimJournal { inner, held_back: late.then(Vec::new) };
        let now = self.at();
        let restored = store::restore(&journal);
        let restored = restored.map_err(|error| format!("no restore: {}", failed(&error)))?;
        let at = restored.last.max(now);
        let engine = Engine::start(journal, restored, at, &policy());
        let engine = engine.map_err(|error| failed(&error))?;
        self.truth.restored(engine.core(), &self.coordinator.answered)?;
        self.coordinator.engine = Some(engine);
        self.queue_deadline();
        Ok(())
    }

    /// Ends the coordinator's process, or its whole machine.
    pub(super) fn crash_coordinator(&mut self, power_lost: bool) {
        let disk = if power_lost {
            self.coordinator.disk.crash(&mut self.rng)
        } else {
            self.coordinator.disk.process_died()
        };
        // The old engine's handle must not reach the new disk, whatever it does when dropped.
        self.coordinator.disk = disk;
        self.coordinator.gone();
        let back = self.rng.u64(50..3000);
        self.after(back, Happening::CoordinatorStarts);
        for node in 0..self.nodes.len() {
            self.break_link(node);
        }
    }

    pub(super) fn turn(&mut self) -> Result<(), String> {
        self.coordinator.turn_queued = false;
        let events = std::mem::take(&mut self.coordinator.inbox);
        if self.coordinator.engine.is_none() || events.is_empty() {
            return Ok(());
        }
        let dies = self.coordinator.dies_in_turn.take();
        if dies == Some(TurnCrash::BeforeAppend) {
            let power_lost = self.rng.bool();
            self.crash_coordinator(power_lost);
            return Ok(());
        }
        let now = self.at();
        let Some(engine) = self.coordinator.engine.as_mut() else { return Ok(()) };
        let outcome = engine.turn(now, &events).map_err(|error| failed(&error))?;
        engine.snapshot_if_due().map_err(|error| failed(&error))?;
        let alive = engine.core().books().live_jobs();
        self.coordinator.most_alive = self.coordinator.most_alive.max(alive);
        if dies == Some(TurnCrash::AfterAppend) {
            let power_lost = self.rng.bool();
            self.crash_coordinator(power_lost);
            return Ok(());
        }
        for (event, answer) in events.iter().zip(outcome.answers) {
            self.answer(event, &answer)?;
        }
        for (node, plan) in outcome.plans {
            self.send_plan(&node, plan);
        }
        if let Some(engine) = self.coordinator.engine() {
            self.truth.published(engine.core());
        }
        self.queue_deadline();
        Ok(())
    }

    fn answer(&mut self, event: &Event, answer: &Answer) -> Result<(), String> {
        let Event::JobSubmitted { key, .. } = event else { return Ok(()) };
        match answer {
            Answer::Submitted { job, .. } => {
                self.coordinator.waiting.remove(key);
                match self.coordinator.answered.insert(*key, *job) {
                    Some(before) if before != *job => {
                        Err(format!("key {key} was answered {before}, now {job}"))
                    }
                    _ => Ok(()),
                }
            }
            // No node is there yet, or the queue is full: people ask again.
            Answer::Refused(_) | Answer::Changed | Answer::AsItWas => Ok(()),
        }
    }

    fn queue_deadline(&mut self) {
        let Some(due) = self.coordinator.engine().and_then(Engine::next_deadline) else { return };
        // One that is put off finds nothing due and is queued again.
        if self.coordinator.deadline.is_none_or(|queued| due < queued) {
            self.coordinator.deadline = Some(due);
            let delay = due.since(self.at()).0;
            self.after(delay, Happening::Deadline { due });
        }
    }

    pub(super) fn deadline_reached(&mut self, queued: Timestamp) {
        if self.coordinator.deadline != Some(queued) {
            return;
        }
        let now = self.at();
        self.coordinator.deadline = None;
        let due = self.coordinator.engine().and_then(Engine::next_deadline);
        if due.is_some_and(|due| due <= now) {
            self.tell(Event::DeadlineReached);
        } else {
            self.queue_deadline();
        }
        if self.options.planted == Some(Planted::SilenceIsLoss) {
            self.declare_silent_lost();
        }
    }

    /// The planted bug: what only a person may say, said by a timer.
    fn declare_silent_lost(&mut self) {
        let now = self.at();
        let Some(engine) = self.coordinator.engine() else { return };
        let silent: BTreeSet<NodeName> = engine
            .core()
            .books()
            .nodes
            .values()
            .filter(|node| {
                engine.core().node_state(now, node.id)
                    == Some(scheduler_core::NodeState::Unreachable)
            })
            .map(|node| node.name.clone())
            .collect();
        for node in silent {
            self.tell(Event::NodeDeclaredLost { node, by: PERSON });
        }
    }

    /// A connection is accepted: the node's newest plan goes out.
    pub(super) fn accept(&mut self, node: &NodeName, session: u64) {
        let Some(engine) = self.coordinator.engine() else { return };
        let plan = engine.plan_of(node);
        self.coordinator.sessions.insert(node.clone(), session);
        if let Some(plan) = plan {
            self.send_plan(node, plan);
        }
    }

    pub(super) fn receive_report(&mut self, index: usize, session: u64, report: Report) {
        let Some(name) = self.nodes.get(index).map(|node| node.name.clone()) else { return };
        // An older connection of the node still speaks: not heard.
        if self.coordinator.sessions.get(&name) != Some(&session) {
            return;
        }
        let now = self.at();
        let Report { complete, facts, tasks, applied: _ } = report;
        let engine = self.coordinator.engine.as_mut();
        let returned = engine.is_some_and(|engine| {
            let silent = engine.is_silent(&name);
            engine.observe(now, &Observation::NodeHeard { node: name.clone() });
            silent
        });
        if returned {
            self.tell(Event::DeadlineReached);
        }
        if complete || facts.is_some() || !tasks.is_empty() {
            let tasks = tasks.into_iter().collect();
            self.tell(Event::NodeReported { node: name, complete, facts, tasks });
        }
        self.queue_deadline();
    }

    fn send_plan(&mut self, name: &NodeName, plan: NodePlan) {
        let index = self.nodes.iter().position(|node| node.name == *name);
        let session = self.coordinator.sessions.get(name).copied();
        let Some((node, session)) = index.zip(session) else { return };
        let (delay, twice, later) = self.calm.plan_fate(&mut self.rng);
        if twice {
            let again = delay.saturating_add(later);
            let plan = plan.clone();
            self.after(again, Happening::Planned { node, session, plan });
        }
        self.after(delay, Happening::Planned { node, session, plan });
    }

    /// What people do: they keep the cluster busy, repeat what was not answered, cancel, drain.
    pub(super) fn person(&mut self) {
        let repeat: Vec<_> = self.coordinator.waiting.clone().into_iter().take(8).collect();
        for (key, spec) in repeat {
            self.tell(Event::JobSubmitted { key, user: PERSON, spec: Box::new(spec) });
        }
        let alive = self.coordinator.engine().map_or(ALIVE, |e| e.core().books().live_jobs());
        let alive = alive.saturating_add(self.coordinator.waiting.len());
        if !self.calm.is_over() && alive < ALIVE {
            let key = SubmitKey(self.coordinator.next_key);
            self.coordinator.next_key = self.coordinator.next_key.saturating_add(1);
            let spec = self.new_job();
            self.coordinator.waiting.insert(key, spec.clone());
            self.tell(Event::JobSubmitted { key, user: PERSON, spec: Box::new(spec) });
        }
        let node = self.rng.choice(&self.nodes).map(|node| node.name.clone());
        match (self.rng.u8(..), node) {
            (0..=5, _) if !self.calm.is_over() => self.cancel_one(),
            (6..=8, Some(node)) if !self.calm.is_over() => {
                let reason = "maintenance".to_owned();
                self.tell(Event::DrainRequested { node, by: PERSON, reason });
            }
            (9..=30, Some(node)) => self.tell(Event::ResumeRequested { node, by: PERSON }),
            _ => {}
        }
        let next = if self.calm.is_over() { 1000 } else { self.rng.u64(20..200) };
        self.after(next, Happening::Person);
    }

    fn cancel_one(&mut self) {
        let Some(engine) = self.coordinator.engine() else { return };
        let alive: Vec<JobId> =
            engine.core().books().jobs.keys().rev().take(ALIVE).copied().collect();
        if let Some(job) = self.rng.choice(alive) {
            self.tell(Event::CancelRequested { job, by: PERSON });
        }
    }

    fn new_job(&mut self) -> JobSpec {
        let sizes: Vec<u32> = self.nodes.iter().map(|node| node.gpus).collect();
        let size = self.rng.choice(sizes.clone()).unwrap_or(1);
        let alike = sizes.iter().filter(|other| **other == size).count();
        let nodes = u32::try_from(self.rng.usize(1..=alike)).unwrap_or(1);
        let gang = size.saturating_mul(nodes);
        let small = self.rng.u32(1..=size);
        let is_gang = self.rng.u8(..) < 90;
        JobSpec {
            name: "simulated".to_owned(),
            account: account(),
            command: vec!["train".to_owned()],
            working_dir: "/work".to_owned(),
            env: Vec::new(),
            gpus: GpuCount(if is_gang { gang } else { small }),
            gpus_per_node: is_gang.then_some(GpuCount(size)),
            layout: if self.rng.bool() { TaskLayout::PerNode } else { TaskLayout::PerGpu },
            min_runtime: Span::ZERO,
            grace: GRACE,
            max_restarts: self.rng.u32(0..6),
            checkpoint_dir: None,
            log_cap: Bytes(1 << 20),
        }
    }

    /// A message's way through the network, one direction.
    pub(super) fn network(&mut self) -> u64 {
        short(&mut self.rng)
    }
}

fn account() -> AccountPath {
    "default".parse().unwrap_or_else(|_| unreachable!("a valid path"))
}
