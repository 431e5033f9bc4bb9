//! A real framework on the line: `PyTorch`'s DDP under torchrun saves when it is asked, and resumes.
//!
//! Ignored by default: it needs Debian's python3-torch, 645 MB. `.ci/full` installs it.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::client::Client;
use cluster_tests::cluster::{Cluster, Plan};
use serde_json::Value;
use tidegate_model::{JobId, JobSpec, Span};
use tidegate_proto::v1;

/// Four ranks import torch on two cores, twice.
const PATIENCE: Duration = Duration::from_secs(120);
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/torch_ddp");

/// Submits the example as a person does, from a directory of its own.
fn submit(cluster: &Cluster, name: &str) -> JobId {
    let dir: PathBuf = cluster.dir().join(name);
    fs::create_dir(&dir).unwrap();
    for file in ["train.py", "job.toml"] {
        fs::copy(Path::new(EXAMPLE).join(file), dir.join(file)).unwrap();
    }
    let mut tidegate = Command::new(cluster.binaries().path("tidegate"));
    tidegate.args(["submit", "--json", "job.toml"]).current_dir(&dir);
    let output = tidegate.env("TIDEGATE_API", cluster.socket()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer.get("job").and_then(Value::as_str).unwrap().parse().unwrap()
}

async fn final_line(client: &Client, job: JobId, attempt: u32) -> String {
    let view = client.job_ended(job, PATIENCE).await.unwrap();
    let output = client.output(job, attempt, 0).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}\n{output}");
    output.lines().rfind(|line| line.starts_with("final ")).unwrap().to_owned()
}

#[tokio::test]
#[ignore = "needs python3-torch: .ci/full installs it"]
async fn a_ddp_run_that_is_displaced_resumes_and_ends_with_the_loss_of_an_undisturbed_one() {
    let plan = Plan::nodes(1, 4);
    let cluster = Cluster::start(Binaries::built().unwrap(), &plan).await.unwrap();
    let client = cluster.client().unwrap();
    let undisturbed = submit(&cluster, "undisturbed");
    let expected = final_line(&client, undisturbed, 1).await;

    let job = submit(&cluster, "displaced");
    let committed = |view: &v1::JobView| view.commit.is_some();
    client.job_until(job, PATIENCE, "has committed", committed).await.unwrap();
    let funded = JobSpec { min_runtime: Span::seconds(10), ..cluster.job("funded", 4) };
    let funded = client.submit(&funded).await.unwrap();
    let view = client.job_ended(funded, PATIENCE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}");

    assert_eq!(final_line(&client, job, 2).await, expected);
    let view = client.job(job).await.unwrap();
    let states: Vec<_> = view.attempts.iter().map(v1::AttemptView::state).collect();
    assert_eq!(states, [v1::AttemptState::Saved, v1::AttemptState::Done], "{view:#?}");
    let begun = client.output(job, 2, 0).await.unwrap();
    let from = begun.lines().find_map(|line| line.strip_prefix("begins after step ")).unwrap();
    assert_ne!(from, "0", "{begun}");
    let first = client.output(job, 1, 0).await.unwrap();
    assert!(first.ends_with(&format!("committed step {from}\n")), "{first}");
}
