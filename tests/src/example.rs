//! Jobs of real frameworks, and of programs that behave like them: each submitted by its job file from
//! a directory of its own, as a person does, and displaced.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tidegate_model::{JobId, JobSpec, Span};
use tidegate_proto::v1;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::wait::until;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The text of a file, by its path from the project's root.
///
/// # Errors
/// If it cannot be read.
pub fn text(file: &str) -> anyhow::Result<String> {
    fs::read_to_string(Path::new(ROOT).join(file)).context(file.to_owned())
}

/// Submits a job file from a directory that has the job's name and copies of `files`.
///
/// # Errors
/// If a file is missing or the job is refused.
pub fn submit(
    cluster: &Cluster,
    name: &str,
    files: &[&str],
    job_file: &str,
) -> anyhow::Result<JobId> {
    let dir = cluster.dir().join(name);
    fs::create_dir(&dir)?;
    for file in files {
        let file = Path::new(ROOT).join(file);
        fs::copy(&file, dir.join(file.file_name().context("a file")?))?;
    }
    fs::write(dir.join("job.toml"), job_file)?;
    let mut tidegate = Command::new(cluster.binaries().path("tidegate"));
    tidegate.args(["submit", "--json", "job.toml"]).current_dir(&dir);
    let output = tidegate.env("TIDEGATE_API", cluster.socket()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    Ok(answer.get("job").and_then(Value::as_str).context("a job")?.parse()?)
}

/// A job that takes so many GPUs from whoever runs free, and is over at once.
#[must_use]
pub fn heir(cluster: &Cluster, gpus: u32) -> JobSpec {
    JobSpec { min_runtime: Span::seconds(10), ..cluster.job("heir", gpus) }
}

/// Takes so many GPUs from whoever runs free, for a moment.
///
/// # Errors
/// If its heir has not run after `within`.
pub async fn displace(cluster: &Cluster, gpus: u32, within: Duration) -> anyhow::Result<()> {
    let client = cluster.client()?;
    let heir = client.submit(&heir(cluster, gpus)).await?;
    let view = client.job_ended(heir, within).await?;
    ensure!(view.state() == v1::JobState::Done, "{view:#?}");
    Ok(())
}

/// Waits until the job has said a line that begins with `word`; what follows it.
///
/// # Errors
/// If it has not after `within`.
pub async fn says(
    client: &Client,
    (job, attempt, task): (JobId, u32, u32),
    word: &str,
    within: Duration,
) -> anyhow::Result<String> {
    let what = format!("{job}.{attempt}.{task} to say {word:?}");
    until(within, &what, async || match client.output(job, attempt, task).await {
        Ok(output) => {
            let found = said(&output, word).next().map(str::to_owned);
            found.ok_or(output)
        }
        Err(error) => Err(format!("{error:#}")),
    })
    .await
}

/// The job's last line, `final …`, once it is done with this attempt.
///
/// # Errors
/// If it is not after `within`, or ended otherwise.
pub async fn final_line(
    client: &Client,
    job: JobId,
    attempt: u32,
    within: Duration,
) -> anyhow::Result<String> {
    let view = client.job_ended(job, within).await?;
    let output = client.output(job, attempt, 0).await?;
    ensure!(view.state() == v1::JobState::Done, "{view:#?}\n{output}");
    let last = said(&output, "final ").next_back().map(str::to_owned);
    last.context(output)
}

/// What follows `word` in each line that begins with it.
pub fn said<'output>(
    output: &'output str,
    word: &'output str,
) -> impl DoubleEndedIterator<Item = &'output str> {
    output.lines().filter_map(move |line| line.strip_prefix(word))
}

/// What the attempts of a job came to.
#[must_use]
pub fn outcomes(view: &v1::JobView) -> Vec<v1::AttemptState> {
    view.attempts.iter().map(v1::AttemptView::state).collect()
}
