//! The real program against a scripted coordinator on a socket of its own.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test and what supports it; a panic is its verdict"
)]

mod handing_over;
mod sharing;
mod support;

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::json;
use support::{Coordinator, Log, Ran, Script, tidegate};
use tidegate_proto::v1;
use tonic::Status;

const KEY: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

fn told(code: i32, stdout: &str, stderr: &str) -> Ran {
    Ran { code: Some(code), stdout: stdout.into(), stderr: stderr.into() }
}

fn job(id: &str, state: v1::JobState, attempts: u32) -> v1::JobView {
    let attempt = |number: u32| v1::AttemptView {
        attempt: format!("{id}.{number}"),
        state: v1::AttemptState::Done.into(),
        ..v1::AttemptView::default()
    };
    v1::JobView {
        job: id.into(),
        uid: 3_999_999_999,
        spec: Some(v1::JobSpec {
            name: "train".into(),
            account: "default".into(),
            command: vec!["true".into()],
            working_dir: "/".into(),
            gpus: 8,
            layout: v1::TaskLayout::PerGpu.into(),
            min_runtime_ms: 7_200_000,
            ..v1::JobSpec::default()
        }),
        state: state.into(),
        submitted_ms: 1_772_323_199_000,
        attempts: (1..=attempts).map(attempt).collect(),
        reason: "max restarts used".into(),
        ..v1::JobView::default()
    }
}

#[test]
fn a_submit_that_is_answered_after_a_miss_was_asked_twice_under_one_key() {
    let misses = [Status::unavailable("restarting")].into();
    let coordinator = Coordinator::with(Script { submit_misses: misses, ..Script::default() });
    fs::write(coordinator.path("train.toml"), "command = [\"true\"]\ngpus = 4\n").unwrap();
    let ran = coordinator.tidegate(&["submit", "train.toml"]);
    let asked = coordinator.script().submits.clone();
    assert_eq!(asked.len(), 2, "{ran:?}");
    assert_eq!(asked[0], asked[1]);
    assert_eq!(asked[0].spec.as_ref().unwrap().gpus, 4);
    let key = &asked[0].key;
    let remark = format!("an earlier try had been accepted: job-7 is that job (key {key})\n");
    assert_eq!(ran, told(0, "job-7\n", &remark));
}

#[test]
fn reads_and_submits_outlive_connections_that_break() {
    let lost =
        |lost_connections| Coordinator::with(Script { lost_connections, ..Script::default() });
    assert_eq!(lost(2).tidegate(&["status", "--json"]).json()["cluster"], "01JQ");
    assert_eq!(lost(2).tidegate(&["run", "--", "true"]), told(0, "job-7\n", ""));
}

#[test]
fn a_given_key_is_used_and_a_refusal_is_told_in_the_coordinators_words_and_not_repeated() {
    let misses = [Status::invalid_argument("account: no account is named default")].into();
    let coordinator = Coordinator::with(Script { submit_misses: misses, ..Script::default() });
    let args = ["run", "--key", KEY, "--env", "B=2", "--env", "A=1", "--", "echo", "a b"];
    let ran = coordinator.tidegate(&args);
    assert_eq!(ran, told(2, "", "error: account: no account is named default\n"));
    let ran = coordinator.tidegate(&[&["--json"], &args[..]].concat());
    assert_eq!(ran.json(), json!({ "job": "job-7", "key": KEY, "repeated": true, "warnings": [] }));
    let asked = coordinator.script().submits.clone();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].key, KEY);
    let spec = asked[0].spec.clone().unwrap();
    assert_eq!((spec.name.as_str(), spec.command), ("echo", vec!["echo".into(), "a b".into()]));
    let env: Vec<_> = spec.env.iter().map(|var| var.name.as_str()).collect();
    assert_eq!(env, ["A", "B"]);
}

#[test]
fn a_job_file_with_an_unknown_key_is_refused_before_anybody_is_asked() {
    let coordinator = Coordinator::with(Script::default());
    fs::write(coordinator.path("train.toml"), "command = [\"true\"]\ngpu = 4\n").unwrap();
    let ran = coordinator.tidegate(&["submit", "train.toml"]);
    let expected = "error: train.toml: unknown key \"gpu\" (did you mean \"gpus\"?); the keys are \
                    name, account, command, working_dir, checkpoint, env, gpus, gpus_per_node, \
                    gpu_type, max_blocks, tasks, min_runtime, while_waiting, order, after, grace, \
                    max_restarts, checkpoint_dir, log_cap, whole_cluster, notify_url\n";
    assert_eq!(ran, told(2, "", expected));
    assert!(coordinator.script().submits.is_empty());
}

#[test]
fn a_job_file_may_come_by_standard_input() {
    let coordinator = Coordinator::with(Script::default());
    let mut command = tidegate(&["submit", "-"]);
    command.env("TIDEGATE_API", coordinator.path("api.sock"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"command = [\"true\"]").unwrap();
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!(ran, told(0, "job-7\n", ""));
}

#[test]
fn jobs_are_read_over_all_pages_into_one_document_of_stable_keys() {
    let jobs = vec![
        job("job-7", v1::JobState::Active, 1),
        job("job-8", v1::JobState::Pending, 0),
        job("job-9", v1::JobState::Cancelled, 0),
    ];
    let coordinator = Coordinator::with(Script { jobs, ..Script::default() });
    let ran = coordinator.tidegate(&["jobs", "--all", "--json"]);
    let document = ran.json();
    let ids: Vec<_> =
        document["jobs"].as_array().unwrap().iter().map(|job| job["job"].clone()).collect();
    assert_eq!(ids, ["job-7", "job-8", "job-9"]);
    assert_eq!(document["jobs"][0], job_document());
}

/// The first of those jobs, in two parts: the macro has its limits.
fn job_document() -> serde_json::Value {
    let mut asked = json!({
        "name": "train", "account": "default", "command": ["true"], "working_dir": "/",
        "env": {}, "gpus": 8, "gpus_per_node": null, "tasks": "per-gpu",
        "min_runtime_ms": 7_200_000, "grace_ms": 0, "max_restarts": 0,
        "checkpoint_dir": null, "log_cap_bytes": 0, "notify_url": null,
        "gpu_type": null, "max_blocks": null, "order": 0, "while_waiting": "free",
        "checkpoint": null, "after": [],
    });
    let attempt = json!({
        "attempt": "job-7.1", "state": "done", "planned_ms": 0, "running_ms": null,
        "ended_ms": null, "why": "", "standing": null, "promised_until_ms": null,
        "granted_ms": null, "committed_ms": null, "save": null, "protected_gpu_us": 0,
        "funded_gpu_us": 0, "free_gpu_us": 0, "excused_gpu_us": 0, "tasks": []
    });
    let became = json!({
        "job": "job-7", "user": "3999999999", "uid": 3_999_999_999_u32,
        "state": "active", "submitted_ms": 1_772_323_199_000_u64, "ended_ms": null,
        "cancel_requested": false, "reason": "max restarts used",
        "standing": null, "promised_until_ms": null, "parked": null, "elder_since_ms": null,
        "elder_allowed": false, "reservation": null, "commit": null, "waits_for": [],
        "waits_since_ms": 0, "stalled": 0, "idle_since_ms": null, "rehearsal": null, "pty": false, "whole_cluster": false,
        "array": null, "attempts": [attempt],
    });
    let document = asked.as_object_mut().unwrap();
    document.extend(became.as_object().unwrap().clone());
    asked
}

#[test]
fn each_kind_of_refusal_has_its_exit_code_and_its_sentence() {
    for (status, code) in [
        (Status::failed_precondition("gpu-01 is not drained"), 2),
        (Status::not_found("there is no node gpu-01"), 3),
        (Status::permission_denied("only an admin resumes nodes"), 4),
        (Status::resource_exhausted("too many requests"), 5),
        (Status::internal("an invariant is broken"), 6),
    ] {
        let expected = format!("error: {}\n", status.message());
        let script = Script { refusal: Some(status), ..Script::default() };
        let ran = Coordinator::with(script).tidegate(&["resume", "gpu-01"]);
        assert_eq!(ran, told(code, "", &expected));
    }
}

#[test]
fn without_a_coordinator_the_socket_is_named_and_a_remedy_told() {
    let ran = Ran::of(&tidegate(&["--socket", "/no-such-dir/api.sock", "jobs"]).output().unwrap());
    let expected = "error: no coordinator listens at /no-such-dir/api.sock (No such file or \
                    directory (os error 2)); start tidegate-coordinator, try `tidegate demo`, or \
                    name its socket with --socket or TIDEGATE_API\n";
    assert_eq!(ran, told(5, "", expected));
}

#[test]
fn every_job_that_can_be_cancelled_is_though_others_cannot() {
    let jobs = vec![job("job-7", v1::JobState::Active, 1), job("job-9", v1::JobState::Active, 1)];
    let coordinator = Coordinator::with(Script { jobs, ..Script::default() });
    let ran = coordinator.tidegate(&["cancel", "job-7", "job-8", "job-9"]);
    assert_eq!(ran.stdout, "job-7 is being cancelled\njob-9 is being cancelled\n");
    assert_eq!(ran.code, Some(3));
    let ran = coordinator.tidegate(&["cancel", "job-7", "job-8", "--json"]);
    let expected = json!({ "jobs": [
        { "job": "job-7", "already_ended": false, "state": null, "ended_ms": null,
          "cancelled_ms": null, "cancelled_by": null, "error": null },
        { "job": "job-8", "already_ended": null, "state": null, "ended_ms": null,
          "cancelled_ms": null, "cancelled_by": null, "error": "there is no job-8" },
    ] });
    assert_eq!((ran.json(), ran.code), (expected, Some(3)));
}

#[test]
fn a_cancel_that_is_asked_again_is_told_since_when_it_is_so_and_an_end_otherwise_how() {
    let at = |state: v1::JobState| v1::CancelReply { state: state.into(), ..Default::default() };
    let cancelled = v1::CancelReply {
        cancelled_by_uid: Some(3_999_999_999),
        cancelled_ms: Some(86_400_000),
        ..at(v1::JobState::Active)
    };
    let ended = v1::CancelReply { already_ended: true, ended_ms: Some(86_400_000), ..cancelled };
    let done = v1::CancelReply { cancelled_by_uid: None, cancelled_ms: None, ..ended };
    let check = |reply: v1::CancelReply, state: v1::JobState, words: &str| {
        // The first try was taken, and its answer lost.
        let reply = v1::CancelReply { state: state.into(), ..reply };
        let cancels = [Err(Status::unavailable("restarting")), Ok(reply)].into();
        let coordinator = Coordinator::with(Script { cancels, ..Script::default() });
        let ran = coordinator.tidegate(&["cancel", "job-7"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let (told, days) =
            ran.stdout.split_once(", ").unwrap_or_else(|| (ran.stdout.trim_end(), ""));
        let days: String = days.trim_end().chars().filter(|c| !c.is_ascii_digit()).collect();
        assert_eq!(format!("{told}|{days}"), words);
    };
    check(cancelled, v1::JobState::Active, "job-7 is being cancelled already|d ago by ");
    check(ended, v1::JobState::Cancelled, "job-7 is cancelled already|d ago by ");
    check(done, v1::JobState::Done, "job-7 had already ended: done|d ago");
    let made = v1::CancelReply { changed: true, ..cancelled };
    check(made, v1::JobState::Cancelled, "job-7 is cancelled|");
}

fn two_attempts() -> Vec<(u32, v1::LogStream, Log)> {
    use v1::LogStream::{Stderr, Stdout};
    vec![
        (1, Stdout, Log { first: 0, bytes: b"one\n" }),
        (1, Stderr, Log { first: 0, bytes: b"" }),
        (2, Stdout, Log { first: 5, bytes: b"two\xff\n" }),
        (2, Stderr, Log { first: 0, bytes: b"Killed\n" }),
    ]
}

#[test]
fn a_log_is_printed_byte_for_byte_and_a_gap_told_aside() {
    let coordinator = Coordinator::with(Script { logs: two_attempts(), ..Script::default() });
    let mut command = tidegate(&["logs", "job-7"]);
    command.env("TIDEGATE_API", coordinator.path("api.sock"));
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"two\xff\n");
    assert_eq!(output.stderr, b"[5 bytes dropped by the log cap]\n");
    let ran = coordinator.tidegate(&["logs", "job-7", "--attempt", "1"]);
    assert_eq!(ran, told(0, "one\n", ""));
    let ran = coordinator.tidegate(&["logs", "job-7", "--stderr", "--json"]);
    let expected = json!({
        "attempt": "job-7.2", "task": 0, "stream": "stderr", "length": 7, "dropped_bytes": 0,
        "complete": true, "text": "Killed\n"
    });
    assert_eq!(ran.json(), expected);
    let ran = coordinator.tidegate(&["logs", "job-7", "--attempt", "3"]);
    assert_eq!(ran, told(3, "", "error: job-7.3 has no such log\n"));
}

#[test]
fn a_followed_run_passes_on_both_outputs_over_a_restart_and_exits_with_the_jobs_end() {
    let mut logs = two_attempts();
    logs[2].2 = Log { first: 0, bytes: b"two\n" };
    let views = [
        job("job-7", v1::JobState::Pending, 0),
        job("job-7", v1::JobState::Active, 1),
        job("job-7", v1::JobState::Active, 1),
        job("job-7", v1::JobState::Active, 2),
        job("job-7", v1::JobState::Failed, 2),
    ];
    let coordinator = Coordinator::with(Script { logs, views: views.into(), ..Script::default() });
    let ran = coordinator.tidegate(&["run", "-f", "--", "true"]);
    let aside = "job-7 is submitted; Ctrl-C leaves it running\n\
                 [job-7 was started again: attempt 2]\n\
                 Killed\n\
                 error: job-7 failed: max restarts used\n";
    assert_eq!(ran, told(1, "one\ntwo\n", aside));
}

#[test]
fn a_followed_job_that_is_done_exits_well_and_begins_with_its_newest_attempt() {
    let mut logs = two_attempts();
    logs[2].2 = Log { first: 0, bytes: b"two\n" };
    let views = [job("job-7", v1::JobState::Done, 2)].into();
    let coordinator = Coordinator::with(Script { logs, views, ..Script::default() });
    let ran = coordinator.tidegate(&["logs", "-f", "job-7"]);
    assert_eq!(ran, told(0, "two\n", "job-7 is done\n"));
    let ran = coordinator.tidegate(&["logs", "-f", "job-7", "--attempt", "1"]);
    assert_eq!(ran, told(0, "one\n", ""));
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let coordinator = Coordinator::with(Script { logs: two_attempts(), ..Script::default() });
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = tidegate(&["logs", "job-7", "--attempt", "1"]);
    command.env("TIDEGATE_API", coordinator.path("api.sock")).stdout(writer);
    command.stderr(Stdio::piped());
    let ran = Ran::of(&command.spawn().unwrap().wait_with_output().unwrap());
    assert_eq!(ran, told(0, "", ""));
}

#[test]
fn an_explanation_is_told_in_sentences_or_with_its_numbers() {
    let coordinator = Coordinator::with(Script::default());
    let ran = coordinator.tidegate(&["explain", "job-7"]);
    let sentences = "job-7: AwaitingNodes\n  8 GPUs are asked.\n  2 are idle.\n\n  gpus       8\n  \
                     gpus_idle  2\n";
    assert_eq!(ran, told(0, sentences, ""));
    let ran = coordinator.tidegate(&["explain", "job-7", "--at", "-2h"]);
    let words = "error: the coordinator is older than this command and tells of now only\n";
    assert_eq!(ran, told(2, "", words));
    let ran = coordinator.tidegate(&["explain", "job-7", "--json"]);
    let expected = json!({
        "job": "job-7", "reason": "AwaitingNodes",
        "lines": ["8 GPUs are asked.", "2 are idle."], "numbers": { "gpus": 8, "gpus_idle": 2 }
    });
    assert_eq!(ran.json(), expected);
}

#[test]
fn checkpoints_are_told_with_the_one_that_counts_and_what_became_of_each_request() {
    let commit = |step| v1::CommitView {
        attempt: "job-7.1".into(),
        step,
        path: format!("/c/{step}"),
        bytes: 68 << 20,
        at_ms: 86_400_000,
    };
    let view = |step, request: &str, counts| v1::CheckpointView {
        commit: Some(commit(step)),
        source: v1::CommitSource::Job.into(),
        request: request.into(),
        counts,
    };
    let save = v1::SaveView {
        request: "decision-9".into(),
        at_ms: 86_300_000,
        admitted_ms: Some(86_340_000),
        why: "n1 takes no work".into(),
    };
    let story = v1::SaveStory {
        attempt: "job-7.1".into(),
        save: Some(save),
        acknowledged_ms: Some(86_341_000),
        committed_ms: Some(86_400_000),
        state: v1::AttemptState::Saved.into(),
        ..v1::SaveStory::default()
    };
    let known = v1::ListCheckpointsReply {
        job: "job-7".into(),
        checkpoints: vec![view(100, "", false), view(120, "decision-9", true)],
        older: 3,
        requests: vec![story],
    };
    let coordinator = Coordinator::with(Script { checkpoints: Some(known), ..Script::default() });
    let ran = coordinator.tidegate(&["checkpoints", "job-7"]);
    let rows: Vec<Vec<&str>> =
        ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1][..3], ["120", "job-7.1", "68.0MiB"], "{ran:?}");
    assert_eq!(rows[1][4..], ["decision-9", "job", "resumes", "here", "/c/120"]);
    assert_eq!(rows[2][4..], ["-", "job", "-", "/c/100"]);
    assert!(ran.stdout.contains("\n\nand 3 before these, which are not kept\n\n"), "{ran:?}");
    let told = "decision-9 job-7.1 1970-01-01T23:58:20Z +40s +1s - +1m - saved";
    assert_eq!(rows.last().unwrap().join(" "), told, "{ran:?}");
    let document = coordinator.tidegate(&["checkpoints", "job-7", "--json"]).json();
    let first = json!({ "attempt": "job-7.1", "step": 100, "path": "/c/100",
        "bytes": 71_303_168, "at_ms": 86_400_000, "known_by": "job", "request": null,
        "counts": false });
    assert_eq!(document["checkpoints"][0], first);
    let request = &document["requests"][0];
    assert_eq!(request["committed_after_ms"], 60_000);
    assert_eq!((&request["first_byte_ms"], &request["became"]), (&json!(null), &json!("saved")));
}

#[test]
fn every_command_has_one_json_document() {
    let coordinator = Coordinator::with(Script::default());
    assert_eq!(coordinator.tidegate(&["nodes", "--json"]).json(), json!({ "nodes": [] }));
    assert_eq!(coordinator.tidegate(&["status", "--json"]).json()["cluster"], "01JQ");
    let ran = coordinator.tidegate(&["--json", "logs", "-f", "job-7"]);
    assert_eq!(ran, told(2, "", "error: --follow passes output on as it is: it has no JSON\n"));
}

/// The program outside the folders where cargo puts it: beside those, the demo would be built.
/// A link, not a copy: a file that was just written may still be busy when it is run.
fn installed() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_tidegate"), dir.path().join("tidegate")).unwrap();
    dir
}

#[test]
fn an_external_command_that_is_not_installed_is_one_clear_line() {
    let dir = installed();
    let mut command = Command::new(dir.path().join("tidegate"));
    let output = command.arg("demo").env_clear().output().unwrap();
    let dir = dir.path().display();
    let expected =
        format!("error: tidegate-demo is not installed: it belongs beside tidegate, in {dir}\n");
    assert_eq!(Ran::of(&output), told(1, "", &expected));
}

#[test]
fn in_a_checkout_the_demo_is_built_by_cargo_before_it_runs() {
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let beside = root.path().join("target/debug");
    fs::create_dir_all(&beside).unwrap();
    fs::create_dir(root.path().join("cli")).unwrap();
    fs::write(root.path().join("target/CACHEDIR.TAG"), "").unwrap();
    fs::write(root.path().join("Cargo.toml"), "[workspace]\n").unwrap();
    fs::write(root.path().join("cli/Cargo.toml"), "[package]\nname = \"tidegate\"\n").unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_tidegate"), beside.join("tidegate")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", beside.join("tidegate-demo")).unwrap();
    let demo = |cargo: &str| {
        let mut command = Command::new(beside.join("tidegate"));
        command.args(["demo", "-c", "echo the demo"]).env_clear().env("CARGO", cargo);
        Ran::of(&command.output().unwrap())
    };
    let packages =
        ["tidegate-coordinator", "tidegate-agent", "trainer", "nvml-sim", "cluster-tests"];
    let why = format!(
        "building {} (debug): the demo runs them, and a checkout may hold older ones\n",
        packages.join(", ")
    );
    let asked = format!("build -p {}\nthe demo\n", packages.join(" -p "));
    assert_eq!(demo("/bin/echo"), told(0, &asked, &why));
    let failed = format!("{why}error: the demo's programs could not be built\n");
    assert_eq!(demo("/bin/false"), told(1, "", &failed));
    let without = "/no-such-cargo cannot be run: No such file or directory (os error 2); the demo \
                   runs as it was built before\n";
    assert_eq!(demo("/no-such-cargo"), told(0, "the demo\n", &format!("{why}{without}")));
}

#[test]
fn an_external_command_gets_its_arguments_as_they_are_and_the_socket_by_its_variable() {
    let dir = installed();
    std::os::unix::fs::symlink("/bin/sh", dir.path().join("tidegate-demo")).unwrap();
    let mut command = Command::new(dir.path().join("tidegate"));
    command.args(["--socket", "/s", "demo", "-c", "echo \"$TIDEGATE_API\" \"$@\"", "sh"]);
    let output = command.args(["--help", "--json", "-x"]).env_clear().output().unwrap();
    assert_eq!(Ran::of(&output), told(0, "/s --help --json -x\n", ""));
}
