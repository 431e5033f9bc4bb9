//! Bad input and bad moments: one clear line each, nothing half done, nothing accepted lost.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::processes::Daemon;
use cluster_tests::wait::until;
use tidegate_model::{CheckpointOffer, JobSpec, SaveTarget, Span};
use tidegate_proto::v1;
use tidegate_proto::v1::change_gate_request::{Change, Pause, Resume};
use tonic::Code;

const MINUTE: Duration = Duration::from_secs(60);

async fn cluster(plan: &Plan) -> Cluster {
    Cluster::start(Binaries::built().unwrap(), plan).await.unwrap()
}

/// What a second process says when it is started with the cluster's configuration.
fn second(cluster: &Cluster, program: &str, config: &str) -> String {
    let mut command = Command::new(cluster.binaries().path(program));
    let output = command.arg("--config").arg(cluster.dir().join(config)).output().unwrap();
    assert!(!output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    words.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
}

fn request(spec: v1::JobSpec, key: &str) -> v1::SubmitRequest {
    v1::SubmitRequest { key: key.to_owned(), spec: Some(spec) }
}

const KEY: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[tokio::test]
async fn two_coordinators_on_one_store_are_refused_and_the_first_goes_on() {
    let cluster = cluster(&Plan::nodes(1, 1)).await;
    let told = second(&cluster, "tidegate-coordinator", "coordinator.toml");
    assert!(
        told.ends_with("another coordinator has this store open; one store serves one coordinator"),
        "{told}"
    );
    let job = cluster.client().unwrap().submit(&cluster.job("still", 1)).await.unwrap();
    cluster.client().unwrap().job_ended(job, MINUTE).await.unwrap();
}

#[tokio::test]
async fn a_second_agent_or_starter_of_a_node_is_refused() {
    let cluster = cluster(&Plan::nodes(1, 1)).await;
    for program in ["tidegate-agent", "tidegate-starter"] {
        let told = second(&cluster, program, "node-0.toml");
        assert!(told.contains("another"), "{program}: {told}");
    }
}

#[tokio::test]
async fn a_second_agent_of_a_linked_node_is_refused_and_the_job_goes_on() {
    let cluster = cluster(&Plan::nodes(1, 2)).await;
    let client = cluster.client().unwrap();
    let spec = cluster.trainer("kept", 2, &["--steps", "100000"]);
    let job = client.submit(&spec).await.unwrap();
    let runs = |view: &v1::JobView| {
        view.attempts.last().is_some_and(|a| a.state() == v1::AttemptState::Running)
    };
    client.job_until(job, MINUTE, "runs", runs).await.unwrap();
    let before = cluster.shims();
    // The same node, with a state directory that knows of nothing.
    let dir = cluster.dir();
    let config = fs::read_to_string(dir.join("node-0.toml")).unwrap();
    let state = format!("state_dir = \"{}/node-0\"", dir.display());
    let run = format!("run_dir = \"{}/run-0\"", dir.display());
    assert!(config.contains(&state) && config.contains(&run), "{config}");
    let config = config.replace(&state, &format!("state_dir = \"{}/twin\"", dir.display()));
    let config = config.replace(&run, &format!("run_dir = \"{}/run-twin\"", dir.display()));
    fs::write(dir.join("twin.toml"), config).unwrap();
    let start = |program: &str| {
        let mut command = Command::new(cluster.binaries().path(program));
        command.arg("--config").arg(dir.join("twin.toml"));
        command.env("TIDEGATE_NVML_SIM", dir.join("node-0.gpus.json"));
        Daemon::start(command, &dir.join("twin.log")).unwrap()
    };
    let twins = [start("tidegate-starter"), start("tidegate-agent")];
    until(MINUTE, "the second agent to be refused", async || {
        let log = fs::read_to_string(dir.join("twin.log")).unwrap_or_default();
        if log.contains("another agent of node-0 is linked") { Ok(()) } else { Err(log) }
    })
    .await
    .unwrap();
    assert_eq!(client.job(job).await.unwrap().attempts.len(), 1);
    assert_eq!(cluster.shims(), before);
    drop(twins);
}

#[tokio::test]
async fn what_no_gang_can_serve_is_refused_with_what_would_be_accepted() {
    let cluster = cluster(&Plan::nodes(2, 4)).await;
    let client = cluster.client().unwrap();
    let refused = client.submit(&cluster.job("large", 12)).await.unwrap_err().to_string();
    assert!(refused.contains("12 GPUs asked"), "{refused}");
    assert!(refused.contains("up to 4 on one node, multiples of 4 up to 8"), "{refused}");
    assert_eq!(client.jobs().await.unwrap(), []);
}

#[tokio::test]
async fn a_pause_of_a_target_that_nobody_knows_is_refused_with_those_that_are() {
    let cluster = cluster(&Plan::nodes(1, 1)).await;
    let client = cluster.client().unwrap();
    let change = async |storage: &str, change| {
        let request = v1::ChangeGateRequest { storage: storage.into(), change: Some(change) };
        client.api().change_gate(request).await.map(|reply| reply.into_inner().changed)
    };
    let pause = || Change::Pause(Pause { reason: "a disk".into() });
    let refused = async |storage: &str, asked: Change, known: &str| {
        let status = change(storage, asked).await.unwrap_err();
        let words = format!(
            "{storage} has no limits, and no job names it; known are: {known}; `tidegate gate set \
             {storage}` makes it"
        );
        assert_eq!((status.code(), status.message()), (Code::NotFound, words.as_str()));
    };
    refused("shraed", pause(), "none").await;
    let rule = v1::GateRule { cap_bytes_per_s: Some(1 << 30), ..v1::GateRule::default() };
    client.set_gate("shared", rule).await.unwrap();
    let offer = CheckpointOffer {
        asks_within: None,
        signal: None,
        target: SaveTarget::Ranks,
        grace: Span::minutes(1),
        bytes: None,
        storage: "scratch".parse().unwrap(),
        saved_codes: Vec::new(),
        rehearsal: None,
    };
    client.submit(&JobSpec { checkpoint: Some(offer), ..cluster.job("saves", 1) }).await.unwrap();
    for asked in [pause(), Change::Resume(Resume {})] {
        refused("shraed", asked, "scratch, shared").await;
    }
    for storage in ["shared", "scratch"] {
        assert!(change(storage, pause()).await.unwrap(), "{storage}");
    }
    let empty = change("shared", Change::Pause(Pause { reason: " ".into() })).await.unwrap_err();
    assert_eq!(empty.message(), "a reason is needed, and shown to everybody; give --reason TEXT");
}

#[tokio::test]
async fn a_malformed_submit_is_refused_by_the_name_of_its_field() {
    let cluster = cluster(&Plan::nodes(1, 1)).await;
    let client = cluster.client().unwrap();
    let check = async |change: fn(&mut v1::JobSpec), key: &str, expected: &str| {
        let mut spec: v1::JobSpec = cluster.job("odd", 1).into();
        change(&mut spec);
        let status = client.api().submit(request(spec, key)).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, expected));
    };
    check(|_| (), "", "SubmitRequest.key is missing").await;
    check(|s| s.layout = 0, KEY, "JobSpec.layout is missing").await;
    check(|s| s.layout = 7, KEY, "JobSpec.layout: 7 is not a value this version knows").await;
    check(|s| s.gpus = 0, KEY, "gpus: 0 asked; a job has at least 1 GPU").await;
    check(|s| s.command.clear(), KEY, "command: empty; give a program and its arguments").await;
    check(
        |s| s.command.push("x".repeat(200_000)),
        KEY,
        &format!(
            "command: {} bytes with its environment; at most 131072 are accepted",
            "odd/bin/true".len() + cluster.dir().as_os_str().len() + 200_000
        ),
    )
    .await;
    let missing = v1::SubmitRequest { key: KEY.into(), spec: None };
    let status = client.api().submit(missing).await.unwrap_err();
    assert_eq!(status.message(), "SubmitRequest.spec is missing");
    assert_eq!(client.jobs().await.unwrap(), [], "nothing is half done");
}

#[tokio::test]
async fn an_oversized_message_and_plain_noise_leave_the_coordinator_serving() {
    let cluster = cluster(&Plan::nodes(1, 1)).await;
    let client = cluster.client().unwrap();
    let mut spec: v1::JobSpec = cluster.job("huge", 1).into();
    spec.command.push("x".repeat(5 << 20));
    let status = client.api().submit(request(spec, KEY)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert!(status.message().contains("4194304"), "{}", status.message());
    let mut noise = UnixStream::connect(cluster.socket()).unwrap();
    noise.write_all(&[0xa5; 4096]).unwrap();
    noise.set_read_timeout(Some(MINUTE)).unwrap();
    drop(noise.read_to_end(&mut Vec::new()));
    let mut half = UnixStream::connect(cluster.socket()).unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    let job = client.submit(&cluster.job("after", 1)).await.unwrap();
    client.job_ended(job, MINUTE).await.unwrap();
}

#[tokio::test]
async fn an_agent_obeys_only_the_cluster_it_enrolled_with() {
    let mut cluster = cluster(&Plan::nodes(1, 2)).await;
    let client = cluster.client().unwrap();
    let spec = cluster.trainer("kept", 2, &["--steps", "100000"]);
    let job = client.submit(&spec).await.unwrap();
    client
        .job_until(job, MINUTE, "runs", |view| {
            view.attempts.last().is_some_and(|a| a.state() == v1::AttemptState::Running)
        })
        .await
        .unwrap();
    let before = cluster.shims();
    cluster.kill(Role::Coordinator).unwrap();
    // Another store: another cluster, which knows nothing of what runs here.
    let store = cluster.dir().join("store");
    fs::rename(&store, cluster.dir().join("kept-store")).unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    let refusal = until(MINUTE, "the coordinator to refuse the agent", async || {
        let log = fs::read_to_string(cluster.dir().join("agent-0.log")).unwrap_or_default();
        match log.lines().find(|line| line.contains("obeys")) {
            Some(line) => Ok(line.to_owned()),
            None => Err(log),
        }
    })
    .await
    .unwrap();
    assert!(refusal.contains("the agent of node-0 obeys"), "{refusal}");
    assert_eq!(client.nodes().await.unwrap(), []);
    assert_eq!(cluster.shims(), before, "what runs is left alone");
    // The old store again: everything goes on.
    cluster.kill(Role::Coordinator).unwrap();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(cluster.dir().join("kept-store"), &store).unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    cluster.ready(MINUTE).await.unwrap();
    assert_eq!(client.job(job).await.unwrap().attempts.len(), 1);
    assert_eq!(cluster.shims(), before);
}

#[tokio::test]
async fn a_full_store_takes_no_new_work_and_loses_none() {
    let mut plan = Plan::nodes(1, 2);
    plan.coordinator = "store_limit = \"400KiB\"".to_owned();
    let mut cluster = cluster(&plan).await;
    let client = cluster.client().unwrap();
    let spec = cluster.trainer("running", 2, &["--steps", "100000"]);
    let running = client.submit(&spec).await.unwrap();
    let mut accepted = vec![running];
    let closed = loop {
        let mut spec: v1::JobSpec = cluster.job("filler", 1).into();
        spec.command.push("x".repeat(20_000));
        let key = format!("{:026}", accepted.len());
        match client.api().submit(request(spec, &key)).await {
            Ok(reply) => accepted.push(reply.into_inner().job.parse().unwrap()),
            Err(status) => break status,
        }
        assert!(accepted.len() < 2000, "the store is never full");
    };
    assert_eq!(closed.code(), Code::Unavailable);
    assert!(closed.message().contains("the store has grown to its limit of 400KiB"), "{closed}");
    let status = client.api().status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert!(status.closed.contains("400KiB"), "{status:?}");
    // Ends and releases go on, over a restart too.
    client.api().cancel(v1::CancelRequest { job: running.to_string() }).await.unwrap();
    client.job_ended(running, MINUTE).await.unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    for job in accepted {
        client.job_ended(job, MINUTE).await.unwrap();
    }
}

#[tokio::test]
async fn a_disk_that_fills_under_the_coordinator_loses_nothing_that_was_accepted() {
    let mut cluster = cluster(&Plan::nodes(1, 2)).await;
    let client = cluster.client().unwrap();
    // No file of the coordinator may grow any more, as if its disk were full: from here on its
    // writes fail, whenever the store next wants to grow.
    let pid = cluster.pid(Role::Coordinator).unwrap().to_string();
    let size = fs::metadata(cluster.dir().join("store/store.redb")).unwrap().len();
    let limit = format!("--fsize={size}:{size}");
    let limited = Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap();
    assert!(limited.success());
    let mut accepted = Vec::new();
    for number in 0..2000 {
        let mut spec: v1::JobSpec = cluster.job("filler", 1).into();
        spec.command.push("x".repeat(20_000));
        let key = format!("{number:026}");
        match client.api().submit(request(spec, &key)).await {
            Ok(reply) => accepted.push(reply.into_inner().job.parse().unwrap()),
            Err(_) => break,
        }
    }
    assert!(accepted.len() < 2000, "the disk is never full");
    cluster.start_role(Role::Coordinator).unwrap();
    for job in accepted {
        let view = client.job_ended(job, MINUTE).await.unwrap();
        assert_eq!(view.state(), v1::JobState::Done);
    }
}

#[tokio::test]
async fn a_leave_limit_or_gate_patience_of_nothing_is_refused_and_the_policy_stays_as_it_was() {
    let cluster = cluster(&Plan::nodes(1, 1)).await;
    let client = cluster.client().unwrap();
    let policy = async || {
        let request = v1::GetPolicyRequest {};
        client.api().get_policy(request).await.unwrap().into_inner()
    };
    let before = policy().await;
    let check = async |key: &str, most: &str, change: fn(&mut v1::Sharing)| {
        let expected = format!("{key}: 0 given; 1s to {most} is accepted");
        let mut asked = before.policy.clone().unwrap();
        change(asked.sharing.as_mut().unwrap());
        let request = v1::SetPolicyRequest { policy: Some(asked), version: None };
        let status = client.api().set_policy(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, &*expected));
        for nothing in ["0", "0s"] {
            let mut command = Command::new(cluster.binaries().path("tidegate"));
            command.arg("--socket").arg(cluster.socket()).args(["policy", "set"]);
            let output = command.arg(format!("{key}={nothing}")).output().unwrap();
            let words = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{key}={nothing}: {words}");
            assert!(words.contains(key) && words.contains("accepted"), "{key}={nothing}: {words}");
        }
        assert_eq!(policy().await, before, "{key}");
    };
    check("leave_limit", "30m", |sharing| sharing.leave_limit_ms = Some(0)).await;
    check("gate_patience", "1d", |sharing| sharing.gate_patience_ms = Some(0)).await;
}
