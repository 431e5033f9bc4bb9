//! One task per node: the launcher starts the node's ranks, and they live and die together.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test executable uses its part of the support module")]

mod support;

use std::fs;
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use support::{Gang, PATIENCE, PROMPTLY, Process, Run, STOPPED, wait_until};

/// Does not end by itself, so that a test can disturb it on however slow a machine.
const ENDLESS: &[&str] = &["--steps", "1000000", "--step-ms", "10", "--save-every", "20"];

/// Linux's numbers, which the mask in /proc counts by.
const SIGUSR1: u32 = 10;
const SIGTERM: u32 = 15;

fn endless(checkpoints: &Path) -> Run<'_> {
    Run { world: 4, checkpoints, args: ENDLESS }
}

/// Launchers of `per_node` ranks each, which train.
fn training(checkpoints: &Path, per_node: u32) -> Gang {
    let mut gang = endless(checkpoints).launch(per_node);
    gang.leader().wait_for("saved ");
    gang
}

#[test]
fn ranks_of_launchers_end_as_the_reference_does() {
    let checkpoints = tempfile::tempdir().unwrap();
    let args = ["--steps", "60", "--step-ms", "0"];
    let run = Run { world: 4, checkpoints: checkpoints.path(), args: &args };
    run.launch(2).check_ends_with(&run.reference(60));
}

#[test]
fn a_launcher_passes_sigterm_on_and_leaves_as_its_ranks_do() {
    let checkpoints = tempfile::tempdir().unwrap();
    let mut gang = training(checkpoints.path(), 2);
    gang.ranks[1].signal(Signal::SIGTERM);
    let (codes, said) = gang.end(PROMPTLY);
    assert_eq!(codes, [Some(STOPPED), Some(STOPPED)], "{said:?}");
    assert!(said[said.len() - 1].starts_with("stopped at step "), "{said:?}");
}

#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    let checkpoints = tempfile::tempdir().unwrap();
    let mut gang = training(checkpoints.path(), 2);
    let ranks = children(gang.ranks[1].pid());
    assert_eq!(ranks.len(), 2);
    gang.ranks[1].signal(Signal::SIGKILL);
    let gone = || ranks.iter().all(|rank| !is_running(*rank)).then_some(());
    wait_until(Instant::now() + PROMPTLY, gone).expect("ranks outlive their launcher");
    let (codes, _) = gang.end(PROMPTLY);
    assert_eq!(codes, [Some(1), None]);
}

#[test]
fn a_launcher_tells_by_which_signal_a_rank_died_and_leaves_none_behind() {
    let checkpoints = tempfile::tempdir().unwrap();
    let mut gang = training(checkpoints.path(), 4);
    let ranks = children(gang.ranks[0].pid());
    nix::sys::signal::kill(ranks[3], Signal::SIGKILL).unwrap();
    let (codes, _) = gang.end(PROMPTLY);
    assert_eq!(codes, [Some(128 + 9)]);
    assert!(ranks.iter().all(|rank| !is_running(*rank)));
}

#[test]
fn a_launcher_whose_node_is_not_part_of_the_world_is_refused() {
    let checkpoints = tempfile::tempdir().unwrap();
    let mut command = endless(checkpoints.path()).command(support::next_port());
    command.arg("--launch").env("NODE_RANK", "2").env("LOCAL_WORLD_SIZE", "2");
    let mut launcher = Process::start(command);
    assert_eq!(launcher.wait(Instant::now() + PATIENCE).code(), Some(1));
    assert!(launcher.complaints().contains("ends at rank 6, but WORLD_SIZE=4"));
}

/// A scheduler looks at this mask before it sends a signal that would otherwise kill.
#[test]
fn ranks_catch_sigusr1_and_their_launcher_does_not() {
    let checkpoints = tempfile::tempdir().unwrap();
    let gang = training(checkpoints.path(), 4);
    let launcher = gang.ranks[0].pid();
    assert!(!catches(launcher, SIGUSR1));
    for rank in children(launcher) {
        assert!(catches(rank, SIGUSR1));
        assert!(catches(rank, SIGTERM));
    }
}

fn catches(pid: Pid, number: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (number - 1)) != 0
}

/// From the kernel's list of the main thread's children, in the order they were started.
fn children(parent: Pid) -> Vec<Pid> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    list.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

/// A zombie that nobody has reaped yet does not run.
fn is_running(pid: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().unwrap().trim_start().chars().next();
    state != Some('Z') && state != Some('X')
}
