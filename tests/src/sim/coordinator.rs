//! The coordinator in the simulation: the real engine over the simulated disk, its inbox, and the
//! people and agents that talk to it.

use std::collections::{BTreeMap, BTreeSet};

use scheduler_core::{
    Account, Accounts, Books, Core, Event, Observation, Pledge, Refusal, SaveReason,
};
use tidegate_coordinator::engine::{Answer, Engine};
use tidegate_coordinator::ingress::link::reported;
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Entry, Journal, JournalError, Sink};
use tidegate_coordinator::store;
use tidegate_model::{
    ClusterId, DecisionSeq, JobId, JobSpec, NodeName, SubmitKey, TaskId, Timestamp, UserId,
};
use tidegate_proto::link::{NodePlan, Report};

use super::disk::Disk;
use super::people::{PERSON, Submitted, gives_up, next_key, policy};
use super::watch::Watch;
use super::world::{Happening, World, short};
use super::{Options, Planted};

/// Turns between two looks at whether a snapshot reads back as the books it was made of.
const TURNS_PER_LOOK: u64 = 50;

/// The engine under test.
pub(super) type SimEngine = Engine<SimJournal>;

/// The journal with the planted bugs that concern it.
#[derive(Debug)]
pub(super) struct SimJournal {
    inner: RedbJournal,
    watch: Watch,
    planted: Option<Planted>,
    /// Publish before append: the last batch lies here while it is already visible.
    held_back: Option<Vec<Entry>>,
}

impl Journal for SimJournal {
    fn cluster(&self) -> ClusterId {
        self.inner.cluster()
    }

    fn append(&mut self, batch: &[Entry]) -> Result<(), JournalError> {
        let wrong = self.planted.and_then(|planted| self.watch.spoilt(planted, batch));
        let batch = wrong.as_deref().unwrap_or(batch);
        self.watch.appended(batch);
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
    pub(super) waiting: BTreeMap<SubmitKey, Submitted>,
    answered: BTreeMap<SubmitKey, JobId>,
    next_key: u128,
    /// The connection of each node, as the coordinator knows it.
    sessions: BTreeMap<NodeName, u64>,
    /// When the newest plan that was sent to each arrives: what is sent later comes later.
    arrives: BTreeMap<NodeName, u64>,
    deadline: Option<Timestamp>,
    pub(super) most_alive: usize,
    /// Reads what is journaled, over all lives.
    watch: Watch,
    turns: u64,
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
            arrives: BTreeMap::new(),
            deadline: None,
            most_alive: 0,
            watch: Watch::default(),
            turns: 0,
        }
    }

    /// What is journaled, whether or not anybody is there to hear of it.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    pub(super) fn engine(&self) -> Option<&Engine<SimJournal>> {
        self.engine.as_ref()
    }

    /// Notes a submit, under the next key.
    pub(super) fn await_answer(&mut self, user: UserId, spec: JobSpec) -> SubmitKey {
        let key = next_key(&mut self.next_key);
        self.waiting.insert(key, (user, spec));
        key
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
        let (watch, planted) = (self.coordinator.watch.clone(), self.options.planted);
        let journal = SimJournal { inner, watch, planted, held_back: late.then(Vec::new) };
        let now = self.at();
        let restored = store::restore(&journal);
        let mut restored = restored.map_err(|error| format!("no restore: {}", failed(&error)))?;
        self.coordinator.watch.restored(restored.core.books(), planted.is_none())?;
        if planted == Some(Planted::PledgeKept) {
            restored.core = Core::restored(with_pledges_kept(restored.core.books()));
        }
        let at = restored.last.max(now);
        let engine = Engine::start(journal, restored, at, &policy(self.options.seed));
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
        self.coordinator.turns = self.coordinator.turns.saturating_add(1);
        let met = self.coordinator.watch.report()?;
        if self.coordinator.turns.is_multiple_of(TURNS_PER_LOOK) {
            self.coordinator.watch.look(engine)?;
        }
        let alive = engine.core().books().live_jobs();
        self.coordinator.most_alive = self.coordinator.most_alive.max(alive);
        for (what, count) in met {
            self.count_many(format!("decision {what}"), count);
        }
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
        let Event::JobSubmitted { key, spec, .. } = event else { return Ok(()) };
        if let Answer::Refused(Refusal::NotRehearsed { .. }) = answer
            && self.coordinator.watch.is_rehearsed(spec)
        {
            return Err(format!("{:?} has passed a rehearsal, and is refused", spec.command));
        }
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
            Answer::Refused(refusal) if gives_up(refusal) => {
                self.coordinator.waiting.remove(key);
                Ok(())
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
        self.forget_silent();
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
        let Report { complete, facts, tasks, renew, .. } = report;
        let engine = self.coordinator.engine.as_mut();
        let returned = engine.is_some_and(|engine| {
            let silent = engine.is_silent(&name);
            engine.observe(now, &Observation::NodeHeard { node: name.clone() });
            silent
        });
        self.note_writes(index, &name);
        if returned {
            self.tell(Event::DeadlineReached);
        }
        if complete || facts.is_some() || !tasks.is_empty() {
            self.tell(reported(name, complete, facts, tasks));
        }
        if renew > 0 {
            self.answer_renewal(index, session, renew);
        }
        self.queue_deadline();
    }

    /// What its tasks write, as its agent measures it.
    fn note_writes(&mut self, index: usize, name: &NodeName) {
        let (now, at) = (self.at(), self.clock(index));
        let Some(engine) = self.coordinator.engine.as_mut() else { return };
        let known = engine.core().books().node_named(name);
        let tasks: Vec<TaskId> = known.into_iter().flat_map(|node| &node.tasks).copied().collect();
        for task in tasks {
            let rate = self.asked.get(&task).and_then(|asked| asked.does(at)).unwrap_or_default();
            engine.observe(now, &Observation::TaskWrites { task, rate });
        }
    }

    /// Who hears of it has the plans that were sent before: what was decided while a node was silent must
    /// reach it before its permits hold again.
    fn answer_renewal(&mut self, node: usize, session: u64, number: u64) {
        let (now, delay) = (self.now, self.network());
        let name = self.nodes.get(node).map(|node| node.name.clone());
        let plans = name.and_then(|name| self.coordinator.arrives.get(&name)).copied();
        let at = plans.unwrap_or(0).max(now.saturating_add(delay));
        self.after(at.saturating_sub(now), Happening::Renewed { node, session, number });
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
        let at = self.now.saturating_add(delay);
        let last = self.coordinator.arrives.entry(name.clone()).or_insert(0);
        *last = at.max(*last);
        self.after(delay, Happening::Planned { node, session, plan });
    }

    /// A message's way through the network, one direction.
    pub(super) fn network(&mut self) -> u64 {
        short(&mut self.rng)
    }
}

/// The planted bug: what displaced attempts were promised is promised for ever.
fn with_pledges_kept(books: &Books) -> Books {
    let mut accounts: Vec<Account> = books.accounts.all().cloned().collect();
    for job in books.jobs.values() {
        for attempt in &job.attempts {
            let displaced =
                attempt.save.is_some_and(|save| matches!(save.why, SaveReason::Displaced { .. }));
            let account = accounts.iter_mut().find(|account| account.id == job.account);
            if let (true, Some(account)) = (displaced, account) {
                let kept = attempt.rate().over(job.spec.min_runtime);
                account.pledge = account.pledge + Pledge::lump(kept);
            }
        }
    }
    let mut wrong = books.clone();
    wrong.accounts = Accounts::restored(accounts, books.accounts.installed()).unwrap_or_default();
    wrong
}
