//! The agent's link to the coordinator: one stream at a time, for ever tried again.
//!
//! What is not here: what is said and done (`shell`).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use thiserror::Error;
use tidegate_model::{ClusterId, Epoch};
use tidegate_proto::link::{Hello, NodePlan};
use tidegate_proto::{LINK_PROTOCOL, MAX_MESSAGE_BYTES, MAX_PLAN_BYTES, WireError, parsed, v1};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tracing::{info, warn};
use v1::agent_link_client::AgentLinkClient;
use v1::{from_agent, to_agent};

use crate::backoff::Backoff;
use crate::shell::Event;

/// Messages that may wait for the coordinator. If it reads no faster, changes are put together
/// into fewer reports.
const MAX_WAITING: usize = 64;

/// A coordinator that answers at all does so in this time.
const PATIENCE: Duration = Duration::from_secs(10);

/// A dead peer is noticed after twice this.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Before a coordinator that must not be obeyed, or that refuses this node, is tried again: a
/// person has to change something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// A stream that lasted this long was not a failure of connecting.
const STABLE: Duration = Duration::from_secs(10);

/// Said by the link.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// A coordinator has answered. Whether it is obeyed goes into `verdict`.
    Welcomed {
        cluster: ClusterId,
        epoch: Epoch,
        outbox: mpsc::Sender<v1::FromAgent>,
        verdict: oneshot::Sender<bool>,
    },
    /// The whole plan of this node.
    Plan(NodePlan),
    /// A read of a task's output.
    ReadLog(v1::ReadNodeLog),
    /// The coordinator has heard the report with this number.
    Renewed(u64),
    /// Somebody wants to look at a task's terminal.
    OpenTerminal(v1::OpenTerminal),
    /// The stream is over.
    Closed,
}

/// Why a stream is over.
#[derive(Debug, Error)]
enum LinkError {
    #[error(transparent)]
    Connect(#[from] tonic::transport::Error),
    #[error("{}", .0.message())]
    Status(#[from] Status),
    #[error("the coordinator does not answer")]
    Silent(#[from] tokio::time::error::Elapsed),
    #[error("the coordinator said something malformed: {0}")]
    Malformed(#[from] WireError),
    #[error("the coordinator did not begin with a welcome")]
    NoWelcome,
    #[error("the coordinator closed the link")]
    Closed,
    #[error("this node obeys another cluster")]
    NotObeyed,
    #[error("the agent ends")]
    AgentEnds,
}

impl LinkError {
    fn needs_a_person(&self) -> bool {
        match self {
            Self::NotObeyed => true,
            Self::Status(status) => matches!(
                status.code(),
                Code::FailedPrecondition | Code::PermissionDenied | Code::InvalidArgument
            ),
            Self::Connect(_)
            | Self::Silent(_)
            | Self::Malformed(_)
            | Self::NoWelcome
            | Self::Closed
            | Self::AgentEnds => false,
        }
    }
}

/// Keeps a stream open for ever. `hello` is none until the agent knows enough for a complete
/// report.
pub(crate) async fn keep(
    socket: PathBuf,
    mut hello: watch::Receiver<Option<Hello>>,
    events: mpsc::Sender<Event>,
) {
    let mut backoff = Backoff::new();
    let mut told = String::new();
    loop {
        let greeting = match hello.wait_for(Option::is_some).await {
            Ok(greeting) => greeting.clone(),
            Err(_) => return,
        };
        let Some(greeting) = greeting else { continue };
        let begun = Instant::now();
        let Err(why) = session(&socket, greeting, &events).await else { return };
        if begun.elapsed() > STABLE {
            backoff = Backoff::new();
            told.clear();
        }
        let words = chain(&why);
        if words != told {
            warn!(socket = %socket.display(), why = %words, "no link to the coordinator");
            told = words;
        }
        if events.send(Event::Link(LinkEvent::Closed)).await.is_err() {
            return;
        }
        let pause = if why.needs_a_person() { REFUSED_PAUSE } else { backoff.pause() };
        tokio::time::sleep(pause).await;
    }
}

/// One stream, until it is over. Ok only if the agent itself ends.
async fn session(
    socket: &Path,
    greeting: Hello,
    events: &mpsc::Sender<Event>,
) -> Result<(), LinkError> {
    let (outbox, outgoing) = mpsc::channel(MAX_WAITING);
    let said = outbox.send(from_agent(from_agent::Message::Hello(hello_message(greeting)))).await;
    said.map_err(|_ended| LinkError::AgentEnds)?;
    let mut incoming = timeout(PATIENCE, open(socket, outgoing)).await??;
    let first = timeout(PATIENCE, incoming.message()).await??.and_then(|said| said.message);
    let Some(to_agent::Message::Welcome(v1::Welcome { cluster, epoch })) = first else {
        return Err(LinkError::NoWelcome);
    };
    let cluster: ClusterId = parsed(&cluster, "Welcome.cluster")?;
    let epoch = Epoch(epoch);
    let (verdict, obeyed) = oneshot::channel();
    let welcomed = LinkEvent::Welcomed { cluster, epoch, outbox, verdict };
    if events.send(Event::Link(welcomed)).await.is_err() {
        return Ok(());
    }
    if !obeyed.await.unwrap_or(false) {
        return Err(LinkError::NotObeyed);
    }
    info!(%cluster, %epoch, "linked to the coordinator");
    while let Some(said) = incoming.message().await? {
        let event = match said.message {
            Some(to_agent::Message::Plan(plan)) => LinkEvent::Plan(plan.try_into()?),
            Some(to_agent::Message::ReadLog(ask)) => LinkEvent::ReadLog(ask),
            Some(to_agent::Message::OpenTerminal(ask)) => LinkEvent::OpenTerminal(ask),
            Some(to_agent::Message::Renewed(number)) => LinkEvent::Renewed(number),
            // A second welcome says nothing new; what is not known here is of a later version.
            Some(to_agent::Message::Welcome(_)) | None => continue,
        };
        if events.send(Event::Link(event)).await.is_err() {
            return Ok(());
        }
    }
    Err(LinkError::Closed)
}

async fn open(
    socket: &Path,
    outgoing: mpsc::Receiver<v1::FromAgent>,
) -> Result<Streaming<v1::ToAgent>, LinkError> {
    Ok(client(socket).await?.connect(ReceiverStream::new(outgoing)).await?.into_inner())
}

/// A new connection to the coordinator.
pub(crate) async fn client(
    socket: &Path,
) -> Result<AgentLinkClient<Channel>, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE)
        .keep_alive_while_idle(true);
    let client = AgentLinkClient::new(endpoint.connect().await?)
        .max_decoding_message_size(MAX_PLAN_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    Ok(client)
}

/// A message of this side.
pub(crate) fn from_agent(message: from_agent::Message) -> v1::FromAgent {
    v1::FromAgent { message: Some(message) }
}

fn hello_message(hello: Hello) -> v1::Hello {
    let Hello { cluster, node, agent_version, terminals } = hello;
    v1::Hello {
        protocol: LINK_PROTOCOL,
        cluster: cluster.map(|cluster| cluster.to_string()).unwrap_or_default(),
        node: node.to_string(),
        agent_version,
        terminals,
    }
}

/// An error with its causes, each once: the transport's own words are "transport error", and its
/// causes repeat each other.
fn chain(error: &LinkError) -> String {
    let mut words = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let more = next.to_string();
        if !words.ends_with(&more) {
            words = format!("{words}: {more}");
        }
        cause = next.source();
    }
    words
}
