//! Simulated agents: each says Hello and everything it knows on its own connection, beats, and
//! answers every order at once, but for the first of a round: to prepare is answered when all have
//! been told, so that sending answers does not delay the reading of plans in this process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_model::{JobId, TaskId};
use tidegate_proto::v1::agent_link_client::AgentLinkClient;
use tidegate_proto::v1::from_agent::Message as From;
use tidegate_proto::v1::task_order::Order as Ordered;
use tidegate_proto::v1::task_seen::{self as seen, State};
use tidegate_proto::v1::to_agent::Message as To;
use tidegate_proto::{LINK_PROTOCOL, MAX_MESSAGE_BYTES, v1};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::interval_at;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use crate::cluster::{Cluster, node_name};

/// GPUs of every agent.
pub(super) const GPUS_PER_NODE: u32 = 8;
/// Between two heartbeats of an agent.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// What a task asks to write: eight GPUs' checkpoint.
const BYTES_OF_ASK: u64 = 105_000_000_000;
/// Messages of an agent that may wait for its connection.
const MAX_OUTGOING: usize = 16;

/// What is told of the agents.
#[derive(Debug)]
pub(super) enum Told {
    /// One had this order in a plan for the first time.
    Ordered {
        /// About which task.
        task: TaskId,
        /// When the plan was here.
        at: Instant,
        /// What was wanted.
        order: Order,
    },
    /// One has ended, which none should.
    Broken(String),
}

/// The orders whose arrival is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// To set GPUs aside.
    Prepare,
    /// To start.
    Run,
    /// The first answer to an ask for a permit: a grant, or a place in the line.
    Permit,
}

/// All of them. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Fleet {
    /// What they are told. Unbounded: a round is two orders for each agent.
    pub(super) told: UnboundedReceiver<Told>,
    /// Heartbeats sent by all.
    pub(super) beats: Arc<AtomicU64>,
    /// The newest job whose orders to prepare are answered.
    answered: watch::Sender<JobId>,
    /// How many asks for a permit each running task has made.
    asked: watch::Sender<u64>,
    _agents: JoinSet<()>,
}

impl Fleet {
    /// Starts an agent for each of the first `count` nodes.
    ///
    /// # Errors
    /// If there is no socket path for one.
    pub(super) fn connect(cluster: &Cluster, count: usize) -> anyhow::Result<Self> {
        let (teller, told) = mpsc::unbounded_channel();
        let beats = Arc::new(AtomicU64::new(0));
        let (answered, answers) = watch::channel(JobId(0));
        let (asked, asks) = watch::channel(0);
        let mut agents = JoinSet::new();
        for index in 0..count {
            let node = node_name(index);
            let agent = Agent {
                socket: cluster.dir().join(format!("run/nodes/{node}.sock")),
                node,
                number: u32::try_from(index)?,
                // Beats are spread evenly, as those of agents that were started at any time.
                first_beat: HEARTBEAT.mul_f64(f64::from(u32::try_from(index)?) / 1024.0),
                beats: Arc::clone(&beats),
                held: BTreeMap::new(),
                kept_back: Vec::new(),
                answers: answers.clone(),
                asks: asks.clone(),
                unanswered: false,
                teller: teller.clone(),
            };
            let teller = teller.clone();
            agents.spawn(async move {
                let node = agent.node.clone();
                if let Err(error) = agent.run().await {
                    drop(teller.send(Told::Broken(format!("{node}: {error:#}"))));
                }
            });
        }
        Ok(Self { told, beats, answered, asked, _agents: agents })
    }

    /// Lets all agents answer that they have prepared the job.
    pub(super) fn answer(&self, job: JobId) {
        self.answered.send_replace(job);
    }

    /// Has every running task ask for a permit, and give back what it had.
    pub(super) fn ask(&self) {
        self.asked.send_modify(|count| *count = count.saturating_add(1));
    }
}

/// How far a task has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Prepared,
    Running,
    Ended,
}

struct Agent {
    socket: PathBuf,
    node: String,
    number: u32,
    first_beat: Duration,
    beats: Arc<AtomicU64>,
    held: BTreeMap<TaskId, Held>,
    kept_back: Vec<v1::TaskReport>,
    answers: watch::Receiver<JobId>,
    asks: watch::Receiver<u64>,
    unanswered: bool,
    teller: UnboundedSender<Told>,
}

impl Agent {
    async fn run(mut self) -> anyhow::Result<()> {
        let endpoint = Endpoint::try_from(format!("unix://{}", self.socket.display()))?;
        let channel = endpoint.connect().await.context("no connection")?;
        let mut client = AgentLinkClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let (outgoing, stream) = mpsc::channel(MAX_OUTGOING);
        say(&outgoing, From::Hello(self.hello())).await?;
        let mut incoming = client.connect(ReceiverStream::new(stream)).await?.into_inner();
        say(&outgoing, From::Report(self.introduction())).await?;
        let begin = tokio::time::Instant::now() + self.first_beat;
        let mut beat = interval_at(begin, HEARTBEAT);
        loop {
            tokio::select! {
                message = incoming.message() => {
                    let at = Instant::now();
                    let message = message?.and_then(|message| message.message);
                    let answer = match message.context("the coordinator closed the link")? {
                        To::Plan(plan) => self.obey(plan, at)?,
                        To::Welcome(_) | To::ReadLog(_) | To::OpenTerminal(_) | To::Renewed(_) => None,
                    };
                    if let Some(report) = answer {
                        say(&outgoing, From::Report(report)).await?;
                    }
                }
                Ok(()) = self.answers.changed() => {
                    let tasks = std::mem::take(&mut self.kept_back);
                    let report = v1::Report { tasks, ..v1::Report::default() };
                    say(&outgoing, From::Report(report)).await?;
                }
                Ok(()) = self.asks.changed() => {
                    let report = self.asking();
                    say(&outgoing, From::Report(report)).await?;
                }
                _ = beat.tick() => {
                    say(&outgoing, From::Report(v1::Report::default())).await?;
                    self.beats.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Does what is new in the plan, and says what has changed.
    fn obey(&mut self, plan: v1::NodePlan, at: Instant) -> anyhow::Result<Option<v1::Report>> {
        let mut tasks = Vec::new();
        for v1::TaskOrder { task, order } in plan.tasks {
            let id: TaskId = task.parse()?;
            if let Some(state) = self.do_one(id, order.context("an order")?, at) {
                let waits = matches!(state, State::Prepared(_));
                let seen = Some(v1::TaskSeen { state: Some(state) });
                let told = if waits { &mut self.kept_back } else { &mut tasks };
                told.push(v1::TaskReport { task, seen, ..v1::TaskReport::default() });
            }
        }
        let (applied_epoch, applied_generation) = (plan.epoch, plan.generation);
        let report =
            v1::Report { tasks, applied_epoch, applied_generation, ..v1::Report::default() };
        Ok((!report.tasks.is_empty()).then_some(report))
    }

    fn do_one(&mut self, task: TaskId, order: Ordered, at: Instant) -> Option<State> {
        let tell = |order| drop(self.teller.send(Told::Ordered { task, at, order }));
        match (order, self.held.get(&task)) {
            (Ordered::Prepare(_), None) => {
                tell(Order::Prepare);
                self.held.insert(task, Held::Prepared);
                Some(State::Prepared(seen::Prepared { port: 12_345 }))
            }
            (Ordered::Run(_), Some(Held::Prepared)) => {
                tell(Order::Run);
                self.held.insert(task, Held::Running);
                Some(State::Running(seen::Running {}))
            }
            (Ordered::Run(launch), Some(Held::Running)) => {
                let number = *self.asks.borrow();
                let is_answer = launch.permit.is_some_and(|permit| permit.ask == number);
                if is_answer && std::mem::take(&mut self.unanswered) {
                    tell(Order::Permit);
                }
                None
            }
            (Ordered::Stop(_), Some(Held::Prepared | Held::Running)) => {
                self.held.insert(task, Held::Ended);
                let how = Some(v1::task_exit::How::Signaled(15));
                let exit = Some(v1::TaskExit { how });
                Some(State::Ended(seen::Ended { exit, released: true, ran_ms: 1, idle: None }))
            }
            (Ordered::Forget(_), Some(_)) => {
                self.held.remove(&task);
                Some(State::Gone(seen::Gone {}))
            }
            (Ordered::Prepare(_) | Ordered::Run(_) | Ordered::Stop(_) | Ordered::Forget(_), _) => {
                None
            }
        }
    }

    /// Every running task asks.
    fn asking(&mut self) -> v1::Report {
        let number = *self.asks.borrow_and_update();
        self.unanswered = true;
        let running = self.held.iter().filter(|(_, held)| **held == Held::Running);
        let report = |task: &TaskId| v1::TaskReport {
            task: task.to_string(),
            seen: Some(v1::TaskSeen { state: Some(State::Running(seen::Running {})) }),
            ask: Some(v1::AskSeen {
                number,
                class: v1::WriteClass::Periodic.into(),
                bytes: BYTES_OF_ASK,
                ..v1::AskSeen::default()
            }),
            ..v1::TaskReport::default()
        };
        let tasks = running.map(|(task, _)| report(task)).collect();
        v1::Report { tasks, ..v1::Report::default() }
    }

    fn hello(&self) -> v1::Hello {
        v1::Hello {
            protocol: LINK_PROTOCOL,
            cluster: String::new(),
            node: self.node.clone(),
            agent_version: "simulated".to_owned(),
            terminals: false,
        }
    }

    fn introduction(&self) -> v1::Report {
        let gpu = |gpu: u32| v1::Gpu {
            uuid: format!("GPU-{:08x}-0000-4000-8000-{gpu:012x}", self.number),
            product: "SIMULATED H100 80GB".to_owned(),
            memory_bytes: 80 << 30,
        };
        let facts = v1::NodeFacts {
            boot_id: format!("{:08x}-1111-4111-8111-111111111111", self.number),
            gpus: (0..GPUS_PER_NODE).map(gpu).collect(),
            gpu_note: String::new(),
            address: "127.0.0.1".to_owned(),
            // 32 nodes under one leaf switch.
            block: format!("leaf-{}", self.number / 32),
            memory_bytes: 2 << 40,
            cpus: 192,
            only_uid: None,
            ..v1::NodeFacts::default()
        };
        v1::Report { complete: true, facts: Some(facts), ..v1::Report::default() }
    }
}

async fn say(outgoing: &mpsc::Sender<v1::FromAgent>, message: From) -> anyhow::Result<()> {
    let message = v1::FromAgent { message: Some(message) };
    outgoing.send(message).await.context("the connection has ended")
}
