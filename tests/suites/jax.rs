//! A real framework on the line: JAX in two processes with Orbax's checkpoint manager. SIGTERM is its
//! preemption notice; it asks before it saves, commits, leaves with 0, and resumes.
//!
//! Ignored by default: it needs a virtual environment with the versions of
//! `examples/jax_orbax/requirements.txt`, 730 MB, of which `$TIDEGATE_JAX_VENV` is the directory.
//! `.ci/full` makes it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper may fail as the test itself does"
)]

use std::fs;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::client::Client;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::example::{displace, final_line, outcomes, said, submit, text};
use cluster_tests::offer::offer;
use cluster_tests::wait::until;
use tidegate_model::{JobId, JobSpec, Span};
use tidegate_proto::v1;

/// Two processes import jax on two cores, twice.
const PATIENCE: Duration = Duration::from_secs(120);

async fn cluster(gpus: u32) -> (Cluster, Client) {
    let cluster = Cluster::start(Binaries::built().unwrap(), &Plan::nodes(1, gpus)).await.unwrap();
    let client = cluster.client().unwrap();
    (cluster, client)
}

fn start(cluster: &Cluster, name: &str, steps: u32) -> JobId {
    let venv = std::env::var("TIDEGATE_JAX_VENV").unwrap();
    let job_file = text("examples/jax_orbax/job.toml").unwrap();
    assert!(job_file.contains("\"venv/") && job_file.contains("\"300\""), "{job_file}");
    let job_file = job_file.replace("\"venv/", &format!("\"{venv}/"));
    let job_file = job_file.replace("\"300\"", &format!("\"{steps}\""));
    let files = ["examples/jax_orbax/train.py", "examples/client.py"];
    submit(cluster, name, &files, &job_file).unwrap()
}

#[tokio::test]
#[ignore = "needs jax and orbax: .ci/full installs them"]
async fn a_jax_run_that_is_displaced_resumes_and_ends_with_the_loss_of_an_undisturbed_one() {
    let (cluster, client) = cluster(2).await;
    let undisturbed = start(&cluster, "undisturbed", 200);
    let expected = final_line(&client, undisturbed, 1, PATIENCE).await.unwrap();

    let job = start(&cluster, "displaced", 200);
    let committed = |view: &v1::JobView| view.commit.is_some();
    client.job_until(job, PATIENCE, "has committed", committed).await.unwrap();
    displace(&cluster, 2, PATIENCE).await.unwrap();
    assert_eq!(final_line(&client, job, 2, PATIENCE).await.unwrap(), expected);
    let view = client.job(job).await.unwrap();
    assert_eq!(outcomes(&view), [v1::AttemptState::Saved, v1::AttemptState::Done], "{view:#?}");
    let first = client.output(job, 1, 0).await.unwrap();
    let second = client.output(job, 2, 0).await.unwrap();
    let from = said(&second, "begins after step ").next().unwrap();
    assert_ne!(from, "0", "{second}");
    assert!(first.ends_with(&format!("committed step {from}\n")), "{first}");
    let permits = [first, second].iter().any(|output| output.contains("without a permit"));
    assert!(!permits, "each save had a permit");
}

/// Holds a permit until there is a file `go`.
fn holder(cluster: &Cluster) -> JobSpec {
    let agent = cluster.binaries().path("tidegate-agent").display().to_string();
    let script = "until [ -e go ]; do sleep 0.05; done";
    let command = [&agent, "job", "write", "--bytes", "1GiB", "--", "sh", "-c", script];
    JobSpec {
        command: command.map(str::to_owned).to_vec(),
        min_runtime: Span::minutes(10),
        checkpoint: Some(offer(Span::minutes(1))),
        ..cluster.job("holder", 1)
    }
}

async fn gate(client: &Client) -> Result<v1::GateView, String> {
    let request = v1::ListGatesRequest { storage: Some("shared".to_owned()) };
    let reply = client.api().list_gates(request).await.map_err(|status| status.to_string())?;
    reply.into_inner().gates.into_iter().next().ok_or_else(|| "no gate".to_owned())
}

#[tokio::test]
#[ignore = "needs jax and orbax: .ci/full installs them"]
async fn a_save_of_orbax_begins_when_the_one_before_it_at_the_gate_is_done() {
    let (cluster, client) = cluster(3).await;
    let rule = v1::GateRule { writers: Some(1), ..v1::GateRule::default() };
    client.set_gate("shared", rule).await.unwrap();
    client.submit(&holder(&cluster)).await.unwrap();
    let holds = async || match gate(&client).await?.writers.len() {
        1 => Ok(()),
        other => Err(format!("{other} write")),
    };
    until(PATIENCE, "the first to write", holds).await.unwrap();

    let job = start(&cluster, "waits", 60);
    let attempt = format!("{job}.1");
    let waits = async || {
        let queue = gate(&client).await?.queue;
        let found = queue.iter().find(|one| one.attempt == attempt);
        found.map(|_| ()).ok_or_else(|| format!("{queue:?}"))
    };
    until(PATIENCE, "the save to wait", waits).await.unwrap();
    let directory = cluster.dir().join("waits/checkpoints/attempt-1");
    let written = || fs::read_dir(&directory).unwrap().count();
    assert_eq!(written(), 0, "nothing of it before its permit");
    fs::write(cluster.dir().join("go"), "").unwrap();
    final_line(&client, job, 1, PATIENCE).await.unwrap();
    assert_eq!(client.job(job).await.unwrap().commit.unwrap().step, 60);
    assert_eq!(written(), 2);
}
