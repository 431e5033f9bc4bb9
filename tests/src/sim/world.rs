//! Virtual time: a queue of what happens next, and the state that it happens to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::{DefaultHasher, Hash, Hasher};

use scheduler_core::{AttemptState, Event};
use tidegate_model::{DecisionSeq, Span, TaskExit, TaskId, Timestamp, WriteClass};
use tidegate_proto::link::{NodePlan, Report};

use super::agent::SimNode;
use super::checks::Truth;
use super::coordinator::Coordinator;
use super::faults::{Calm, Fault};
use super::gates::no_limits;
use super::permits::Asked;
use super::traffic::Most;
use super::{Options, Run, Violation};

/// A task on a node since one of its boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) node: usize,
    pub(super) task: TaskId,
    pub(super) boot: u64,
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    /// The coordinator takes what waits in its inbox.
    Turn,
    /// A deadline of the core has come.
    Deadline {
        due: Timestamp,
    },
    CoordinatorStarts,
    AgentStarts {
        node: usize,
    },
    AgentConnects {
        node: usize,
    },
    Heartbeat {
        node: usize,
        session: u64,
    },
    StarterStarts {
        node: usize,
    },
    /// A report arrives at the coordinator.
    Reported {
        node: usize,
        session: u64,
        /// Boxed: it is far larger than all others.
        report: Box<Report>,
    },
    /// A plan arrives at a node.
    Planned {
        node: usize,
        session: u64,
        plan: NodePlan,
    },
    /// It is answered to an agent that its report has come.
    Renewed {
        node: usize,
        session: u64,
        number: u64,
    },
    /// A job asks for a permit.
    Asks {
        place: Place,
        class: WriteClass,
        /// The request to save that it answers.
        request: Option<DecisionSeq>,
    },
    /// A shim reads what its job's ask was answered.
    Reads {
        place: Place,
    },
    /// A job may have written all.
    Writes {
        place: Place,
        look: u64,
    },
    /// A shim has executed its task.
    Executed {
        node: usize,
        task: TaskId,
        boot: u64,
    },
    /// A task's main process ends.
    Exits {
        node: usize,
        task: TaskId,
        boot: u64,
        exit: TaskExit,
    },
    /// A checkpoint of a task is complete.
    Commits {
        node: usize,
        task: TaskId,
        boot: u64,
        request: Option<DecisionSeq>,
    },
    /// Nothing of a task is left.
    Vanishes {
        node: usize,
        task: TaskId,
        boot: u64,
    },
    /// Somebody submits, cancels, drains or resumes.
    Person,
    /// Something goes wrong.
    Fault,
}

#[derive(Debug)]
struct Queued {
    at: u64,
    order: u64,
    happening: Happening,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Everything there is.
#[derive(Debug)]
pub(super) struct World {
    pub(super) options: Options,
    pub(super) rng: fastrand::Rng,
    pub(super) now: u64,
    pub(super) coordinator: Coordinator,
    pub(super) nodes: Vec<SimNode>,
    pub(super) truth: Truth,
    pub(super) calm: Calm,
    /// Asks that are not over.
    pub(super) asked: BTreeMap<TaskId, Asked>,
    /// What they may come to together.
    pub(super) most: Most,
    coverage: BTreeMap<String, u64>,
    queue: BinaryHeap<Reverse<Queued>>,
    queued: u64,
    steps: u64,
    trace: DefaultHasher,
    /// The records up to which jobs have been looked at, and the books audited.
    looked: DecisionSeq,
    audited: DecisionSeq,
}

/// Steps between two faults: at least one in 50.
const STEPS_PER_FAULT: u64 = 40;

/// An audit reads all jobs: with so many in the books it waits for two records, with twice as many for
/// three, so that a run's price does not grow with the square of its length.
const JOBS_PER_RECORD: u64 = 32;

/// How many steps everything may take to come to its end once nothing goes wrong any more.
const STEPS_TO_SETTLE: u64 = 400_000;

impl World {
    pub(super) fn new(options: Options) -> Self {
        let mut rng = fastrand::Rng::with_seed(options.seed);
        let nodes = rng.usize(3..=8);
        let nodes = (0..nodes).map(|index| SimNode::new(index, &mut rng)).collect();
        let mut world = Self {
            options,
            rng,
            now: 1_000_000,
            coordinator: Coordinator::new(options),
            nodes,
            truth: Truth::default(),
            calm: Calm::default(),
            asked: BTreeMap::new(),
            most: no_limits(),
            coverage: BTreeMap::new(),
            queue: BinaryHeap::new(),
            queued: 0,
            steps: 0,
            trace: DefaultHasher::new(),
            looked: DecisionSeq(0),
            audited: DecisionSeq(0),
        };
        world.after(0, Happening::CoordinatorStarts);
        for node in 0..world.nodes.len() {
            world.after(1, Happening::StarterStarts { node });
            world.after(2, Happening::AgentStarts { node });
        }
        world.after(10, Happening::Person);
        world
    }

    pub(super) fn at(&self) -> Timestamp {
        Timestamp(self.now)
    }

    /// Queues what happens in so many milliseconds.
    pub(super) fn after(&mut self, delay: u64, happening: Happening) {
        self.queued = self.queued.saturating_add(1);
        let (at, order) = (self.now.saturating_add(delay), self.queued);
        self.queue.push(Reverse(Queued { at, order, happening }));
    }

    pub(super) fn count(&mut self, what: String) {
        self.count_many(what, 1);
    }

    pub(super) fn count_many(&mut self, what: String, more: u64) {
        let count = self.coverage.entry(what).or_insert(0);
        *count = count.saturating_add(more);
    }

    /// Lives through so many steps under faults.
    pub(super) fn live(&mut self, steps: u64) -> Result<(), Violation> {
        for step in 0..steps {
            if step % STEPS_PER_FAULT == STEPS_PER_FAULT - 1 {
                self.after(0, Happening::Fault);
            }
            self.step()?;
        }
        Ok(())
    }

    /// Lets everything come to its end, with nothing going wrong.
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        self.calm.end_faults();
        self.bring_all_back();
        let calm_since = self.now;
        for _ in 0..STEPS_TO_SETTLE {
            let engine = self.coordinator.engine();
            let alive = engine.map_or(1, |engine| engine.core().books().live_jobs());
            if alive == 0 && self.coordinator.unanswered() == 0 {
                return self.check_asks_over().map_err(|what| self.violation(what));
            }
            self.step()?;
            self.check_waits(calm_since).map_err(|what| self.violation(what))?;
        }
        let what = format!("not all jobs end: {}", self.coordinator.alive_jobs());
        Err(Violation { step: self.steps, what })
    }

    fn violation(&self, what: String) -> Violation {
        Violation { step: self.steps, what }
    }

    fn step(&mut self) -> Result<(), Violation> {
        let Some(Reverse(next)) = self.queue.pop() else {
            let what = "nothing happens any more".to_owned();
            return Err(Violation { step: self.steps, what });
        };
        self.now = self.now.max(next.at);
        self.steps = self.steps.saturating_add(1);
        self.now.hash(&mut self.trace);
        let told = format!("{:?}", next.happening);
        told.hash(&mut self.trace);
        if self.options.verbose {
            tell(&format!("{} at {}: {told}", self.steps, self.now));
        }
        let done = self.happen(next.happening).and_then(|()| self.check());
        done.map_err(|what| Violation { step: self.steps, what })
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Turn => self.turn(),
            Happening::Deadline { due } => {
                self.deadline_reached(due);
                Ok(())
            }
            Happening::CoordinatorStarts => self.start_coordinator(),
            Happening::AgentStarts { node } => self.start_agent(node),
            Happening::AgentConnects { node } => self.connect(node),
            Happening::Heartbeat { node, session } => self.heartbeat(node, session),
            Happening::StarterStarts { node } => self.start_starter(node),
            Happening::Reported { node, session, report } => {
                self.receive_report(node, session, *report);
                Ok(())
            }
            Happening::Planned { node, session, plan } => self.receive_plan(node, session, plan),
            Happening::Renewed { node, session, number } => self.renewed(node, session, number),
            Happening::Asks { place, class, request } => self.asks(place, class, request),
            Happening::Reads { place } => self.reads(place),
            Happening::Writes { place, look } => self.writes(place, look),
            Happening::Executed { node, task, boot } => self.executed(node, task, boot),
            Happening::Exits { node, task, boot, exit } => self.exits(node, task, boot, exit),
            Happening::Commits { node, task, boot, request } => {
                self.commits(node, task, boot, request)
            }
            Happening::Vanishes { node, task, boot } => self.vanishes(node, task, boot),
            Happening::Person => {
                self.person();
                Ok(())
            }
            Happening::Fault => self.fault(),
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.check_traffic()?;
        let Some(engine) = self.coordinator.engine() else { return Ok(()) };
        self.truth.check_processes(engine.core())?;
        // The books change with their records only.
        let seq = engine.last_seq();
        if self.looked == seq {
            return Ok(());
        }
        self.looked = seq;
        self.truth.check_jobs(engine.core())?;
        let jobs = u64::try_from(engine.core().books().jobs.len()).unwrap_or(u64::MAX);
        if seq.0.abs_diff(self.audited.0) < jobs / JOBS_PER_RECORD {
            return Ok(());
        }
        self.audited = seq;
        if let Some(violation) = engine.core().audit(engine.now()).first() {
            return Err(violation.to_string());
        }
        let books = engine.core().books();
        let states: Vec<AttemptState> =
            books.live_attempts().map(scheduler_core::Attempt::state).collect();
        let now = self.at();
        let nodes = books.nodes.keys().filter_map(|node| engine.core().node_state(now, *node));
        let nodes: Vec<_> = nodes.collect();
        for state in nodes {
            self.count(format!("node {state:?}"));
        }
        for state in states {
            self.count(format!("state {state:?}"));
        }
        Ok(())
    }

    pub(super) fn note_fault(&mut self, fault: Fault) {
        self.count(format!("fault {fault:?}"));
    }

    /// Hands an event to the coordinator, if it is there to hear it.
    pub(super) fn tell(&mut self, event: Event) {
        if self.coordinator.take(event) {
            let delay = self.rng.u64(0..3);
            self.after(delay, Happening::Turn);
        }
    }

    pub(super) fn finish(self, violation: Option<Violation>) -> Run {
        Run {
            steps: self.steps,
            trace: self.trace.finish(),
            coverage: self.coverage,
            jobs_ended: self.truth.jobs_ended(),
            most_alive: self.coordinator.most_alive,
            violation,
        }
    }
}

/// A short span of the network or of a process, in milliseconds.
pub(super) fn short(rng: &mut fastrand::Rng) -> u64 {
    rng.u64(0..20)
}

/// How long a stopped task may take: its grace.
pub(super) const GRACE: Span = Span::seconds(2);

#[allow(clippy::print_stderr, reason = "asked for, to follow a seed")]
fn tell(what: &str) {
    eprintln!("{what}");
}
