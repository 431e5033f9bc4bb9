//! Permits to write: jobs that ask, the write gate, and what is left of a permit when any of the
//! parts between them is killed.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper may fail as the test itself does"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::client::Client;
use cluster_tests::cluster::{Cluster, Plan, Role, node_name};
use cluster_tests::offer::offer;
use cluster_tests::processes::signal;
use cluster_tests::wait::until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tidegate_agent::permits::PermitRecord;
use tidegate_agent::since_boot::SinceBoot;
use tidegate_agent::task_dir::{TaskDir, load};
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::replay::{Until, replay};
use tidegate_model::{AsksWithin, Bytes, CheckpointOffer, JobId, JobSpec, LEAST_SEEN, Span};
use tidegate_proto::v1;

const MINUTE: Duration = Duration::from_secs(60);
/// In which a node that is back is heard, and its jobs are told.
const SOON: Duration = Duration::from_secs(10);

/// What may be written in a second, and what of it one node can.
const CAP: u64 = 1_000_000;
const OF_A_NODE: u64 = 600_000;

/// Passes lines on between the job's socket and the test.
const RELAY: &str = "
import os, socket, sys, threading
job = socket.socket(socket.AF_UNIX)
job.connect(os.environ['TIDEGATE_SOCKET'])
door = socket.socket(socket.AF_UNIX)
door.bind(sys.argv[1] + '.new')
door.listen()
os.rename(sys.argv[1] + '.new', sys.argv[1])
test, _ = door.accept()
def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
threading.Thread(target=pump, args=(test, job), daemon=True).start()
pump(job, test)
";

/// Two nodes with a GPU each, and a gate that lets one of them write less than both may.
async fn cluster(writers: Option<u32>) -> Cluster {
    cluster_of(Plan::nodes(2, 1), OF_A_NODE, writers).await
}

async fn cluster_of(plan: Plan, of_a_node: u64, writers: Option<u32>) -> Cluster {
    let plan = Plan { heartbeat: "200ms".to_owned(), ..plan };
    let cluster = Cluster::start(Binaries::built().unwrap(), &plan).await.unwrap();
    let rule = v1::GateRule {
        cap_bytes_per_s: Some(CAP),
        node_bytes_per_s: Some(of_a_node),
        writers,
        ..v1::GateRule::default()
    };
    cluster.client().unwrap().set_gate("shared", rule).await.unwrap();
    cluster
}

/// A job whose socket the test speaks to.
fn relayed(cluster: &Cluster, name: &str) -> JobSpec {
    let relay = cluster.dir().join(name).display().to_string();
    JobSpec {
        command: ["python3", "-c", RELAY, &relay].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), std::env::var("PATH").unwrap())],
        min_runtime: Span::minutes(10),
        checkpoint: Some(offer(Span::minutes(1))),
        ..cluster.job(name, 1)
    }
}

/// A running job and the test's connection to its socket.
struct Job {
    id: JobId,
    stream: BufReader<UnixStream>,
}

impl Job {
    async fn started(cluster: &Cluster, name: &str) -> Self {
        Self::of(cluster, &relayed(cluster, name)).await
    }

    async fn of(cluster: &Cluster, spec: &JobSpec) -> Self {
        let relay = cluster.dir().join(&spec.name);
        let id = cluster.client().unwrap().submit(spec).await.unwrap();
        let connect = async || UnixStream::connect(&relay).map_err(|error| error.to_string());
        let stream = until(MINUTE, "the job's relay", connect).await.unwrap();
        stream.set_read_timeout(Some(MINUTE)).unwrap();
        Self { id, stream: BufReader::new(stream) }
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.stream.get_mut(), "{message}").unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Asks to write so much.
    fn ask(&mut self, bytes: u64) {
        self.ask_for("periodic", bytes);
    }

    fn ask_for(&mut self, class: &str, bytes: u64) {
        self.say(&json!({"ask": {"bytes": bytes, "class": class, "wait_s": 3600}}));
        assert_eq!(self.hear()["wait"]["position"], Value::Null, "at once");
    }

    /// What it is granted next.
    fn granted(&mut self) -> Value {
        loop {
            let told = self.hear();
            if told.get("wait").is_none() {
                return told["grant"].clone();
            }
        }
    }

    /// Hears that it was asked to save.
    fn told_to_save(&mut self) {
        let told = self.hear();
        assert!(told["save"]["request"].is_u64(), "{told}");
    }

    fn rate(&mut self) -> u64 {
        self.granted()["bytes_per_s"].as_u64().unwrap()
    }

    fn done(&mut self, permit: u64) {
        self.say(&json!({"done": {"permit": permit}}));
        while self.hear() != json!({"done": {"permit": permit}}) {}
    }

    /// When the permit ends of which the shim was told.
    fn end_of_permit(&self, cluster: &Cluster) -> Option<SinceBoot> {
        let records = self.task_dirs(cluster).into_iter();
        let permits = records.filter_map(|dir| load(&dir.permit()).unwrap());
        permits
            .map(|permit| match permit {
                PermitRecord::Granted { until_ms, .. } => until_ms,
                PermitRecord::Waits { .. } | PermitRecord::Denied { .. } => SinceBoot(0),
            })
            .next()
    }

    /// Its only task's, on whichever node it is.
    fn task_dirs(&self, cluster: &Cluster) -> Vec<TaskDir> {
        let task = format!("{}.1.0", self.id).parse().unwrap();
        let tasks = |node| -> PathBuf { cluster.dir().join(format!("node-{node}/tasks")) };
        (0..cluster.nodes()).map(|node| TaskDir::of(&tasks(node), task)).collect()
    }

    fn node(&self, cluster: &Cluster) -> usize {
        self.task_dirs(cluster).iter().position(|dir| dir.path().exists()).unwrap()
    }
}

async fn gate(client: &Client) -> v1::GateView {
    let request = v1::ListGatesRequest { storage: Some("shared".to_owned()) };
    let reply = client.api().list_gates(request).await.unwrap().into_inner();
    reply.gates.into_iter().next().unwrap()
}

/// Whoever decides the events of its journal again decides all as it was, also on asks that had to wait.
fn decided_as_it_was(cluster: &Cluster) {
    let (store, copy) = (cluster.dir().join("store/store.redb"), cluster.dir().join("copy.redb"));
    fs::copy(store, &copy).unwrap();
    let journal = RedbJournal::read_only(&copy).unwrap();
    let mut lines = Vec::new();
    let done = replay(&journal, Until::End, true, &mut |line| {
        lines.push(format!("{} {}: {}", line.stamp.at.0, line.event, line.decisions));
        Ok(())
    });
    assert_eq!(done.unwrap().difference, None, "{lines:#?}");
}

#[tokio::test]
async fn a_job_that_asks_waits_for_the_others_and_writes_when_they_are_done() {
    let cluster = cluster(None).await;
    let mut first = Job::started(&cluster, "first").await;
    let mut second = Job::started(&cluster, "second").await;
    first.ask(1_000_000_000);
    assert_eq!(first.rate(), OF_A_NODE);
    second.ask(1_000_000_000);
    assert_eq!(second.rate(), CAP - OF_A_NODE, "what is left");
    let view = gate(&cluster.client().unwrap()).await;
    assert_eq!((view.admitted_bytes_per_s, view.writers.len()), (CAP, 2));
    first.done(1);
    assert_eq!(second.rate(), OF_A_NODE, "unasked");
    second.done(1);
    let over = async || match gate(&cluster.client().unwrap()).await.writers.len() {
        0 => Ok(()),
        more => Err(format!("{more} write")),
    };
    until(MINUTE, "the gate to be empty", over).await.unwrap();
    decided_as_it_was(&cluster);
}

#[tokio::test]
async fn under_a_lower_cap_who_came_last_writes_less_and_the_next_comes_once_it_was_told() {
    let cluster = cluster(None).await;
    let client = cluster.client().unwrap();
    let mut first = Job::started(&cluster, "first").await;
    let mut second = Job::started(&cluster, "second").await;
    first.ask(1_000_000_000);
    assert_eq!(first.rate(), OF_A_NODE);
    second.ask(1_000_000_000);
    assert_eq!(second.rate(), CAP - OF_A_NODE);
    let rule = gate(&client).await.rule.unwrap();
    let lower = v1::GateRule { cap_bytes_per_s: Some(CAP * 7 / 10), ..rule.clone() };
    client.set_gate("shared", lower).await.unwrap();
    assert_eq!(second.rate(), CAP / 10, "unasked");
    assert_eq!(gate(&client).await.admitted_bytes_per_s, CAP * 7 / 10);
    // What it may no longer write goes to others only when its node has said that it was told.
    client.set_gate("shared", rule).await.unwrap();
    assert_eq!(second.rate(), CAP - OF_A_NODE);
    first.done(1);
    assert_eq!(second.rate(), OF_A_NODE);
    second.done(1);
    decided_as_it_was(&cluster);
}

#[tokio::test]
async fn who_restores_waits_for_others_that_restore_and_not_for_who_writes() {
    let cluster = cluster(None).await;
    let client = cluster.client().unwrap();
    let reads_bytes_per_s = Some(OF_A_NODE);
    let rule = gate(&client).await.rule.unwrap();
    client.set_gate("shared", v1::GateRule { reads_bytes_per_s, ..rule }).await.unwrap();
    let mut first = Job::started(&cluster, "first").await;
    let mut second = Job::started(&cluster, "second").await;
    first.ask_for("restore", 1_000_000_000);
    assert_eq!(first.rate(), OF_A_NODE, "all that may be read");
    second.ask(1_000_000_000);
    assert_eq!(second.rate(), OF_A_NODE, "a write");
    second.done(1);
    second.ask_for("restore", 1_000_000_000);
    let place = second.hear()["wait"]["position"].clone();
    assert_eq!(place, 1, "one is before it");
    first.done(1);
    assert_eq!(second.rate(), OF_A_NODE);
    second.done(2);
}

#[tokio::test]
async fn a_permit_is_renewed_when_agent_and_starter_were_killed() {
    let mut cluster = cluster(None).await;
    let mut job = Job::started(&cluster, "job").await;
    job.ask(1000);
    assert_eq!(job.rate(), OF_A_NODE);
    let node = job.node(&cluster);
    cluster.kill(Role::Agent(node)).unwrap();
    cluster.kill(Role::Starter(node)).unwrap();
    let before = job.end_of_permit(&cluster).unwrap();
    cluster.start_role(Role::Starter(node)).unwrap();
    cluster.start_role(Role::Agent(node)).unwrap();
    let is_renewed = async || match job.end_of_permit(&cluster) {
        Some(end) if end.since(before) > Span::seconds(2) => Ok(()),
        other => Err(format!("{other:?} after {before:?}")),
    };
    until(MINUTE, "a later end", is_renewed).await.unwrap();
    job.say(&json!({"renew": {"permit": 1}}));
    let told = job.granted();
    assert_eq!((told["bytes_per_s"].as_u64(), told.get("lapsed")), (Some(OF_A_NODE), None));
    job.done(1);
}

#[tokio::test]
async fn who_is_not_heard_falls_to_a_safe_rate_and_nobody_gets_what_it_may_still_use() {
    let mut cluster = cluster(None).await;
    let mut first = Job::started(&cluster, "first").await;
    let mut second = Job::started(&cluster, "second").await;
    first.ask(1000);
    assert_eq!(first.rate(), OF_A_NODE);
    let silent = first.node(&cluster);
    cluster.kill(Role::Coordinator).unwrap();
    cluster.kill(Role::Agent(silent)).unwrap();
    second.ask(1_000_000_000);
    cluster.start_role(Role::Coordinator).unwrap();
    // While the first may write at its rate, and after that at what is kept for such as it.
    assert!(second.rate() <= CAP - OF_A_NODE);
    let lapsed = first.granted();
    assert_eq!((&lapsed["lapsed"], &lapsed["until_s"]), (&json!(true), &json!(0)));
    let safe = lapsed["bytes_per_s"].as_u64().unwrap();
    assert!(0 < safe && safe <= CAP / 10, "{lapsed}");
    assert!(second.rate() <= CAP - safe);
    cluster.start_role(Role::Agent(silent)).unwrap();
    let again = first.granted();
    assert_eq!(again.get("lapsed"), None);
    assert!(again["bytes_per_s"].as_u64().unwrap() <= CAP - OF_A_NODE);
}

#[tokio::test]
async fn a_permit_that_nothing_is_written_under_keeps_nobody_waiting_for_long() {
    let cluster = cluster(Some(1)).await;
    let client = cluster.client().unwrap();
    let mut first = Job::started(&cluster, "first").await;
    let mut second = Job::started(&cluster, "second").await;
    first.ask(1000);
    assert_eq!(first.rate(), OF_A_NODE);
    second.ask(1000);
    assert_eq!(second.hear()["wait"]["position"], 1);
    // Half a minute is the least that a permit is kept for.
    let share = first.rate();
    assert_eq!(
        share,
        2 * LEAST_SEEN.0,
        "what its node can see, as its part of the kept tenth is less"
    );
    assert_eq!(second.rate(), CAP - OF_A_NODE, "before its node has said that it was told");
    assert_eq!(second.rate(), OF_A_NODE);
    let request = v1::ExplainRequest { job: first.id.to_string(), at_ms: None };
    let told = client.api().explain(request).await.unwrap().into_inner().lines.join("; ");
    assert!(told.contains("nothing is seen to be written by it at shared"), "{told}");
    second.done(1);
    first.done(1);
    decided_as_it_was(&cluster);
}

#[tokio::test]
async fn the_permit_of_a_job_that_is_killed_goes_to_the_next() {
    let cluster = cluster(Some(1)).await;
    let mut first = Job::started(&cluster, "first").await;
    let mut second = Job::started(&cluster, "second").await;
    first.ask(1_000_000_000);
    assert_eq!(first.rate(), OF_A_NODE);
    second.ask(1_000_000_000);
    let waits = second.hear()["wait"].clone();
    assert_eq!((&waits["ask"], &waits["position"]), (&json!(1), &json!(1)), "{waits}");
    assert!(waits["expected_s"].as_u64().unwrap() > 600, "{waits}");
    let processes = cluster.task_processes(&format!("{}.1.0", first.id));
    signal(processes.first().unwrap().0, Signal::SIGKILL).unwrap();
    assert_eq!(second.rate(), OF_A_NODE);
    decided_as_it_was(&cluster);
}

#[tokio::test]
async fn a_training_job_asks_before_each_save_and_commits_what_it_wrote() {
    let cluster = cluster(None).await;
    let client = cluster.client().unwrap();
    let arguments = ["--steps", "20", "--save-every", "10", "--permits"];
    let trainer = cluster.trainer("trainer", 1, &arguments);
    let job = client
        .submit(&JobSpec { checkpoint: Some(offer(Span::minutes(1))), ..trainer })
        .await
        .unwrap();
    let view = client.job_ended(job, MINUTE).await.unwrap();
    let said = client.output(job, 1, 0).await.unwrap();
    let stream = v1::LogStream::Stderr.into();
    let job = job.to_string();
    let read = v1::ReadLogRequest { job, attempt: 1, task: 0, stream, offset: 0, limit: 1 << 20 };
    let complaints = client.api().read_log(read).await.unwrap().into_inner().bytes;
    assert_eq!(String::from_utf8(complaints).unwrap(), "", "each save had a permit");
    assert_eq!(view.state(), v1::JobState::Done, "{said}");
    assert!(said.contains("committed step 10") && said.contains("committed step 20"), "{said}");
    assert!(gate(&client).await.writers.is_empty());
}

/// A job on each of three nodes. The second waits, and the third after it, when the second's node falls silent.
#[tokio::test]
async fn nobody_on_a_silent_node_is_let_through_and_its_turn_is_kept_until_the_node_is_back() {
    let mut plan = Plan::nodes(3, 1);
    plan.policy += "\nsilent_after = \"2s\"";
    let mut cluster = cluster_of(plan, OF_A_NODE, Some(1)).await;
    let client = cluster.client().unwrap();
    let mut first = Job::started(&cluster, "first").await;
    let mut second = Job::started(&cluster, "second").await;
    let mut third = Job::started(&cluster, "third").await;
    first.ask(1_000_000_000);
    assert_eq!(first.rate(), OF_A_NODE);
    second.ask(1_000_000_000);
    third.ask(1_000_000_000);
    let silent = second.node(&cluster);
    cluster.kill(Role::Agent(silent)).unwrap();
    is_unreachable(&cluster, silent).await;
    first.done(1);
    assert_eq!(third.rate(), OF_A_NODE, "though it came later");
    first.ask(1_000_000_000);
    let view = gate(&client).await;
    let writers: Vec<_> = view.writers.iter().map(|one| one.attempt.clone()).collect();
    assert_eq!(writers, [format!("{}.1", third.id)]);
    cluster.start_role(Role::Agent(silent)).unwrap();
    let waits = async || {
        let queue = gate(&client).await.queue.into_iter().map(|one| one.attempt);
        let queue: Vec<_> = queue.collect();
        let expected = [format!("{}.1", second.id), format!("{}.1", first.id)];
        if queue == expected { Ok(()) } else { Err(format!("{queue:?}")) }
    };
    until(MINUTE, "the second before the first", waits).await.unwrap();
    third.done(1);
    assert_eq!(second.rate(), OF_A_NODE, "it has waited for longer than the first");
    second.done(1);
    assert_eq!(first.rate(), OF_A_NODE);
    decided_as_it_was(&cluster);
}

async fn is_unreachable(cluster: &Cluster, node: usize) {
    let client = cluster.client().unwrap();
    let look = async || {
        let nodes = client.nodes().await.map_err(|status| status.to_string())?;
        let found = nodes.iter().find(|one| one.node == node_name(node)).ok_or("no such node")?;
        let state = found.state();
        if state == v1::NodeState::Unreachable { Ok(()) } else { Err(format!("{state:?}")) }
    };
    until(MINUTE, "a silent node", look).await.unwrap();
}

/// Four jobs on each of two nodes, all of which may write at a tenth of the cap if there are not too many. The
/// agent of those that write is killed, and comes back when their permits are over and the others write too.
async fn all_have_their_share_again(writers: Option<u32>) {
    let share = CAP / 10;
    let mut cluster = cluster_of(Plan::nodes(2, 4), share, writers).await;
    let client = cluster.client().unwrap();
    let (mut silenced, mut others) = (Vec::new(), Vec::new());
    for number in 0..8 {
        let job = Job::started(&cluster, &format!("job-{number}")).await;
        if job.node(&cluster) == 0 { silenced.push(job) } else { others.push(job) }
    }
    assert_eq!((silenced.len(), others.len()), (4, 4));
    for job in &mut silenced {
        job.ask(1000);
        assert_eq!(job.rate(), share);
        // They write for so long that it would take too long here: they say so.
        job.say(&json!({"progress": {"permit": 1, "bytes": 1}}));
    }
    others.iter_mut().for_each(|job| job.ask(1000));
    cluster.kill(Role::Agent(0)).unwrap();
    for job in &mut silenced {
        let lapsed = job.granted();
        assert_eq!(lapsed["lapsed"], true, "{lapsed}");
    }
    others.iter_mut().for_each(|job| assert_eq!(job.rate(), share));
    let turns = async || -> Vec<v1::GateTurn> {
        gate(&client).await.writers.into_iter().filter_map(|one| one.turn).collect()
    };
    let of_pool = async || match turns().await.iter().filter(|turn| turn.pooled).count() {
        4 => Ok(()),
        other => Err(format!("{other} write out of the pool")),
    };
    until(MINUTE, "those of the silent node to have what is kept for them", of_pool).await.unwrap();
    cluster.start_role(Role::Agent(0)).unwrap();
    let all_whole = async || {
        let turns = turns().await;
        let whole = |turn: &&v1::GateTurn| !turn.pooled && turn.bytes_per_s == Some(share);
        match turns.iter().filter(whole).count() {
            8 => Ok(()),
            other => Err(format!("{other} of {} have their share: {turns:?}", turns.len())),
        }
    };
    until(SOON, "all to have their share", all_whole).await.unwrap();
    for job in &mut silenced {
        while job.rate() != share {}
    }
    decided_as_it_was(&cluster);
}

#[tokio::test]
async fn whose_agent_comes_back_in_a_save_storm_has_its_whole_share_again_within_seconds() {
    all_have_their_share_again(Some(8)).await;
}

#[tokio::test]
async fn whose_agent_comes_back_has_its_whole_share_again_though_as_many_others_write_as_may() {
    all_have_their_share_again(None).await;
}

#[tokio::test]
async fn who_said_that_it_asks_and_never_does_gives_its_turn_to_who_waits() {
    let cluster = cluster(Some(1)).await;
    let client = cluster.client().unwrap();
    let asks_within = AsksWithin::of(Span::seconds(1));
    let leaves = |name: &str, asks_within| {
        let offer =
            CheckpointOffer { asks_within, bytes: Some(Bytes(1)), ..offer(Span::minutes(1)) };
        let checkpoint = Some(offer);
        JobSpec { min_runtime: Span::ZERO, checkpoint, ..relayed(&cluster, name) }
    };
    let mut silent = Job::of(&cluster, &leaves("silent", asks_within)).await;
    let mut waits = Job::of(&cluster, &leaves("waits", None)).await;
    for job in [&silent, &waits] {
        let node = node_name(job.node(&cluster));
        let drain = v1::DrainRequest { node, reason: "fans".to_owned(), wanted_by_ms: None };
        client.api().drain(drain).await.unwrap();
    }
    silent.told_to_save();
    let writers: Vec<_> = gate(&client).await.writers.into_iter().map(|one| one.attempt).collect();
    assert_eq!(writers, [format!("{}.1", silent.id)], "its turn is kept");
    waits.told_to_save();
    let admitted = async |job: JobId| {
        let attempt = client.job(job).await.unwrap().attempts.remove(0);
        (attempt.state(), attempt.save.unwrap().admitted_ms.unwrap())
    };
    let ((state, first), (_, next)) = (admitted(silent.id).await, admitted(waits.id).await);
    // A second until it was to ask, fifteen for reports that are late, and as long as a byte takes.
    let after = Duration::from_millis(next - first);
    assert!(after >= Duration::from_secs(16) && after < Duration::from_secs(30), "{after:?}");
    assert_eq!(state, v1::AttemptState::Saving, "its grace is its own");
    let request = v1::ExplainRequest { job: silent.id.to_string(), at_ms: None };
    let told = client.api().explain(request).await.unwrap().into_inner().lines.join("\n");
    assert!(told.contains("its turn at shared is given back"), "{told}");
    waits.ask_for("preemption", 1);
    assert_eq!(waits.rate(), OF_A_NODE);
    silent.ask_for("preemption", 1);
    waits.done(1);
    assert_eq!(silent.rate(), OF_A_NODE, "it waits for another turn when it asks");
    decided_as_it_was(&cluster);
}
