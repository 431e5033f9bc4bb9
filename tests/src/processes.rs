//! Processes that the harness starts, and those that they start in turn.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A daemon, with its output in a file that all its lives share.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let log = File::options().create(true).append(true).open(log).context("the log")?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let program = command.get_program().to_owned();
        let child =
            command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("SIGKILL")?;
        self.child.wait().context("wait")?;
        Ok(())
    }

    /// Asks it to end and waits until it is gone.
    ///
    /// # Errors
    /// If it cannot be waited for, or ends with another code than 0.
    pub fn terminate(&mut self) -> anyhow::Result<()> {
        signal(self.pid(), Signal::SIGTERM)?;
        let status = self.child.wait().context("wait")?;
        anyhow::ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.kill());
    }
}

/// Sends a signal to one process.
///
/// # Errors
/// If it is gone.
pub fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
}

/// Processes whose command line or environment names `mark`, oldest first, with their command
/// lines. The mark is a path that only this cluster has.
#[must_use]
pub fn marked(mark: &str) -> Vec<(u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<_> = pids.filter_map(|pid| Some((pid, command_line(pid, mark)?))).collect();
    found.sort_unstable();
    found
}

fn command_line(pid: u32, mark: &str) -> Option<String> {
    let read = |file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
        Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
    };
    let command = read("cmdline")?;
    let ours = command.contains(mark) || read("environ").is_some_and(|env| env.contains(mark));
    ours.then_some(command)
}

/// Memory that belongs to the process alone, in bytes.
#[must_use]
pub fn private_memory(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let kib = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Some(kib.sum::<u64>().saturating_mul(1024))
}

/// CPU time the process has used, in milliseconds; the kernel counts in ticks of 10 ms.
#[must_use]
pub fn cpu_ms(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(ticks(11)?.saturating_add(ticks(12)?).saturating_mul(10))
}
