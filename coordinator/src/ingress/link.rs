//! The agents' link: hello, welcome, then reports up and whole plans down.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use scheduler_core::Event;
use tidegate_model::{Bandwidth, ClusterId, Epoch, NodeName, Span, TaskId};
use tidegate_proto::link::{Hello, NodeFacts, Report, TaskReport};
use tidegate_proto::{required, v1};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::outgoing::{Beside, Outgoing};
use super::status;
use super::terminal::{Expected, Terminals};
use crate::thread::{Handle, Message, NotTaken, Session};

/// Log reads one node may have under way: more than one screen of people never asks for.
const MAX_LOG_READS: usize = 32;

/// An agent answers a log read within this, or the reader is told to try again.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

type LogReads = Arc<Mutex<BTreeMap<u64, oneshot::Sender<v1::LogChunk>>>>;

/// A log read that failed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The node's agent is not connected or did not answer.
    #[error("{0} does not answer; its logs can be read when it does")]
    Away(NodeName),
    /// The agent could not read it.
    #[error("{0}")]
    Unreadable(String),
}

/// The way to one agent's logs and terminals.
#[derive(Debug, Clone)]
struct Reader {
    asks: mpsc::Sender<Beside>,
    reads: LogReads,
    /// Whether it knows terminals, and which version it is.
    terminals: bool,
    version: String,
}

/// The agents that are connected.
#[derive(Debug, Default)]
pub struct Links {
    sessions: AtomicU64,
    /// Orders connections of one node: the newest one's entry stands.
    readers: Mutex<BTreeMap<NodeName, Reader>>,
    /// The terminals that agents were told to open.
    pub(super) terminals: Terminals,
}

impl Links {
    fn next_session(&self) -> Session {
        Session(self.sessions.fetch_add(1, Ordering::Relaxed).saturating_add(1))
    }

    fn next_request(&self) -> u64 {
        self.sessions.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Whether jobs of a node have terminals; of one that is away nothing is known.
    ///
    /// # Errors
    /// Its agent knows of none.
    pub(super) fn check_terminals(&self, node: &NodeName) -> Result<(), Status> {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Reader { version, .. }) = readers.get(node).filter(|known| !known.terminals)
        else {
            return Ok(());
        };
        Err(Status::failed_precondition(format!(
            "the agent of {node} is of version {version} and knows no terminals: the job was \
             started without one. Cancel it; give the node a newer agent, or drain it"
        )))
    }

    /// Tells an agent to dial a terminal; what will be there when it has.
    pub(super) fn open_terminal(
        &self,
        node: &NodeName,
        mut ask: v1::OpenTerminal,
    ) -> Result<Expected<'_>, Status> {
        let away = || Status::unavailable(format!("{node} is away; the job goes on without it"));
        let readers =
            self.readers.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned();
        let Reader { asks, .. } =
            readers.filter(|reader| !reader.asks.is_closed()).ok_or_else(away)?;
        self.check_terminals(node)?;
        ask.request = self.next_request();
        let expected = self.terminals.expect(ask.request, node.clone());
        asks.try_send(Beside::OpenTerminal(ask)).map_err(|_full| away())?;
        Ok(expected)
    }

    /// Whether an agent of the node has an open connection. That of a process that died is closed
    /// by the kernel at once: who comes then is the same node, not a second one.
    fn is_linked(&self, node: &NodeName) -> bool {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.get(node).is_some_and(|reader| !reader.asks.is_closed())
    }

    /// Reads a piece of a task's log from its node.
    ///
    /// # Errors
    /// [`LogError`] if the node is away or cannot read it.
    pub async fn read_log(
        &self,
        node: &NodeName,
        mut ask: v1::ReadNodeLog,
    ) -> Result<v1::LogChunk, LogError> {
        let away = || LogError::Away(node.clone());
        let readers =
            self.readers.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned();
        let Reader { asks, reads, .. } = readers.ok_or_else(away)?;
        ask.request = self.next_request();
        let request = ask.request;
        let (reply, answer) = oneshot::channel();
        {
            let mut reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
            if reads.len() >= MAX_LOG_READS {
                return Err(away());
            }
            reads.insert(request, reply);
        }
        let sent = asks.try_send(Beside::ReadLog(ask));
        let answer = match sent {
            Ok(()) => tokio::time::timeout(LOG_PATIENCE, answer).await.ok().and_then(Result::ok),
            Err(_) => None,
        };
        reads.lock().unwrap_or_else(PoisonError::into_inner).remove(&request);
        let chunk = answer.ok_or_else(away)?;
        if chunk.error.is_empty() { Ok(chunk) } else { Err(LogError::Unreadable(chunk.error)) }
    }
}

/// The service that agents connect to.
#[derive(Debug, Clone)]
pub struct LinkService {
    /// The engine.
    pub engine: Handle,
    /// The agents that are connected.
    pub links: Arc<Links>,
    /// The store's identity.
    pub cluster: ClusterId,
    /// This leadership.
    pub epoch: Epoch,
}

#[tonic::async_trait]
impl v1::agent_link_server::AgentLink for LinkService {
    type ConnectStream = Outgoing;
    type TerminalStream = ReceiverStream<Result<v1::ToTerminal, Status>>;

    async fn terminal(
        &self,
        request: Request<Streaming<v1::FromTerminal>>,
    ) -> Result<Response<Self::TerminalStream>, Status> {
        let node = request.extensions().get::<NodeName>().cloned();
        let node = node.ok_or_else(|| Status::unauthenticated("this socket names no node"))?;
        let stream = self.links.terminals.dialled(&node, request.into_inner()).await?;
        Ok(Response::new(stream))
    }

    async fn connect(
        &self,
        request: Request<Streaming<v1::FromAgent>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let node = request.extensions().get::<NodeName>().cloned();
        let node = node.ok_or_else(|| Status::unauthenticated("this socket names no node"))?;
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.and_then(|first| first.message);
        let Some(v1::from_agent::Message::Hello(hello)) = first else {
            return Err(Status::invalid_argument("the first message of a link is Hello"));
        };
        let hello = Hello::try_from(hello).map_err(|error| status::malformed(&error))?;
        self.check(&hello, &node)?;

        if self.links.is_linked(&node) {
            let words = format!("another agent of {node} is linked; end it first");
            return Err(Status::already_exists(words));
        }
        let session = self.links.next_session();
        let (complain, errors) = mpsc::channel(1);
        let (slot, plans) = watch::channel(None);
        let (asks, requests) = mpsc::channel(MAX_LOG_READS);
        let reads = LogReads::default();
        {
            let mut readers = self.links.readers.lock().unwrap_or_else(PoisonError::into_inner);
            let reader = Reader {
                asks: asks.clone(),
                reads: Arc::clone(&reads),
                terminals: hello.terminals,
                version: hello.agent_version.clone(),
            };
            readers.insert(node.clone(), reader);
        }
        let connected = Message::Connected(session, node.clone(), slot);
        self.engine.send(connected).map_err(|away| Status::unavailable(away.to_string()))?;
        let welcome = v1::Welcome { cluster: self.cluster.to_string(), epoch: self.epoch.0 };
        tracing::info!(%node, version = hello.agent_version, "agent connected");
        let asks = asks.downgrade();
        let listening = Listening { engine: self.engine.clone(), session, node, reads, asks };
        tokio::spawn(listening.run(incoming, complain));
        Ok(Response::new(Outgoing::new(welcome, plans, requests, errors)))
    }
}

impl LinkService {
    fn check(&self, hello: &Hello, node: &NodeName) -> Result<(), Status> {
        if hello.node != *node {
            let words = format!("this is the socket of {node}; {} has its own", hello.node);
            return Err(Status::permission_denied(words));
        }
        match hello.cluster {
            Some(theirs) if theirs != self.cluster => {
                let ours = self.cluster;
                let words = format!(
                    "this is cluster {ours}; the agent of {node} obeys {theirs}. Enrol it here by \
                     giving it an empty state directory"
                );
                Err(Status::failed_precondition(words))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Reads from one agent until its stream ends.
struct Listening {
    engine: Handle,
    session: Session,
    node: NodeName,
    reads: LogReads,
    /// What is said to the agent beside its plans, while it is the node's newest connection.
    asks: mpsc::WeakSender<Beside>,
}

impl Listening {
    async fn run(self, mut incoming: Streaming<v1::FromAgent>, complain: mpsc::Sender<Status>) {
        loop {
            let heard = match incoming.message().await {
                Ok(Some(message)) => self.hear(message),
                Ok(None) => break tracing::info!(node = %self.node, "agent closed its link"),
                Err(status) => {
                    break tracing::info!(node = %self.node, why = status.message(), "link broke");
                }
            };
            if let Err(status) = heard {
                tracing::warn!(node = %self.node, why = status.message(), "link closed");
                drop(complain.try_send(status));
                break;
            }
        }
    }

    fn hear(&self, message: v1::FromAgent) -> Result<(), Status> {
        use v1::from_agent::Message as From;
        let message = required(message.message, "FromAgent.message");
        match message.map_err(|error| status::malformed(&error))? {
            From::Hello(_) => Err(Status::invalid_argument("Hello comes once, first")),
            From::Report(report) => {
                let mut report =
                    Report::try_from(report).map_err(|error| status::malformed(&error))?;
                let (whole, idle) = (report.complete, std::mem::take(&mut report.idle));
                let (renew, writes) = (report.renew, std::mem::take(&mut report.writes));
                let heard = match self.event(report) {
                    Some(event) => self.report(event),
                    None => self.engine.heard(self.session, &self.node),
                };
                let heard = heard.and_then(|()| self.idle(whole, idle));
                let heard = heard.and_then(|()| self.writes(whole, writes));
                if heard.is_ok() && renew > 0 {
                    self.renewed(renew);
                }
                heard.map_err(|away| Status::unavailable(away.to_string()))
            }
            From::LogChunk(chunk) => {
                let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(reader) = reads.remove(&chunk.request) {
                    drop(reader.send(chunk));
                }
                Ok(())
            }
        }
    }

    /// What is not taken now is lost: the agent asks again with its next heartbeat.
    fn renewed(&self, renew: u64) {
        if let Some(asks) = self.asks.upgrade() {
            asks.try_send(Beside::Renewed(renew)).ok();
        }
    }

    /// What is told of idle GPUs; a whole list that is empty says something too.
    fn idle(&self, whole: bool, tasks: BTreeMap<TaskId, Option<Span>>) -> Result<(), NotTaken> {
        if tasks.is_empty() && !whole {
            return Ok(());
        }
        let (session, node) = (self.session, self.node.clone());
        self.engine.send(Message::Idle { session, node, whole, tasks })
    }

    /// What tasks write; a whole list that is empty says something too.
    fn writes(&self, whole: bool, tasks: BTreeMap<TaskId, Bandwidth>) -> Result<(), NotTaken> {
        if tasks.is_empty() && !whole {
            return Ok(());
        }
        let (session, node) = (self.session, self.node.clone());
        self.engine.send(Message::Writes { session, node, whole, tasks })
    }

    fn report(&self, event: Event) -> Result<(), NotTaken> {
        let (session, node) = (self.session, self.node.clone());
        self.engine.send(Message::Report { session, node, event })
    }

    /// What a report says; none if it is a heartbeat.
    fn event(&self, report: Report) -> Option<Event> {
        let Report { complete, facts, tasks, .. } = report;
        if !complete && facts.is_none() && tasks.is_empty() {
            return None;
        }
        Some(reported(self.node.clone(), complete, facts, tasks))
    }
}

/// The event of a report that says something.
#[must_use]
pub fn reported(
    node: NodeName,
    complete: bool,
    facts: Option<NodeFacts>,
    reports: BTreeMap<TaskId, TaskReport>,
) -> Event {
    let (mut tasks, mut saves, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    let mut asks = Vec::new();
    for (task, TaskReport { seen, save, commit, ask }) in reports {
        tasks.push((task, seen));
        saves.extend(save.map(|save| (task, save)));
        commits.extend(commit.map(|commit| (task, commit)));
        asks.extend(ask.map(|ask| (task, ask)));
    }
    Event::NodeReported { node, complete, facts, tasks, saves, commits, asks }
}

/// A read of a task's log.
#[must_use]
pub fn log_ask(task: TaskId, stream: i32, offset: u64, limit: u32) -> v1::ReadNodeLog {
    v1::ReadNodeLog { request: 0, task: task.to_string(), stream, offset, limit }
}
