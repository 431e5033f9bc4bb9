//! The agent's connection to the starter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tidegate_model::TaskId;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::node::TaskFacts;
use crate::shell::Event;
use crate::starter::protocol::{FromStarter, MAX_LINE_BYTES, Request, TaskLine, Verb, line_of};

/// Requests that may wait for the starter: two for each task.
const MAX_WAITING: usize = 2048;

/// The starter answers `status` from memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// Said by the connection.
#[derive(Debug)]
pub(crate) enum StarterEvent {
    /// Connected: the whole list, and where requests go.
    Connected(BTreeMap<TaskId, TaskFacts>, mpsc::Sender<Request>),
    /// What is said of a task is another.
    Changed(TaskId, Box<TaskFacts>),
    /// The answer to a request: why nothing was done, if so.
    Answered(u64, Option<String>),
    /// The connection is gone.
    Disconnected,
}

/// Keeps connected for ever.
pub(crate) async fn keep(socket: PathBuf, events: mpsc::Sender<Event>) {
    let mut backoff = Backoff::new();
    let mut told = String::new();
    loop {
        match connect(&socket).await {
            Ok((connection, tasks)) => {
                info!(tasks = tasks.len(), "connected to the starter");
                told.clear();
                backoff = Backoff::new();
                let why = connection.serve(tasks, &events).await;
                warn!(%why, "the starter has gone; tasks go on");
                if events.send(Event::Starter(StarterEvent::Disconnected)).await.is_err() {
                    return;
                }
            }
            Err(why) => {
                let why = format!("{why:#}");
                if why != told {
                    warn!(socket = %socket.display(), %why, "no starter yet");
                    told = why;
                }
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

struct Connection {
    input: BufReader<OwnedReadHalf>,
    output: OwnedWriteHalf,
}

async fn connect(socket: &Path) -> anyhow::Result<(Connection, BTreeMap<TaskId, TaskFacts>)> {
    let (input, output) = UnixStream::connect(socket).await.context("connect")?.into_split();
    let mut connection = Connection { input: BufReader::new(input), output };
    let listed = connection.list();
    let tasks = tokio::time::timeout(PATIENCE, listed).await.context("ask for all tasks")??;
    Ok((connection, tasks))
}

impl Connection {
    async fn list(&mut self) -> anyhow::Result<BTreeMap<TaskId, TaskFacts>> {
        self.output.write_all(&line_of(&Request { id: 0, verb: Verb::Status })?).await?;
        // A change that is said first is in the list that follows.
        loop {
            if let FromStarter::Tasks { id: _, tasks } = next(&mut self.input).await? {
                return Ok(tasks.into_iter().map(TaskLine::facts).collect());
            }
        }
    }

    /// Until the connection ends; why it did.
    async fn serve(
        self,
        tasks: BTreeMap<TaskId, TaskFacts>,
        events: &mpsc::Sender<Event>,
    ) -> String {
        let (outbox, requests) = mpsc::channel(MAX_WAITING);
        let connected = Event::Starter(StarterEvent::Connected(tasks, outbox));
        if events.send(connected).await.is_err() {
            return "the agent ends".to_owned();
        }
        let Self { input, output } = self;
        let ended = tokio::select! {
            ended = hear(input, events) => ended,
            ended = say(output, requests) => ended,
        };
        ended.map_or_else(|why| format!("{why:#}"), |()| "closed".to_owned())
    }
}

async fn hear(
    mut input: BufReader<OwnedReadHalf>,
    events: &mpsc::Sender<Event>,
) -> anyhow::Result<()> {
    loop {
        let event = match next(&mut input).await? {
            FromStarter::Changed(line) => {
                let (task, facts) = line.facts();
                StarterEvent::Changed(task, Box::new(facts))
            }
            FromStarter::Answer { id, refused } => StarterEvent::Answered(id, refused),
            FromStarter::Tasks { .. } => continue,
        };
        events.send(Event::Starter(event)).await?;
    }
}

async fn say(
    mut output: OwnedWriteHalf,
    mut requests: mpsc::Receiver<Request>,
) -> anyhow::Result<()> {
    while let Some(request) = requests.recv().await {
        output.write_all(&line_of(&request)?).await?;
    }
    Ok(())
}

async fn next(input: &mut BufReader<OwnedReadHalf>) -> anyhow::Result<FromStarter> {
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE_BYTES)?.saturating_add(1);
    input.take(most).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        bail!("closed by the starter");
    }
    if !line.ends_with(b"\n") {
        bail!("a message that is cut short or longer than {MAX_LINE_BYTES} bytes");
    }
    serde_json::from_slice(&line).context("a message of the starter")
}
