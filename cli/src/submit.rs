//! `submit` and `run`: a job is made, checked here first, and handed over under one key; an array
//! of jobs under keys that come of one.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tidegate_model::{Dependency, GpuCount, JobId, JobSpec, Span, SubmitKey, WhileWaiting};
use tidegate_proto::{parsed, text_up_to, v1};
use ulid::Ulid;

use crate::args::{HandOver, RunArgs, SubmitArgs};
use crate::array::{ArrayRange, key_at};
use crate::connect::Api;
use crate::dry_run;
use crate::exit::{Exit, Failure};
use crate::jobfile::{self, Dirs, JobFileError, MAX_FILE_BYTES};
use crate::jobs::broken;
use crate::retry::Patience;
use crate::show::out::{json, remark, say};
use crate::show::text::counted;
use crate::view::warning::{MinRuntime, Warning};

/// What was answered to a submit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Submitted {
    #[serde(serialize_with = "crate::view::as_text")]
    job: JobId,
    #[serde(serialize_with = "crate::view::as_text")]
    key: SubmitKey,
    /// The key had been answered before: the job is not new.
    repeated: bool,
    warnings: Vec<Warning>,
    /// How often it was asked until there was an answer.
    #[serde(skip)]
    tries: u32,
}

/// What was answered for one job of an array.
#[derive(Debug, Serialize)]
struct SubmittedOne {
    index: u32,
    #[serde(flatten)]
    submitted: Submitted,
}

/// Submits the job of a file, or an array of it.
///
/// # Errors
/// If the file is refused, or the coordinator refuses the job or does not answer.
pub(crate) async fn submit(api: &Api, args: SubmitArgs, as_json: bool) -> Result<(), Failure> {
    let spec = read(&args.file)?;
    let handed_over = hand_over(api, (spec, MinRuntime::Given), &args.hand_over, as_json).await;
    handed_over.map_err(|failure| naming(failure, &args.file))
}

/// The coordinator knows what would help, and not the file's name.
fn naming(failure: Failure, file: &Path) -> Failure {
    match failure {
        Failure::Told { exit, message } => {
            let named = format!("`tidegate rehearse {}`", file.display());
            Failure::Told { exit, message: message.replace("`tidegate rehearse FILE`", &named) }
        }
        Failure::Command { .. } | Failure::OutputClosed => failure,
    }
}

/// Submits a job that the caller stays with.
///
/// # Errors
/// As [`submit`].
pub(crate) async fn one(
    api: &Api,
    spec: JobSpec,
    key: Option<SubmitKey>,
) -> Result<JobId, Failure> {
    let key = key.unwrap_or_else(new_key);
    let submitted = ask(api, (spec, MinRuntime::Given), key, key).await?;
    remark_on(&submitted);
    Ok(submitted.job)
}

/// Submits a command, or an array of it.
///
/// # Errors
/// As [`submit`].
pub(crate) async fn run(api: &Api, args: RunArgs, as_json: bool) -> Result<(), Failure> {
    let HandOver { key, array, whole_cluster, dry_run } = args.hand_over;
    let asked = spec(args)?;
    hand_over(api, asked, &HandOver { key, array, whole_cluster, dry_run }, as_json).await
}

/// Submits a command that the caller stays with.
///
/// # Errors
/// As [`submit`].
pub(crate) async fn run_one(api: &Api, args: RunArgs) -> Result<JobId, Failure> {
    let key = args.hand_over.key.unwrap_or_else(new_key);
    let submitted = ask(api, spec(args)?, key, key).await?;
    remark_on(&submitted);
    Ok(submitted.job)
}

async fn hand_over(
    api: &Api,
    (mut spec, min_runtime): (JobSpec, MinRuntime),
    how: &HandOver,
    as_json: bool,
) -> Result<(), Failure> {
    spec.whole_cluster |= how.whole_cluster;
    if how.dry_run {
        return dry_run::dry_run(api, spec, min_runtime, as_json).await;
    }
    let key = how.key.unwrap_or_else(new_key);
    if let Some(range) = how.array {
        return hand_over_array(api, &spec, range, key, as_json).await;
    }
    let submitted = ask(api, (spec, min_runtime), key, key).await?;
    remark_on(&submitted);
    if as_json { json(&submitted) } else { say(&submitted.job.to_string()) }
}

/// One after the other, once all of them are known to be jobs. Ids are told as they come.
async fn hand_over_array(
    api: &Api,
    spec: &JobSpec,
    range: ArrayRange,
    base: SubmitKey,
    as_json: bool,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Array {
        #[serde(serialize_with = "crate::view::as_text")]
        key: SubmitKey,
        jobs: Vec<SubmittedOne>,
    }
    range.indexes().try_for_each(|index| range.job(spec, index, base).map(drop))?;
    let (mut jobs, mut ids, mut repeated) = (Vec::new(), Vec::new(), 0_u64);
    for (place, index) in range.indexes().enumerate() {
        let job = range.job(spec, index, base)?;
        let submitted = ask(api, (job, MinRuntime::Given), key_at(base, place), base).await;
        let submitted = submitted.map_err(|failure| in_part(failure, ids.len(), base))?;
        if ids.is_empty() {
            // They are alike.
            submitted.warnings.iter().for_each(Warning::remark);
        }
        ids.push(submitted.job);
        repeated += u64::from(submitted.repeated && submitted.tries == 1);
        if as_json {
            jobs.push(SubmittedOne { index, submitted });
        } else {
            say(&submitted.job.to_string())?;
        }
    }
    if repeated > 0 {
        let (repeated, all) = (counted(repeated, "job"), ids.len());
        remark(&format!("{repeated} of {all} had been accepted before, under the key {base}"));
    }
    if as_json { json(&Array { key: base, jobs }) } else { Ok(()) }
}

/// What a person must know of an array of which only the first jobs were accepted.
fn in_part(failure: Failure, accepted: usize, base: SubmitKey) -> Failure {
    match &failure {
        Failure::Told { exit, message } if accepted > 0 => {
            let jobs = counted(u64::try_from(accepted).unwrap_or(u64::MAX), "job");
            // A submit in doubt names the key already.
            let key = if *exit == Exit::Unavailable {
                String::new()
            } else {
                format!("; the key of the array is {base}")
            };
            Failure::new(*exit, format!("after {jobs} of the array: {message}{key}"))
        }
        Failure::Told { .. } | Failure::Command { .. } | Failure::OutputClosed => failure,
    }
}

pub(crate) fn new_key() -> SubmitKey {
    SubmitKey(Ulid::generate().into())
}

/// One key for all tries: however often it is asked, one job is made. `given` is the key that a
/// person repeats by hand.
async fn ask(
    api: &Api,
    (spec, min_runtime): (JobSpec, MinRuntime),
    key: SubmitKey,
    given: SubmitKey,
) -> Result<Submitted, Failure> {
    let request = v1::SubmitRequest { key: key.to_string(), spec: Some(spec.into()) };
    let patience = Patience::of_submit(&key.to_string());
    let answer = api
        .ask(&patience, async |mut client| client.submit(request.clone()).await)
        .await
        .map_err(|failure| with_key(failure, given))?;
    let v1::SubmitReply { job, repeated, warnings } = answer.value;
    let job: JobId = parsed(&job, "SubmitReply.job").map_err(|error| broken(&error))?;
    let warnings = min_runtime.worth_saying(warnings);
    Ok(Submitted { job, key, repeated, warnings, tries: answer.tries })
}

/// Says aside that a job is not new, and what is seldom meant.
fn remark_on(Submitted { job, key, repeated, warnings, tries }: &Submitted) {
    warnings.iter().for_each(Warning::remark);
    if *repeated && *tries > 1 {
        remark(&format!("an earlier try had been accepted: {job} is that job (key {key})"));
    } else if *repeated {
        remark(&format!("the key {key} had been answered before: {job} is that job"));
    }
}

/// A submit in doubt may be repeated by hand, with the key that was used.
fn with_key(failure: Failure, key: SubmitKey) -> Failure {
    match &failure {
        Failure::Told { exit: Exit::Unavailable, message } => Failure::new(
            Exit::Unavailable,
            format!("{message}; repeat with --key {key} and no second job can come of it"),
        ),
        Failure::Told { .. } | Failure::Command { .. } | Failure::OutputClosed => failure,
    }
}

pub(crate) fn read(file: &Path) -> Result<JobSpec, Failure> {
    let current = current_dir()?;
    let bounded = |from: &mut dyn Read| text_up_to(MAX_FILE_BYTES, from);
    let (shown, of_file, text) = if file == Path::new("-") {
        ("standard input".to_owned(), current.clone(), bounded(&mut io::stdin().lock()))
    } else {
        let shown = file.display().to_string();
        let dir = file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        (shown, current.join(dir), File::open(file).and_then(|mut file| bounded(&mut file)))
    };
    let refused = |why: &dyn ToString| Failure::refused(format!("{shown}: {}", why.to_string()));
    let text = text.map_err(|error| refused(&error))?;
    let dirs = Dirs { current: &current, of_file: &of_file };
    jobfile::parse(&text, dirs).map_err(|error| refused(&error))
}

/// What a command is asked with if nothing else was said.
struct Defaults {
    min_runtime: Span,
    max_restarts: u32,
}

impl Defaults {
    const OF_JOBS: Self = Self {
        min_runtime: jobfile::DEFAULT_MIN_RUNTIME,
        max_restarts: jobfile::DEFAULT_MAX_RESTARTS,
    };
}

/// Small, so that it starts at once; and nobody sits at its second attempt.
const INTERACTIVE: Defaults = Defaults { min_runtime: Span::hours(1), max_restarts: 0 };

fn spec(args: RunArgs) -> Result<(JobSpec, MinRuntime), Failure> {
    let current = current_dir()?;
    let refused = |error: JobFileError| Failure::refused(error.to_string());
    let directory = |key, dir: &Path| jobfile::directory(key, &current.join(dir)).map_err(refused);
    let checkpoint_dir = args.checkpoint_dir.as_deref();
    let checkpoint_dir = checkpoint_dir.map(|dir| directory("checkpoint_dir", dir)).transpose()?;
    let checkpoint = jobfile::checkpoint::of_words(&args.checkpoint).map_err(refused)?;
    let asked = args.no_free.then_some(WhileWaiting::Wait);
    let defaults = if args.pty { &INTERACTIVE } else { &Defaults::OF_JOBS };
    let given = if args.min_runtime.is_some() { MinRuntime::Given } else { MinRuntime::Default };
    let min_runtime = args.min_runtime.unwrap_or(defaults.min_runtime);
    let while_waiting = jobfile::while_waiting(asked, min_runtime, checkpoint.as_ref());
    let after =
        |jobs: Vec<JobId>, success| jobs.into_iter().map(move |job| Dependency { job, success });
    let mut env = args.env;
    if args.pty && !env.iter().any(|(name, _)| name == "TERM") {
        env.push(("TERM".to_owned(), env::var("TERM").unwrap_or_else(|_| "xterm".to_owned())));
    }
    env.sort();
    // A terminal belongs to one task.
    let gpus_per_node = args.gpus_per_node.or_else(|| args.pty.then_some(args.gpus));
    let spec = JobSpec {
        name: args.name.unwrap_or_else(|| jobfile::program_name(&args.command)),
        account: args.account,
        command: args.command,
        working_dir: directory("working_dir", args.workdir.as_deref().unwrap_or(&current))?,
        env,
        gpus: GpuCount(args.gpus),
        gpus_per_node: gpus_per_node.map(GpuCount),
        layout: args.tasks.into(),
        min_runtime,
        grace: args.grace,
        max_restarts: args.max_restarts.unwrap_or(defaults.max_restarts),
        checkpoint_dir: checkpoint_dir.map(Into::into),
        log_cap: args.log_cap,
        gpu_type: args.gpu_type,
        max_blocks: args.max_blocks,
        own_order: args.order,
        while_waiting: while_waiting.map_err(refused)?,
        checkpoint,
        after: after(args.after, false).chain(after(args.after_success, true)).collect(),
        notify_url: args.notify_url.map(Into::into),
        pty: args.pty,
        whole_cluster: args.hand_over.whole_cluster,
        array: None,
    };
    let spec = spec.fit_to_submit().map_err(|error| refused(error.into()))?;
    Ok((spec, given))
}

fn current_dir() -> Result<PathBuf, Failure> {
    let told = |error| Failure::new(Exit::Failed, format!("the current directory: {error}"));
    env::current_dir().map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submit_in_doubt_tells_its_key_and_a_refused_one_does_not() {
        let told = |exit| with_key(Failure::new(exit, "why"), SubmitKey(0)).to_string();
        assert_eq!(
            told(Exit::Unavailable),
            "why; repeat with --key 00000000000000000000000000 and no second job can come of it"
        );
        assert_eq!(told(Exit::Refused), "why");
    }
}
