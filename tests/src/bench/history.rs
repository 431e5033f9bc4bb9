//! Records as a real engine writes them: jobs are submitted, prepared, run, end and are forgotten,
//! on nodes that answer at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Sender;

use scheduler_core::Event;
use simulator::plain_job;
use tidegate_coordinator::engine::{Engine, MAX_EVENTS_PER_TURN};
use tidegate_coordinator::journal::{Entry, Journal, JournalError, Sink};
use tidegate_model::{
    Bytes, ClusterId, DecisionSeq, Gpu, GpuCount, JobSpec, NodeFacts, NodeName, Span, SubmitKey,
    TaskExit, TaskId, TaskSeen, Timestamp, UserId,
};
use tidegate_proto::link::{NodePlan, Order};

use crate::history::start;

/// Nodes of the cluster whose history it is, with 8 GPUs each.
const NODES: u32 = 16;
/// Jobs submitted in one turn.
const SUBMITS_PER_TURN: usize = 16;
/// From one turn to the next.
const STEP: Span = Span(20);

/// GPUs of the jobs of an ordinary day: most are small.
pub const MIXED: &[u32] = &[1, 1, 8, 1, 1, 2, 1, 32, 1, 1, 4, 1, 1, 8, 1, 1];
/// The same where every job is one task.
pub const ONE_GPU: &[u32] = &[1];

/// A cluster's history in the making.
#[derive(Debug)]
pub struct History<J> {
    engine: Engine<J>,
    now: Timestamp,
    sizes: &'static [u32],
    submitted: usize,
    /// What each node knows of its tasks.
    held: BTreeMap<TaskId, Held>,
    next: VecDeque<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Prepared,
    Ended,
}

impl<J: Journal> History<J> {
    /// Begins at `now` with jobs of these sizes, repeated; every node has introduced itself.
    ///
    /// # Errors
    /// If the journal fails.
    pub fn begin(journal: J, now: Timestamp, sizes: &'static [u32]) -> anyhow::Result<Self> {
        let engine = start(journal, now)?;
        let (held, next) = (BTreeMap::new(), VecDeque::new());
        let mut history = Self { engine, now, sizes, submitted: 0, held, next };
        let mut events = Vec::new();
        for index in 0..NODES {
            let facts = Some(facts(index));
            let (node, tasks) = (node(index)?, Vec::new());
            events.push(reported(node, true, facts, tasks));
        }
        history.engine.turn(now, &events)?;
        Ok(history)
    }

    /// One turn: what the nodes have to say, then as many new jobs as there is room for.
    ///
    /// # Errors
    /// If the journal fails.
    pub fn turn(&mut self) -> anyhow::Result<()> {
        self.now = self.now.plus(STEP);
        let said = self.next.len().min(MAX_EVENTS_PER_TURN);
        let mut events: Vec<Event> = self.next.drain(..said).collect();
        let alive = self.engine.core().books().live_jobs();
        if alive < MAX_EVENTS_PER_TURN {
            for _ in 0..SUBMITS_PER_TURN {
                events.push(self.submit()?);
            }
        }
        let outcome = self.engine.turn(self.now, &events)?;
        for (node, plan) in outcome.plans {
            self.obey(&node, plan);
        }
        Ok(())
    }

    /// Takes no new jobs, and goes on until those that are alive have ended.
    ///
    /// # Errors
    /// If the journal fails.
    pub fn wind_up(&mut self) -> anyhow::Result<()> {
        while !self.next.is_empty() {
            self.now = self.now.plus(STEP);
            let events: Vec<Event> = self.next.drain(..).collect();
            let outcome = self.engine.turn(self.now, &events)?;
            for (node, plan) in outcome.plans {
                self.obey(&node, plan);
            }
        }
        let alive = self.engine.core().books().live_jobs();
        anyhow::ensure!(alive == 0, "{alive} jobs are alive and no node has anything to say");
        Ok(())
    }

    /// Writes a snapshot when the coordinator would.
    ///
    /// # Errors
    /// If the journal fails.
    pub fn snapshot_if_due(&mut self) -> anyhow::Result<()> {
        Ok(self.engine.snapshot_if_due()?)
    }

    /// Records so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.engine.last_seq().0
    }

    /// Jobs so far.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.submitted
    }

    fn submit(&mut self) -> anyhow::Result<Event> {
        let gpus = self.sizes.get(self.submitted % self.sizes.len().max(1)).copied().unwrap_or(1);
        self.submitted = self.submitted.saturating_add(1);
        let spec = Box::new(spec(&format!("train-{}", self.submitted), gpus)?);
        let key = SubmitKey(ulid::Ulid::generate().0);
        Ok(Event::JobSubmitted { key, user: UserId(1000), spec })
    }

    fn obey(&mut self, node: &NodeName, plan: NodePlan) {
        for (task, order) in plan.tasks {
            for seen in self.answers(task, &order) {
                let (node, tasks) = (node.clone(), vec![(task, seen)]);
                self.next.push_back(reported(node, false, None, tasks));
            }
        }
    }

    fn answers(&mut self, task: TaskId, order: &Order) -> Vec<TaskSeen> {
        match (order, self.held.get(&task)) {
            (Order::Prepare(_), None) => {
                self.held.insert(task, Held::Prepared);
                vec![TaskSeen::Prepared { port: 12_345 }]
            }
            (Order::Run(_), Some(Held::Prepared)) => {
                self.held.insert(task, Held::Ended);
                let (exit, ran) = (TaskExit::Exited(0), Span::minutes(7));
                vec![TaskSeen::Running, TaskSeen::Ended { exit, released: true, ran, idle: None }]
            }
            (Order::Forget, Some(_)) => {
                self.held.remove(&task);
                vec![TaskSeen::Gone]
            }
            (Order::Prepare(_) | Order::Run(_) | Order::Stop(_) | Order::Forget, _) => Vec::new(),
        }
    }
}

fn node(index: u32) -> anyhow::Result<NodeName> {
    Ok(format!("gpu-{index:04}").parse()?)
}

fn facts(index: u32) -> NodeFacts {
    let gpu = |gpu: u32| Gpu {
        uuid: format!("GPU-{index:08x}-0000-4000-8000-{gpu:012x}")
            .parse()
            .unwrap_or_else(|_| unreachable!("the form of a driver's uuid")),
        product: "NVIDIA H100 80GB HBM3".to_owned(),
        memory: Bytes(80 << 30),
    };
    NodeFacts {
        boot_id: format!("{index:08x}-1111-4111-8111-111111111111"),
        gpus: (0..8).map(gpu).collect(),
        gpu_note: String::new(),
        address: format!("10.0.0.{index}"),
        block: format!("leaf-{}", index / 4),
        memory: Bytes(2 << 40),
        cpus: 192,
        only_user: None,
        closed: String::new(),
    }
}

/// A job as people submit it: a launcher with arguments and a few variables, about 700 bytes.
///
/// # Errors
/// If the account's path is none.
pub fn spec(name: &str, gpus: u32) -> anyhow::Result<JobSpec> {
    let command = [
        "/usr/bin/torchrun",
        "--nproc-per-node=8",
        "--rdzv-backend=static",
        "/shared/projects/pretrain/code/train.py",
        "--config=/shared/projects/pretrain/configs/7b-4k.yaml",
        "--data=/shared/data/tokens-v3/train.idx",
        "--global-batch=1024",
        "--save-every=1000",
    ];
    let env = [
        ("HF_HOME", "/shared/cache/huggingface"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_IB_HCA", "mlx5_0,mlx5_1,mlx5_2,mlx5_3"),
        ("OMP_NUM_THREADS", "12"),
        ("PYTHONPATH", "/shared/projects/pretrain/code"),
        ("WANDB_PROJECT", "pretrain-7b"),
    ];
    let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(JobSpec {
        name: name.to_owned(),
        command: command.map(str::to_owned).to_vec(),
        working_dir: "/shared/projects/pretrain/runs".to_owned(),
        env: env.collect(),
        min_runtime: Span::hours(2),
        grace: Span::minutes(5),
        max_restarts: 5,
        checkpoint_dir: Some(format!("/shared/projects/pretrain/checkpoints/{name}").into()),
        log_cap: Bytes(64 << 20),
        ..plain_job("lab/pretrain".parse()?, GpuCount(gpus))
    })
}

fn reported(
    node: NodeName,
    complete: bool,
    facts: Option<NodeFacts>,
    tasks: Vec<(TaskId, TaskSeen)>,
) -> Event {
    Event::NodeReported {
        node,
        complete,
        facts,
        tasks,
        saves: Vec::new(),
        commits: Vec::new(),
        asks: Vec::new(),
    }
}

/// A journal that hands its records on and keeps nothing.
#[derive(Debug)]
pub struct Tape(pub Sender<Entry>);

impl Journal for Tape {
    fn cluster(&self) -> ClusterId {
        ClusterId(1)
    }

    fn append(&mut self, batch: &[Entry]) -> Result<(), JournalError> {
        batch.iter().try_for_each(|entry| self.0.send(entry.clone()).map_err(JournalError::storage))
    }

    fn read(&self, _from: DecisionSeq, _each: Sink<'_>) -> Result<(), JournalError> {
        Ok(())
    }

    fn snapshot(&mut self, _at: DecisionSeq, _books: &[u8]) -> Result<(), JournalError> {
        Ok(())
    }

    fn latest_snapshot(&self) -> Result<Option<Entry>, JournalError> {
        Ok(None)
    }

    fn oldest(&self) -> Result<Option<DecisionSeq>, JournalError> {
        Ok(None)
    }
}
