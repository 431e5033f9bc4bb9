//! A cluster and its work, drawn from a fixed seed: accounts four deep, 150 users, jobs of distinct
//! shapes and min runtimes, nodes that do what they are told, one thing at a time.

use scheduler_core::{AccountRequest, Core, Cut, Event, Observation, Policy, Size as Budget};
use simulator::plain_job;
use tidegate_model::{
    Bytes, Commit, Gpu, GpuCount, JobSpec, NodeFacts, NodeId, NodeName, Order, Span, SubmitKey,
    TaskExit, TaskId, TaskSeen, Timestamp, UserId,
};

use super::BEGIN;
use crate::offer::offer;

/// How large.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Of 8 GPUs each.
    pub nodes: u32,
    /// Jobs in the queue.
    pub waiting: u64,
}

/// GPUs that jobs ask, each as likely.
const GPUS: [u32; 12] = [1, 1, 2, 4, 8, 8, 8, 16, 32, 64, 128, 512];
const USERS: u64 = 150;
const SEED: u64 = 88_172_645_463_325_252;

/// Draws what happens next.
#[derive(Clone)]
pub(super) struct Drawn {
    size: Size,
    rng: fastrand::Rng,
    now: Timestamp,
    key: u128,
    heard: Timestamp,
    silent: bool,
    /// Nothing ends by itself.
    lasting: bool,
}

impl Drawn {
    pub(super) const USER: UserId = UserId(1000);

    pub(super) fn new(size: Size) -> Self {
        let rng = fastrand::Rng::with_seed(SEED);
        Self {
            size,
            rng,
            now: BEGIN,
            key: 0,
            heard: Timestamp::default(),
            silent: false,
            lasting: false,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// No node is heard from any more.
    pub(super) fn fall_silent(&mut self) {
        self.now = self.now.plus(Span::minutes(1));
        self.silent = true;
    }

    pub(super) fn speak(&mut self) {
        self.silent = false;
        self.heard = Timestamp::default();
    }

    /// The nodes and the accounts.
    pub(super) fn founding(&self) -> Vec<Event> {
        let mut policy = Policy::default();
        policy.max_live_jobs = policy.max_live_jobs.saturating_mul(2);
        let mut events = vec![Event::LeaderStarted, Event::PolicyChanged(policy.into())];
        events.extend(
            (1..=self.size.nodes).map(|node| said(node, Some(facts(node)), Said::default())),
        );
        let mut set = |account: &str, share: u32| {
            let account = account.parse().expect("a path");
            let request =
                AccountRequest::Set { account, size: Budget::Share(share), cut: Cut::Now };
            events.push(Event::AccountRequested { by: UserId(0), request });
        };
        set("default", 0);
        for (programme, share) in
            [350_000, 250_000, 200_000, 120_000, 80_000].into_iter().enumerate()
        {
            set(&format!("p{programme}"), share);
            for (project, share) in [400_000, 300_000, 200_000, 100_000].into_iter().enumerate() {
                set(&format!("p{programme}/q{project}"), share);
                set(&format!("p{programme}/q{project}/r"), 1_000_000);
                for team in 0..2 {
                    set(&leaf(programme, project, team), 500_000);
                }
            }
        }
        events
    }

    /// Every node is heard often enough to stay in service.
    pub(super) fn hear(&mut self, core: &mut Core) {
        if self.silent || self.now.since(self.heard) < Span::seconds(5) {
            return;
        }
        self.heard = self.now;
        for node in 1..=self.size.nodes {
            core.observe(self.now, &Observation::NodeHeard { node: name(node) });
        }
    }

    /// A submission while the queue is short, else a deadline now and then, else a node that does
    /// one thing it is told.
    pub(super) fn next(&mut self, core: &Core) -> Event {
        self.now = self.now.plus(Span(self.rng.u64(1..4000)));
        let waiting = u64::try_from(core.books().pending_jobs()).unwrap_or(u64::MAX);
        if waiting < self.size.waiting {
            self.key += 1;
            let user = self.rng.u64(0..USERS);
            let spec = Box::new(self.spec(user));
            let user = UserId(1000 + u32::try_from(user).unwrap_or(0));
            return Event::JobSubmitted { key: SubmitKey(self.key), user, spec };
        }
        if self.rng.u8(0..10) == 0
            && let Some(due) = core.next_deadline(self.now)
        {
            self.now = self.now.max(due);
            return Event::DeadlineReached;
        }
        let node = self.node(core);
        let wanted = core.wanted_of(NodeId(node));
        let said_of = wanted.iter().find_map(|(task, order)| self.obey(core, *task, order));
        said(node, None, said_of.unwrap_or_default())
    }

    /// Mostly one with tasks that start or leave: others have little to say.
    fn node(&mut self, core: &Core) -> u32 {
        let restless = core
            .books()
            .live_attempts()
            .filter(|one| one.running.is_none() || one.stop.is_some() || one.save.is_some());
        let tasks = restless.flat_map(|one| &one.tasks).filter(|task| !task.released);
        let nodes: Vec<_> = tasks.map(|task| task.place.node.0).collect();
        let any = self.rng.u32(1..=self.size.nodes);
        let calm = nodes.is_empty() || self.rng.u8(0..5) == 0;
        let chosen = if calm { None } else { nodes.get(self.rng.usize(0..nodes.len())) };
        chosen.copied().unwrap_or(any)
    }

    fn obey(&mut self, core: &Core, task: TaskId, order: &Order) -> Option<Said> {
        let ended = |exit| TaskSeen::Ended { exit, released: true, ran: Span(1000), idle: None };
        let started = core.books().task(task).is_some_and(|task| task.started);
        let seen = match order {
            Order::Prepare(_) => TaskSeen::Prepared { port: 29_500 },
            Order::Run(launch) if launch.save.is_some() => {
                let (step, bytes) = (self.now.0, Bytes(1));
                let commit = Commit { step, path: "/c".into(), bytes, request: None };
                let seen = Some((task, ended(TaskExit::Exited(85))));
                return Some(Said { seen, commit: Some((task, commit)) });
            }
            Order::Run(_) if !started => TaskSeen::Running,
            Order::Run(_) if !self.lasting && self.rng.u8(0..40) == 0 => ended(TaskExit::Exited(0)),
            Order::Run(_) => return None,
            Order::Stop(_) => ended(TaskExit::Signaled(15)),
            Order::Forget => TaskSeen::Gone,
        };
        Some(Said { seen: Some((task, seen)), commit: None })
    }

    /// Nothing happens for so long.
    pub(super) fn pass(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    /// Nothing is submitted any more, and nothing ends by itself.
    pub(super) fn settle(&mut self) {
        (self.size.waiting, self.lasting) = (0, true);
    }

    /// The queue is kept at half its length from now on.
    pub(super) fn halve(&mut self) {
        self.size.waiting /= 2;
    }

    /// A job of the first programme that takes part of a node.
    pub(super) fn crowd(&mut self) -> Event {
        self.key += 1;
        let user = self.rng.u32(0..20);
        let gpus = 1 << self.rng.u32(0..4);
        let account = leaf(0, self.rng.usize(0..4), self.rng.usize(0..2));
        let spec = Box::new(JobSpec {
            account: account.parse().expect("a path"),
            gpus: GpuCount(gpus),
            min_runtime: Span::minutes(self.rng.u64(61..240)),
            ..spec()
        });
        Event::JobSubmitted { key: SubmitKey(self.key), user: UserId(1000 + user), spec }
    }

    /// A gang of half the nodes, of one account after the other of the other programmes.
    pub(super) fn gang(&mut self, which: usize) -> Event {
        self.key += 1;
        let account = leaf(1 + which / 8 % 4, which / 2 % 4, which % 2);
        let spec = Box::new(JobSpec {
            account: account.parse().expect("a path"),
            gpus: GpuCount(self.size.nodes * 4),
            min_runtime: Span::minutes(61),
            ..spec()
        });
        Event::JobSubmitted { key: SubmitKey(self.key), user: Self::USER, spec }
    }

    fn spec(&mut self, user: u64) -> JobSpec {
        let at = |below: u64| usize::try_from(user % below).unwrap_or(0);
        let account = leaf(at(5), at(4), at(2));
        let free = self.rng.u8(0..4) == 0;
        let min_runtime = if free { Span::ZERO } else { Span::minutes(self.rng.u64(1..=480)) };
        let gpus = GPUS.get(self.rng.usize(0..GPUS.len())).copied().unwrap_or(1);
        let most = GpuCount(self.size.nodes * 8 / 2);
        let large = min_runtime > Span::hours(4) && gpus > most.0;
        JobSpec {
            account: account.parse().expect("a path"),
            gpus: if large { most } else { GpuCount(gpus) },
            min_runtime,
            ..spec()
        }
    }

    pub(super) fn unsatisfiable(&self) -> JobSpec {
        JobSpec { gpus: GpuCount(self.size.nodes * 8 + 8), ..spec() }
    }
}

fn leaf(programme: usize, project: usize, team: usize) -> String {
    format!("p{programme}/q{project}/r/s{team}")
}

fn spec() -> JobSpec {
    let checkpoint = offer(Span::minutes(10));
    JobSpec {
        name: "j".into(),
        command: vec!["x".into()],
        checkpoint: Some(checkpoint),
        ..plain_job(leaf(0, 0, 0).parse().expect("a path"), GpuCount(8))
    }
}

pub(super) fn name(node: u32) -> NodeName {
    format!("n{node}").parse().expect("a name")
}

pub(super) fn facts(node: u32) -> NodeFacts {
    let gpu = |index| Gpu {
        uuid: format!("GPU-{node}-{index}").parse().expect("a name"),
        product: "simulated".into(),
        memory: Bytes(80 << 30),
    };
    NodeFacts {
        boot_id: "boot".into(),
        gpus: (0..8).map(gpu).collect(),
        address: format!("10.0.0.{node}"),
        block: format!("b{}", node / 32),
        ..NodeFacts::default()
    }
}

/// What a node says.
#[derive(Default)]
struct Said {
    seen: Option<(TaskId, TaskSeen)>,
    commit: Option<(TaskId, Commit)>,
}

fn said(node: u32, facts: Option<NodeFacts>, what: Said) -> Event {
    Event::NodeReported {
        node: name(node),
        complete: facts.is_some(),
        facts,
        tasks: what.seen.into_iter().collect(),
        saves: vec![],
        commits: what.commit.into_iter().collect(),
        asks: Vec::new(),
    }
}
