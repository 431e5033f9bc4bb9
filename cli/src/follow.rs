//! Following a job's output until the job ends, over its restarts, and telling how it ended.

use std::time::Duration;

use tidegate_model::{AttemptId, JobId};
use tokio::time::sleep;

use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobs::view;
use crate::logs::{Sink, Stream, Tail};
use crate::progress::Progress;
use crate::retry::Patience;
use crate::show::out::remark;
use crate::view::job::Job;
use crate::view::state::JobState;

/// Between two looks at a log that has not grown, or at a job that does not run.
const POLL: Duration = Duration::from_millis(200);

/// Looks at a silent log between two looks at its job: once a second.
const LOOKS_PER_VIEW: u32 = 5;

/// With which attempt to begin, and whether to go on to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    First,
    Newest,
    Only(u32),
}

/// Passes on the outputs of one task until the job ends.
///
/// # Errors
/// If there is no such log, or the job did not end well.
pub(crate) async fn follow(
    api: &Api,
    job: JobId,
    task: u32,
    start: Start,
    outputs: Vec<(Stream, Sink)>,
) -> Result<(), Failure> {
    let followed = Followed { api, job, task, outputs };
    let mut step = match start {
        Start::Only(number) => return followed.pass_on(number).await,
        Start::First => followed.after(0).await?,
        Start::Newest => {
            let newest = followed.now().await?.newest().map(|newest| newest.attempt.number);
            followed.after(newest.unwrap_or(1).saturating_sub(1)).await?
        }
    };
    let mut first = true;
    loop {
        let number = match step {
            Step::Attempt(number) => number,
            Step::Ended(job) => return verdict(&job),
        };
        if !first {
            remark(&format!("[{job} was started again: attempt {number}]"));
        }
        first = false;
        followed.pass_on(number).await?;
        step = followed.after(number).await?;
    }
}

fn verdict(job: &Job) -> Result<(), Failure> {
    let id = job.job;
    match job.state {
        JobState::Done => {
            remark(&format!("{id} is done"));
            Ok(())
        }
        JobState::Cancelled => Err(Failure::new(Exit::Failed, format!("{id} was cancelled"))),
        JobState::Failed | JobState::Pending | JobState::Active | JobState::Unknown => {
            Err(Failure::new(Exit::Failed, format!("{id} failed: {}", job.reason)))
        }
    }
}

struct Followed<'a> {
    api: &'a Api,
    job: JobId,
    task: u32,
    outputs: Vec<(Stream, Sink)>,
}

enum Step {
    Attempt(u32),
    Ended(Box<Job>),
}

impl Followed<'_> {
    async fn now(&self) -> Result<Job, Failure> {
        view(self.api, &Patience::endless(), self.job).await
    }

    /// Waits for the first attempt after this one, or the end of the job.
    async fn after(&self, number: u32) -> Result<Step, Failure> {
        let mut progress = Progress::new(format!("waiting for {}", self.job));
        loop {
            let job = self.now().await?;
            if let Some(next) = job.after(number) {
                return Ok(Step::Attempt(next.attempt.number));
            }
            if job.state.is_ended() {
                return Ok(Step::Ended(Box::new(job)));
            }
            progress.set(format!("{} is {}: {}", self.job, job.state.word(), job.reason));
            progress.during(sleep(POLL)).await;
        }
    }

    /// Passes on what one attempt writes until it has ended.
    async fn pass_on(&self, number: u32) -> Result<(), Failure> {
        self.check_task(number).await?;
        let tail = |stream| Tail::new(self.job, Some(number), self.task, stream);
        let mut tails: Vec<_> =
            self.outputs.iter().map(|(stream, sink)| (tail(*stream), *sink, false)).collect();
        let mut watch = Watch::default();
        while tails.iter().any(|(_, _, complete)| !complete) {
            let mut grew = false;
            for (tail, sink, complete) in &mut tails {
                if *complete {
                    continue;
                }
                // Asked again at the next look: a longer try would hold up the other output.
                match tail.read(self.api, &Patience::none()).await {
                    Ok(page) => {
                        page.tell(*sink)?;
                        grew |= !page.is_empty();
                        *complete = page.is_complete;
                    }
                    Err(failure) => watch.meet(failure)?,
                }
            }
            if grew {
                watch = Watch::default();
            } else if watch.has_ended(self, number).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn check_task(&self, number: u32) -> Result<(), Failure> {
        let job = self.now().await?;
        let id = AttemptId { job: self.job, number };
        let Some(attempt) = job.attempt(number) else {
            return Err(Failure::new(Exit::NotFound, format!("there is no {id}")));
        };
        let count = attempt.tasks.len();
        if count > 0 && usize::try_from(self.task).is_ok_and(|task| task >= count) {
            let message =
                format!("{id} has no task {}; its tasks are 0 to {}", self.task, count - 1);
            return Err(Failure::new(Exit::NotFound, message));
        }
        Ok(())
    }
}

/// Looks after an attempt whose log is silent.
#[derive(Default)]
struct Watch {
    /// Since its job was looked at.
    looks: u32,
    /// Its attempt had ended at the look before.
    ended: bool,
    /// Why its log cannot be read.
    trouble: Option<String>,
}

impl Watch {
    /// A log may not be there yet, or its node may be silent: only the job's end ends the wait.
    fn meet(&mut self, failure: Failure) -> Result<(), Failure> {
        match failure.exit() {
            Exit::NotFound | Exit::Refused => {
                self.trouble.get_or_insert_with(|| failure.to_string());
                Ok(())
            }
            Exit::Unavailable => {
                if self.trouble.is_none() {
                    remark(&format!("[{failure}; still following]"));
                }
                self.trouble = Some(failure.to_string());
                self.looks = LOOKS_PER_VIEW;
                Ok(())
            }
            Exit::Done
            | Exit::Failed
            | Exit::NotAllowed
            | Exit::Broken
            | Exit::Rehearsal
            | Exit::OfCommand(_) => Err(failure),
        }
    }

    /// Sleeps; true if the attempt has ended and its log has been silent ever since.
    async fn has_ended(&mut self, followed: &Followed<'_>, number: u32) -> Result<bool, Failure> {
        sleep(POLL).await;
        self.looks += 1;
        if self.looks < LOOKS_PER_VIEW {
            return Ok(false);
        }
        self.looks = 0;
        let job = followed.now().await?;
        let ended = job.attempt(number).is_none_or(|attempt| attempt.state.is_ended());
        let silent_since = std::mem::replace(&mut self.ended, ended) && ended;
        if silent_since {
            let id = AttemptId { job: followed.job, number };
            let why = self.trouble.take().unwrap_or_else(|| "no more of it came".to_owned());
            remark(&format!("[the log of {id} may be incomplete: {why}]"));
        }
        Ok(silent_since)
    }
}
