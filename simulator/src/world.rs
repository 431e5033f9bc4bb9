//! The core, a replayed copy of its books, and nodes that do what they are told, on virtual time.

mod befalls;
mod processes;
mod server;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tidegate_model::{
    AttemptId, Bandwidth, DecisionSeq, JobId, JobSpec, NodeId, NodeName, Span, StorageName,
    SubmitKey, TaskId, Timestamp, UserId,
};

use scheduler_core::{
    Books, Broken, Core, Decision, Event, Flow, Observation, Policy, Stamp, Violation,
};

use self::processes::Timer;
use self::server::Traffic;
pub use self::server::{Load, Server};
use self::writes::Write;
use crate::agent::Agent;
use crate::cluster::{NodeForm, facts};
use crate::work::Work;

/// Where virtual time begins: later than a window after zero, as real instants are.
pub const EPOCH: Timestamp = Timestamp(100 * 24 * 3_600_000);

/// Who is told of every decision.
pub trait Observer {
    /// A decision was made; the books are those before it.
    fn saw(&mut self, before: &Books, at: Timestamp, decision: &Decision);
}

/// What must never be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// A decision did not fit the books.
    Broken(Broken),
    /// The audit found something.
    Audit(Vec<Violation>),
    /// Replayed decisions make other books.
    Replay,
    /// A second pass over an unchanged world decides something.
    Restless(Vec<Decision>),
    /// More may be written, or is, than a storage target may carry.
    Overwritten(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(broken) => write!(out, "{broken}"),
            Self::Audit(found) => {
                let found: Vec<_> = found.iter().map(ToString::to_string).collect();
                write!(out, "audit: {}", found.join("; "))
            }
            Self::Replay => out.write_str("replayed decisions make other books"),
            Self::Overwritten(why) => out.write_str(why),
            Self::Restless(decided) => write!(out, "a second pass decides {decided:?}"),
        }
    }
}

impl std::error::Error for Wrong {}

/// A cluster on virtual time.
#[derive(Debug)]
pub struct World<O> {
    /// Who is told of every decision.
    pub observer: O,
    core: Core,
    replay: Books,
    now: Timestamp,
    seq: u64,
    /// Whether every step is held against the invariants.
    checked: bool,
    /// Whether the coordinator is away.
    down: bool,
    /// Whether deadlines passed while it was away, and are not worked off yet.
    overdue: bool,
    agents: BTreeMap<NodeId, Agent>,
    works: BTreeMap<JobId, Work>,
    timers: BTreeMap<(Timestamp, u64), Timer>,
    timers_set: u64,
    /// Who writes with a permit, or waits for one.
    writes: BTreeMap<AttemptId, Write>,
    /// The server that all write to, if it is played.
    traffic: Option<Traffic>,
    /// Whose writing was measured last.
    measured: BTreeSet<AttemptId>,
    /// What might be written or read at each gate since the last look, and what was: its cap then, or more if
    /// that had become lower.
    allowed: BTreeMap<(StorageName, Flow), (Bandwidth, Bandwidth)>,
    /// Since when the coordinator is away.
    away: Option<Timestamp>,
    submits: u128,
    /// Nodes whose plan may be another.
    stale: BTreeSet<NodeId>,
}

impl<O: Observer> World<O> {
    /// A cluster of these nodes, all of them Ready, at [`EPOCH`].
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn new(
        nodes: &[NodeForm],
        policy: Policy,
        observer: O,
        checked: bool,
    ) -> Result<Self, Wrong> {
        let mut world = Self {
            observer,
            core: Core::default(),
            replay: Books::default(),
            now: EPOCH,
            seq: 1,
            checked,
            down: false,
            overdue: false,
            agents: BTreeMap::new(),
            works: BTreeMap::new(),
            timers: BTreeMap::new(),
            timers_set: 0,
            writes: BTreeMap::new(),
            traffic: None,
            measured: BTreeSet::new(),
            allowed: BTreeMap::new(),
            away: None,
            submits: 0,
            stale: BTreeSet::new(),
        };
        world.tell(&Event::LeaderStarted)?;
        world.tell(&Event::PolicyChanged(policy.into()))?;
        for form in nodes {
            let mut agent = Agent::new(form.name.clone(), facts(form));
            world.tell(&agent.everything())?;
            let id = world.replay.node_named(&form.name).map(|node| node.id);
            world.agents.extend(id.map(|id| (id, agent)));
        }
        Ok(world)
    }

    /// The real scheduler.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Work of the job that is done: what is safe, and what its running attempt has done since.
    pub fn progress(&self, job: JobId) -> Span {
        self.works.get(&job).map_or(Span::ZERO, |work| work.kept(self.now))
    }

    /// When the task's processes ran, as its node saw it: not what the scheduler heard of it. None
    /// = never; an end of none = still, or nobody saw it.
    pub fn ran(&self, task: TaskId) -> Option<(Timestamp, Option<Timestamp>)> {
        let node = self.replay.task(task)?.place.node;
        self.agents.get(&node)?.ran.get(&task).copied()
    }

    /// The present.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Lets time pass: whatever is due up to `until` happens at its own instant.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn run_until(&mut self, until: Timestamp) -> Result<(), Wrong> {
        loop {
            let own = self.timers.first_key_value().map(|((at, _), _)| *at);
            let next = own.filter(|at| *at <= until).unwrap_or(until);
            self.hear(next);
            let deadline = if self.down { None } else { self.core.next_deadline(self.now) };
            if let Some(due) = deadline.filter(|due| *due <= next) {
                self.now = due;
                self.tell(&Event::DeadlineReached)?;
            } else if own.is_some_and(|at| at <= until) {
                self.now = next;
                if let Some((_, timer)) = self.timers.pop_first() {
                    self.ring(timer);
                    self.settle()?;
                }
            } else {
                self.now = until;
                return Ok(());
            }
        }
    }

    /// Nodes that are not silent are heard all the time: nothing but time passes until `until`.
    fn hear(&mut self, until: Timestamp) {
        if self.down {
            return;
        }
        for agent in self.agents.values().filter(|agent| agent.silent.is_none()) {
            let node = agent.name.clone();
            self.core.observe(until, &Observation::NodeHeard { node });
        }
    }

    /// Something happens; all that follows at this instant follows.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn tell(&mut self, event: &Event) -> Result<Vec<Decision>, Wrong> {
        let decisions = self.apply(event)?;
        self.settle()?;
        Ok(decisions)
    }

    /// A user submits a job that will behave so.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn submit(
        &mut self,
        user: UserId,
        spec: JobSpec,
        work: Work,
    ) -> Result<Vec<Decision>, Wrong> {
        self.submits = self.submits.saturating_add(1);
        let key = SubmitKey(self.submits);
        let decisions = self.apply(&Event::JobSubmitted { key, user, spec: Box::new(spec) })?;
        let job = decisions.iter().find_map(Decision::answers).and_then(Result::ok);
        self.works.extend(job.map(|(job, _)| (job, work)));
        self.settle()?;
        Ok(decisions)
    }

    fn apply(&mut self, event: &Event) -> Result<Vec<Decision>, Wrong> {
        let stamp = Stamp { at: self.now, seq: DecisionSeq(self.seq) };
        self.seq = self.seq.saturating_add(1);
        self.measure();
        let decisions = self.core.apply(stamp, event).map_err(Wrong::Broken)?;
        self.stale.extend(self.core.tell(self.now));
        for decision in &decisions {
            self.observer.saw(&self.replay, self.now, decision);
            if decision.is_durable() {
                self.replay.evolve(stamp, decision).map_err(Wrong::Broken)?;
            }
            self.note(decision);
        }
        if self.checked {
            self.check(event)?;
        }
        Ok(decisions)
    }

    /// Whose plan a decision changes, and who begins to train.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the others change no node's plan")]
    fn note(&mut self, decision: &Decision) {
        match decision {
            Decision::AttemptPlanned { attempt, .. }
            | Decision::AttemptGranted(attempt)
            | Decision::SaveTold(attempt)
            | Decision::SaveAdmitted { attempt, .. }
            | Decision::WriteRated { attempt, .. }
            | Decision::WriteEnded(attempt)
            | Decision::StopOrdered { attempt, .. }
            | Decision::AttemptEnded { attempt, .. } => {
                let tasks = self.replay.attempt(*attempt).map(|one| &one.tasks);
                self.stale.extend(tasks.into_iter().flatten().map(|task| task.place.node));
            }
            Decision::GateSet { storage, .. } => {
                for flow in [Flow::Writes, Flow::Reads] {
                    // Before there was a cap anything might.
                    let all = (Bandwidth(u64::MAX), Bandwidth(u64::MAX));
                    self.allowed.entry((storage.clone(), flow)).or_insert(all);
                }
            }
            Decision::PermitGranted { permit, .. } => {
                self.stale.extend(self.replay.task(permit.task).map(|task| task.place.node));
            }
            Decision::TaskEnded { task, .. } | Decision::TaskReleased(task) => {
                self.stale.extend(self.replay.task(*task).map(|task| task.place.node));
            }
            Decision::AttemptRunning(attempt) => {
                self.begin(*attempt);
            }
            _ => {}
        }
    }

    fn check(&mut self, event: &Event) -> Result<(), Wrong> {
        let found = self.core.audit(self.now);
        if !found.is_empty() {
            return Err(Wrong::Audit(found));
        }
        if *self.core.books() != self.replay {
            return Err(Wrong::Replay);
        }
        self.check_writes()?;
        if *event == Event::LeaderStarted || self.overdue {
            return Ok(());
        }
        let stamp = Stamp { at: self.now, seq: DecisionSeq(self.seq) };
        let again = self.core.clone().apply(stamp, &Event::DeadlineReached);
        let mut again = again.map_err(Wrong::Broken)?;
        again.retain(|decision| !matches!(decision, Decision::JobForgotten(_)));
        if again.is_empty() { Ok(()) } else { Err(Wrong::Restless(again)) }
    }

    /// Nodes do what they are told, and say what became of it, until nothing is left to say.
    fn settle(&mut self) -> Result<(), Wrong> {
        if self.down {
            return Ok(());
        }
        while let Some(id) = self.stale.pop_first() {
            let wanted = self.core.wanted_of(id);
            let Some(agent) = self.agents.get_mut(&id) else { continue };
            if agent.silent.is_some() {
                continue;
            }
            for consequence in agent.obey(&wanted) {
                self.follow(consequence);
            }
            if let Some(report) = self.agents.get_mut(&id).and_then(Agent::changes) {
                self.stale.insert(id);
                self.apply(&report)?;
            }
        }
        Ok(())
    }

    fn newest(&self, job: JobId) -> Option<AttemptId> {
        self.replay.jobs.get(&job)?.attempts.last().map(|attempt| attempt.id)
    }

    fn agent_named(&mut self, name: &NodeName) -> Option<(NodeId, &mut Agent)> {
        let id = self.replay.node_named(name)?.id;
        Some((id, self.agents.get_mut(&id)?))
    }
}
