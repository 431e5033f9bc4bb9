//! How the work in a job is over, and what is said of it then.

use std::time::Duration;

use tidegate_model::{JobId, TaskExit};
use tokio::time::{Instant, sleep};

use super::Opening;
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobs::view;
use crate::logs::{Sink, Stream, Tail};
use crate::retry::Patience;
use crate::show::out::remark;
use crate::view::job::{Attempt, Job};

/// How long what became of the job may take to be known; its node may have told of it a moment ago.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks for it: somebody waits for a prompt.
const POLL: Duration = Duration::from_millis(50);

/// How the work in a job is over.
#[derive(Debug)]
pub(super) enum End {
    Exit(Ended),
    Detached,
    Taken,
}

/// The end of the command.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) exit: TaskExit,
    pub(super) shown: Shown,
    /// The attempt that was worked in; none if no terminal was opened.
    pub(super) attempt: Option<u32>,
}

/// How much the person has seen of what the command printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// It was over before a terminal was opened.
    Nothing,
    /// It was over before the terminal was opened again.
    Part,
    All,
}

impl End {
    /// Says what there is to say, and ends as the command did.
    pub(super) async fn told(self, api: &Api, job: JobId, by: Opening) -> Result<(), Failure> {
        match self {
            Self::Detached => {
                remark(&format!("{job} goes on; `tidegate attach {job}` comes back to it"));
                Ok(())
            }
            Self::Taken => {
                Err(Failure::new(Exit::Failed, format!("{job} is attached elsewhere from now on")))
            }
            Self::Exit(ended) => ended.told(api, job, by).await,
        }
    }
}

impl Ended {
    async fn told(self, api: &Api, job: JobId, by: Opening) -> Result<(), Failure> {
        let Self { exit, shown, attempt } = self;
        let now = once_ended(api, job, attempt).await;
        let is_ended = now.as_ref().is_some_and(|now| now.state.is_ended());
        match (shown, by) {
            (Shown::Nothing, Opening::Run) => show_log(api, job).await?,
            (Shown::Nothing, Opening::Attach) if is_ended && exited(&exit) => {
                remark(&format!("{job} has ended: {}", short(&exit)));
            }
            (Shown::Part, _) => {
                remark(&format!("what it printed last is in `tidegate logs {job}`"));
            }
            (Shown::Nothing, Opening::Attach) | (Shown::All, _) => {}
        }
        if let Some(now) = &now {
            let is_plain = is_ended && matches!(exit, TaskExit::Exited(_));
            if exited(&exit) && !is_plain {
                tell_why(now, attempt);
            }
            if !is_ended {
                remark(&format!(
                    "{job} starts again; `tidegate attach {job}` to look, `tidegate cancel {job}` \
                     to end it"
                ));
            }
        }
        match exit {
            TaskExit::Exited(0) => Ok(()),
            TaskExit::Exited(code) => Err(Failure::Command { code }),
            // As a shell has it.
            TaskExit::Signaled(signal) => {
                Err(Failure::Command { code: 128_u8.saturating_add(signal) })
            }
            TaskExit::NeverStarted(why) | TaskExit::Lost(why) => {
                let what = if is_ended { "" } else { "this attempt of " };
                Err(Failure::new(Exit::Failed, format!("{what}{job} ended: {why}")))
            }
        }
    }
}

/// Whether it was the command that ended; otherwise what became of it is told as a failure.
fn exited(exit: &TaskExit) -> bool {
    matches!(exit, TaskExit::Exited(_) | TaskExit::Signaled(_))
}

fn short(exit: &TaskExit) -> String {
    match exit {
        TaskExit::Exited(code) => format!("exit {code}"),
        TaskExit::Signaled(_) | TaskExit::NeverStarted(_) | TaskExit::Lost(_) => exit.to_string(),
    }
}

/// The job once the attempt has ended; the newest, if none was worked in.
async fn once_ended(api: &Api, job: JobId, attempt: Option<u32>) -> Option<Job> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let now = view(api, &Patience::none(), job).await.ok()?;
        if now.state.is_ended() || worked_in(&now, attempt)?.state.is_ended() {
            return Some(now);
        }
        sleep(POLL).await;
    }
    None
}

fn worked_in(job: &Job, attempt: Option<u32>) -> Option<&Attempt> {
    attempt.map_or_else(|| job.newest(), |number| job.attempt(number))
}

/// Somebody else may have ended it.
fn tell_why(job: &Job, attempt: Option<u32>) {
    let why = worked_in(job, attempt).map(|attempt| attempt.why.as_str());
    if let Some(why) = why.filter(|why| !why.is_empty()) {
        remark(&format!("{}: {why}", job.job));
    }
}

/// What a command printed that was over before anybody could look.
async fn show_log(api: &Api, job: JobId) -> Result<(), Failure> {
    let mut tail = Tail::new(job, None, 0, Stream::Stdout);
    loop {
        match tail.read(api, &Patience::of_reads()).await {
            Ok(page) => {
                page.tell(Sink::Stdout)?;
                if page.is_last {
                    return Ok(());
                }
            }
            // It printed nothing.
            Err(failure) if failure.exit() == Exit::NotFound => return Ok(()),
            Err(failure) => {
                remark(&format!("what it printed is in `tidegate logs {job}`; now: {failure}"));
                return Ok(());
            }
        }
    }
}
