//! What processes use, finer than ticks of 10 ms, and what this one may use.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// CPU time that the threads of these processes have used, in nanoseconds. Threads that have ended
/// are not counted: for processes at rest.
#[must_use]
pub fn cpu_nanos(pids: &[u32]) -> u64 {
    pids.iter().flat_map(|pid| threads(*pid)).filter_map(|thread| run_nanos(&thread)).sum()
}

fn threads(pid: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}

fn run_nanos(thread: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("{thread}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The process and its children: an agent has a worker that asks the GPU driver.
#[must_use]
pub fn with_children(pid: u32) -> Vec<u32> {
    let children = threads(pid).into_iter().flat_map(|thread| {
        let text = fs::read_to_string(format!("{thread}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    });
    [pid].into_iter().chain(children).collect()
}

/// Bytes that the process has sent towards the disk.
#[must_use]
pub fn written_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes:"))?;
    line.trim().parse().ok()
}

/// Raises the limit of open files to what is permitted: a coordinator with 1,024 agents on this
/// host needs 2,048 and a few, and inherits the limit.
///
/// # Errors
/// If the kernel refuses.
pub fn raise_open_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}
