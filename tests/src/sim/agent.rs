//! A node in the simulation: the agent's real ledger, plan and reconcile, over a simulated file,
//! a simulated link and a simulated starter.

use std::collections::BTreeMap;

use tidegate_agent::ledger::Ledger;
use tidegate_agent::node::{Action, Node, PlanRefused, TaskStatus};
use tidegate_agent::since_boot::SinceBoot;
use tidegate_model::{Bytes, ClusterId, Epoch, Generation, Gpu, NodeName, TaskId};
use tidegate_proto::link::{NodeFacts, NodePlan, Report, TaskReport};

use super::Planted;
use super::clock::NodeClock;
use super::starter::SimStarter;
use super::world::{Happening, World};

/// Where an agent dies in its next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundCrash {
    /// What it has just learnt or promised is not in its file.
    BeforeLedger,
    /// It is in its file, and nobody heard of it.
    AfterLedger,
}

/// A node: what survives, and what runs.
#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) name: NodeName,
    pub(super) gpus: u32,
    pub(super) boot: u64,
    pub(super) clock: NodeClock,
    /// The agent's file.
    ledger: Ledger,
    pub(super) agent: Option<Agent>,
    pub(super) starter: SimStarter,
    pub(super) dies_in_round: Option<RoundCrash>,
    next_session: u64,
    /// The newest plan acted on, to see that none is older.
    newest: (Epoch, Generation),
}

/// A running agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) brain: Node,
    first_session: u64,
    /// The link's session, while there is one.
    pub(super) session: Option<u64>,
    /// What was sent in this session.
    sent: BTreeMap<TaskId, TaskReport>,
    introduced: bool,
    /// Messages of a session stay in order: none arrives before this instant.
    arrives: u64,
}

impl SimNode {
    pub(super) fn new(index: usize, rng: &mut fastrand::Rng) -> Self {
        let name = format!("node-{index}");
        Self {
            name: name.parse().unwrap_or_else(|_| unreachable!("a valid name")),
            gpus: if rng.u8(..) < 200 { 8 } else { 4 },
            boot: 1,
            clock: NodeClock::new(rng),
            ledger: Ledger::default(),
            agent: None,
            starter: SimStarter::default(),
            dies_in_round: None,
            next_session: 0,
            newest: (Epoch(0), Generation(0)),
        }
    }

    fn facts(&self) -> NodeFacts {
        let gpu = |index| Gpu {
            uuid: format!("GPU-{}-{index}", self.name)
                .parse()
                .unwrap_or_else(|_| unreachable!("a valid UUID")),
            product: "simulated".to_owned(),
            memory: Bytes(80 << 30),
        };
        NodeFacts {
            boot_id: format!("boot-{}", self.boot),
            gpus: (0..self.gpus).map(gpu).collect(),
            gpu_note: String::new(),
            address: "127.0.0.1".to_owned(),
            block: String::new(),
            memory: Bytes(1 << 40),
            cpus: 64,
            only_user: None,
            closed: String::new(),
        }
    }
}

impl World {
    pub(super) fn start_agent(&mut self, index: usize) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(index).filter(|node| node.agent.is_none()) else {
            return Ok(());
        };
        let mut brain = Node::restore(node.ledger.clone(), &format!("boot-{}", node.boot));
        // It adopts what its starter knows before it speaks.
        if let Some(known) = node.starter.statuses() {
            brain.starter_knows(known);
        }
        node.agent = Some(Agent {
            brain,
            first_session: node.next_session.saturating_add(1),
            session: None,
            sent: BTreeMap::new(),
            introduced: false,
            arrives: 0,
        });
        self.truth.agent_restarted(&node.name, &node.ledger)?;
        let delay = self.network();
        self.after(delay, Happening::AgentConnects { node: index });
        Ok(())
    }

    /// The agent dies; its file keeps what was durable.
    pub(super) fn crash_agent(&mut self, index: usize) {
        if let Some(node) = self.nodes.get_mut(index) {
            node.agent = None;
            node.dies_in_round = None;
        }
        let back = self.rng.u64(20..2000);
        self.after(back, Happening::AgentStarts { node: index });
    }

    /// Both sides lose the connection; the agent tries again.
    pub(super) fn break_link(&mut self, index: usize) {
        let agent = self.nodes.get_mut(index).and_then(|node| node.agent.as_mut());
        let Some(agent) = agent else { return };
        if agent.session.take().is_some() {
            let delay = self.rng.u64(50..5000);
            self.after(delay, Happening::AgentConnects { node: index });
        }
    }

    pub(super) fn connect(&mut self, index: usize) -> Result<(), String> {
        let reachable = self.coordinator.engine().is_some() && !self.calm.is_cut(index, self.now);
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        let Some(agent) = node.agent.as_mut().filter(|agent| agent.session.is_none()) else {
            return Ok(());
        };
        if !reachable {
            let delay = self.rng.u64(50..5000);
            self.after(delay, Happening::AgentConnects { node: index });
            return Ok(());
        }
        node.next_session = node.next_session.saturating_add(1);
        let session = node.next_session;
        agent.session = Some(session);
        agent.sent.clear();
        agent.introduced = false;
        agent.brain.welcomed(ClusterId(7)).map_err(|refused| refused.to_string())?;
        let name = node.name.clone();
        self.accept(&name, session);
        self.after(500, Happening::Heartbeat { node: index, session });
        self.round(index)
    }

    pub(super) fn heartbeat(&mut self, index: usize, session: u64) -> Result<(), String> {
        let agent = self.nodes.get(index).and_then(|node| node.agent.as_ref());
        if agent.is_none_or(|agent| agent.session != Some(session)) {
            return Ok(());
        }
        if self.calm.is_cut(index, self.now) {
            self.break_link(index);
        } else {
            let renew = self.renewal(index);
            self.send_report(index, Report { renew, ..Report::default() });
            self.after(700, Happening::Heartbeat { node: index, session });
        }
        self.round(index)
    }

    pub(super) fn receive_plan(
        &mut self,
        index: usize,
        session: u64,
        plan: NodePlan,
    ) -> Result<(), String> {
        let ignores = self.options.planted == Some(Planted::GenerationIgnored);
        let cut = self.calm.is_cut(index, self.now);
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        let newest = &mut node.newest;
        // A plan of an older connection may still arrive: its generation decides, not its way. But
        // what was sent to a process that died never reaches the next one.
        let alive = |agent: &&mut Agent| !cut && session >= agent.first_session;
        let Some(agent) = node.agent.as_mut().filter(alive) else { return Ok(()) };
        let stamp = (plan.epoch, plan.generation);
        let accepted = match agent.brain.accept_plan(plan.clone()) {
            Ok(()) => true,
            Err(PlanRefused::OtherCluster { offered }) => {
                return Err(format!("a plan of cluster {offered}"));
            }
            Err(PlanRefused::OlderEpoch { .. } | PlanRefused::OlderGeneration { .. })
                if ignores =>
            {
                let ledger = agent.brain.ledger();
                let (epoch, generation) = (ledger.epoch, ledger.generation);
                agent.brain.accept_plan(NodePlan { epoch, generation, ..plan }).is_ok()
            }
            Err(PlanRefused::OlderEpoch { .. } | PlanRefused::OlderGeneration { .. }) => false,
        };
        if accepted && stamp < *newest {
            let name = &node.name;
            return Err(format!("{name} acts on plan {stamp:?} after {newest:?}"));
        }
        if accepted {
            *newest = stamp;
        }
        self.round(index)
    }

    /// One round of an agent: act on what is known, make it durable, then say it.
    pub(super) fn round(&mut self, index: usize) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        let dies = node.dies_in_round.filter(|_| node.agent.is_some());
        let Some(agent) = node.agent.as_mut() else { return Ok(()) };
        let late = self.options.planted == Some(Planted::LedgerAfterReport);
        let (mut starts, mut saves, mut permits) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        // What an action brings about may ask for the next; nothing here asks for ever.
        for _ in 0..8 {
            let actions = agent.brain.actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Prepare { task, gpus: _ } if self.rng.u8(..) == 0 => {
                        agent.brain.prepare_refused(task, "a process uses its GPU".to_owned());
                    }
                    Action::Prepare { task, gpus } => agent.brain.prepared(task, gpus, 29_500),
                    Action::Start { task, launch } => {
                        agent.brain.status_changed(task, TaskStatus::Intended.into());
                        starts.push((task, launch.gpus.clone()));
                    }
                    Action::Save { task, save } => drop(saves.insert(task, save)),
                    Action::Permit { task, permit } => drop(permits.insert(task, permit)),
                    Action::Stop { task, stop: _ } => node.starter.stop(task),
                    Action::Forget { task } => {
                        node.starter.forget(task);
                        agent.brain.forgotten(task);
                    }
                }
            }
        }
        if dies == Some(RoundCrash::BeforeLedger) {
            self.crash_agent(index);
            return Ok(());
        }
        if agent.brain.ledger().needs_write(&node.ledger) && !late {
            node.ledger = agent.brain.ledger().clone();
        }
        if dies == Some(RoundCrash::AfterLedger) {
            self.crash_agent(index);
            return Ok(());
        }
        for (task, gpus) in starts {
            self.start_task(index, task, gpus)?;
        }
        self.stop_tasks(index)?;
        self.say(index);
        // What is heard of a save is said in a round of its own.
        for (task, save) in saves {
            self.ask_to_save(index, task, &save)?;
        }
        for (task, permit) in permits {
            self.pass_permit(index, task, permit)?;
        }
        Ok(())
    }

    /// Sends what has changed since the last report of the session.
    fn say(&mut self, index: usize) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        let facts = node.facts();
        let Some(agent) = node.agent.as_mut() else { return };
        if agent.session.is_none() || !agent.brain.starter_heard() {
            return;
        }
        let now = agent.brain.report();
        let complete = !std::mem::replace(&mut agent.introduced, true);
        let news = |(task, seen): (&TaskId, &TaskReport)| {
            (complete || agent.sent.get(task) != Some(seen)).then(|| (*task, seen.clone()))
        };
        let mut tasks: BTreeMap<_, _> = now.iter().filter_map(news).collect();
        agent.sent = now;
        // What grows with time alone is no news.
        let asks = agent.brain.open_asks();
        for (task, report) in &mut tasks {
            if let (Some(ask), Some(asked)) = (&mut report.ask, asks.get(task)) {
                ask.waited = node.clock.read(self.now).since(*asked);
            }
        }
        if complete || !tasks.is_empty() {
            self.truth.said(&node.name, &tasks);
            let facts = complete.then_some(facts);
            let renew = self.renewal(index);
            self.send_report(index, Report { complete, facts, tasks, renew, ..Report::default() });
        }
    }

    /// The number of a report that is sent now: when that is, by the node's own clock. Zero without
    /// an ask that is not over.
    fn renewal(&self, index: usize) -> u64 {
        let node = self.nodes.get(index);
        let asks = node.and_then(|node| node.agent.as_ref()).map(|agent| agent.brain.open_asks());
        let now = node.map_or(0, |node| node.clock.read(self.now).0);
        if asks.is_some_and(|asks| !asks.is_empty()) { now } else { 0 }
    }

    /// The coordinator has heard what this node's agent said then.
    pub(super) fn renewed(
        &mut self,
        index: usize,
        session: u64,
        number: u64,
    ) -> Result<(), String> {
        let cut = self.calm.is_cut(index, self.now);
        let agent = self.nodes.get_mut(index).and_then(|node| node.agent.as_mut());
        let Some(agent) = agent.filter(|agent| !cut && session >= agent.first_session) else {
            return Ok(());
        };
        agent.brain.was_heard(SinceBoot(number));
        self.round(index)
    }

    fn send_report(&mut self, index: usize, report: Report) {
        let delay = self.network();
        let (cut, lost) = (self.calm.is_cut(index, self.now), self.calm.loses(&mut self.rng));
        let now = self.now;
        let agent = self.nodes.get_mut(index).and_then(|node| node.agent.as_mut());
        let Some((agent, session)) = agent.and_then(|a| a.session.map(|session| (a, session)))
        else {
            return;
        };
        if cut || lost {
            // On a stream nothing is lost without the stream.
            self.break_link(index);
            return;
        }
        agent.arrives = agent.arrives.max(now.saturating_add(delay));
        let delay = agent.arrives.saturating_sub(now);
        self.after(delay, Happening::Reported { node: index, session, report: Box::new(report) });
    }
}
