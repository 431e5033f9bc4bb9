//! The agent as a real process with a real starter, linked to a coordinator made of this test.

mod permits;

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tidegate_agent::procs::Procs;
use tidegate_agent::task_dir::{State, load};
use tidegate_model::{
    Bytes, ClusterId, DecisionSeq, Epoch, Generation, Save, SaveDelivery, SaveSeen, SaveTarget,
    Span, TaskExit, TaskId, TaskSeen,
};
use tidegate_proto::link::{Hello, NodePlan, Order, Report, Stop, TaskReport};
use tidegate_proto::v1;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status, Streaming};
use v1::agent_link_server::{AgentLink, AgentLinkServer};
use v1::{from_agent, to_agent};

use crate::bench::{Bench, is_gone, kill, task, until};
use crate::job_socket::{Client, checkpoint, relay};

const T: &str = "job-1.1.0";
const OURS: ClusterId = ClusterId(7);
const PATIENCE: Duration = Duration::from_secs(30);

/// One stream that the agent has opened.
struct Link {
    incoming: Streaming<v1::FromAgent>,
    outgoing: mpsc::Sender<Result<v1::ToAgent, Status>>,
    tasks: BTreeMap<TaskId, TaskReport>,
}

struct Doors(mpsc::Sender<Link>);

#[tonic::async_trait]
impl AgentLink for Doors {
    type ConnectStream = ReceiverStream<Result<v1::ToAgent, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<v1::FromAgent>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let (outgoing, stream) = mpsc::channel(16);
        let link = Link { incoming: request.into_inner(), outgoing, tasks: BTreeMap::new() };
        self.0.send(link).await.map_err(|_over| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    type TerminalStream = ReceiverStream<Result<v1::ToTerminal, Status>>;

    async fn terminal(
        &self,
        _request: Request<Streaming<v1::FromTerminal>>,
    ) -> Result<Response<Self::TerminalStream>, Status> {
        Err(Status::unimplemented("no test here opens one"))
    }
}

impl Link {
    async fn hear(&mut self) -> Option<from_agent::Message> {
        timeout(PATIENCE, self.incoming.message()).await.unwrap().ok()??.message
    }

    async fn say(&self, message: to_agent::Message) {
        self.outgoing.send(Ok(v1::ToAgent { message: Some(message) })).await.unwrap();
    }

    async fn hello(&mut self) -> Hello {
        match self.hear().await.unwrap() {
            from_agent::Message::Hello(hello) => hello.try_into().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn report(&mut self) -> Report {
        loop {
            if let from_agent::Message::Report(report) = self.hear().await.unwrap() {
                let report = Report::try_from(report).unwrap();
                self.tasks.extend(report.tasks.clone());
                return report;
            }
        }
    }

    async fn welcome(&mut self, cluster: ClusterId) -> Hello {
        let hello = self.hello().await;
        self.say(to_agent::Message::Welcome(v1::Welcome {
            cluster: cluster.to_string(),
            epoch: 1,
        }))
        .await;
        hello
    }

    /// The welcome and the complete report.
    async fn begin(&mut self) -> (Hello, Report) {
        let hello = self.welcome(OURS).await;
        let report = self.report().await;
        assert!(report.complete, "{report:?}");
        (hello, report)
    }

    async fn plan(&self, generation: u64, orders: &[(&str, Order)]) {
        let tasks = orders.iter().map(|(id, order)| (task(id), order.clone())).collect();
        let generation = Generation(generation);
        let plan = NodePlan { cluster: OURS, epoch: Epoch(1), generation, tasks };
        self.say(to_agent::Message::Plan(plan.into())).await;
    }

    async fn seen(&mut self, id: &str, wanted: impl Fn(&TaskSeen) -> bool) -> TaskSeen {
        self.told(id, |report| wanted(&report.seen)).await.seen
    }

    async fn told(&mut self, id: &str, wanted: impl Fn(&TaskReport) -> bool) -> TaskReport {
        loop {
            if let Some(report) = self.tasks.get(&task(id)).filter(|report| wanted(report)) {
                return report.clone();
            }
            assert!(!self.report().await.complete);
        }
    }

    async fn ended(&mut self, id: &str) -> TaskExit {
        match self.seen(id, |seen| matches!(seen, TaskSeen::Ended { released: true, .. })).await {
            TaskSeen::Ended { exit, .. } => exit,
            other => panic!("{other:?}"),
        }
    }

    async fn log(&mut self, id: &str) -> v1::LogChunk {
        let stream = v1::LogStream::Stdout.into();
        let ask = v1::ReadNodeLog { request: 5, task: id.into(), stream, offset: 2, limit: 100 };
        self.say(to_agent::Message::ReadLog(ask)).await;
        loop {
            if let from_agent::Message::LogChunk(chunk) = self.hear().await.unwrap() {
                return chunk;
            }
        }
    }
}

struct Node {
    bench: Bench,
    agent: Child,
    links: mpsc::Receiver<Link>,
}

impl Node {
    fn new() -> Self {
        let mut bench = Bench::new();
        let (doors, links) = mpsc::channel(4);
        let listener = UnixListener::bind(bench.dir.path().join("link.sock")).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(AgentLinkServer::new(Doors(doors)))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);
        bench.start_starter();
        let agent = Self::start_agent(&bench);
        Self { bench, agent, links }
    }

    fn start_agent(bench: &Bench) -> Child {
        Command::new(env!("CARGO_BIN_EXE_tidegate-agent"))
            .arg("--config")
            .arg(bench.dir.path().join("node.toml"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(bench.dir.path().join("agent.log")).unwrap())
            .spawn()
            .unwrap()
    }

    async fn link(&mut self) -> Link {
        timeout(PATIENCE, self.links.recv()).await.unwrap().unwrap()
    }

    fn kill_agent(&mut self) {
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
    }

    fn restart_agent(&mut self) {
        self.kill_agent();
        self.agent = Self::start_agent(&self.bench);
    }

    fn run(&self, script: &str) -> Order {
        Order::Run(Box::new(self.bench.launch(&["sh", "-c", script])))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.bench.dir.path().join("agent.log")).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

fn prepare() -> Order {
    Order::Prepare(Vec::new())
}

fn stop() -> Order {
    Order::Stop(Stop { decision: DecisionSeq(3), grace: Span::seconds(600), why: "why".into() })
}

fn is_prepared(seen: &TaskSeen) -> bool {
    matches!(seen, TaskSeen::Prepared { .. })
}

#[tokio::test]
async fn a_node_that_cannot_write_its_ledger_is_closed_until_it_can() {
    let mut node = Node::new();
    let mut link = node.link().await;
    assert_eq!(link.begin().await.1.facts.unwrap().closed, "");
    // As a full disk: the next ledger cannot be begun.
    let in_the_way = node.bench.dir.path().join("state/ledger.json.new");
    fs::create_dir(&in_the_way).unwrap();
    link.plan(1, &[(T, prepare())]).await;
    let mut told = async |wanted: &dyn Fn(&str) -> bool| loop {
        let report = link.report().await;
        assert!(!report.complete, "{report:?}");
        if let Some(facts) = report.facts.filter(|facts| wanted(&facts.closed)) {
            return facts.closed;
        }
    };
    let state = node.bench.dir.path().join("state").display().to_string();
    let why = told(&|closed| !closed.is_empty()).await;
    assert!(why.starts_with(&format!("it cannot write to {state}: ")), "{why}");
    fs::remove_dir(&in_the_way).unwrap();
    told(&str::is_empty).await;
    link.seen(T, is_prepared).await;
}

#[tokio::test]
async fn a_task_goes_from_prepared_to_gone_and_its_output_can_be_read() {
    let mut node = Node::new();
    let mut link = node.link().await;
    let (hello, report) = link.begin().await;
    assert_eq!((hello.cluster, hello.node.as_str()), (None, "node-a"));
    let facts = report.facts.unwrap();
    assert!(facts.gpus.is_empty() && facts.gpu_note.contains("no NVIDIA driver library"));
    assert_eq!(facts.boot_id, Procs::default().boot_id().unwrap());
    assert!(facts.cpus > 0 && facts.memory.0 > 0);
    link.plan(1, &[(T, prepare())]).await;
    let TaskSeen::Prepared { port } = link.seen(T, is_prepared).await else { panic!() };
    assert!((29_500..=29_999).contains(&port));
    link.plan(2, &[(T, node.run("echo $RANK-out; exit 3"))]).await;
    assert_eq!(link.ended(T).await, TaskExit::Exited(3));
    let chunk = link.log(T).await;
    assert_eq!((chunk.request, chunk.offset, chunk.length), (5, 2, 6));
    assert_eq!((chunk.bytes.as_slice(), chunk.error.as_str()), (b"out\n".as_slice(), ""));
    link.plan(3, &[(T, Order::Forget)]).await;
    link.seen(T, |seen| *seen == TaskSeen::Gone).await;
    assert!(!node.bench.task_dir(T).path().exists());
    assert_eq!(link.log(T).await, chunk, "still readable");
}

#[tokio::test]
async fn an_agent_that_was_killed_returns_with_all_it_knows_and_starts_nothing_twice() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare()), ("job-2.1.0", prepare())]).await;
    link.seen(T, is_prepared).await;
    let waiting = link.seen("job-2.1.0", is_prepared).await;
    let run = node.run("echo x >>count; trap 'exit 4' TERM; while :; do sleep 0.01; done");
    link.plan(2, &[(T, run.clone()), ("job-2.1.0", prepare())]).await;
    link.seen(T, |seen| *seen == TaskSeen::Running).await;
    let counted = node.bench.dir.path().join("count");
    until(|| fs::read_to_string(&counted).ok().filter(|count| count == "x\n"));
    node.restart_agent();
    let mut link = node.link().await;
    let (hello, report) = link.begin().await;
    assert_eq!(hello.cluster, Some(OURS));
    let known = [(task(T), TaskSeen::Running.into()), (task("job-2.1.0"), waiting.into())];
    assert_eq!(report.tasks, known.into());
    link.plan(2, &[(T, run)]).await;
    link.plan(3, &[(T, stop()), ("job-2.1.0", stop())]).await;
    assert_eq!(link.ended(T).await, TaskExit::Exited(4));
    let unstarted = TaskExit::NeverStarted("stopped before it was started".into());
    assert_eq!(link.ended("job-2.1.0").await, unstarted);
    assert_eq!(fs::read_to_string(&counted).unwrap(), "x\n");
}

#[tokio::test]
async fn while_the_starter_is_away_the_link_stays_and_the_end_of_a_task_is_seen_later() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare())]).await;
    link.seen(T, is_prepared).await;
    link.plan(2, &[(T, node.run("while [ ! -e go ]; do sleep 0.01; done; exit 5"))]).await;
    link.seen(T, |seen| *seen == TaskSeen::Running).await;
    let state: State = load(&node.bench.task_dir(T).state()).unwrap().unwrap();
    node.bench.kill_starter();
    assert!(link.report().await.tasks.is_empty(), "a heartbeat, and no news");
    fs::write(node.bench.dir.path().join("go"), "").unwrap();
    until(|| is_gone(state.shim.pid).then_some(()));
    node.bench.start_starter();
    assert_eq!(link.ended(T).await, TaskExit::Exited(5));
}

#[tokio::test]
async fn a_plan_that_is_older_or_silent_stops_nothing() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare())]).await;
    link.seen(T, is_prepared).await;
    link.plan(5, &[(T, node.run("exec sleep 1000"))]).await;
    link.seen(T, |seen| *seen == TaskSeen::Running).await;
    link.plan(4, &[(T, stop())]).await;
    link.plan(6, &[]).await;
    link.plan(7, &[("job-9.1.0", stop())]).await;
    link.seen("job-9.1.0", |seen| *seen == TaskSeen::Missing).await;
    assert_eq!(link.tasks.get(&task(T)), Some(&TaskSeen::Running.into()));
    assert!(node.log().contains("the plan is generation 4; 5 has been accepted"), "{}", node.log());
    let state: State = load(&node.bench.task_dir(T).state()).unwrap().unwrap();
    kill(state.main.pid);
    assert_eq!(link.ended(T).await, TaskExit::Signaled(9));
}

#[tokio::test]
async fn a_coordinator_of_another_cluster_is_not_obeyed() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    drop(link);
    let mut link = node.link().await;
    assert_eq!(link.welcome(ClusterId(8)).await.cluster, Some(OURS));
    while link.hear().await.is_some() {}
    let words = "this node obeys cluster 00000000000000000000000007; cluster \
                 00000000000000000000000008 answered";
    assert!(node.log().contains(words), "{}", node.log());
}

#[tokio::test]
async fn a_gpu_that_is_not_here_cannot_be_prepared() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, Order::Prepare(vec!["GPU-x".parse().unwrap()]))]).await;
    let exit = link.ended(T).await;
    assert_eq!(exit, TaskExit::NeverStarted("GPU-x is not on this node".into()));
}

#[tokio::test]
async fn a_task_of_another_user_never_starts_and_says_why() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare())]).await;
    link.seen(T, is_prepared).await;
    let mut launch = node.bench.launch(&["true"]);
    launch.user.0 += 1;
    link.plan(2, &[(T, Order::Run(Box::new(launch)))]).await;
    let TaskExit::NeverStarted(why) = link.ended(T).await else { panic!() };
    assert!(why.contains("starts no task of uid-"), "{why}");
}

#[tokio::test]
async fn an_agent_that_is_killed_loses_neither_what_was_asked_nor_what_was_committed() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare())]).await;
    link.seen(T, is_prepared).await;
    let mut launch = relay(&node.bench);
    link.plan(2, &[(T, Order::Run(Box::new(launch.clone())))]).await;
    link.seen(T, |seen| *seen == TaskSeen::Running).await;
    let mut client = Client::of(&node.bench);
    // Who is not connected yet is told when it asks.
    client.ask(&json!({"hello": {}}));
    launch.save = Some(Save {
        request: DecisionSeq(7),
        signal: None,
        target: SaveTarget::Ranks,
        grace: Span::minutes(10),
        why: "why".into(),
    });
    let save = Order::Run(Box::new(launch));
    link.plan(3, &[(T, save.clone())]).await;
    let announced = Some(SaveSeen { request: DecisionSeq(7), delivery: SaveDelivery::Announced });
    link.told(T, |report| report.save == announced).await;
    assert_eq!(client.hear().unwrap()["save"]["request"], 7);
    node.kill_agent();
    let message = checkpoint(&node.bench, 5);
    assert_eq!(client.ask(&message)["committed"]["step"], 5);
    node.agent = Node::start_agent(&node.bench);
    let mut link = node.link().await;
    let (_, report) = link.begin().await;
    let known = report.tasks.get(&task(T)).unwrap().clone();
    let commit = known.commit.clone().unwrap();
    assert_eq!((commit.step, commit.bytes), (5, Bytes(3)));
    assert_eq!((commit.request, &known.save), (Some(DecisionSeq(7)), &announced));
    link.plan(3, &[(T, save)]).await;
    link.plan(4, &[(T, stop())]).await;
    link.ended(T).await;
    let ended = link.tasks.get(&task(T)).unwrap();
    assert_eq!((&ended.save, &ended.commit), (&announced, &known.commit));
    link.plan(5, &[(T, Order::Forget)]).await;
    let gone = link.told(T, |report| report.seen == TaskSeen::Gone).await;
    assert_eq!((gone.save, gone.commit), (None, None));
}

#[tokio::test]
async fn an_agent_that_is_asked_to_end_ends_and_its_tasks_go_on() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare())]).await;
    link.seen(T, is_prepared).await;
    link.plan(2, &[(T, node.run("exec sleep 1000"))]).await;
    link.seen(T, |seen| *seen == TaskSeen::Running).await;
    let state: State = load(&node.bench.task_dir(T).state()).unwrap().unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(node.agent.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(node.agent.wait().unwrap().success(), "{}", node.log());
    assert!(Procs::default().is_alive(state.main));
}
