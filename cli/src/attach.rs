//! `run --pty` and `attach`: working in a job. Waits until it runs, gives it the terminal, comes
//! back to it when a connection is lost, and ends as its command ended.
//!
//! What is not here: the terminal that the job sees; it is kept on the job's node, and the job
//! goes on in it whether anybody looks or not.

mod end;
mod session;

use std::cell::RefCell;
use std::time::Duration;

use tidegate_model::JobId;
use tidegate_proto::v1;
use tokio::signal;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::attach_request::{Message as Ask, Open};

use self::end::End;
use self::session::Session;
use crate::args::RunArgs;
use crate::cancel::cancel_quietly;
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobs::view;
use crate::progress::Progress;
use crate::retry::Patience;
use crate::screen::{self, Raw};
use crate::show::out::remark;
use crate::submit;
use crate::view::state::JobState;

/// Between two tries to attach to a job that does not run, or cannot be reached.
const POLL: Duration = Duration::from_millis(200);

/// As a shell has it of a command that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Messages that may wait on their way to the job.
const MAX_WAITING: usize = 4;

/// Submits a command and works in it.
///
/// # Errors
/// If the job is refused, or ended other than with code 0: then with its command's own code.
pub(crate) async fn run(api: &Api, args: RunArgs) -> Result<(), Failure> {
    screen::check()?;
    let job = submit::run_one(api, args).await?;
    remark(&format!(
        "{job} is submitted; while it waits Ctrl-C cancels it, and Ctrl-] d leaves it waiting"
    ));
    let raw = Raw::to_wait()?;
    let mut session = Session::new(api, job, &raw)?;
    let viewer = session.viewer();
    let opened = tokio::select! {
        opened = first(api, job, &viewer) => Some(opened?),
        () = session.left() => None,
        interrupted = signal::ctrl_c() => {
            interrupted.map_err(|why| Failure::new(Exit::Failed, format!("Ctrl-C: {why}")))?;
            cancel_quietly(api, job).await?;
            return Err(Failure::new(Exit::Failed, format!("{job} is cancelled; nobody works in it")));
        }
    };
    let end = work(&mut session, &raw, opened.map(|first| first.opened)).await;
    drop(raw);
    end?.told(api, job, Opening::Run).await
}

/// Works in a job that was submitted before.
///
/// # Errors
/// If it is not the caller's, has no terminal, or ended other than with code 0.
pub(crate) async fn attach(api: &Api, job: JobId) -> Result<(), Failure> {
    screen::check()?;
    let raw = Raw::to_wait()?;
    let mut session = Session::new(api, job, &raw)?;
    let viewer = session.viewer();
    let first = tokio::select! {
        first = first(api, job, &viewer) => Some(first?),
        () = session.left() => None,
        interrupted = signal::ctrl_c() => {
            interrupted.map_err(|why| Failure::new(Exit::Failed, format!("Ctrl-C: {why}")))?;
            return Err(Failure::Command { code: INTERRUPTED });
        }
    };
    let waited = first.as_ref().is_some_and(|first| first.waited);
    let end = work(&mut session, &raw, first.map(|first| first.opened)).await;
    drop(raw);
    end?.told(api, job, if waited { Opening::Run } else { Opening::Attach }).await
}

/// How somebody came to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// Whoever submits a command, or waits for it, wants to see what it prints, however soon it is
    /// over.
    Run,
    Attach,
}

/// What came of the wait for a terminal.
struct First {
    opened: Opened,
    /// It was not there at once.
    waited: bool,
}

/// A stream to and from a terminal.
struct Opened {
    to: mpsc::Sender<v1::AttachRequest>,
    from: Streaming<v1::AttachReply>,
}

/// One person at one window: the coordinator tells by it whether somebody came after.
#[derive(Debug, Clone)]
struct Viewer {
    name: String,
    /// It had the terminal before.
    again: bool,
}

/// What was seen of a terminal when the connection was lost.
#[derive(Debug, Clone, Default)]
struct Seen {
    task: String,
    /// How much of its output.
    after: Option<u64>,
}

/// Waits until the job runs, and says meanwhile why it does not.
async fn first(api: &Api, job: JobId, viewer: &Viewer) -> Result<First, Failure> {
    let mut progress = Progress::new(format!("waiting for {job}"));
    let mut waited = false;
    loop {
        match progress.during(open(api, job, viewer, &Seen::default())).await {
            Ok(opened) => return Ok(First { opened, waited }),
            Err(failure) if failure.exit() == Exit::Unavailable => {
                let words = progress.during(why(api, job, &failure)).await;
                progress.set(words);
                progress.during(sleep(POLL)).await;
                waited = true;
            }
            Err(failure) if waited && has_ended(api, job).await => {
                return Err(Failure::new(Exit::Failed, failure.to_string()));
            }
            Err(failure) => return Err(failure),
        }
    }
}

async fn has_ended(api: &Api, job: JobId) -> bool {
    view(api, &Patience::none(), job).await.is_ok_and(|now| now.state.is_ended())
}

/// Why there is nothing to work in now.
async fn why(api: &Api, job: JobId, failure: &Failure) -> String {
    match view(api, &Patience::none(), job).await {
        Ok(now) if now.state == JobState::Pending => {
            format!("{job} is {}: {}", now.state.word(), now.reason)
        }
        Ok(_) | Err(_) => failure.to_string(),
    }
}

/// Asks once for the terminal.
async fn open(api: &Api, job: JobId, viewer: &Viewer, seen: &Seen) -> Result<Opened, Failure> {
    let sender = RefCell::new(None);
    let once = Patience::none();
    let answer = api.ask(&once, async |mut client| {
        let (to, asks) = mpsc::channel(MAX_WAITING);
        let view = v1::TerminalView { size: screen::size(), after: seen.after };
        let (job, task) = (job.to_string(), seen.task.clone());
        let Viewer { name: viewer, again } = viewer.clone();
        let open = Ask::Open(Open { job, view: Some(view), task, viewer, again });
        // The channel is new, so there is room.
        to.try_send(v1::AttachRequest { message: Some(open) }).ok();
        sender.replace(Some(to));
        client.attach(ReceiverStream::new(asks)).await
    });
    let from = answer.await?.value;
    let to = sender.into_inner();
    to.map(|to| Opened { to, from }).ok_or_else(|| Failure::new(Exit::Broken, "nothing was asked"))
}

/// None: the person left before there was a terminal.
async fn work(
    session: &mut Session<'_>,
    raw: &Raw,
    opened: Option<Opened>,
) -> Result<End, Failure> {
    let Some(opened) = opened else { return Ok(End::Detached) };
    raw.to_work()?;
    session.run(opened).await
}
