//! One task per node: starts the node's ranks and dies with them, as torchrun does.
//!
//! Like torchrun, it leaves SIGUSR1 at its default, which kills: checkpoint signals are for ranks.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getppid};

use crate::cli::{EXIT_DONE, EXIT_FAILED, EXIT_SAVED, EXIT_STOPPED};
use crate::place::NodePlace;

/// Tells a rank who started it.
const LAUNCHER_PID: &str = "TRAINER_LAUNCHER_PID";
/// Ranks that save and stop leave together, but not in the same instant: killing the last ones
/// could cut rank 0 off before ranks on other nodes have heard that the save is durable.
const LEAVE_TOGETHER: Duration = Duration::from_secs(10);
/// How much later than a rank that died of its loss a dead rank may be seen: the kernel closes its
/// connections before it can be waited for.
const SEEN_LATE: Duration = Duration::from_millis(200);
/// A bound on how long a missed wake-up can go unnoticed; SIGCHLD wakes at once.
const GLANCE: Duration = Duration::from_secs(1);

/// Runs the node's ranks. Returns the exit code: 0 when all are, else what the first failed of.
///
/// # Errors
/// When the environment makes no sense or a process cannot be started.
pub(crate) fn run() -> Result<u8> {
    let place = NodePlace::from_environment()?;
    let mut awaited = SigSet::empty();
    awaited.add(Signal::SIGTERM);
    awaited.add(Signal::SIGCHLD);
    // Ranks inherit the mask and unblock SIGTERM when they can handle it.
    awaited.thread_block().context("cannot block signals")?;
    let signals = SignalFd::with_flags(&awaited, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let mut ranks = Ranks { running: Vec::new(), verdict: EXIT_DONE, kill_at: None };
    for local_rank in 0..place.local_world {
        match start(&place, local_rank) {
            Ok(child) => ranks.running.push(child),
            Err(error) => {
                ranks.kill_all();
                return Err(error);
            }
        }
    }
    while !ranks.running.is_empty() {
        ranks.wait(&signals)?;
        while let Some(signal) = signals.read_signal()? {
            let number = i32::try_from(signal.ssi_signo)?;
            if Signal::try_from(number) == Ok(Signal::SIGTERM) {
                ranks.signal_all(Signal::SIGTERM);
            }
        }
        ranks.reap()?;
    }
    Ok(ranks.verdict)
}

/// In a rank: makes the kernel kill it when its launcher dies, however that happens.
///
/// # Errors
/// When the launcher is gone already.
pub(crate) fn die_with_launcher() -> Result<()> {
    let Ok(launcher) = std::env::var(LAUNCHER_PID) else { return Ok(()) };
    prctl::set_pdeathsig(Signal::SIGKILL).context("cannot tie the rank to its launcher")?;
    // The launcher may have died before the line above.
    ensure!(getppid().to_string() == launcher, "the launcher is gone");
    Ok(())
}

fn start(place: &NodePlace, local_rank: u32) -> Result<Child> {
    let rank = place.node_rank * place.local_world + local_rank;
    Command::new(std::env::current_exe().context("cannot find the trainer itself")?)
        .args(std::env::args_os().skip(1).filter(|arg| arg != "--launch"))
        .env("RANK", rank.to_string())
        .env("LOCAL_RANK", local_rank.to_string())
        .env("WORLD_SIZE", place.world.to_string())
        .env("LOCAL_WORLD_SIZE", place.local_world.to_string())
        // By it a scheduler tells the only rank of a node from its launcher.
        .env("TORCHELASTIC_RUN_ID", "none")
        .env(LAUNCHER_PID, std::process::id().to_string())
        .spawn()
        .with_context(|| format!("cannot start rank {rank}"))
}

struct Ranks {
    running: Vec<Child>,
    /// The first exit code that is not 0 and, if there is one, says more than that a peer was lost.
    verdict: u8,
    /// When those that still run have had their time.
    kill_at: Option<Instant>,
}

impl Ranks {
    fn wait(&self, signals: &SignalFd) -> Result<()> {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let left = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
        // poll counts whole milliseconds; rounding up keeps the last one from spinning.
        let left = left.map_or(GLANCE, |left| GLANCE.min(left + Duration::from_millis(1)));
        match poll(&mut fds, PollTimeout::try_from(left)?) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for ranks"),
        }
    }

    fn reap(&mut self) -> Result<()> {
        let mut running = Vec::new();
        let mut ended = Vec::new();
        for mut child in std::mem::take(&mut self.running) {
            match child.try_wait().context("cannot wait for a rank")? {
                None => running.push(child),
                Some(status) => ended.push(exit_code(status)),
            }
        }
        self.running = running;
        // Of ranks found dead together, one that failed plainly has most likely lost the other.
        ended.sort_by_key(|code| *code == EXIT_FAILED);
        ended.into_iter().for_each(|code| self.judge(code));
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.kill_all();
        }
        Ok(())
    }

    fn judge(&mut self, code: u8) {
        let is_news = self.verdict == EXIT_DONE || self.verdict == EXIT_FAILED;
        if code == EXIT_DONE || code == self.verdict || !is_news {
            return;
        }
        self.verdict = code;
        let patience = match code {
            EXIT_STOPPED | EXIT_SAVED => LEAVE_TOGETHER,
            EXIT_FAILED => SEEN_LATE,
            _ => Duration::ZERO,
        };
        self.kill_at = Some(Instant::now() + patience);
    }

    fn signal_all(&self, signal: Signal) {
        for child in &self.running {
            // Not reaped yet, so the pid is still the rank's; a rank that just died is no error.
            if let Ok(pid) = i32::try_from(child.id()) {
                kill(Pid::from_raw(pid), signal).ok();
            }
        }
    }

    /// Kills and reaps all that still run.
    fn kill_all(&mut self) {
        self.signal_all(Signal::SIGKILL);
        for mut child in self.running.drain(..) {
            child.wait().ok();
        }
    }
}

/// As shells do: 128 + n for a death by signal n.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_FAILED)
}
