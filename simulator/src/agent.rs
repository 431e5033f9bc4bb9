//! One node's agent and the processes on it: obeys orders, and says what became of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tidegate_model::{
    AskSeen, AttemptId, Commit, DecisionSeq, Launch, NodeFacts, NodeName, Order, Permit,
    SaveDelivery, SaveSeen, Span, TaskExit, TaskId, TaskSeen, Timestamp,
};

use scheduler_core::Event;

/// The exit code by which simulated jobs say that they saved.
pub(crate) const SAVED: u8 = 85;
/// What a job exits with that was told to stop.
const TERMINATED: u8 = 15;
/// What a job exits with whose grace was too short.
const KILLED: u8 = 9;
/// The port rank 0 may listen on; nobody does.
const PORT: u16 = 29_500;

/// How a task is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Prepared,
    Starting,
    Running { since: Timestamp },
    Ended { exit: TaskExit, ran: Span },
}

#[derive(Debug, Clone)]
struct Process {
    phase: Phase,
    /// The newest request to save that it was told of.
    asked: Option<DecisionSeq>,
    /// Its newest ask for a permit, and the newest answer.
    ask: Option<AskSeen>,
    permit: Option<Permit>,
    /// Whether it is told to stop.
    stopping: bool,
}

/// What a job's processes will do after an order; the world sees to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// It is to run, after its start delay.
    Start(TaskId),
    /// It is to save.
    Save(AttemptId, DecisionSeq),
    /// Its ask is answered, or answered otherwise than before.
    Permit(TaskId, Permit),
    /// It is to end within the grace.
    Stop(TaskId, Span),
}

/// What is to be told, and has not been.
#[derive(Debug, Clone, Default)]
struct Outbox {
    tasks: BTreeMap<TaskId, TaskSeen>,
    saves: BTreeMap<TaskId, SaveSeen>,
    commits: BTreeMap<TaskId, Commit>,
    asks: BTreeMap<TaskId, AskSeen>,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    pub(crate) name: NodeName,
    pub(crate) facts: NodeFacts,
    /// Since when nobody hears it.
    pub(crate) silent: Option<Timestamp>,
    processes: BTreeMap<TaskId, Process>,
    /// When processes ran here, by the node's own clock; none = still.
    pub(crate) ran: BTreeMap<TaskId, (Timestamp, Option<Timestamp>)>,
    outbox: Outbox,
}

impl Agent {
    pub(crate) fn new(name: NodeName, facts: NodeFacts) -> Self {
        let (processes, ran, outbox) = (BTreeMap::new(), BTreeMap::new(), Outbox::default());
        Self { name, facts, silent: None, processes, ran, outbox }
    }

    /// Does what is wanted, and says what follows from it later.
    pub(crate) fn obey(&mut self, wanted: &BTreeMap<TaskId, Order>) -> Vec<Consequence> {
        wanted.iter().flat_map(|(task, order)| self.obey_one(*task, order)).collect()
    }

    fn obey_one(&mut self, id: TaskId, order: &Order) -> Vec<Consequence> {
        match order {
            Order::Prepare(_) => {
                if let Entry::Vacant(place) = self.processes.entry(id) {
                    let phase = Phase::Prepared;
                    let (asked, ask, permit, stopping) = (None, None, None, false);
                    place.insert(Process { phase, asked, ask, permit, stopping });
                    self.tell(id);
                }
                Vec::new()
            }
            Order::Run(launch) => {
                let answered = self.answered(id, launch.permit.as_ref());
                self.run(id, launch).into_iter().chain(answered).collect()
            }
            Order::Stop(stop) => self.stop(id, stop.grace).into_iter().collect(),
            Order::Forget => {
                if self.processes.remove(&id).is_some() {
                    self.outbox.tasks.insert(id, TaskSeen::Gone);
                }
                Vec::new()
            }
        }
    }

    /// What is news of its ask's answer.
    fn answered(&mut self, id: TaskId, permit: Option<&Permit>) -> Option<Consequence> {
        let process = self.processes.get_mut(&id)?;
        let asked = process.ask.map(|seen| seen.ask.number);
        let permit = permit.filter(|permit| Some(permit.ask()) == asked)?;
        if process.permit.as_ref() == Some(permit) {
            return None;
        }
        process.permit = Some(permit.clone());
        Some(Consequence::Permit(id, permit.clone()))
    }

    /// Its job asks, or has written.
    pub(crate) fn asks(&mut self, id: TaskId, seen: AskSeen) {
        if let Some(process) = self.processes.get_mut(&id) {
            if process.ask.is_none_or(|known| known.ask.number != seen.ask.number) {
                process.permit = None;
            }
            process.ask = Some(seen);
            self.outbox.asks.insert(id, seen);
        }
    }

    fn run(&mut self, id: TaskId, launch: &Launch) -> Option<Consequence> {
        let Some(process) = self.processes.get_mut(&id) else {
            self.outbox.tasks.insert(id, TaskSeen::Missing);
            return None;
        };
        match (&process.phase, &launch.save) {
            (Phase::Prepared, _) => {
                process.phase = Phase::Starting;
                self.tell(id);
                Some(Consequence::Start(id))
            }
            (Phase::Running { .. }, Some(save)) if process.asked != Some(save.request) => {
                let request = save.request;
                process.asked = Some(request);
                let ranks = u32::try_from(launch.gpus.len()).unwrap_or(u32::MAX);
                let delivery = SaveDelivery::Signalled { ranks };
                self.outbox.saves.insert(id, SaveSeen { request, delivery });
                Some(Consequence::Save(id.attempt, request))
            }
            (Phase::Starting | Phase::Running { .. } | Phase::Ended { .. }, _) => None,
        }
    }

    fn stop(&mut self, id: TaskId, grace: Span) -> Option<Consequence> {
        let Some(process) = self.processes.get_mut(&id) else {
            // Said once: the core takes its word and forgets the task.
            self.outbox.tasks.insert(id, TaskSeen::Missing);
            return None;
        };
        match process.phase {
            Phase::Prepared => {
                let exit = TaskExit::NeverStarted("told to stop before it started".to_owned());
                process.phase = Phase::Ended { exit, ran: Span::ZERO };
                self.tell(id);
                None
            }
            Phase::Starting | Phase::Running { .. } if !process.stopping => {
                process.stopping = true;
                Some(Consequence::Stop(id, grace))
            }
            Phase::Starting | Phase::Running { .. } | Phase::Ended { .. } => None,
        }
    }

    /// Its process runs.
    pub(crate) fn started(&mut self, id: TaskId, now: Timestamp) {
        let starting = self.processes.get_mut(&id).filter(|one| one.phase == Phase::Starting);
        if let Some(process) = starting {
            process.phase = Phase::Running { since: now };
            self.ran.insert(id, (now, None));
            self.tell(id);
        }
    }

    /// Its process has ended, unless it had before.
    pub(crate) fn end(&mut self, id: TaskId, exit: TaskExit, now: Timestamp) {
        let Some(process) = self.processes.get_mut(&id) else { return };
        let ran = match process.phase {
            Phase::Prepared | Phase::Starting => Span::ZERO,
            Phase::Running { since } => now.since(since),
            Phase::Ended { .. } => return,
        };
        process.phase = Phase::Ended { exit, ran };
        self.ran.entry(id).and_modify(|(_, until)| *until = Some(now));
        self.tell(id);
    }

    /// It was told to stop, and its time is over: whether by itself or killed.
    pub(crate) fn end_stopped(&mut self, id: TaskId, killed: bool, now: Timestamp) {
        self.end(id, TaskExit::Signaled(if killed { KILLED } else { TERMINATED }), now);
    }

    /// Its job has a new checkpoint.
    pub(crate) fn committed(&mut self, id: TaskId, commit: Commit) {
        self.outbox.commits.insert(id, commit);
    }

    /// The node boots again: nothing of before is there.
    pub(crate) fn reboot(&mut self) {
        self.facts.boot_id.push('+');
        self.processes.clear();
        self.outbox = Outbox::default();
    }

    /// Whether a process of the attempt runs here.
    pub(crate) fn runs(&self, attempt: AttemptId) -> bool {
        let tasks = TaskId { attempt, index: 0 }..=TaskId { attempt, index: u32::MAX };
        let mut here = self.processes.range(tasks);
        here.any(|(_, process)| matches!(process.phase, Phase::Running { .. }))
    }

    fn tell(&mut self, id: TaskId) {
        let seen = self.processes.get(&id).map(Process::seen);
        self.outbox.tasks.extend(seen.map(|seen| (id, seen)));
    }

    /// What changed since the last report, if anything did.
    pub(crate) fn changes(&mut self) -> Option<Event> {
        let Outbox { tasks, saves, commits, asks } = std::mem::take(&mut self.outbox);
        if tasks.is_empty() && saves.is_empty() && commits.is_empty() && asks.is_empty() {
            return None;
        }
        Some(Event::NodeReported {
            node: self.name.clone(),
            complete: false,
            facts: None,
            tasks: tasks.into_iter().collect(),
            saves: saves.into_iter().collect(),
            commits: commits.into_iter().collect(),
            asks: asks.into_iter().collect(),
        })
    }

    /// Everything it knows.
    pub(crate) fn everything(&mut self) -> Event {
        let Outbox { commits, .. } = std::mem::take(&mut self.outbox);
        let asks = self.processes.iter().filter_map(|(id, process)| Some((*id, process.ask?)));
        let saves = self.processes.iter().filter_map(|(id, process)| {
            let delivery = SaveDelivery::Signalled { ranks: 1 };
            Some((*id, SaveSeen { request: process.asked?, delivery }))
        });
        Event::NodeReported {
            node: self.name.clone(),
            complete: true,
            facts: Some(self.facts.clone()),
            tasks: self.processes.iter().map(|(id, process)| (*id, process.seen())).collect(),
            saves: saves.collect(),
            commits: commits.into_iter().collect(),
            asks: asks.collect(),
        }
    }
}

impl Process {
    fn seen(&self) -> TaskSeen {
        match &self.phase {
            Phase::Prepared => TaskSeen::Prepared { port: PORT },
            Phase::Starting => TaskSeen::Starting,
            Phase::Running { .. } => TaskSeen::Running,
            Phase::Ended { exit, ran } => {
                TaskSeen::Ended { exit: exit.clone(), released: true, ran: *ran, idle: None }
            }
        }
    }
}
