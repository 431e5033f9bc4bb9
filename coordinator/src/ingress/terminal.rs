//! Terminals of jobs: from a client's stream to the stream that the task's agent dials for it.
//!
//! Both have the flow control of their connection and a few messages here between them, so that
//! whoever is slow makes the other end wait, and nothing piles up here.
//! What is not here: the terminal itself; the task's shim holds it, and it outlives every stream.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use scheduler_core::{Job, JobState};
use tidegate_model::{AttemptId, JobId, NodeName, TaskExit, TaskId, UserId};
use tidegate_proto::{required, v1};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use v1::attach_reply::Message as Reply;
use v1::attach_request::Message as Ask;
use v1::from_terminal::Message as From;
use v1::to_terminal::Message as To;

use super::api::{Api, caller, find, job_id, node_of};
use super::status;
use crate::view::View;

/// Terminals that may be open at once; each holds some messages of at most 32 KiB.
const MAX_OPEN: usize = 1024;

/// Messages that wait for whoever is slower.
const MAX_WAITING: usize = 4;

/// Longest name of a viewer: a ULID as text.
const MAX_VIEWER: usize = 26;

/// An agent dials within this, and a client says what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// What goes to a client.
pub type Replies = ReceiverStream<Result<v1::AttachReply, Status>>;

/// The streams that agents were told to dial.
#[derive(Debug)]
pub struct Terminals {
    /// Orders the agent's call after the one that waits for it.
    awaited: Mutex<BTreeMap<u64, Awaited>>,
    places: Arc<Semaphore>,
    /// Orders who came last to each job before who comes back to it.
    newest: Mutex<BTreeMap<JobId, String>>,
}

impl Default for Terminals {
    fn default() -> Self {
        Self {
            awaited: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_OPEN)),
            newest: Mutex::default(),
        }
    }
}

/// Who asks for a terminal.
#[derive(Debug)]
struct Viewer {
    job: JobId,
    /// Empty = a client of a release that did not say.
    name: String,
    again: bool,
}

#[derive(Debug)]
struct Awaited {
    node: NodeName,
    dialled: oneshot::Sender<Dialled>,
}

/// An agent's stream.
#[derive(Debug)]
pub struct Dialled {
    from: Streaming<v1::FromTerminal>,
    to: mpsc::Sender<Result<v1::ToTerminal, Status>>,
}

/// A stream that is awaited, until whoever waits gives up.
#[derive(Debug)]
pub(super) struct Expected<'a> {
    terminals: &'a Terminals,
    request: u64,
    will_be: oneshot::Receiver<Dialled>,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let awaited = &self.terminals.awaited;
        awaited.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.request);
    }
}

impl Terminals {
    /// Whether another viewer had the terminal since this one lost it.
    fn is_taken(&self, viewer: &Viewer) -> bool {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let other = newest.get(&viewer.job).is_some_and(|name| *name != viewer.name);
        viewer.again && !viewer.name.is_empty() && other
    }

    fn came(&self, viewer: Viewer) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.insert(viewer.job, viewer.name);
        if newest.len() > MAX_OPEN {
            // Of the oldest job: it may well have ended.
            newest.pop_first();
        }
    }

    /// What will be there once the node's agent has answered this request.
    pub(super) fn expect(&self, request: u64, node: NodeName) -> Expected<'_> {
        let (dialled, will_be) = oneshot::channel();
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.insert(request, Awaited { node, dialled });
        Expected { terminals: self, request, will_be }
    }

    /// The call of an agent that was told to dial.
    pub(super) async fn dialled(
        &self,
        node: &NodeName,
        mut from: Streaming<v1::FromTerminal>,
    ) -> Result<ReceiverStream<Result<v1::ToTerminal, Status>>, Status> {
        let first = timeout(PATIENCE, from.message()).await;
        let first = first.map_err(|_elapsed| Status::deadline_exceeded("no request was named"))?;
        let Some(From::Request(request)) = first?.and_then(|first| first.message) else {
            return Err(Status::invalid_argument("the first message names a request"));
        };
        let awaited = {
            let mut all = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
            let is_theirs = all.get(&request).is_some_and(|awaited| awaited.node == *node);
            if is_theirs { all.remove(&request) } else { None }
        };
        let gone = || Status::not_found("nobody waits for this terminal any more");
        let awaited = awaited.ok_or_else(gone)?;
        let (to, sent) = mpsc::channel(MAX_WAITING);
        awaited.dialled.send(Dialled { from, to }).map_err(|_gone| gone())?;
        Ok(ReceiverStream::new(sent))
    }
}

/// Which terminal, and where.
enum Place {
    Open(TaskId, NodeName),
    /// Its task has ended there; the node may have been removed since.
    Over(TaskExit, Option<NodeName>),
}

/// Connects a client to the terminal of its job.
///
/// # Errors
/// It is not the caller's, there is none, or it cannot be reached now.
pub(super) async fn attach(
    api: &Api,
    request: Request<Streaming<v1::AttachRequest>>,
) -> Result<Response<Replies>, Status> {
    let user = caller(&request)?;
    let mut client = request.into_inner();
    let first = timeout(PATIENCE, client.message()).await;
    let first = first.map_err(|_elapsed| Status::deadline_exceeded("no job was named"))?;
    let Some(Ask::Open(open)) = first?.and_then(|first| first.message) else {
        return Err(Status::invalid_argument("the first message names a job"));
    };
    let view = required(open.view, "AttachRequest.Open.view");
    let mut view = view.map_err(|error| status::malformed(&error))?;
    if open.viewer.len() > MAX_VIEWER {
        let words =
            format!("viewer: {} bytes given; up to {MAX_VIEWER} are accepted", open.viewer.len());
        return Err(Status::invalid_argument(words));
    }
    let viewer = Viewer { job: job_id(&open.job)?, name: open.viewer, again: open.again };
    let place = place(&*api.view().await?, user, viewer.job)?;
    let (send, replies) = mpsc::channel(MAX_WAITING);
    match place {
        Place::Over(exit, node) => {
            // A shell without a terminal reads nothing and ends well: no answer to a person.
            node.map_or(Ok(()), |node| api.links.check_terminals(&node))?;
            // The channel is new, so there is room.
            drop(send.try_send(Ok(reply(Reply::Exit(exit.into())))));
        }
        Place::Open(..) if api.links.terminals.is_taken(&viewer) => {
            drop(send.try_send(Ok(reply(Reply::Taken(v1::TerminalTaken {})))));
        }
        Place::Open(task, node) => {
            let permit = Arc::clone(&api.links.terminals.places).try_acquire_owned();
            let permit = permit.map_err(|_full| {
                Status::resource_exhausted(format!(
                    "{MAX_OPEN} terminals are open, the most there are"
                ))
            })?;
            let task = task.to_string();
            view.after = view.after.filter(|_| open.task == task);
            let ask =
                v1::OpenTerminal { request: 0, task: task.clone(), uid: user.0, view: Some(view) };
            let mut dialled = dial(api, &node, ask).await?;
            let first = first_of(&mut dialled, &task).await?;
            api.links.terminals.came(viewer);
            drop(send.try_send(Ok(reply(Reply::Opened(task)))));
            drop(send.try_send(Ok(reply(first))));
            tokio::spawn(carry(client, dialled, send, permit));
        }
    }
    Ok(Response::new(ReceiverStream::new(replies)))
}

/// Only the owner: who types into a terminal acts as its user, which an admin's role does not
/// allow.
fn place(view: &View, user: UserId, job: JobId) -> Result<Place, Status> {
    let job = find(view, job)?;
    let id = job.id;
    if job.user != user {
        let words = format!("{id} belongs to another user; only its owner may attach to it");
        return Err(Status::permission_denied(words));
    }
    if !job.spec.pty {
        let words = format!("{id} has no terminal; `tidegate run --pty` submits jobs that have");
        return Err(Status::failed_precondition(words));
    }
    let waits = || Status::unavailable(format!("{id} has not started yet"));
    let newest = u32::try_from(job.attempts.len()).unwrap_or(u32::MAX);
    let task = TaskId { attempt: AttemptId { job: id, number: newest }, index: 0 };
    let Some(known) = view.core.books().task(task) else {
        return Err(if is_ended(job) { never_started(job) } else { waits() });
    };
    let node = view.core.books().nodes.get(&known.place.node).map(|node| node.name.clone());
    if let Some(exit) = &known.exit {
        // It will be started again as another attempt, or has ended for good.
        if matches!(job.state, JobState::Pending { .. }) {
            return Err(waits());
        }
        return Ok(Place::Over(exit.clone(), node));
    }
    if is_ended(job) {
        return Err(never_started(job));
    }
    if !known.started {
        return Err(waits());
    }
    let node = node_of(view, known, task, "its terminal was there")?;
    Ok(Place::Open(task, node))
}

fn is_ended(job: &Job) -> bool {
    matches!(job.state, JobState::Ended { .. })
}

fn never_started(job: &Job) -> Status {
    Status::failed_precondition(format!("{} has ended without having started", job.id))
}

/// Tells the agent to dial, and waits for it.
async fn dial(api: &Api, node: &NodeName, ask: v1::OpenTerminal) -> Result<Dialled, Status> {
    let mut expected = api.links.open_terminal(node, ask)?;
    let dialled = timeout(PATIENCE, &mut expected.will_be).await;
    let silent = || {
        Status::unavailable(format!(
            "{node} does not answer; its terminals can be seen when it does"
        ))
    };
    dialled.map_err(|_elapsed| silent())?.map_err(|_dropped| silent())
}

/// What the terminal says first: that it is there.
async fn first_of(dialled: &mut Dialled, task: &str) -> Result<Reply, Status> {
    let away = || Status::unavailable(format!("the terminal of {task} does not answer"));
    let first = timeout(PATIENCE, dialled.from.message()).await.map_err(|_elapsed| away())?;
    match first?.and_then(|first| first.message) {
        Some(From::Refused(why)) => Err(Status::unavailable(why)),
        Some(message) => told(message).ok_or_else(away),
        None => Err(away()),
    }
}

/// Until one of the two ends is gone.
async fn carry(
    mut client: Streaming<v1::AttachRequest>,
    dialled: Dialled,
    replies: mpsc::Sender<Result<v1::AttachReply, Status>>,
    _place: OwnedSemaphorePermit,
) {
    let Dialled { mut from, to } = dialled;
    let input = async {
        while let Ok(Some(asked)) = client.message().await {
            if let Some(message) = asked.message.and_then(meant)
                && to.send(Ok(v1::ToTerminal { message: Some(message) })).await.is_err()
            {
                return;
            }
        }
    };
    let output = async {
        while let Ok(Some(said)) = from.message().await {
            if let Some(From::Refused(why)) = said.message {
                drop(replies.send(Err(Status::unavailable(why))).await);
                return;
            }
            let Some(message) = said.message.and_then(told) else { continue };
            let is_last = matches!(message, Reply::Exit(_) | Reply::Taken(_));
            if replies.send(Ok(reply(message))).await.is_err() || is_last {
                return;
            }
        }
        let lost = Status::unavailable("the node closed the terminal");
        // Whoever has gone needs no word.
        drop(replies.send(Err(lost)).await);
    };
    tokio::select! {
        () = input => {}
        () = output => {}
    }
}

fn reply(message: Reply) -> v1::AttachReply {
    v1::AttachReply { message: Some(message) }
}

/// What a client may say after its first message.
fn meant(message: Ask) -> Option<To> {
    match message {
        Ask::Input(bytes) => Some(To::Input(bytes)),
        Ask::Size(size) => Some(To::Size(size)),
        Ask::Open(_) => None,
    }
}

/// What a client is told of what an agent says.
fn told(message: From) -> Option<Reply> {
    match message {
        From::Output(output) => Some(Reply::Output(output)),
        From::Taken(taken) => Some(Reply::Taken(taken)),
        From::Exit(exit) => Some(Reply::Exit(exit)),
        From::Request(_) | From::Refused(_) => None,
    }
}
