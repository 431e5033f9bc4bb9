//! The agent's part of a terminal: between its shim's socket and a stream to the coordinator that
//! the agent dials when it is told to. One of its own for each: a person who does not read keeps
//! nobody else waiting.
//!
//! What is not here: the terminal itself (`shim::terminal`), and who asked (the coordinator knows
//! from a socket; here it is compared with whose the task is).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::{TaskId, UserId};
use tidegate_proto::link::Launch;
use tidegate_proto::{parsed, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use tracing::{info, warn};
use v1::from_terminal::Message as From;
use v1::to_terminal::Message as To;

use crate::frames::{self, framed};
use crate::link;
use crate::task_dir::{Intent, TaskDir, load};

/// Terminals of this node that may be open: more than the GPUs of any node.
const MAX_OPEN: usize = 256;

/// Messages that may wait for the coordinator; then the task waits.
const MAX_WAITING: usize = 16;

/// How long the task waits for who looks to read one more message: a slow line takes less, and who
/// has stopped reading comes back to the scrollback.
const LAG: Duration = Duration::from_secs(5);

/// How long the coordinator may take to read the end of a terminal.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Opens terminals.
#[derive(Debug)]
pub(crate) struct Terminals {
    coordinator: PathBuf,
    tasks: PathBuf,
    places: Arc<Semaphore>,
}

impl Terminals {
    /// Of the tasks below `tasks`, for the coordinator behind a socket.
    pub(crate) fn new(coordinator: PathBuf, tasks: PathBuf) -> Self {
        Self { coordinator, tasks, places: Arc::new(Semaphore::new(MAX_OPEN)) }
    }

    /// Dials the coordinator and serves the terminal it asked for until either end is gone.
    pub(crate) fn open(&self, ask: v1::OpenTerminal) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            // Who asked is told so by the silence.
            warn!(task = ask.task, "{MAX_OPEN} terminals are open; this one is not opened");
            return;
        };
        let (coordinator, tasks) = (self.coordinator.clone(), self.tasks.clone());
        tokio::spawn(async move {
            let _place = place;
            let task = ask.task.clone();
            info!(task, uid = ask.uid, "opening its terminal");
            match serve(&coordinator, &tasks, ask).await {
                Ok(()) => info!(task, "its terminal is closed"),
                Err(why) => info!(task, why = why.message(), "its terminal is closed"),
            }
        });
    }
}

async fn serve(coordinator: &Path, tasks: &Path, ask: v1::OpenTerminal) -> Result<(), Status> {
    let (outbox, outgoing) = mpsc::channel(MAX_WAITING);
    let say = async |message| {
        let said = outbox.send(v1::FromTerminal { message: Some(message) }).await;
        said.map_err(|_gone| Status::unavailable("the coordinator has gone"))
    };
    say(From::Request(ask.request)).await?;
    let client = link::client(coordinator).await;
    let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
    let incoming = client.terminal(ReceiverStream::new(outgoing)).await?.into_inner();
    // Not before: whoever looks now loses the terminal to it, and who asked may have given up.
    match open(tasks, &ask).await {
        Ok(shim) => carry(shim, incoming, outbox).await,
        Err(why) => {
            say(From::Refused(why)).await?;
            drop(outbox);
            until_closed(incoming).await;
            Ok(())
        }
    }
}

/// The way to the shim, told how to look.
async fn open(tasks: &Path, ask: &v1::OpenTerminal) -> Result<UnixStream, String> {
    let task: TaskId = parsed(&ask.task, "OpenTerminal.task").map_err(|error| error.to_string())?;
    let dir = TaskDir::of(tasks, task);
    let intent = load::<Intent>(&dir.intent()).ok().flatten();
    let intent = intent.ok_or_else(|| format!("{task} does not run on this node"))?;
    check(task, &Launch::try_from(intent.launch)?, UserId(ask.uid))?;
    let shim = UnixStream::connect(dir.terminal()).await;
    let mut shim = shim.map_err(|error| format!("the terminal of {task} is not open: {error}"))?;
    let view = v1::ToTerminal { message: ask.view.map(To::View) };
    let said = shim.write_all(&framed(&view)).await;
    said.map_err(|error| format!("the terminal of {task}: {error}"))?;
    Ok(shim)
}

fn check(task: TaskId, launch: &Launch, asks: UserId) -> Result<(), String> {
    if launch.user != asks {
        return Err(format!("{task} belongs to {}; {asks} may not look at it", launch.user));
    }
    if !launch.pty {
        return Err(format!("{task} has no terminal"));
    }
    Ok(())
}

async fn carry(
    shim: UnixStream,
    mut incoming: Streaming<v1::ToTerminal>,
    outbox: mpsc::Sender<v1::FromTerminal>,
) -> Result<(), Status> {
    let (from_shim, to_shim) = shim.into_split();
    let over = tokio::select! {
        over = up(from_shim, &outbox) => over,
        () = down(&mut incoming, to_shim) => return Ok(()),
    };
    // Here the shim's socket is closed: the task waits for nobody any more.
    if over == Over::Lags {
        let why = format!("what the job prints was not read for {} s", LAG.as_secs());
        let refused = v1::FromTerminal { message: Some(From::Refused(why)) };
        outbox.send(refused).await.map_err(|_gone| Status::unavailable("nobody looks any more"))?;
    }
    drop(outbox);
    // What is queued is still to be read there.
    until_closed(incoming).await;
    Ok(())
}

/// Why there is no more to say of a terminal.
#[derive(Debug, PartialEq, Eq)]
enum Over {
    /// The shim ended or is not understood, or the coordinator has gone.
    Closed,
    /// Who looks does not read.
    Lags,
}

async fn up(mut shim: OwnedReadHalf, outbox: &mpsc::Sender<v1::FromTerminal>) -> Over {
    let mut arrived = Vec::new();
    loop {
        match frames::take::<v1::FromTerminal>(&mut arrived) {
            Ok(Some(message)) => match outbox.send_timeout(message, LAG).await {
                Ok(()) => {}
                Err(SendTimeoutError::Timeout(_)) => return Over::Lags,
                Err(SendTimeoutError::Closed(_)) => return Over::Closed,
            },
            Ok(None) => match shim.read_buf(&mut arrived).await {
                Ok(count) if count > 0 => {}
                Ok(_) | Err(_) => return Over::Closed,
            },
            Err(frames::Closed) => return Over::Closed,
        }
    }
}

async fn down(incoming: &mut Streaming<v1::ToTerminal>, mut shim: OwnedWriteHalf) {
    while let Ok(Some(message)) = incoming.message().await {
        for message in pieces(message) {
            if shim.write_all(&framed(&message)).await.is_err() {
                return;
            }
        }
    }
}

/// Input as long as the coordinator likes, in messages as long as the shim takes.
fn pieces(message: v1::ToTerminal) -> Vec<v1::ToTerminal> {
    match message.message {
        Some(To::Input(bytes)) => {
            let input = |piece: &[u8]| v1::ToTerminal { message: Some(To::Input(piece.to_vec())) };
            bytes.chunks(frames::MAX_PIECE).map(input).collect()
        }
        other @ (Some(To::View(_) | To::Size(_)) | None) => vec![v1::ToTerminal { message: other }],
    }
}

/// The stream is not to be given up before the coordinator has read it.
async fn until_closed(mut incoming: Streaming<v1::ToTerminal>) {
    let closed = async { while let Ok(Some(_)) = incoming.message().await {} };
    tokio::time::timeout(LAST_PATIENCE, closed).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::{Bytes, TaskLayout};

    fn launch(pty: bool) -> Launch {
        Launch {
            user: UserId(1000),
            command: vec!["sh".into()],
            working_dir: "/".into(),
            env: Vec::new(),
            gpus: Vec::new(),
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
            pty,
        }
    }

    #[test]
    fn only_the_tasks_own_user_may_look_and_only_at_a_terminal() {
        let task: TaskId = "job-1.1.0".parse().unwrap();
        assert_eq!(check(task, &launch(true), UserId(1000)), Ok(()));
        let others = "job-1.1.0 belongs to uid-1000; uid-0 may not look at it".to_owned();
        assert_eq!(check(task, &launch(true), UserId(0)), Err(others));
        let none = "job-1.1.0 has no terminal".to_owned();
        assert_eq!(check(task, &launch(false), UserId(1000)), Err(none));
    }

    #[test]
    fn long_input_is_cut_and_nothing_of_it_is_lost() {
        let long: Vec<u8> = (0..40_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let cut = pieces(v1::ToTerminal { message: Some(To::Input(long.clone())) });
        assert_eq!(cut.len(), 3);
        let whole = cut.into_iter().flat_map(|piece| match piece.message {
            Some(To::Input(bytes)) => bytes,
            _ => Vec::new(),
        });
        assert_eq!(whole.collect::<Vec<_>>(), long);
    }
}
