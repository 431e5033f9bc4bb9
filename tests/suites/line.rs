//! The line, end to end: submit, journal, plan, shim, trainer, digest, with real processes.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::processes::signal;
use cluster_tests::wait::until;
use nix::sys::signal::Signal;
use tidegate_model::{JobSpec, TaskLayout};
use tidegate_proto::v1;

const MINUTE: Duration = Duration::from_secs(60);

async fn cluster(nodes: usize, gpus: u32) -> Cluster {
    Cluster::start(Binaries::built().unwrap(), &Plan::nodes(nodes, gpus)).await.unwrap()
}

/// What an undisturbed run prints.
fn expected(cluster: &Cluster, steps: &str, world: &str) -> String {
    let arguments = ["digest", "--steps", steps, "--world-size", world];
    let trainer = cluster.binaries().path("trainer");
    let output = std::process::Command::new(trainer).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn last_line(output: &str) -> &str {
    output.lines().rfind(|line| line.starts_with("final ")).unwrap_or(output)
}

fn is_running(view: &v1::JobView) -> bool {
    view.attempts.last().is_some_and(|attempt| attempt.state() == v1::AttemptState::Running)
}

/// Kills something while a job of two nodes runs; the job must end right, in so many attempts.
async fn check_survives(kill: impl AsyncFn(&mut Cluster), attempts: usize) {
    let mut cluster = cluster(2, 2).await;
    let client = cluster.client().unwrap();
    let spec =
        cluster.trainer("line", 4, &["--steps", "120", "--step-ms", "10", "--save-every", "10"]);
    let job = client.submit(&spec).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    until(MINUTE, "a first save", async || {
        let output = client.output(job, 1, 0).await.unwrap_or_default();
        if output.contains("saved") { Ok(()) } else { Err(output) }
    })
    .await
    .unwrap();
    kill(&mut cluster).await;
    let view = client.job_ended(job, MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}");
    assert_eq!(view.attempts.len(), attempts, "{view:#?}");
    let number = u32::try_from(attempts).unwrap();
    let output = client.output(job, number, 0).await.unwrap();
    assert_eq!(last_line(&output), last_line(&expected(&cluster, "120", "4")));
    assert_eq!(output.contains("resumed from step"), attempts > 1, "{output}");
}

#[tokio::test]
async fn a_job_of_two_nodes_ends_right() {
    check_survives(async |_| (), 1).await;
}

#[tokio::test]
async fn a_killed_coordinator_changes_nothing_for_a_running_job() {
    check_survives(async |cluster| cluster.start_role(Role::Coordinator).unwrap(), 1).await;
}

#[tokio::test]
async fn a_killed_agent_changes_nothing_for_a_running_job() {
    check_survives(async |cluster| cluster.start_role(Role::Agent(0)).unwrap(), 1).await;
}

#[tokio::test]
async fn a_killed_starter_changes_nothing_for_a_running_job() {
    check_survives(async |cluster| cluster.start_role(Role::Starter(1)).unwrap(), 1).await;
}

#[tokio::test]
async fn a_killed_rank_restarts_its_gang_from_its_last_save() {
    let kill = async |cluster: &mut Cluster| {
        let ranks = cluster.task_processes("job-1.1.3");
        signal(ranks[0].0, Signal::SIGKILL).unwrap();
    };
    check_survives(kill, 2).await;
}

#[tokio::test]
async fn a_killed_shim_restarts_its_gang_from_its_last_save() {
    let kill = async |cluster: &mut Cluster| {
        signal(cluster.shims()[0].0, Signal::SIGKILL).unwrap();
    };
    check_survives(kill, 2).await;
}

#[tokio::test]
async fn a_job_ends_right_though_everything_but_its_tasks_was_down_when_it_ended() {
    let mut cluster = cluster(1, 2).await;
    let client = cluster.client().unwrap();
    let spec = cluster.trainer("alone", 2, &["--steps", "60", "--step-ms", "10"]);
    let job = client.submit(&spec).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    for role in [Role::Coordinator, Role::Agent(0), Role::Starter(0)] {
        cluster.kill(role).unwrap();
    }
    until(MINUTE, "the tasks to end", async || {
        let shims = cluster.shims();
        if shims.is_empty() { Ok(()) } else { Err(format!("{shims:?}")) }
    })
    .await
    .unwrap();
    for role in [Role::Starter(0), Role::Agent(0), Role::Coordinator] {
        cluster.start_role(role).unwrap();
    }
    let view = client.job_ended(job, MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}");
    assert_eq!(view.attempts.len(), 1);
    let output = client.output(job, 1, 0).await.unwrap();
    assert_eq!(last_line(&output), last_line(&expected(&cluster, "60", "2")));
}

#[tokio::test]
async fn one_task_per_node_is_a_launcher_that_starts_the_ranks() {
    let cluster = cluster(2, 2).await;
    let client = cluster.client().unwrap();
    let mut spec = cluster.trainer("launched", 4, &["--launch", "--steps", "30", "--step-ms", "5"]);
    spec.layout = TaskLayout::PerNode;
    let job = client.submit(&spec).await.unwrap();
    let view = client.job_ended(job, MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}");
    assert_eq!(view.attempts[0].tasks.len(), 2);
    let output = client.output(job, 1, 0).await.unwrap();
    assert_eq!(last_line(&output), last_line(&expected(&cluster, "30", "4")));
}

#[tokio::test]
async fn a_cancelled_job_leaves_no_process_behind() {
    let cluster = cluster(1, 4).await;
    let client = cluster.client().unwrap();
    let mut spec = cluster.trainer("endless", 4, &["--steps", "100000", "--ignore-term"]);
    spec.grace = tidegate_model::Span(300);
    let job = client.submit(&spec).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    client.api().cancel(v1::CancelRequest { job: job.to_string() }).await.unwrap();
    let view = client.job_ended(job, MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Cancelled);
    assert_eq!(cluster.task_processes("job-1.1.0"), []);
    assert_eq!(cluster.shims(), []);
    let nodes = client.nodes().await.unwrap();
    assert_eq!(nodes[0].idle, 4);
}

/// Its node is silent, declared lost and removed while its task runs on, and comes back.
async fn check_stopped_when_back(silence: impl Fn(&mut Cluster), back: impl Fn(&mut Cluster)) {
    let mut cluster = cluster(1, 2).await;
    let client = cluster.client().unwrap();
    let spec =
        JobSpec { command: vec!["sleep".to_owned(), "1000".to_owned()], ..cluster.job("kept", 2) };
    let job = client.submit(&spec).await.unwrap();
    client.job_until(job, MINUTE, "runs", is_running).await.unwrap();
    let node = client.nodes().await.unwrap().remove(0).node;
    silence(&mut cluster);
    until(MINUTE, "the node to be declared lost", async || {
        let lost = v1::DeclareNodeLostRequest { node: node.clone() };
        client.api().declare_node_lost(lost).await.map_err(|status| status.to_string())
    })
    .await
    .unwrap();
    client.api().remove_node(v1::RemoveNodeRequest { node }).await.unwrap();
    assert!(!cluster.task_processes("job-1.1.0").is_empty(), "nobody has told it");
    back(&mut cluster);
    until(MINUTE, "the old task to be stopped", async || {
        let running = cluster.task_processes("job-1.1.0");
        if running.is_empty() { Ok(()) } else { Err(format!("{running:?}")) }
    })
    .await
    .unwrap();
    let again = |view: &v1::JobView| view.attempts.len() == 2 && is_running(view);
    client.job_until(job, MINUTE, "runs again", again).await.unwrap();
}

#[tokio::test]
async fn an_agent_that_hung_while_its_node_was_removed_is_told_to_stop_what_runs_there() {
    let send = |cluster: &mut Cluster, what| {
        signal(cluster.pid(Role::Agent(0)).unwrap(), what).unwrap();
    };
    check_stopped_when_back(|c| send(c, Signal::SIGSTOP), |c| send(c, Signal::SIGCONT)).await;
}

#[tokio::test]
async fn an_agent_that_was_down_while_its_node_was_removed_is_told_to_stop_what_runs_there() {
    let down = |cluster: &mut Cluster| cluster.kill(Role::Agent(0)).unwrap();
    check_stopped_when_back(down, |c| c.start_role(Role::Agent(0)).unwrap()).await;
}
