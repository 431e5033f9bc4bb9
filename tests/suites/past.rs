//! Why a job was where it was: the journal answers as the coordinator would have then.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::process::Command;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::history::{self, CLUSTER, history};
use redb::backends::InMemoryBackend;
use scheduler_core::{NodeState, Stamp};
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Journal, snapshot};
use tidegate_coordinator::past::{PastError, as_of};
use tidegate_model::{JobId, JobSpec, Span, Timestamp};
use tidegate_proto::v1;

const MINUTE: Duration = Duration::from_secs(60);

/// A store in a file of its own, and the engine on it.
fn store(dir: &tempfile::TempDir) -> RedbJournal {
    RedbJournal::open(&dir.path().join("store.redb"), CLUSTER).unwrap()
}

#[test]
fn at_every_instant_the_journal_explains_every_job_as_the_engine_did_then() {
    let journal = RedbJournal::on_backend(InMemoryBackend::new(), CLUSTER).unwrap();
    let reader = journal.reader();
    let mut engine = history::start(journal, Timestamp(0)).unwrap();
    let events = history();
    let mut compared = 0;
    for (place, (at, event)) in events.iter().enumerate() {
        engine.turn(Timestamp(*at), std::slice::from_ref(event)).unwrap();
        let now = engine.now();
        // Of several records of one instant the last tells how it was.
        let is_last = events.get(place + 1).is_none_or(|(next, _)| *next > now.0);
        let state = |id| engine.core().node_state(now, id);
        let silent =
            |state| matches!(state, Some(NodeState::Unreachable | NodeState::Unconfirmed) | None);
        // Heartbeats are not kept: a node that had fallen silent is taken as heard.
        if !is_last || engine.core().books().nodes.keys().any(|id| silent(state(*id))) {
            continue;
        }
        for job in engine.core().books().jobs.keys() {
            let past = as_of(&reader.reading().unwrap(), now, *job, &|| true).unwrap();
            assert_eq!(past.core.books(), engine.core().books(), "after {event:?}");
            let (then, told) = (engine.core().explain(now, *job), past.core.explain(now, *job));
            assert_eq!(told, then, "{job} after {event:?}");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared} explanations were compared");
}

#[test]
fn a_displacement_is_told_with_its_rule_and_numbers_after_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = history::start(store(&dir), Timestamp(0)).unwrap();
    for (at, event) in history() {
        engine.turn(Timestamp(at), &[event]).unwrap();
    }
    drop(engine);
    let reading = store(&dir).reading().unwrap();
    let decided = |at, job| as_of(&reading, Timestamp(at), JobId(job), &|| true).unwrap().decided;
    let told: Vec<_> = [7000, u64::MAX]
        .into_iter()
        .flat_map(|at| (1..=8).flat_map(move |job| decided(at, job)))
        .map(|decided| decided.told)
        .collect();
    let asked: Vec<_> =
        told.iter().filter(|told| told.contains("was asked to save and leave")).collect();
    assert!(
        asked.iter().any(|told| told.contains("has its GPUs: free work yields to protected work")),
        "{asked:#?}"
    );
    assert!(asked.iter().any(|told| told.contains("node-a takes no work")), "{asked:#?}");
    assert!(told.iter().any(|told| told.contains("was stopped because")), "{told:#?}");
}

#[test]
fn before_the_oldest_snapshot_nothing_is_told_but_what_could_be_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = history::start(store(&dir), Timestamp(1000)).unwrap();
    let asked = |at| {
        let reading = store(&dir).reading().unwrap();
        as_of(&reading, Timestamp(at), JobId(1), &|| true).map(|past| past.since)
    };
    let mut cut = Vec::new();
    for (at, event) in history().into_iter().take(6) {
        engine.turn(Timestamp(at + 2000), &[event]).unwrap();
        let stamp = Stamp { at: engine.now(), seq: engine.last_seq() };
        cut.push((stamp, snapshot::encode(stamp, engine.core().books())));
    }
    drop(engine);
    let told = asked(999).unwrap_err();
    assert!(matches!(told, PastError::TooEarly { oldest: Timestamp(1000), .. }), "{told}");
    assert_eq!(asked(1000).unwrap(), Timestamp(1000));
    // Two snapshots are kept, and what is older than both is cut.
    let mut journal = store(&dir);
    for (stamp, books) in &cut[cut.len() - 2..] {
        journal.snapshot(stamp.seq, books).unwrap();
    }
    drop(journal);
    let oldest = cut[cut.len() - 2].0.at;
    let told = asked(oldest.0 - 1).unwrap_err().to_string();
    assert!(told.contains("is before the oldest record that is kept; an instant from"), "{told}");
    assert_eq!(asked(oldest.0).unwrap(), oldest);
    let reading = store(&dir).reading().unwrap();
    let told = as_of(&reading, oldest, JobId(1), &|| false).unwrap_err();
    assert!(matches!(told, PastError::Abandoned), "{told}");
}

#[tokio::test]
async fn a_running_coordinator_tells_of_the_past_without_being_stopped() {
    let binaries = Binaries::built().unwrap();
    let mut cluster = Cluster::start(binaries.clone(), &Plan::nodes(1, 4)).await.unwrap();
    let client = cluster.client().unwrap();
    let sleeper = |gpus| JobSpec {
        command: vec!["/bin/sleep".into(), "600".into()],
        min_runtime: Span::hours(2),
        ..cluster.job("sleeper", gpus)
    };
    let runs = |view: &v1::JobView| view.promised_until_ms.is_some();
    let (first, waits) = (sleeper(4), sleeper(2));
    let first = client.submit(&first).await.unwrap();
    client.job_until(first, MINUTE, "runs", runs).await.unwrap();
    // None of what the agents say of it again is in the journal.
    cluster.kill(Role::Coordinator).unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    cluster.ready(MINUTE).await.unwrap();
    let second = client.submit(&waits).await.unwrap();
    let waited = client.job_until(second, MINUTE, "waits", |_| true).await.unwrap();
    let ask = |job: JobId, at_ms| {
        let request = v1::ExplainRequest { job: job.to_string(), at_ms };
        async { client.api().explain(request).await.map(tonic::Response::into_inner) }
    };
    let now = ask(second, None).await.unwrap();
    client.api().cancel(v1::CancelRequest { job: first.to_string() }).await.unwrap();
    client.job_until(second, MINUTE, "runs", runs).await.unwrap();

    let then = ask(second, Some(waited.submitted_ms)).await.unwrap();
    assert_eq!((then.reason.as_str(), &then.reason), ("AwaitingReservation", &now.reason));
    assert!(then.lines[0].starts_with("it is funded; its 2 GPUs are expected in"), "{then:?}");
    assert_eq!(then.decided.last().map(|one| one.at_ms), Some(waited.submitted_ms));
    assert!(then.assumed.iter().any(|told| told.contains("node-0")), "{:?}", then.assumed);
    let refused = ask(second, Some(waited.submitted_ms - 1)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound, "{refused}");
    let refused = ask(second, Some(1)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
    assert!(refused.message().contains("an instant from 20"), "{refused}");
    let refused = ask(second, Some(u64::MAX)).await.unwrap_err();
    assert!(refused.message().contains("is to come"), "{refused}");

    let told = |args: &[&str]| {
        let mut command = Command::new(binaries.path("tidegate"));
        let out = command.arg("--socket").arg(cluster.socket()).args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (id, at) = (second.to_string(), waited.submitted_ms.to_string());
    let (code, out, err) = told(&["explain", &id, "--at", &at]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.starts_with(&format!("{second} at 20")), "{out}");
    assert!(out.contains("submitted by uid-") && out.contains("assumed: "), "{out}");
    let (_, out, _) = told(&["explain", &id, "--at", &at, "--json"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["at_ms"], waited.submitted_ms);
    let (code, _, err) = told(&["explain", &id, "--at", "-900000h"]);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = told(&["explain", "job-9", "--at", &at]);
    assert_eq!((code, err.contains("job-9 was not submitted yet")), (Some(3), true), "{err}");
}
