//! The released 0.1 on the nodes, under the coordinator of this checkout. A cluster is upgraded
//! coordinator first, then node by node, while jobs run.
//!
//! Ignored by default: `tests/old-agent.sh` builds 0.1 from its tag and runs this suite, and that of
//! the line, with it. `.ci/full` does.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::time::Duration;

use cluster_tests::binaries::{Binaries, NODE_BINARIES};
use cluster_tests::client::Client;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::offer::offer;
use tidegate_model::{CheckpointOffer, GpuCount, JobId, JobSpec, SaveSignal, SaveTarget, Span};
use tidegate_proto::v1;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

const MINUTE: Duration = Duration::from_secs(60);

async fn cluster(nodes: usize, gpus: u32) -> Cluster {
    assert!(std::env::var_os(NODE_BINARIES).is_some(), "run it by tests/old-agent.sh");
    Cluster::start(Binaries::built().unwrap(), &Plan::nodes(nodes, gpus)).await.unwrap()
}

fn is_running(view: &v1::JobView) -> bool {
    view.attempts.last().is_some_and(|attempt| attempt.state() == v1::AttemptState::Running)
}

async fn explained(client: &Client, job: JobId) -> String {
    let request = v1::ExplainRequest { job: job.to_string(), at_ms: None };
    let reply = client.api().explain(request).await.unwrap().into_inner();
    format!("{}: {}", reply.reason, reply.lines.join("\n"))
}

/// A job that says how it saves, and on such a node is never asked.
fn saver(cluster: &Cluster, grace: Span) -> JobSpec {
    let offer = CheckpointOffer {
        signal: Some(SaveSignal::Usr1),
        target: SaveTarget::Task,
        storage: "scratch".parse().unwrap(),
        saved_codes: vec![0],
        ..offer(grace)
    };
    JobSpec {
        command: ["sh", "-c", "trap 'echo asked' USR1; echo begun; while :; do sleep 0.1; done"]
            .map(str::to_owned)
            .to_vec(),
        checkpoint: Some(offer),
        ..cluster.job("saver", 2)
    }
}

#[tokio::test]
#[ignore = "needs the released 0.1: tests/old-agent.sh builds it"]
async fn a_job_that_cannot_be_asked_to_save_is_stopped_when_its_grace_is_over() {
    let cluster = cluster(1, 2).await;
    let client = cluster.client().unwrap();
    let job = client.submit(&saver(&cluster, Span::seconds(5))).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    let funded = JobSpec { min_runtime: Span::seconds(10), ..cluster.job("funded", 2) };
    let funded = client.submit(&funded).await.unwrap();
    let saves = |view: &v1::JobView| {
        view.attempts.last().is_some_and(|attempt| attempt.state() == v1::AttemptState::Saving)
    };
    client.job_until(job, MINUTE, "is asked to save", saves).await.unwrap();
    let words = explained(&client, job).await;
    let expected = "node-0 has not said that job-1.1.0 was asked (an agent of 0.1 knows no such \
                    requests): it is stopped when its grace is over";
    assert!(words.contains(expected), "{words}");
    let view = client.job_ended(funded, MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}");
    let again = |view: &v1::JobView| view.attempts.len() == 2 && is_running(view);
    let view = client.job_until(job, MINUTE, "runs again", again).await.unwrap();
    assert_eq!(view.attempts[0].state(), v1::AttemptState::Unsaved, "{view:#?}");
    assert!(view.attempts[0].why.contains("grace"), "{view:#?}");
    assert_eq!(client.output(job, 1, 0).await.unwrap(), "begun\n", "it was asked after all");
}

#[tokio::test]
#[ignore = "needs the released 0.1: tests/old-agent.sh builds it"]
async fn a_node_drains_though_its_jobs_cannot_be_asked_to_save() {
    let cluster = cluster(1, 2).await;
    let client = cluster.client().unwrap();
    let job = client.submit(&saver(&cluster, Span::seconds(1))).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    let drain =
        v1::DrainRequest { node: "node-0".into(), reason: "fan".into(), wanted_by_ms: None };
    client.api().drain(drain).await.unwrap();
    cluster_tests::wait::until(MINUTE, "an empty node", async || {
        let node = client.nodes().await.unwrap().remove(0);
        let state = node.state();
        if state == v1::NodeState::Drained { Ok(()) } else { Err(format!("{state:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(cluster.shims(), []);
}

#[tokio::test]
#[ignore = "needs the released 0.1: tests/old-agent.sh builds it"]
async fn a_terminal_is_refused_in_words_that_name_the_agents_version() {
    let cluster = cluster(1, 2).await;
    let client = cluster.client().unwrap();
    let spec = JobSpec {
        command: ["sleep", "1000"].map(str::to_owned).to_vec(),
        gpus_per_node: Some(GpuCount(1)),
        pty: true,
        ..cluster.job("shell", 1)
    };
    let job = client.submit(&spec).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    assert_no_terminal(&client, job).await;
    client.api().cancel(v1::CancelRequest { job: job.to_string() }).await.unwrap();
    client.job_ended(job, MINUTE).await.unwrap();
    // Without a terminal a shell reads nothing and is done: that is no success either.
    let shell = JobSpec { command: vec!["sh".to_owned()], ..spec };
    let job = client.submit(&shell).await.unwrap();
    client.job_ended(job, MINUTE).await.unwrap();
    assert_no_terminal(&client, job).await;
}

async fn assert_no_terminal(client: &Client, job: JobId) {
    let view = Some(v1::TerminalView::default());
    let open = v1::attach_request::Open {
        job: job.to_string(),
        view,
        ..v1::attach_request::Open::default()
    };
    let (send, asks) = tokio::sync::mpsc::channel(1);
    let message = Some(v1::attach_request::Message::Open(open));
    send.send(v1::AttachRequest { message }).await.unwrap();
    let refused = client.api().attach(ReceiverStream::new(asks)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let words = refused.message();
    let expected = "the agent of node-0 is of version 0.1.0 and knows no terminals";
    assert!(words.starts_with(expected), "{words}");
}

#[tokio::test]
#[ignore = "needs the released 0.1: tests/old-agent.sh builds it"]
async fn a_node_is_upgraded_under_a_running_job_one_process_after_the_other() {
    let mut cluster = cluster(1, 2).await;
    let client = cluster.client().unwrap();
    let spec = cluster.trainer("kept", 2, &["--steps", "400", "--step-ms", "10"]);
    let job = client.submit(&spec).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    cluster.upgrade();
    // The new agent beside the old starter; then the new starter beside the old shims.
    cluster.start_role(Role::Agent(0)).unwrap();
    cluster.ready(MINUTE).await.unwrap();
    cluster.start_role(Role::Starter(0)).unwrap();
    let view = client.job_ended(job, MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}");
    assert_eq!(view.attempts.len(), 1, "{view:#?}");
    assert!(client.output(job, 1, 0).await.unwrap().contains("final "));
    // What is started from now on is asked to save.
    let job = client.submit(&saver(&cluster, Span::seconds(30))).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    let funded = JobSpec { min_runtime: Span::seconds(10), ..cluster.job("funded", 2) };
    client.submit(&funded).await.unwrap();
    cluster_tests::wait::until(MINUTE, "a signal", async || {
        let output = client.output(job, 1, 0).await.unwrap_or_default();
        if output.ends_with("asked\n") { Ok(()) } else { Err(output) }
    })
    .await
    .unwrap();
}
