//! What people are told, by the real command line at real clusters: of nodes that cannot keep their
//! promises, of what is asked twice, of checkpoints and requests to save.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper may fail as the test itself does"
)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role, node_name};
use cluster_tests::offer::offer;
use cluster_tests::wait::until;
use serde_json::{Value, json};
use tidegate_model::{GpuCount, JobId, JobSpec, Span};
use tidegate_proto::v1;

const MINUTE: Duration = Duration::from_secs(60);

async fn cluster(nodes: usize, gpus: u32) -> Cluster {
    cluster_of(Plan::nodes(nodes, gpus)).await
}

async fn cluster_of(plan: Plan) -> Cluster {
    let plan = Plan { heartbeat: "200ms".to_owned(), ..plan };
    Cluster::start(Binaries::built().unwrap(), &plan).await.unwrap()
}

/// What the command line says: its exit code, its output, and its remarks.
fn tidegate(cluster: &Cluster, line: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(cluster.binaries().path("tidegate"));
    command.arg("--socket").arg(cluster.socket()).args(line.split(' '));
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn document(cluster: &Cluster, line: &str) -> Value {
    let (code, said, remarks) = tidegate(cluster, &format!("{line} --json"));
    assert_eq!(code, Some(0), "{line}: {said}{remarks}");
    serde_json::from_str(&said).unwrap()
}

/// Sleeps until it is stopped.
fn sleeper(cluster: &Cluster, name: &str, gpus: u32) -> JobSpec {
    let command = ["/bin/sleep", "100000"].map(str::to_owned).to_vec();
    JobSpec { command, ..cluster.job(name, gpus) }
}

async fn runs(cluster: &Cluster, job: JobId) -> usize {
    let client = cluster.client().unwrap();
    let running = |view: &v1::JobView| {
        view.attempts.last().is_some_and(|one| one.state() == v1::AttemptState::Running)
    };
    let view = client.job_until(job, MINUTE, "runs", running).await.unwrap();
    let node = &view.attempts.last().unwrap().tasks[0].node;
    (0..cluster.nodes()).find(|index| node_name(*index) == *node).unwrap()
}

/// As a full disk: the next ledger cannot be begun.
fn in_the_way(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.dir().join(node_name(node)).join("ledger.json.new")
}

async fn state(cluster: &Cluster, node: usize, wanted: v1::NodeState) -> v1::NodeView {
    let client = cluster.client().unwrap();
    let what = format!("{} to be {wanted:?}", node_name(node));
    let look = async || {
        let nodes = client.nodes().await.map_err(|status| status.to_string())?;
        let found = nodes.into_iter().find(|one| one.node == node_name(node));
        let found = found.ok_or("no such node")?;
        if found.state() == wanted { Ok(found) } else { Err(format!("{:?}", found.state())) }
    };
    until(MINUTE, &what, look).await.unwrap()
}

#[tokio::test]
async fn a_node_that_cannot_write_is_closed_to_new_work_until_it_can_and_its_jobs_run_on() {
    let cluster = cluster(2, 2).await;
    let client = cluster.client().unwrap();
    let first = client.submit(&sleeper(&cluster, "first", 1)).await.unwrap();
    let full = runs(&cluster, first).await;
    let obstacle = in_the_way(&cluster, full);
    fs::create_dir(&obstacle).unwrap();
    // It needs a GPU of each node.
    let both = JobSpec { gpus_per_node: Some(GpuCount(1)), ..sleeper(&cluster, "both", 2) };
    let both = client.submit(&both).await.unwrap();
    let view = state(&cluster, full, v1::NodeState::Closed).await;
    let dir = cluster.dir().join(node_name(full));
    let why = format!("it cannot write to {}: ", dir.display());
    assert!(view.closed.starts_with(&why), "{}", view.closed);
    let named = format!("{} takes no new work: {why}", node_name(full));
    let waits = |view: &v1::JobView| view.state() == v1::JobState::Pending;
    client.job_until(both, MINUTE, "waits again", waits).await.unwrap();
    let told = tidegate(&cluster, &format!("explain {both}")).1;
    assert!(told.contains("AwaitingNodes") && told.contains(&named), "{told}");
    let listed = document(&cluster, "nodes");
    let listed = listed["nodes"].as_array().unwrap().iter();
    let closed: Vec<_> = listed.filter(|one| one["state"] == "closed").collect();
    assert_eq!((closed.len(), &closed[0]["closed"]), (1, &json!(view.closed)));
    assert!(tidegate(&cluster, "nodes").1.contains(&view.closed));
    assert!(tidegate(&cluster, "nodes --reasons").1.contains(&why));
    let other = client.submit(&sleeper(&cluster, "other", 1)).await.unwrap();
    assert_ne!(runs(&cluster, other).await, full);
    let running = client.job(first).await.unwrap();
    assert_eq!((running.attempts.len(), running.attempts[0].ended_ms), (1, None));
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(state(&cluster, full, v1::NodeState::Ready).await.closed, "");
    runs(&cluster, both).await;
}

#[tokio::test]
async fn a_job_that_is_cancelled_twice_is_told_since_when_and_by_whom_it_is_so() {
    let cluster = cluster(1, 1).await;
    let client = cluster.client().unwrap();
    let job = client.submit(&sleeper(&cluster, "job", 1)).await.unwrap();
    runs(&cluster, job).await;
    let (code, told, _) = tidegate(&cluster, &format!("cancel {job}"));
    assert_eq!((code, told), (Some(0), format!("{job} is being cancelled\n")));
    client.job_ended(job, MINUTE).await.unwrap();
    let (code, told, _) = tidegate(&cluster, &format!("cancel {job}"));
    let begins = format!("{job} is cancelled already, ");
    assert!(code == Some(0) && told.starts_with(&begins) && told.contains(" ago by "), "{told}");
    let again = document(&cluster, &format!("cancel {job}"));
    let again = &again["jobs"][0];
    assert_eq!((&again["already_ended"], &again["state"]), (&json!(true), &json!("cancelled")));
    assert!(again["cancelled_ms"].as_u64() <= again["ended_ms"].as_u64(), "{again}");
    let done = client.submit(&cluster.job("done", 1)).await.unwrap();
    client.job_ended(done, MINUTE).await.unwrap();
    let (code, told, _) = tidegate(&cluster, &format!("cancel {done}"));
    assert!(code == Some(0) && told.starts_with(&format!("{done} had already ended: done, ")));
}

#[tokio::test]
async fn checkpoints_and_what_became_of_a_request_to_save_are_told_over_restarts_and_after_the_end()
{
    let mut cluster = cluster(1, 1).await;
    let client = cluster.client().unwrap();
    let trainer = cluster.trainer("trainer", 1, &["--steps", "100000", "--save-every", "10"]);
    let spec =
        JobSpec { checkpoint: Some(offer(Span::minutes(1))), min_runtime: Span::ZERO, ..trainer };
    let job = client.submit(&spec).await.unwrap();
    let commits = |view: &v1::JobView| view.commit.as_ref().is_some_and(|one| one.step >= 20);
    client.job_until(job, MINUTE, "commits twice", commits).await.unwrap();
    let (code, _, remarks) = tidegate(&cluster, "drain node-0 --reason fans");
    assert_eq!(code, Some(0), "{remarks}");
    let leaves = |view: &v1::JobView| view.attempts[0].state() == v1::AttemptState::Saved;
    client.job_until(job, MINUTE, "saves and leaves", leaves).await.unwrap();
    let told = document(&cluster, &format!("checkpoints {job}"));
    let known = told["checkpoints"].as_array().unwrap();
    let counts: Vec<bool> = known.iter().map(|one| one["counts"].as_bool().unwrap()).collect();
    assert!(known.len() >= 3 && counts.last() == Some(&true), "{told}");
    assert_eq!(counts.iter().filter(|counts| **counts).count(), 1, "{told}");
    let (last, request) = (&known[known.len() - 1], &told["requests"][0]);
    assert_eq!((&last["request"], &last["known_by"]), (&request["request"], &json!("job")));
    assert_eq!((&known[0]["request"], &request["became"]), (&Value::Null, &json!("saved")));
    for key in ["told_ms", "acknowledged_ms", "committed_ms", "ended_ms", "committed_after_ms"] {
        assert!(request[key].is_u64(), "{key}: {request}");
    }
    let text = tidegate(&cluster, &format!("checkpoints {job}")).1;
    assert!(text.contains("resumes here") && text.contains("saved"), "{text}");
    cluster.kill(Role::Coordinator).unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    assert_eq!(document(&cluster, &format!("checkpoints {job}")), told);
    let (code, _, remarks) = tidegate(&cluster, &format!("cancel {job}"));
    assert_eq!(code, Some(0), "{remarks}");
    client.job_ended(job, MINUTE).await.unwrap();
    assert_eq!(document(&cluster, &format!("checkpoints {job}")), told);
    let (code, _, remarks) = tidegate(&cluster, "checkpoints job-99");
    assert!(code == Some(3) && remarks.contains("job-99 is not known here"), "{remarks}");
}

/// It commits what it is asked for, goes on, and heeds no stop.
const STAYS: &str = "
trap '' TERM
until [ -e \"$TIDEGATE_PREEMPT_FILE\" ]; do sleep 0.05; done
mkdir -p \"$2\" && echo saved >\"$2/model\" && \"$1\" job commit --step 7 \"$2\"
exec sleep 100000
";

#[tokio::test]
async fn who_saves_and_stays_is_stopped_after_leave_limit_and_told_why() {
    let mut plan = Plan::nodes(1, 1);
    plan.policy += "\nleave_limit = \"2s\"";
    let cluster = cluster_of(plan).await;
    let client = cluster.client().unwrap();
    let agent = cluster.binaries().path("tidegate-agent").display().to_string();
    let saved = cluster.dir().join("saved").display().to_string();
    let spec = JobSpec {
        command: ["sh", "-c", STAYS, "sh", &agent, &saved].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
        checkpoint: Some(offer(Span::minutes(2))),
        ..cluster.job("stays", 1)
    };
    let job = client.submit(&spec).await.unwrap();
    runs(&cluster, job).await;
    assert_eq!(tidegate(&cluster, "drain node-0 --reason fans").0, Some(0));
    let stops = |view: &v1::JobView| view.attempts[0].state() == v1::AttemptState::Stopping;
    client.job_until(job, MINUTE, "is stopped", stops).await.unwrap();
    let why = "job-1.1 is stopped because it has saved, and did not leave by itself";
    let told = tidegate(&cluster, &format!("explain {job}")).1;
    assert!(told.contains(why), "{told}");
    let saves = |view: &v1::JobView| view.attempts[0].state() == v1::AttemptState::Saved;
    let view = client.job_until(job, MINUTE, "has left", saves).await.unwrap();
    let attempt = &view.attempts[0];
    assert!(attempt.why.contains(why), "{}", attempt.why);
    let (committed, ended) = (attempt.committed_ms.unwrap(), attempt.ended_ms.unwrap());
    // Two seconds, and the ten that it has from TERM to KILL; its grace is two minutes.
    assert!((2_000..60_000).contains(&(ended - committed)), "{attempt:?}");
    let shown = document(&cluster, &format!("checkpoints {job}"));
    assert_eq!(shown["requests"][0]["became"], "saved", "{shown}");
    assert_eq!(view.commit.map(|commit| commit.step), Some(7), "it goes on from there");
}
