//! `submit` and `run`: a job is made, checked here first, and handed over under one key.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tidegate_model::{GpuCount, JobId, JobSpec, SubmitKey};
use tidegate_proto::{parsed, v1};
use ulid::Ulid;

use crate::args::{KeyArgs, RunArgs, SubmitArgs};
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobfile::{self, Dirs, JobFileError, MAX_FILE_BYTES};
use crate::jobs::broken;
use crate::retry::Patience;
use crate::show::out::{json, remark, say};

/// What was answered to a submit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Submitted {
    #[serde(serialize_with = "crate::view::job::as_text")]
    job: JobId,
    #[serde(serialize_with = "crate::view::job::as_text")]
    key: SubmitKey,
    /// The key had been answered before: the job is not new.
    repeated: bool,
}

/// Submits the job of a file.
///
/// # Errors
/// If the file is refused, or the coordinator refuses the job or does not answer.
pub(crate) async fn submit(api: &Api, args: SubmitArgs, as_json: bool) -> Result<(), Failure> {
    let submitted = hand_over(api, read(&args.file)?, &args.key).await?;
    tell(&submitted, as_json)
}

/// Submits a command. Its id is told on standard error if its output follows on the other.
///
/// # Errors
/// As [`submit`].
pub(crate) async fn run(api: &Api, args: RunArgs, as_json: bool) -> Result<JobId, Failure> {
    let (follow, key) = (args.follow, KeyArgs { key: args.key.key });
    let submitted = hand_over(api, spec(args)?, &key).await?;
    if follow {
        remark(&format!("{} is submitted; Ctrl-C leaves it running", submitted.job));
    } else {
        tell(&submitted, as_json)?;
    }
    Ok(submitted.job)
}

fn tell(submitted: &Submitted, as_json: bool) -> Result<(), Failure> {
    if as_json { json(submitted) } else { say(&submitted.job.to_string()) }
}

/// One key for all tries: however often it is asked, one job is made.
async fn hand_over(api: &Api, spec: JobSpec, key: &KeyArgs) -> Result<Submitted, Failure> {
    let key = key.key.unwrap_or_else(|| SubmitKey(Ulid::generate().into()));
    let request = v1::SubmitRequest { key: key.to_string(), spec: Some(spec.into()) };
    let patience = Patience::of_submit(&key.to_string());
    let answer = api
        .ask(&patience, async |mut client| client.submit(request.clone()).await)
        .await
        .map_err(|failure| with_key(failure, key))?;
    let v1::SubmitReply { job, repeated } = answer.value;
    let job: JobId = parsed(&job, "SubmitReply.job").map_err(|error| broken(&error))?;
    if repeated && answer.tries > 1 {
        remark(&format!("an earlier try had been accepted: {job} is that job (key {key})"));
    } else if repeated {
        remark(&format!("the key {key} had been answered before: {job} is that job"));
    }
    Ok(Submitted { job, key, repeated })
}

/// A submit in doubt may be repeated by hand, with the key that was used.
fn with_key(failure: Failure, key: SubmitKey) -> Failure {
    match &failure {
        Failure::Told { exit: Exit::Unavailable, message } => Failure::new(
            Exit::Unavailable,
            format!("{message}; repeat with --key {key} and no second job can come of it"),
        ),
        Failure::Told { .. } | Failure::OutputClosed => failure,
    }
}

fn read(file: &Path) -> Result<JobSpec, Failure> {
    let current = current_dir()?;
    let (shown, of_file, text) = if file == Path::new("-") {
        ("standard input".to_owned(), current.clone(), bounded(io::stdin().lock()))
    } else {
        let shown = file.display().to_string();
        let dir = file.parent().map_or_else(PathBuf::new, Path::to_path_buf);
        (shown, current.join(dir), File::open(file).and_then(bounded))
    };
    let refused = |why: &dyn ToString| Failure::refused(format!("{shown}: {}", why.to_string()));
    let text = text.map_err(|error| refused(&error))?;
    let dirs = Dirs { current: &current, of_file: &of_file };
    jobfile::parse(&text, dirs).map_err(|error| refused(&error))
}

fn bounded(file: impl Read) -> io::Result<String> {
    let mut text = String::new();
    let mut file = file.take(MAX_FILE_BYTES + 1);
    file.read_to_string(&mut text)?;
    if file.limit() == 0 {
        let why = format!("over {MAX_FILE_BYTES} bytes; a job file is at most that large");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

fn spec(args: RunArgs) -> Result<JobSpec, Failure> {
    let current = current_dir()?;
    let refused = |error: JobFileError| Failure::refused(error.to_string());
    let directory = |key, dir: &Path| jobfile::directory(key, &current.join(dir)).map_err(refused);
    let checkpoint_dir = args.checkpoint_dir.as_deref();
    let checkpoint_dir = checkpoint_dir.map(|dir| directory("checkpoint_dir", dir)).transpose()?;
    let mut env = args.env;
    env.sort();
    let spec = JobSpec {
        name: args.name.unwrap_or_else(|| jobfile::program_name(&args.command)),
        account: args.account,
        command: args.command,
        working_dir: directory("working_dir", args.workdir.as_deref().unwrap_or(&current))?,
        env,
        gpus: GpuCount(args.gpus),
        gpus_per_node: args.gpus_per_node.map(GpuCount),
        layout: args.tasks.into(),
        min_runtime: args.min_runtime,
        grace: args.grace,
        max_restarts: args.max_restarts,
        checkpoint_dir,
        log_cap: args.log_cap,
    };
    spec.checked().map_err(|error| refused(error.into()))
}

fn current_dir() -> Result<PathBuf, Failure> {
    let told = |error| Failure::new(Exit::Failed, format!("the current directory: {error}"));
    env::current_dir().map_err(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_over_the_bound_is_refused_and_one_at_it_is_read() {
        let bytes = |count: u64| io::repeat(b' ').take(count);
        assert!(bounded(bytes(MAX_FILE_BYTES)).is_ok());
        let told = bounded(bytes(u64::MAX)).unwrap_err().to_string();
        assert_eq!(told, "over 1048576 bytes; a job file is at most that large");
    }

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
