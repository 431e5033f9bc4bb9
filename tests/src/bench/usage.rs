//! What processes use, finer than ticks of 10 ms, and what this one may use.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::time::{ClockId, clock_gettime};

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

/// Memory of this process that is in use, in bytes.
#[must_use]
pub fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0_u64) * 1024
}

/// CPU time of this thread: what others do on this machine counts for little.
#[must_use]
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map(Duration::from).unwrap_or_default()
}
