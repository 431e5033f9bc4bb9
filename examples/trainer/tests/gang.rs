//! Gangs that are left alone, killed, asked to save and asked to stop end with the same weights.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test executable uses its part of the support module")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use support::{Gang, PATIENCE, PROMPTLY, Process, Run, SAVED, STOPPED, trainer};
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn run<'a>(checkpoints: &'a Path, args: &'a [&'a str]) -> Run<'a> {
    Run { world: 4, checkpoints, args }
}

/// Does not end by itself, so that a test can disturb it on however slow a machine.
const ENDLESS: &[&str] = &["--steps", "1000000", "--step-ms", "10", "--save-every", "20"];
const ENDLESS_UNSAVED: &[&str] = &["--steps", "1000000", "--step-ms", "10", "--save-every", "0"];

#[test]
fn a_gang_left_alone_ends_as_the_reference_does() {
    let checkpoints = directory();
    let run = run(checkpoints.path(), &["--steps", "60", "--step-ms", "0"]);
    run.start().check_ends_with(&run.reference(60));
}

#[test]
fn the_reference_depends_on_seed_world_size_and_steps() {
    let digest = |args: &[&str]| {
        let output = trainer().arg("digest").args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let base = digest(&["--steps", "20", "--world-size", "2", "--seed", "1"]);
    assert_eq!(base, digest(&["--steps", "20", "--world-size", "2", "--seed", "1"]));
    for other in [["20", "2", "2"], ["20", "3", "1"], ["21", "2", "1"]] {
        let [steps, world, seed] = other;
        let other = digest(&["--steps", steps, "--world-size", world, "--seed", seed]);
        let digests = [&base, &other].map(|line| line.split("digest=").nth(1).unwrap());
        assert_ne!(digests[0], digests[1]);
    }
}

#[test]
fn a_rank_without_any_environment_trains_alone() {
    let output = trainer().args(["--steps", "5", "--step-ms", "0"]).output().unwrap();
    let reference = trainer().args(["digest", "--steps", "5"]).output().unwrap();
    assert_eq!(output.stdout, reference.stdout);
}

#[test]
fn a_gang_dies_of_one_killed_rank_and_resumes_to_the_same_weights() {
    let checkpoints = directory();
    // Rank 0 holds the connections, another rank only one: both deaths must be noticed. Which step
    // it happens at depends on the machine, and must not matter.
    for victim in [0, 2] {
        let mut gang = run(checkpoints.path(), ENDLESS).start();
        gang.leader().wait_for("saved ");
        gang.ranks[victim].signal(Signal::SIGKILL);
        let (codes, said) = gang.end(PROMPTLY);
        for (rank, code) in codes.iter().enumerate() {
            assert_eq!(*code, if rank == victim { None } else { Some(1) }, "{codes:?} {said:?}");
        }
    }
    check_resumes_to_the_reference(checkpoints.path());
}

#[test]
fn a_gang_stops_together_after_a_save_when_any_rank_gets_sigterm() {
    let checkpoints = directory();
    let mut gang = run(checkpoints.path(), ENDLESS_UNSAVED).start();
    gang.leader().wait_for("step ");
    gang.ranks[3].signal(Signal::SIGTERM);
    let (codes, said) = gang.end(PROMPTLY);
    assert!(codes.iter().all(|code| *code == Some(STOPPED)), "{codes:?} {said:?}");
    let step = newest_step(checkpoints.path());
    assert_eq!(said[said.len() - 1], format!("stopped at step {step} as asked"));
    check_resumes_to_the_reference(checkpoints.path());
}

#[test]
fn a_gang_saves_and_leaves_together_when_any_rank_gets_sigusr1() {
    let checkpoints = directory();
    let mut gang = run(checkpoints.path(), ENDLESS_UNSAVED).start();
    gang.leader().wait_for("step ");
    gang.ranks[1].signal(Signal::SIGUSR1);
    check_left(&mut gang, checkpoints.path());
    check_resumes_to_the_reference(checkpoints.path());
}

/// That all ranks saved and left, and what rank 0 said.
fn check_left(gang: &mut Gang, checkpoints: &Path) -> Vec<String> {
    let (codes, said) = gang.end(PROMPTLY);
    assert!(codes.iter().all(|code| *code == Some(SAVED)), "{codes:?} {said:?}");
    let step = newest_step(checkpoints);
    assert_eq!(said[said.len() - 1], format!("left at step {step} as asked"));
    said
}

#[test]
fn the_preempt_file_makes_a_gang_save_and_leave() {
    let checkpoints = directory();
    let file = checkpoints.path().join("preempt");
    let mut command = trainer();
    command.args(["--steps", "100000", "--save-every", "1", "--checkpoint-dir"]);
    command.arg(checkpoints.path()).env("TIDEGATE_PREEMPT_FILE", &file);
    let mut alone = Process::start(command);
    alone.wait_for("saved ");
    fs::write(&file, "{}").unwrap();
    assert_eq!(alone.wait(Instant::now() + PROMPTLY).code(), Some(SAVED));
}

/// The scheduler's end of a job's socket.
struct Served {
    lines: BufReader<UnixStream>,
}

impl Served {
    /// The trainer's first connection, welcomed.
    fn by(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut served = Self { lines: BufReader::new(stream) };
        assert_eq!(served.hear(), Some(json!({"hello": {}})));
        served.say(&json!({"hello": {"job": "job-1", "request": null}}));
        served
    }

    /// None when the trainer has gone.
    fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.lines.get_mut(), "{message}").unwrap();
    }

    /// The step of the next commit, checked against its file and answered so.
    fn commit(&mut self, answer: &str) -> Option<u64> {
        let told = self.hear()?;
        let commit = &told["commit"];
        let path = Path::new(commit["path"].as_str().unwrap());
        let file = &commit["files"][0];
        let bytes = path.join(file["path"].as_str().unwrap()).metadata().unwrap().len();
        assert!(path.is_absolute() && file["bytes"] == bytes, "{told}");
        let step = commit["step"].as_u64().unwrap();
        self.say(&json!({answer: {"step": step, "why": "why"}}));
        Some(step)
    }
}

/// A gang of which rank 0 has a job's socket.
fn served_gang(checkpoints: &Path, args: &[&str]) -> (Gang, Served) {
    let socket = checkpoints.join("job.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let gang = Run { world: 2, checkpoints, args }.start_with(&[("TIDEGATE_SOCKET", &socket)]);
    (gang, Served::by(&listener))
}

#[test]
fn every_checkpoint_is_committed_and_a_save_asked_for_on_the_socket_ends_the_run() {
    let checkpoints = directory();
    let (mut gang, mut served) = served_gang(checkpoints.path(), ENDLESS);
    assert_eq!(served.commit("committed"), Some(20));
    assert_eq!(served.commit("refused"), Some(40));
    served.say(&json!({"save": {"request": 7, "grace_s": 60, "left_s": 60, "why": "why"}}));
    // On a busy machine periodic ones may come before the one that was asked for.
    let steps: Vec<u64> = std::iter::from_fn(|| served.commit("committed")).collect();
    let said = check_left(&mut gang, checkpoints.path());
    assert_eq!(steps.last(), Some(&newest_step(checkpoints.path())));
    let committed: Vec<_> = said.iter().filter(|line| line.starts_with("committed")).collect();
    assert_eq!(committed[0], "committed step 20");
    assert!(!committed.contains(&&"committed step 40".to_owned()), "{said:?}");
    check_resumes_to_the_reference_of(2, checkpoints.path());
}

#[test]
fn a_trainer_whose_socket_breaks_trains_on() {
    let checkpoints = directory();
    let args = ["--steps", "60", "--step-ms", "0"];
    let (mut gang, served) = served_gang(checkpoints.path(), &args);
    drop(served);
    let reference = Run { world: 2, checkpoints: checkpoints.path(), args: &args }.reference(60);
    gang.check_ends_with(&reference);
}

#[test]
fn a_trainer_told_to_ignore_saves_ignores_them_in_every_way() {
    let checkpoints = directory();
    let file = checkpoints.path().join("preempt");
    let mut command = trainer();
    command.args(["--steps", "60", "--ignore-save", "--checkpoint-dir"]).arg(checkpoints.path());
    command.env("TIDEGATE_PREEMPT_FILE", &file);
    let mut alone = Process::start(command);
    alone.wait_for("saved ");
    fs::write(&file, "{}").unwrap();
    alone.signal(Signal::SIGUSR1);
    assert_eq!(alone.wait(Instant::now() + PATIENCE).code(), Some(0));
}

#[test]
fn a_save_takes_at_least_as_long_as_it_is_told_to() {
    let checkpoints = directory();
    let args = ["--steps", "5", "--step-ms", "0", "--save-seconds", "1"];
    let run = run(checkpoints.path(), &args);
    let began = Instant::now();
    run.start().check_ends_with(&run.reference(5));
    assert!(began.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_trainer_told_to_ignore_sigterm_ignores_it() {
    let checkpoints = directory();
    let mut command = trainer();
    command.args(["--steps", "60", "--ignore-term", "--checkpoint-dir"]).arg(checkpoints.path());
    let mut alone = Process::start(command);
    alone.wait_for("saved ");
    alone.signal(Signal::SIGTERM);
    assert_eq!(alone.wait(Instant::now() + PATIENCE).code(), Some(0));
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_used() {
    let checkpoints = directory();
    let first = ["--steps", "60", "--step-ms", "0", "--save-every", "20", "--fail-at-step", "59"];
    run(checkpoints.path(), &first).start().end(PATIENCE);
    let file = |step: u64| checkpoints.path().join(format!("step-{step:08}.ckpt"));
    let mut bytes = fs::read(file(40)).unwrap();
    bytes[1000] ^= 1;
    fs::write(file(40), &bytes).unwrap();
    fs::write(file(50), &bytes[..700]).unwrap();
    let second = run(checkpoints.path(), &["--steps", "60", "--step-ms", "0"]);
    let mut gang = second.start();
    gang.leader().wait_for("cannot use step-00000050.ckpt: checksum mismatch");
    gang.leader().wait_for("cannot use step-00000040.ckpt: checksum mismatch");
    gang.leader().wait_for("resumed from step 20");
    gang.check_ends_with(&second.reference(60));
}

#[test]
fn a_finished_run_that_is_started_again_says_the_same_and_does_nothing() {
    let checkpoints = directory();
    let run = run(checkpoints.path(), &["--steps", "30", "--step-ms", "0"]);
    let reference = run.reference(30);
    run.start().check_ends_with(&reference);
    let files = file_names(checkpoints.path());
    let mut again = run.start();
    again.check_ends_with(&reference);
    assert_eq!(again.leader().said(), [reference]);
    assert_eq!(file_names(checkpoints.path()), files);
}

#[test]
fn the_result_names_every_attempt_and_three_checkpoints_are_kept() {
    let checkpoints = directory();
    let once = checkpoints.path().join("failed");
    let once = once.to_str().unwrap();
    let args = ["--steps", "100", "--step-ms", "0", "--fail-at-step", "60", "--fail-once", once];
    let run = run(checkpoints.path(), &args);
    let (mut codes, said) = run.start().end(PATIENCE);
    codes.sort_unstable();
    assert_eq!(codes, [Some(1), Some(1), Some(1), Some(3)], "{said:?}");
    let reference = run.reference(100);
    run.start().check_ends_with(&reference);
    let result = fs::read_to_string(checkpoints.path().join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["step"], 100);
    assert!(reference.ends_with(&format!("digest={}", result["digest"].as_str().unwrap())));
    assert_eq!(result["attempts"][0]["resumed_from"], 0);
    assert_eq!(result["attempts"][1]["resumed_from"], 50);
    assert_eq!(
        file_names(checkpoints.path()),
        [
            "attempts.jsonl",
            "failed",
            "result.json",
            "step-00000050.ckpt",
            "step-00000075.ckpt",
            "step-00000100.ckpt"
        ]
    );
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let checkpoints = directory();
    run(checkpoints.path(), &["--steps", "5", "--step-ms", "0"]).start().end(PATIENCE);
    let output = trainer()
        .args(["--steps", "9", "--seed", "8", "--checkpoint-dir"])
        .arg(checkpoints.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("use another --checkpoint-dir"), "{complaint}");
}

#[test]
fn a_gang_that_is_not_complete_gives_up_in_time() {
    let checkpoints = directory();
    let run = run(checkpoints.path(), &["--join-timeout", "1"]);
    let mut command = run.command(support::next_port());
    command.env("RANK", "0");
    let mut lonely = Process::start(command);
    assert_eq!(lonely.wait(Instant::now() + PROMPTLY).code(), Some(1));
    assert!(lonely.complaints().contains("3 of 4 ranks did not join in time"));
}

#[test]
fn a_stranger_at_the_port_does_not_disturb_the_gang() {
    let checkpoints = directory();
    let run = run(checkpoints.path(), &["--steps", "20", "--step-ms", "0"]);
    let port = support::next_port();
    let rank = |rank: u32| {
        let mut command = run.command(port);
        command.env("RANK", rank.to_string());
        Process::start(command)
    };
    let leader = rank(0);
    let connect = || std::net::TcpStream::connect((support::address(), port)).ok();
    let mut stranger = support::wait_until(Instant::now() + PATIENCE, connect).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut gang = Gang { ranks: vec![leader, rank(1), rank(2), rank(3)] };
    gang.check_ends_with(&run.reference(20));
}

/// Goes on from the newest checkpoint for a few steps, undisturbed.
fn check_resumes_to_the_reference(checkpoints: &Path) {
    check_resumes_to_the_reference_of(4, checkpoints);
}

fn check_resumes_to_the_reference_of(world: u32, checkpoints: &Path) {
    let saved = newest_step(checkpoints);
    let end = saved + 10;
    let args = ["--steps", &end.to_string(), "--step-ms", "0"];
    let run = Run { world, checkpoints, args: &args };
    let mut gang = run.start();
    gang.leader().wait_for(&format!("resumed from step {saved}"));
    gang.check_ends_with(&run.reference(end));
}

fn newest_step(checkpoints: &Path) -> u64 {
    let names = file_names(checkpoints);
    let steps = names.iter().filter_map(|name| name.strip_prefix("step-")?.strip_suffix(".ckpt"));
    steps.map(|step| step.parse().unwrap()).max().unwrap()
}

fn file_names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
