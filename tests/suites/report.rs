//! What is told of the past: a store applied again, and the report of what was used.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::history::{self, CLUSTER, history};
use scheduler_core::{Amount, Decision, Event, ROOT, Stamp, WINDOW};
use serde_json::json;
use tempfile::TempDir;
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Journal, codec};
use tidegate_coordinator::replay::{Replayed, Until, replay};
use tidegate_coordinator::report::{self, Class, Used};
use tidegate_coordinator::store;
use tidegate_model::{DecisionSeq, Epoch, JobId, JobSpec, NodeId, Span, Timestamp, UserId};
use tidegate_proto::v1;

/// A store with the history of all suites.
fn stored() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let journal = RedbJournal::open(&path, CLUSTER).unwrap();
    let mut engine = history::start(journal, Timestamp(0)).unwrap();
    for (at, event) in history() {
        engine.turn(Timestamp(at), &[event]).unwrap();
    }
    (dir, path)
}

fn replayed(path: &Path, until: Until) -> (Replayed, Vec<String>) {
    let journal = RedbJournal::read_only(path).unwrap();
    let mut lines = Vec::new();
    let done = replay(&journal, until, true, &mut |line| {
        lines.push(format!("{} {}: {}", line.stamp.at.0, line.event, line.decisions));
        Ok(())
    });
    (done.unwrap(), lines)
}

#[test]
fn a_store_applied_again_has_the_books_of_the_coordinator_and_every_event_is_decided_as_it_was() {
    let (_dir, path) = stored();
    let restored = store::restore(&RedbJournal::open(&path, CLUSTER).unwrap()).unwrap();
    let before = fs::read(&path).unwrap();
    let (done, lines) = replayed(&path, Until::End);
    assert_eq!(done.books, *restored.core.books());
    assert_eq!(done.difference, None);
    assert_eq!((done.after, done.last), (DecisionSeq(0), restored.last));
    assert_eq!(done.records, restored.next.0 - 1);
    assert_eq!(u64::try_from(lines.len()).unwrap(), done.records);
    for expected in [
        "0 a coordinator started: EpochBegan 1, AccountMade",
        "3 uid-1000 submitted a job: JobAccepted job-1, AttemptPlanned job-1.1 (Protected, 2 tasks)",
        "7 node-a reported 1 tasks: TaskEnded job-1.1.1 (exit code 3), TaskIdled job-1.1.1, \
         TaskReleased job-1.1.1",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{expected}: {lines:#?}");
    }
    assert_eq!(fs::read(&path).unwrap(), before, "nothing is written");
}

#[test]
fn a_replay_until_an_instant_ends_there() {
    let (_dir, path) = stored();
    let (done, _) = replayed(&path, Until::At(Timestamp(8)));
    assert_eq!((done.last, done.books.last_job), (Timestamp(8), 2));
}

/// Appends a record that no rule decides so.
fn decide_otherwise(path: &Path) -> Stamp {
    decide_otherwise_in(&mut RedbJournal::open(path, CLUSTER).unwrap())
}

fn decide_otherwise_in(journal: &mut RedbJournal) -> Stamp {
    let restored = store::restore(journal).unwrap();
    let stamp = Stamp { at: restored.last, seq: restored.next };
    let (job, by) = (JobId(2), UserId(0));
    let strange = Decision::NodeAdmitted { node: NodeId(2), name: "node-b".parse().unwrap() };
    let bytes = codec::encode(stamp, Epoch(1), &Event::CancelRequested { job, by }, &[strange]);
    journal.append(&[(stamp.seq, bytes)]).unwrap();
    stamp
}

#[test]
fn the_first_record_that_is_decided_otherwise_now_is_shown() {
    let (_dir, path) = stored();
    let stamp = decide_otherwise(&path);
    let found = replayed(&path, Until::End).0.difference.unwrap();
    assert_eq!(found.stamp, stamp);
    assert_eq!((found.then.as_str(), found.now.as_str()), ("NodeAdmitted node-b", "nothing"));
}

#[test]
fn a_log_that_was_cut_begins_with_the_books_of_the_snapshot_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let journal = RedbJournal::open(&path, CLUSTER).unwrap();
    let mut engine = history::start(journal, Timestamp(0)).unwrap();
    history::until_the_log_is_cut(&mut engine).unwrap();
    let books = engine.core().books().clone();
    drop(engine);
    let journal = RedbJournal::read_only(&path).unwrap();
    let done = replay(&journal, Until::End, false, &mut |_| Ok(())).unwrap();
    assert!(done.after > DecisionSeq(10_000), "{:?}", done.after);
    assert_eq!(done.books, books);
}

#[test]
fn the_program_tells_records_figures_and_refuses_a_store_in_use() {
    let (_dir, path) = stored();
    let program = Binaries::built().unwrap().path("tidegate");
    let told = |args: &[&str]| {
        let out = Command::new(&program).arg("replay").arg(&path).args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (code, out, err) = told(&["--diff"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("1970-01-01T00:00:00.000Z  1  a coordinator started: "), "{out}");
    assert!(out.ends_with("every event is decided as it was\n"), "{out}");
    assert!(out.contains("\na/b: "), "{out}");
    let (_, out, _) = told(&["--json", "--until", "8"]);
    let document: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["last_ms"], 8);
    assert_eq!(document["log"].as_array().unwrap().len(), document["records"]);
    let charged = document["accounts"].as_array().unwrap().iter();
    assert!(charged.into_iter().all(|one| one["charged_gpu_us"].is_i64()), "{out}");
    let none = path.with_file_name("none.redb");
    drop(RedbJournal::open(&none, CLUSTER).unwrap());
    let out = Command::new(&program).args(["replay", "--json"]).arg(&none).output().unwrap();
    let none: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&none["log"], &none["records"]), (&json!([]), &json!(0)));
    let (code, _, err) = told(&["--until", "soon"]);
    assert_eq!(code, Some(2), "{err}");

    let held = RedbJournal::open(&path, CLUSTER).unwrap();
    let (code, _, err) = told(&[]);
    assert_eq!(code, Some(2));
    assert!(err.contains("stop it, or copy the file and replay the copy"), "{err}");
    // A copy of a store that is open was not closed, and reads all the same.
    let copy = path.with_file_name("copy.redb");
    fs::copy(&path, &copy).unwrap();
    drop(held);
    assert_eq!(replayed(&copy, Until::End).0.books, replayed(&path, Until::End).0.books);
}

#[test]
fn each_way_a_replay_can_end_has_a_code_of_its_own() {
    let (dir, path) = stored();
    let program = Binaries::built().unwrap().path("tidegate");
    let check = |store: &Path, args: &[&str], code: i32, words: &str| {
        let out = Command::new(&program).arg("replay").arg(store).args(args).output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(code), "{err}");
        assert!(err.contains(words), "{words}: {err}");
    };
    check(&path, &["--diff"], 0, "");
    check(&dir.path().join("none.redb"), &[], 3, "No such file");
    for args in [&[][..], &["--json"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(&program);
        let out = command.arg("replay").arg(&path).args(args).stdout(full).output().unwrap();
        let told = "error: the output cannot be written: No space left on device (os error 28)\n";
        assert_eq!(String::from_utf8(out.stderr).unwrap(), told);
        assert_eq!(out.status.code(), Some(1));
    }
    let torn = dir.path().join("torn.redb");
    let mut bytes = fs::read(&path).unwrap();
    bytes[..64].fill(7);
    fs::write(&torn, &bytes).unwrap();
    check(&torn, &[], 6, "torn.redb");
    fs::write(&torn, "").unwrap();
    check(&torn, &[], 6, "it is empty");
    let mut journal = RedbJournal::open(&path, CLUSTER).unwrap();
    check(&path, &[], 2, "is open in a coordinator");
    let next = store::restore(&journal).unwrap().next;
    decide_otherwise_in(&mut journal);
    journal.append(&[(DecisionSeq(next.0 + 1), b"no record".to_vec())]).unwrap();
    drop(journal);
    check(&path, &["--diff"], 6, "is damaged at record");
    let (_dir, path) = stored();
    decide_otherwise(&path);
    check(&path, &["--diff"], 1, "");
    check(&path, &[], 0, "");
}

#[test]
fn what_is_recounted_of_one_window_is_to_the_microsecond_what_the_core_charges() {
    let (_dir, path) = stored();
    let journal = RedbJournal::read_only(&path).unwrap();
    let restored = store::restore(&journal).unwrap();
    let mut engine = history::start(in_memory(), Timestamp(0)).unwrap();
    let (mut charged, mut free) = (Amount::ZERO, Amount::ZERO);
    for (at, event) in history() {
        engine.turn(Timestamp(at), &[event]).unwrap();
        let books = engine.core().books();
        // Between two events time passes as well.
        for later in [0, 1, 1_800_000, WINDOW.0 / 2] {
            let now = Timestamp(at + later);
            let told = report::report(books, now, 1);
            // Jobs of which something may be in the window are not forgotten by then.
            let kept = told.complete_from <= told.from;
            assert!(kept, "the policy keeps them for a window");
            let none = Used::default();
            for account in books.accounts.all() {
                let used = told.used.get(&(account.id, None)).unwrap_or(&none);
                assert_eq!(used.charged, account.charged.value(now), "{} at {now}", account.label);
                assert_eq!(used.free, account.free.value(now), "{} at {now}", account.label);
                for (user, purse) in &account.purses {
                    let used = told.used.get(&(account.id, Some(*user))).unwrap_or(&none);
                    assert_eq!(used.charged, purse.charged.value(now), "{user} at {now}");
                    assert_eq!(used.free, purse.free.value(now), "{user} at {now}");
                }
            }
            let all = told.used.get(&(ROOT, None)).unwrap_or(&none);
            (charged, free) = (charged.max(all.charged), free.max(all.free));
        }
    }
    assert_eq!(engine.core().books().last_job, restored.core.books().last_job);
    assert!(charged > Amount::gpu_hours(39) && free > Amount::ZERO, "{charged} {free}");
}

fn in_memory() -> RedbJournal {
    RedbJournal::on_backend(redb::backends::InMemoryBackend::new(), CLUSTER).unwrap()
}

#[test]
fn waits_are_told_by_class_with_displacements_and_overhead() {
    let mut engine = history::start(in_memory(), Timestamp(0)).unwrap();
    let until = 6 * 3_600_000;
    for (at, event) in history().into_iter().filter(|(at, _)| *at < until) {
        engine.turn(Timestamp(at), &[event]).unwrap();
    }
    let told = report::report(engine.core().books(), Timestamp(until), 1);
    let all = &told.used[&(ROOT, None)];
    let ms = |class| all.waits[&class].iter().map(|span| span.0).collect::<Vec<_>>();
    let hour = 3_600_000;
    // Two free runs of one job: 2 ms from the submission, and until the node was its own again.
    assert_eq!(ms(Class::Free), [2, 5 * hour + 6 - 6000]);
    assert_eq!(ms(Class::Ordinary), [1002]);
    assert_eq!(ms(Class::Small), [3]);
    assert_eq!(all.displaced, 1, "by the large one; the other request was for a drain");
    assert!(all.overhead > Amount::ZERO);
}

#[tokio::test]
async fn a_running_cluster_is_reported_and_a_copy_of_its_store_replayed() {
    let binaries = Binaries::built().unwrap();
    let mut cluster = Cluster::start(binaries.clone(), &Plan::nodes(2, 4)).await.unwrap();
    let client = cluster.client().unwrap();
    let spec = JobSpec {
        command: vec!["/bin/sleep".into(), "600".into()],
        min_runtime: Span::hours(2),
        ..cluster.job("sleeper", 2)
    };
    let runs = |view: &v1::JobView| view.promised_until_ms.is_some();
    let done = client.submit(&cluster.job("short", 1)).await.unwrap();
    client.job_ended(done, Duration::from_secs(60)).await.unwrap();
    // Its epoch begins anew with what the agents say, none of which is in the journal.
    cluster.kill(Role::Coordinator).unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    cluster.ready(Duration::from_secs(60)).await.unwrap();
    let job = client.submit(&spec).await.unwrap();
    client.job_until(job, Duration::from_secs(60), "runs", runs).await.unwrap();

    let told = |args: &[&str]| {
        let mut command = Command::new(binaries.path("tidegate"));
        let out = command.arg("--socket").arg(cluster.socket()).args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (code, out, err) = told(&["report", "--account", "default"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("idle protected time: not measured"), "{out}");
    let (_, out, _) = told(&["report", "--json", "--weeks", "2"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let root = &report["usages"][0];
    assert_eq!(root["account"], "root");
    assert_eq!(root["charged_gpu_us"], root["window_charged_gpu_us"]);
    assert!(root["waits"].as_array().unwrap().iter().any(|waits| waits["class"] == "ordinary"));
    let (_, out, _) = told(&["report", "--csv"]);
    let rows: Vec<_> = out.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(rows, [29, 29, 29, 29], "a heading, root, default and its user: {out}");
    assert_eq!(told(&["report", "--account", "nobody"]).0, Some(3), "not found");

    let store = cluster.dir().join("store/store.redb");
    let copy = cluster.dir().join("copy.redb");
    let (code, _, err) = told(&["replay", store.to_str().unwrap()]);
    assert_eq!(code, Some(2), "{err}");
    fs::copy(&store, &copy).unwrap();
    let (done, lines) = replayed(&copy, Until::End);
    assert_eq!(done.difference, None, "{lines:#?}");
    assert_eq!(done.books.last_job, 2);
}
