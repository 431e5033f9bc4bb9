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

use self::session::Session;
use crate::args::RunArgs;
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobs::{cancel_quietly, view};
use crate::progress::Progress;
use crate::retry::Patience;
use crate::screen::{self, Raw};
use crate::show::out::remark;
use crate::submit;
use crate::view::state::JobState;

/// Between two tries to attach to a job that does not run, or cannot be reached.
const POLL: Duration = Duration::from_millis(200);

/// Messages that may wait on their way to the job.
const MAX_WAITING: usize = 4;

/// Submits a command and works in it.
///
/// # Errors
/// If the job is refused, or ended other than with code 0: then with its command's own code.
pub(crate) async fn run(api: &Api, args: RunArgs) -> Result<(), Failure> {
    screen::check()?;
    let job = submit::run_one(api, args).await?;
    remark(&format!("{job} is submitted; Ctrl-C cancels it while it waits"));
    tokio::select! {
        opened = first(api, job) => work(api, job, opened?, Opening::Run).await,
        interrupted = signal::ctrl_c() => {
            interrupted.map_err(|why| Failure::new(Exit::Failed, format!("Ctrl-C: {why}")))?;
            cancel_quietly(api, job).await?;
            Err(Failure::new(Exit::Failed, format!("{job} is cancelled; nobody works in it")))
        }
    }
}

/// Works in a job that was submitted before.
///
/// # Errors
/// If it is not the caller's, has no terminal, or ended other than with code 0.
pub(crate) async fn attach(api: &Api, job: JobId) -> Result<(), Failure> {
    screen::check()?;
    let opened = first(api, job).await?;
    work(api, job, opened, Opening::Attach).await
}

/// How somebody came to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// Whoever submits a command wants to see what it prints, however soon it is over.
    Run,
    Attach,
}

/// A stream to and from a terminal.
struct Opened {
    to: mpsc::Sender<v1::AttachRequest>,
    from: Streaming<v1::AttachReply>,
}

/// What was seen of a terminal when the connection was lost.
#[derive(Debug, Clone, Default)]
struct Seen {
    task: String,
    /// How much of its output.
    after: Option<u64>,
}

/// Waits until the job runs, and says meanwhile why it does not.
async fn first(api: &Api, job: JobId) -> Result<Opened, Failure> {
    let mut progress = Progress::new(format!("waiting for {job}"));
    loop {
        match progress.during(open(api, job, &Seen::default())).await {
            Ok(opened) => return Ok(opened),
            Err(failure) if failure.exit() == Exit::Unavailable => {
                let words = progress.during(why(api, job, &failure)).await;
                progress.set(words);
                progress.during(sleep(POLL)).await;
            }
            Err(failure) => return Err(failure),
        }
    }
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
async fn open(api: &Api, job: JobId, seen: &Seen) -> Result<Opened, Failure> {
    let sender = RefCell::new(None);
    let once = Patience::none();
    let answer = api.ask(&once, async |mut client| {
        let (to, asks) = mpsc::channel(MAX_WAITING);
        let view = v1::TerminalView { size: screen::size(), after: seen.after };
        let (job, task) = (job.to_string(), seen.task.clone());
        let open = Ask::Open(Open { job, view: Some(view), task });
        // The channel is new, so there is room.
        to.try_send(v1::AttachRequest { message: Some(open) }).ok();
        sender.replace(Some(to));
        client.attach(ReceiverStream::new(asks)).await
    });
    let from = answer.await?.value;
    let to = sender.into_inner();
    to.map(|to| Opened { to, from }).ok_or_else(|| Failure::new(Exit::Broken, "nothing was asked"))
}

async fn work(api: &Api, job: JobId, opened: Opened, by: Opening) -> Result<(), Failure> {
    let raw = Raw::take()?;
    let mut session = Session::new(api, job, &raw)?;
    let end = session.run(opened).await;
    drop(raw);
    end?.told(api, job, by).await
}
