//! The pure node: the rules as a table, and what must hold over any sequence of plans, crashes
//! and delays.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helpers fail as its body does"
)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_agent::ledger::Ledger;
use tidegate_agent::node::{Action, LinkRefused, Node, PlanRefused, TaskFacts, TaskStatus};
use tidegate_agent::permits::{AskRecord, PermitRecord};
use tidegate_agent::since_boot::SinceBoot;
use tidegate_model::{
    Bandwidth, Bytes, ClusterId, Commit, DecisionSeq, Epoch, Generation, GpuUuid, Permit, Save,
    SaveDelivery, SaveSeen, SaveSignal, SaveTarget, Span, TaskExit, TaskId, TaskLayout, TaskSeen,
    UserId, WriteClass,
};
use tidegate_proto::link::{Launch, NodePlan, Order, Stop, TaskReport};

const OURS: ClusterId = ClusterId(1);
const T: &str = "job-1.1.0";

fn task(text: &str) -> TaskId {
    text.parse().unwrap()
}

fn gpus(names: &[&str]) -> Vec<GpuUuid> {
    names.iter().map(|name| format!("GPU-{name}").parse().unwrap()).collect()
}

fn launch(names: &[&str]) -> Box<Launch> {
    Box::new(Launch {
        user: UserId(1000),
        command: vec!["true".into()],
        working_dir: "/".into(),
        env: Vec::new(),
        gpus: gpus(names),
        layout: TaskLayout::PerNode,
        rank: 0,
        local_rank: 0,
        world_size: 1,
        local_world_size: 1,
        node_rank: 0,
        nodes: 1,
        master_addr: "a".into(),
        master_port: 1,
        checkpoint_dir: String::new(),
        log_cap: Bytes(1),
        save: None,
        permit: None,
        pty: false,
    })
}

/// The same launch, with a request to save.
fn saving(names: &[&str], request: u64) -> Box<Launch> {
    let save = Save {
        request: DecisionSeq(request),
        signal: Some(SaveSignal::Usr1),
        target: SaveTarget::Ranks,
        grace: Span::seconds(60),
        why: "why".into(),
    };
    Box::new(Launch { save: Some(save), ..*launch(names) })
}

/// What the starter says of a running task that was asked to save.
fn asked(request: u64) -> TaskFacts {
    let delivery = SaveDelivery::Signalled { ranks: 1 };
    let save = Some(SaveSeen { request: DecisionSeq(request), delivery });
    TaskFacts { save, ..TaskStatus::Running.into() }
}

fn a_stop() -> Stop {
    Stop { decision: DecisionSeq(1), grace: Span(1), why: "why".into() }
}

fn ended(exit: TaskExit, released: bool) -> TaskStatus {
    TaskStatus::Ended { exit, released, ran: Span(5) }
}

fn plan(epoch: u64, generation: u64, orders: &[(&str, Order)]) -> NodePlan {
    let tasks = orders.iter().map(|(id, order)| (task(id), order.clone())).collect();
    NodePlan { cluster: OURS, epoch: Epoch(epoch), generation: Generation(generation), tasks }
}

fn node() -> Node {
    let mut node = Node::restore(Ledger::default(), "boot");
    node.welcomed(OURS).unwrap();
    node.starter_knows(BTreeMap::new());
    node
}

/// What the node already knows of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Prepared,
    Running,
    Ending,
    Ended,
    /// The starter knows it, the ledger does not.
    Stray,
}

fn known(before: Before) -> Node {
    let mut node = node();
    let exit = TaskExit::Exited(0);
    let status = match before {
        Before::Nothing | Before::Prepared => None,
        Before::Running | Before::Stray => Some(TaskStatus::Running),
        Before::Ending => Some(ended(exit, false)),
        Before::Ended => Some(ended(exit, true)),
    };
    if !matches!(before, Before::Nothing | Before::Stray) {
        node.prepared(task(T), gpus(&["a"]), 9);
    }
    if let Some(status) = status {
        node.status_changed(task(T), status.into());
    }
    node
}

/// Whether the ledger must be written first, what is done, and what is reported of the task.
fn check(before: Before, order: Option<Order>, expected: &str) {
    let mut node = known(before);
    let mut durable = node.ledger().clone();
    let words = format!("{before:?}, {order:?}");
    let orders: Vec<_> = order.map(|order| (T, order)).into_iter().collect();
    node.accept_plan(plan(1, 1, &orders)).unwrap();
    // A new leadership must be durable in any case.
    durable.epoch = Epoch(1);
    let written_first = if node.ledger().needs_write(&durable) { "written; " } else { "" };
    let actions: Vec<&str> = node
        .actions()
        .iter()
        .map(|action| match action {
            Action::Prepare { .. } => "prepare",
            Action::Start { .. } => "start",
            Action::Save { .. } => "save",
            Action::Permit { .. } => "permit",
            Action::Stop { .. } => "stop",
            Action::Forget { .. } => "forget",
        })
        .collect();
    let seen = match node.report().get(&task(T)).map(|report| &report.seen) {
        None => "nothing".to_owned(),
        Some(TaskSeen::Prepared { port: 9 }) => "prepared".to_owned(),
        Some(TaskSeen::Ended { exit, released, .. }) => {
            format!("{exit}{}", if *released { "" } else { ", unreleased" })
        }
        Some(other) => format!("{other:?}").to_lowercase(),
    };
    let told = format!("{written_first}{}; {seen}", actions.join(" "));
    assert_eq!(told, expected, "{words}");
}

#[test]
fn the_rules() {
    use Before::{Ended, Ending, Nothing, Prepared, Running, Stray};
    let prepare = || Some(Order::Prepare(gpus(&["a"])));
    let run = || Some(Order::Run(launch(&["a"])));
    let stop = || Some(Order::Stop(a_stop()));
    let forget = || Some(Order::Forget);

    check(Nothing, prepare(), "prepare; nothing");
    check(Prepared, prepare(), "; prepared");
    check(Running, prepare(), "; running");
    check(Ended, prepare(), "; exit code 0");
    check(Stray, prepare(), "; running");

    check(Nothing, run(), "; missing");
    check(Prepared, run(), "start; prepared");
    check(Running, run(), "; running");
    check(Ending, run(), "; exit code 0, unreleased");
    check(Ended, run(), "; exit code 0");
    check(Stray, run(), "; running");
    let save = || Some(Order::Run(saving(&["a"], 1)));
    check(Nothing, save(), "; missing");
    check(Prepared, save(), "start; prepared");
    check(Running, save(), "save; running");
    check(Ending, save(), "; exit code 0, unreleased");
    check(Ended, save(), "; exit code 0");
    check(Stray, save(), "save; running");
    let elsewhere = Some(Order::Run(launch(&["b"])));
    let refused = "could not start: ordered to run on GPUs that were not set aside for it";
    check(Prepared, elsewhere, &format!("written; ; {refused}"));

    check(Nothing, stop(), "; missing");
    check(Prepared, stop(), "written; ; could not start: stopped before it was started");
    check(Running, stop(), "stop; running");
    check(Ending, stop(), "; exit code 0, unreleased");
    check(Ended, stop(), "; exit code 0");
    check(Stray, stop(), "stop; running");

    check(Nothing, forget(), "; gone");
    check(Prepared, forget(), "written; ; gone");
    check(Running, forget(), "; running");
    check(Ending, forget(), "; exit code 0, unreleased");
    check(Ended, forget(), "written; forget; exit code 0");
    check(Stray, forget(), "; running");

    check(Nothing, None, "; nothing");
    check(Prepared, None, "; prepared");
    check(Running, None, "; running");
    check(Ended, None, "; exit code 0");
}

#[test]
fn a_task_that_was_stopped_before_its_start_never_starts_even_by_a_stale_plan_after_a_crash() {
    let mut node = known(Before::Prepared);
    node.accept_plan(plan(1, 2, &[(T, Order::Stop(a_stop()))])).unwrap();
    let mut node = Node::restore(node.ledger().clone(), "boot");
    node.starter_knows(BTreeMap::new());
    node.accept_plan(plan(2, 1, &[(T, Order::Run(launch(&["a"])))])).unwrap();
    assert_eq!(node.actions(), []);
    let seen = node.report().remove(&task(T)).map(|report| report.seen);
    assert!(matches!(seen, Some(TaskSeen::Ended { released: true, .. })));
}

/// What is done about a task that runs and knows of this request, when that one is in its plan.
fn check_save(known: Option<u64>, planned: u64, expected: &[u64]) {
    let mut node = known_to_run(known);
    node.accept_plan(plan(1, 1, &[(T, Order::Run(saving(&["a"], planned)))])).unwrap();
    let asks: Vec<u64> = node
        .actions()
        .iter()
        .map(|action| match action {
            Action::Save { save, .. } => save.request.0,
            Action::Prepare { .. }
            | Action::Permit { .. }
            | Action::Start { .. }
            | Action::Stop { .. }
            | Action::Forget { .. } => panic!("{action:?}"),
        })
        .collect();
    assert_eq!(asks, expected, "{known:?} {planned}");
}

fn known_to_run(request: Option<u64>) -> Node {
    let mut node = known(Before::Running);
    if let Some(request) = request {
        node.status_changed(task(T), asked(request));
    }
    node
}

#[test]
fn a_request_to_save_is_handed_on_until_the_shim_has_it_and_never_an_older_one() {
    check_save(None, 4, &[4]);
    check_save(Some(3), 4, &[4]);
    check_save(Some(4), 4, &[]);
    check_save(Some(5), 4, &[]);
}

#[test]
fn a_request_to_save_starts_nothing_otherwise_and_is_handed_on_once_the_task_runs() {
    let mut node = known(Before::Prepared);
    let prepared = node.ledger().clone();
    node.accept_plan(plan(1, 1, &[(T, Order::Run(saving(&["a"], 4)))])).unwrap();
    assert_eq!(node.ledger().prepared, prepared.prepared, "the same launch");
    assert!(matches!(node.actions().as_slice(), [Action::Start { .. }]));
    node.status_changed(task(T), TaskStatus::Intended.into());
    assert_eq!(node.actions(), []);
    node.status_changed(task(T), TaskStatus::Running.into());
    assert!(matches!(node.actions().as_slice(), [Action::Save { .. }]));
    node.accept_plan(plan(1, 2, &[(T, Order::Run(launch(&["a"])))])).unwrap();
    assert_eq!(node.actions(), [], "withdrawn before it was handed on");
}

/// A node whose running task has asked to write, and what it does with the plan's answer.
#[test]
fn the_answer_to_an_open_ask_is_handed_on_once_it_is_known_until_when_it_holds() {
    let ask = AskRecord {
        number: 2,
        class: WriteClass::Final,
        bytes: 5,
        files: 0,
        patience_ms: None,
        asked_ms: SinceBoot(100),
        written: 0,
        done: false,
        rated: 0,
    };
    let facts = |ask, permit| TaskFacts { ask: Some(ask), permit, ..TaskStatus::Running.into() };
    let granting = |ask| {
        let (rate, after) = (Some(Bandwidth(9)), None);
        let (rated, length) = (DecisionSeq(1), Span(1000));
        let permit = Some(Permit::Granted { ask, rate, length, after, rated });
        Order::Run(Box::new(Launch { permit, ..*launch(&["a"]) }))
    };
    let until = |end| PermitRecord::Granted {
        ask: 2,
        bytes_per_s: Some(9),
        after_bytes_per_s: None,
        until_ms: SinceBoot(end),
        rated: 1,
    };
    let hands_on = |permit| [Action::Permit { task: task(T), permit }];
    let mut node = known(Before::Running);
    node.status_changed(task(T), facts(ask, None));
    assert_eq!(node.open_asks(), BTreeMap::from([(task(T), SinceBoot(100))]));
    node.accept_plan(plan(1, 1, &[(T, granting(2))])).unwrap();
    assert_eq!(node.actions(), []);
    node.was_heard(SinceBoot(500));
    assert_eq!(node.actions(), hands_on(until(1500)));
    node.status_changed(task(T), facts(ask, Some(until(1500))));
    assert_eq!(node.actions(), []);
    node.was_heard(SinceBoot(3000));
    node.was_heard(SinceBoot(2000));
    assert_eq!(node.actions(), hands_on(until(4000)));
    node.accept_plan(plan(1, 2, &[(T, granting(1))])).unwrap();
    assert_eq!(node.actions(), [], "the answer to an earlier one");
    node.accept_plan(plan(1, 3, &[(T, granting(2))])).unwrap();
    node.status_changed(task(T), facts(AskRecord { done: true, ..ask }, None));
    assert_eq!(node.actions(), [], "nobody asks any more");
    assert_eq!(node.open_asks(), BTreeMap::new());
}

#[test]
fn what_the_starter_says_of_saves_and_checkpoints_is_reported_also_of_an_ended_task() {
    let mut node = known_to_run(Some(4));
    let commit = Commit { step: 7, path: "/c".into(), bytes: Bytes(8), request: None };
    let facts = TaskFacts {
        status: ended(TaskExit::Exited(85), true),
        commit: Some(commit.clone()),
        ..asked(4)
    };
    node.status_changed(task(T), facts.clone());
    let report = node.report().remove(&task(T)).unwrap();
    let seen =
        TaskSeen::Ended { exit: TaskExit::Exited(85), released: true, ran: Span(5), idle: None };
    assert_eq!(report, TaskReport { seen, save: facts.save, commit: Some(commit), ask: None });
}

#[test]
fn plans_from_before_a_task_was_forgotten_stay_refused_after_a_crash() {
    let mut node = known(Before::Ended);
    let mut disk = node.ledger().clone();
    for generation in 1..=3 {
        node.accept_plan(plan(1, generation, &[(T, Order::Run(launch(&["a"])))])).unwrap();
        if node.ledger().needs_write(&disk) {
            disk = node.ledger().clone();
        }
    }
    assert_eq!(disk.generation, Generation(1), "the others could wait");
    node.accept_plan(plan(1, 4, &[(T, Order::Forget)])).unwrap();
    assert!(node.ledger().needs_write(&disk), "before the starter drops its record");
    let mut node = Node::restore(node.ledger().clone(), "boot");
    node.starter_knows(BTreeMap::new());
    node.accept_plan(plan(1, 3, &[(T, Order::Prepare(gpus(&["a"])))])).unwrap_err();
    node.accept_plan(plan(1, 3, &[(T, Order::Run(launch(&["a"])))])).unwrap_err();
    assert_eq!(node.actions(), []);
}

#[test]
fn gpus_of_a_task_that_is_not_released_are_not_set_aside_again() {
    let mut node = known(Before::Running);
    let other = "job-2.1.0";
    node.accept_plan(plan(1, 1, &[(other, Order::Prepare(gpus(&["b", "a"])))])).unwrap();
    assert_eq!(node.actions(), [], "it waits");
    assert_eq!(node.report().get(&task(other)), None);
    node.status_changed(task(T), ended(TaskExit::Exited(0), false).into());
    assert_eq!(node.actions(), []);
    node.status_changed(task(T), ended(TaskExit::Exited(0), true).into());
    assert_eq!(node.actions().len(), 1);
}

#[test]
fn of_two_tasks_that_want_one_gpu_only_the_first_is_prepared() {
    let mut node = node();
    let prepare = || Order::Prepare(gpus(&["a"]));
    node.accept_plan(plan(1, 1, &[(T, prepare()), ("job-2.1.0", prepare())])).unwrap();
    assert_eq!(node.actions(), [Action::Prepare { task: task(T), gpus: gpus(&["a"]) }]);
}

#[test]
fn nothing_is_done_or_said_before_the_starter_has_been_heard() {
    let mut node = Node::restore(known(Before::Prepared).ledger().clone(), "boot");
    node.accept_plan(plan(1, 1, &[(T, Order::Run(launch(&["a"])))])).unwrap();
    node.status_changed(task("job-2.1.0"), TaskStatus::Running.into());
    assert!(node.actions().is_empty() && node.report().is_empty());
    node.starter_knows([(task(T), TaskStatus::Running.into())].into());
    assert!(node.actions().is_empty(), "it runs already");
    assert_eq!(node.report(), [(task(T), TaskSeen::Running.into())].into());
}

#[test]
fn a_start_that_the_starter_never_recorded_is_handed_to_it_again() {
    let mut node = known(Before::Prepared);
    node.accept_plan(plan(1, 1, &[(T, Order::Run(launch(&["a"])))])).unwrap();
    node.status_changed(task(T), TaskStatus::Intended.into());
    assert_eq!(node.actions(), []);
    node.starter_knows(BTreeMap::new());
    assert!(matches!(node.actions().as_slice(), [Action::Start { .. }]));
    node.start_refused(task(T), "the disk is full".into());
    assert_eq!(node.actions(), []);
}

#[test]
fn a_task_whose_record_vanished_is_not_started_again() {
    let mut node = known(Before::Running);
    node.accept_plan(plan(1, 1, &[(T, Order::Run(launch(&["a"])))])).unwrap();
    node.starter_knows(BTreeMap::new());
    assert_eq!(node.actions(), []);
    let report = node.report();
    let seen = report.get(&task(T)).map(|report| &report.seen);
    assert!(matches!(seen, Some(TaskSeen::Ended { exit: TaskExit::Lost(_), .. })), "{report:?}");
}

#[test]
fn only_a_newer_plan_of_the_own_cluster_is_taken() {
    let mut node = node();
    node.accept_plan(plan(2, 5, &[])).unwrap();
    let before = node.ledger().clone();
    let stop = [(T, Order::Stop(a_stop()))];
    let older = PlanRefused::OlderEpoch { offered: Epoch(1), accepted: Epoch(2) };
    assert_eq!(node.accept_plan(plan(1, 9, &stop)), Err(older));
    let older = PlanRefused::OlderGeneration { offered: Generation(4), accepted: Generation(5) };
    assert_eq!(node.accept_plan(plan(2, 4, &stop)), Err(older));
    let other = ClusterId(2);
    let foreign = NodePlan { cluster: other, ..plan(9, 9, &stop) };
    assert_eq!(node.accept_plan(foreign), Err(PlanRefused::OtherCluster { offered: other }));
    let refused = LinkRefused { obeyed: OURS, offered: other };
    assert_eq!(node.welcomed(other), Err(refused));
    assert!(node.ledger() == &before && node.report().is_empty());
    node.accept_plan(plan(2, 5, &stop)).unwrap();
    node.accept_plan(plan(3, 1, &stop)).unwrap();
    assert_eq!(node.report(), [(task(T), TaskSeen::Missing.into())].into());
    let mut new = Node::restore(Ledger::default(), "boot");
    assert!(new.accept_plan(plan(1, 1, &[])).is_err(), "not enrolled");
}

/// One step of a history. Tasks and plans are numbers into small sets.
#[derive(Debug, Clone)]
enum Step {
    /// The coordinator takes these tasks further, perhaps after a restart of its own. Its plan
    /// arrives now or later.
    Plan { further: Vec<u8>, new_epoch: bool, arrives: bool },
    /// A plan of the past arrives (again).
    Deliver(usize),
    /// The agent does this one of its actions, and the ledger is written as it must be.
    Act(usize),
    /// The agent does an action and dies before it takes note.
    ActAndDie(usize),
    /// The agent dies and returns.
    AgentDies,
    /// The agent connects to the starter anew.
    Reconnect,
    /// The starter's task goes on by one state, and the agent hears of it.
    Advance(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let further = proptest::collection::vec(0..4_u8, 0..4);
    let plan = (further, proptest::bool::weighted(0.1), proptest::bool::weighted(0.7));
    prop_oneof![
        6 => plan.prop_map(|(further, new_epoch, arrives)| {
            Step::Plan { further, new_epoch, arrives }
        }),
        3 => any::<usize>().prop_map(Step::Deliver),
        8 => any::<usize>().prop_map(Step::Act),
        2 => any::<usize>().prop_map(Step::ActAndDie),
        1 => Just(Step::AgentDies),
        1 => Just(Step::Reconnect),
        6 => (0..4_u8).prop_map(Step::Advance),
    ]
}

/// The agent, what its disk holds, the starter, and every plan ever made.
struct World {
    node: Node,
    disk: Ledger,
    starter: BTreeMap<TaskId, TaskFacts>,
    plans: Vec<NodePlan>,
    wanted: BTreeMap<TaskId, Order>,
    epoch: u64,
    starts: BTreeMap<TaskId, u32>,
}

fn id(number: u8) -> TaskId {
    task(&format!("job-{}.1.0", number + 1))
}

/// Tasks 0 and 1 share a GPU, so do 2 and 3.
fn gpu(number: u8) -> &'static [&'static str] {
    if number < 2 { &["a"] } else { &["b"] }
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            node: node(),
            disk: Ledger::default(),
            starter: BTreeMap::new(),
            plans: Vec::new(),
            wanted: BTreeMap::new(),
            epoch: 1,
            starts: BTreeMap::new(),
        };
        world.persist();
        world
    }

    fn persist(&mut self) {
        if self.node.ledger().needs_write(&self.disk) {
            self.disk = self.node.ledger().clone();
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Plan { further, new_epoch, arrives } => {
                self.epoch += u64::from(new_epoch);
                for number in further {
                    self.take_further(number);
                }
                self.plan(arrives);
            }
            Step::Deliver(which) => {
                if !self.plans.is_empty() {
                    let plan = self.plans[which % self.plans.len()].clone();
                    self.deliver(plan);
                }
            }
            Step::Act(which) => self.act(which, true),
            Step::ActAndDie(which) => {
                self.act(which, false);
                self.restart();
            }
            Step::AgentDies => self.restart(),
            Step::Reconnect => self.node.starter_knows(self.starter.clone()),
            Step::Advance(number) => self.advance(id(number)),
        }
        self.persist();
        self.check();
    }

    /// As a coordinator does: a task is prepared, run once it is seen to be prepared, stopped, and
    /// forgotten once its end is reported; what is gone is never wanted again.
    fn take_further(&mut self, number: u8) {
        let (task, names) = (id(number), gpu(number));
        let seen = self.node.report().remove(&task).map(|report| report.seen);
        let over = matches!(seen, Some(TaskSeen::Ended { released: true, .. } | TaskSeen::Missing));
        let next = match self.wanted.get(&task) {
            None => Order::Prepare(gpus(names)),
            Some(Order::Forget) => return,
            Some(_) if over => Order::Forget,
            Some(Order::Prepare(_)) if matches!(seen, Some(TaskSeen::Prepared { .. })) => {
                Order::Run(launch(names))
            }
            Some(Order::Run(launch)) if launch.save.is_none() => {
                Order::Run(saving(names, u64::try_from(self.plans.len()).unwrap() + 1))
            }
            Some(_) => Order::Stop(a_stop()),
        };
        self.wanted.insert(task, next);
    }

    fn plan(&mut self, arrives: bool) {
        let generation = Generation(u64::try_from(self.plans.len()).unwrap() + 1);
        let tasks = self.wanted.clone();
        let plan = NodePlan { cluster: OURS, epoch: Epoch(self.epoch), generation, tasks };
        self.plans.push(plan.clone());
        if arrives {
            self.deliver(plan);
        }
    }

    fn deliver(&mut self, plan: NodePlan) {
        let (before, report) = (self.node.ledger().clone(), self.node.report());
        if self.node.accept_plan(plan).is_err() {
            assert_eq!((self.node.ledger(), self.node.report()), (&before, report));
        }
    }

    fn restart(&mut self) {
        self.node = Node::restore(self.disk.clone(), "boot");
        self.node.welcomed(OURS).unwrap();
        self.node.starter_knows(self.starter.clone());
    }

    fn act(&mut self, which: usize, noted: bool) {
        let actions = self.node.actions();
        if actions.is_empty() {
            return;
        }
        match actions[which % actions.len()].clone() {
            Action::Prepare { task, gpus } => self.node.prepared(task, gpus, 1),
            Action::Start { task, launch: _ } => {
                *self.starts.entry(task).or_default() += 1;
                self.starter.insert(task, TaskStatus::Intended.into());
                if noted {
                    self.node.status_changed(task, TaskStatus::Intended.into());
                }
            }
            // Nobody asks to write here.
            Action::Permit { .. } => {}
            Action::Save { task, save } => {
                let facts = asked(save.request.0);
                let before = self.starter.insert(task, facts.clone()).unwrap();
                assert_eq!(before.status, TaskStatus::Running);
                let before = before.save.map(|save| save.request);
                assert!(before < Some(save.request), "handed on again");
                if noted {
                    self.node.status_changed(task, facts);
                }
            }
            Action::Stop { task, stop: _ } => {
                let facts = TaskFacts::from(ended(TaskExit::Signaled(15), true));
                self.starter.insert(task, facts.clone());
                if noted {
                    self.node.status_changed(task, facts);
                }
            }
            Action::Forget { task } => {
                assert!(self.starter.get(&task).is_some_and(|facts| facts.status.is_released()));
                self.starter.remove(&task);
                if noted {
                    self.node.forgotten(task);
                }
            }
        }
    }

    fn advance(&mut self, task: TaskId) {
        let Some(facts) = self.starter.get_mut(&task) else { return };
        facts.status = match &facts.status {
            TaskStatus::Intended => TaskStatus::Running,
            TaskStatus::Running => ended(TaskExit::Exited(0), false),
            TaskStatus::Ended { .. } => ended(TaskExit::Exited(0), true),
        };
        let facts = facts.clone();
        self.node.status_changed(task, facts);
    }

    fn check(&self) {
        for (task, starts) in &self.starts {
            assert!(*starts <= 1, "{task} was started {starts} times");
        }
        // No two tasks with processes or promises share a GPU.
        for pair in [[0, 1], [2, 3]] {
            let holds = |number: &&u8| {
                let task = id(**number);
                match self.starter.get(&task) {
                    Some(facts) => !facts.status.is_released(),
                    None => self.node.ledger().prepared.contains_key(&task),
                }
            };
            assert!(pair.iter().filter(holds).count() <= 1, "{pair:?} share a GPU");
        }
        assert!(!self.disk.needs_write(self.node.ledger()), "acted or reported before the disk");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn no_task_is_started_twice_whatever_is_lost_repeated_reordered_or_crashes(
        steps in proptest::collection::vec(step(), 1..80)
    ) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
    }
}

#[test]
fn what_was_prepared_before_a_reboot_is_never_started_after_it() {
    let before = known(Before::Prepared).ledger().clone();
    let mut node = Node::restore(before, "another boot");
    node.starter_knows(BTreeMap::new());
    let told: Vec<_> = node.report().into_values().map(|report| report.seen).collect();
    assert!(
        matches!(
            told.as_slice(),
            [TaskSeen::Ended { exit: TaskExit::NeverStarted(_), released: true, .. }]
        ),
        "{told:?}"
    );
    assert_eq!(node.ledger().boot_id, "another boot");
    assert!(node.ledger().prepared.is_empty(), "a plan that still says Run starts nothing");
}
