//! `rehearse`: the job of a file is started, asked to save, stopped and started again, and what was
//! seen is told. The coordinator leads it; here it is submitted and looked at.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tidegate_model::{AskAfter, GpuCount, JobId, JobSpec, Span, Timestamp, WhileWaiting};
use tidegate_proto::v1;
use tokio::time::{Instant, sleep};

use crate::args::RehearseArgs;
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobs::view;
use crate::progress::Progress;
use crate::retry::Patience;
use crate::show::out::{json, remark, say};
use crate::show::table;
use crate::show::text::counted;
use crate::show::time::rounded;
use crate::submit;
use crate::view::job::{Attempt, Job};
use crate::view::rehearsal::Rehearsal;
use crate::view::state::JobState;

/// Between two looks.
const POLL: Duration = Duration::from_millis(200);

/// Rehearses the job of a file, and tells what came of it.
///
/// # Errors
/// If the file or the job is refused, the rehearsal failed or came to no verdict, or the coordinator
/// does not answer.
pub(crate) async fn rehearse(api: &Api, args: RehearseArgs, as_json: bool) -> Result<(), Failure> {
    let began = Instant::now();
    let spec = submit::read(&args.file)?;
    let spec = rehearsed(spec, &args)
        .map_err(|why| Failure::refused(format!("{}: {why}", args.file.display())))?;
    let id = submit::one(api, spec, args.key).await?;
    remark(&format!(
        "{id} is the rehearsal; Ctrl-C leaves it to its end: `tidegate job {id}` tells the result, \
         `tidegate cancel {id}` ends it"
    ));
    let mut followed = Followed { api, id, told: BTreeSet::new() };
    let deadline = args.timeout.map(|span| began + Duration::from_millis(span.0));
    let (job, in_time) = followed.until_over(deadline).await?;
    tell(&job, in_time, as_json)
}

/// The job of the file, as one that is only rehearsed.
fn rehearsed(spec: JobSpec, args: &RehearseArgs) -> Result<JobSpec, String> {
    let Some(mut offer) = spec.checkpoint else {
        let why = "checkpoint: none given; a rehearsal asks the job to save, and the table \
                   checkpoint says how";
        return Err(why.to_owned());
    };
    offer.rehearsal = Some(args.ask_after);
    let gpus = args.gpus.map_or(spec.gpus, GpuCount);
    let per_node = args.gpus_per_node.map(GpuCount);
    let gpus_per_node = per_node.or_else(|| spec.gpus_per_node.map(|own| own.min(gpus)));
    let min_runtime = args.min_runtime.unwrap_or(Span::ZERO);
    let waits_free = min_runtime == Span::ZERO;
    let spec = JobSpec {
        gpus,
        gpus_per_node,
        min_runtime,
        while_waiting: if waits_free { WhileWaiting::Free } else { spec.while_waiting },
        checkpoint: Some(offer),
        // It waits for nobody's result, and none waits for its own.
        after: Vec::new(),
        ..spec
    };
    spec.fit_to_submit().map_err(|error| error.to_string())
}

/// What a script is told.
#[derive(Debug, Serialize)]
struct Told<'job> {
    #[serde(serialize_with = "crate::view::as_text")]
    job: JobId,
    state: JobState,
    /// Null = it came to none.
    passed: Option<bool>,
    rehearsal: Option<&'job Rehearsal>,
}

fn tell(job: &Job, in_time: bool, as_json: bool) -> Result<(), Failure> {
    let (id, shown) = (job.job, job.rehearsal.as_ref());
    let passed = verdict(job);
    if as_json {
        json(&Told { job: id, state: job.state, passed, rehearsal: shown })?;
    } else if let Some(shown) = shown {
        say(&table::rehearsal(shown, job.commit.as_ref()))?;
    }
    let why = shown.and_then(|shown| shown.why.clone()).unwrap_or_else(|| job.reason.clone());
    match passed {
        Some(true) => Ok(()),
        Some(false) => {
            Err(Failure::new(Exit::Rehearsal, format!("the rehearsal {id} failed: {why}")))
        }
        None if !in_time => {
            let words = format!("no verdict in time; {id} is cancelled");
            Err(Failure::new(Exit::Failed, words))
        }
        None => {
            let words = format!("{id} is {}, without a verdict: {why}", job.state.word());
            Err(Failure::new(Exit::Failed, words))
        }
    }
}

/// A rehearsal ends by its verdict, unless it is cancelled. A coordinator before this release forgot what it
/// showed when a later one of its recipe was judged.
fn verdict(job: &Job) -> Option<bool> {
    let shown = job.rehearsal.as_ref().map(|shown| shown.passed);
    shown.or(match job.state {
        JobState::Done if !job.cancel_requested => Some(true),
        JobState::Failed => Some(false),
        JobState::Done
        | JobState::Pending
        | JobState::Active
        | JobState::Cancelled
        | JobState::Unknown => None,
    })
}

struct Followed<'a> {
    api: &'a Api,
    id: JobId,
    told: BTreeSet<(u32, Phase)>,
}

/// How far an attempt of a rehearsal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    CommittedByItself,
    Asked,
    Told,
    Committed,
    Ended,
}

impl Followed<'_> {
    /// Tells how far it is until it has ended. Whether it did so in time: else it is cancelled.
    async fn until_over(&mut self, deadline: Option<Instant>) -> Result<(Job, bool), Failure> {
        let mut progress = Progress::new(format!("waiting for {}", self.id));
        loop {
            let job = view(self.api, &Patience::endless(), self.id).await?;
            if job.spec.checkpoint.as_ref().is_none_or(|offer| offer.ask_after_ms.is_none()) {
                self.cancel().await?;
                let words = "the coordinator is older than this command and knows no rehearsals";
                return Err(Failure::refused(words));
            }
            let news = self.news(&job);
            if !news.is_empty() {
                // The line that stands for the wait goes before others come.
                drop(progress);
                news.iter().for_each(|line| remark(line));
                progress = Progress::new(format!("waiting for {}", self.id));
            }
            if job.state.is_ended() {
                return Ok((job, true));
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                self.cancel().await?;
                let job = view(self.api, &Patience::endless(), self.id).await?;
                return Ok((job, false));
            }
            progress.set(format!("{} is {}: {}", self.id, job.state.word(), job.reason));
            progress.during(sleep(POLL)).await;
        }
    }

    async fn cancel(&self) -> Result<(), Failure> {
        let request = v1::CancelRequest { job: self.id.to_string() };
        self.api.read(async |mut client| client.cancel(request.clone()).await).await.map(drop)
    }

    /// What was not told yet.
    fn news(&mut self, job: &Job) -> Vec<String> {
        let of = |attempt| phases(job, attempt).into_iter().map(move |phase| (attempt, phase));
        let mut news = Vec::new();
        for (attempt, (phase, line)) in job.attempts.iter().flat_map(of) {
            if self.told.insert((attempt.attempt.number, phase)) {
                news.push(format!("{} {line}", attempt.attempt));
            }
        }
        news
    }
}

/// How far an attempt has come, in words.
fn phases(job: &Job, attempt: &Attempt) -> Vec<(Phase, String)> {
    let mut phases = Vec::new();
    let save = attempt.save.as_ref();
    let told = save.and_then(|save| save.admitted_ms);
    if attempt.running_ms.is_some() {
        let gpus: usize = attempt.tasks.iter().map(|task| task.gpus.len()).sum();
        let gpus = counted(u64::try_from(gpus).unwrap_or(u64::MAX), "GPU");
        phases.push((Phase::Running, format!("runs on {gpus}")));
    }
    let commit = attempt.committed_ms.map(|at| committed(told, at, &step(job, attempt)));
    let (own, asked): (Vec<_>, Vec<_>) =
        commit.into_iter().partition(|(phase, _)| *phase == Phase::CommittedByItself);
    phases.extend(own);
    if save.is_some() {
        phases.push((Phase::Asked, "is asked to save".to_owned()));
    }
    if let Some((asked, told)) = save.map(|save| save.at_ms).zip(told)
        && told.since(asked) >= Span::seconds(1)
    {
        let waited = rounded(told.since(asked));
        phases.push((Phase::Told, format!("may save, {waited} later")));
    }
    phases.extend(asked);
    if let Some(ended) = attempt.ended_ms {
        let since = told
            .map(|told: Timestamp| format!(", {} after it was told", rounded(ended.since(told))));
        let (word, since) = (attempt.state.word(), since.unwrap_or_default());
        phases.push((Phase::Ended, format!("has left: {word}{since}")));
    }
    phases
}

/// Its newest commit, in words: because it was told to, or by itself. The one that it is asked after is of the
/// same instant as the request.
fn committed(told: Option<Timestamp>, at: Timestamp, step: &str) -> (Phase, String) {
    match told.filter(|told| at > *told) {
        Some(told) => {
            let took = rounded(at.since(told));
            (Phase::Committed, format!("committed{step} {took} after it was told"))
        }
        None => (Phase::CommittedByItself, format!("committed{step} by itself")),
    }
}

/// The step of its commit, while that is the newest of its job.
fn step(job: &Job, attempt: &Attempt) -> String {
    let id = attempt.attempt.to_string();
    let own = job.commit.as_ref().filter(|commit| commit.attempt == id);
    own.map(|commit| format!(" step {}", commit.step)).unwrap_or_default()
}

impl RehearseArgs {
    /// Two minutes: most jobs have taken some steps by then.
    pub(crate) const ASK_AFTER: &str = "2m";
}

/// How long a rehearsal trains, as it is given.
pub(crate) fn ask_after(text: &str) -> Result<AskAfter, String> {
    let (least, most) = tidegate_model::ASK_AFTER_RANGE;
    let span = text.parse().ok().and_then(AskAfter::of);
    span.ok_or_else(|| format!("a span of time such as 90s, from {least} to {most}, is accepted"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(told: Option<u64>, at: u64, expected: (Phase, &str)) {
        let (phase, words) = committed(told.map(Timestamp), Timestamp(at), " step 7");
        assert_eq!((phase, words.as_str()), expected);
    }

    #[test]
    fn a_commit_that_nobody_asked_for_is_not_told_as_one_that_took_no_time() {
        check(None, 5000, (Phase::CommittedByItself, "committed step 7 by itself"));
        check(Some(5000), 5000, (Phase::CommittedByItself, "committed step 7 by itself"));
        check(Some(5000), 8000, (Phase::Committed, "committed step 7 3s after it was told"));
    }
}
