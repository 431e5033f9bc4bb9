//! What is left of a task whose shim is dead: found, killed, verified.
//!
//! Without cgroups a task's processes are known by the variables they were started with and by
//! its main process's session. A process that has left both is not found; cgroups close that.

use std::io;
use std::time::{Duration, Instant};

use nix::unistd::getpid;
use rustix::process::{Signal, pidfd_send_signal};
use tidegate_model::{Span, TaskExit, TaskId};

use crate::environment::marks;
use crate::procs::{ProcessId, Procs};
use crate::task_dir::TaskDir;

/// First and longest pause between two looks: a killed process is gone in milliseconds, one that
/// hangs in a driver may take minutes.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// The clearing away of one task.
pub(super) struct Sweep {
    /// What will be recorded.
    pub(super) exit: TaskExit,
    pub(super) ran: Span,
    pub(super) main: Option<ProcessId>,
    /// When to look again.
    pub(super) due: Instant,
    pause: Duration,
}

impl Sweep {
    pub(super) fn new(exit: TaskExit, ran: Span, main: Option<ProcessId>) -> Self {
        Self { exit, ran, main, due: Instant::now(), pause: PAUSES.0 }
    }

    /// Kills what is found. Whether nothing was.
    pub(super) fn pass(&mut self, procs: &Procs, task: TaskId, dir: &TaskDir) -> io::Result<bool> {
        let found = self.find(procs, task, dir)?;
        for process in &found {
            kill(procs, *process);
        }
        self.postpone();
        Ok(found.is_empty())
    }

    /// Look again after a pause that grows.
    pub(super) fn postpone(&mut self) {
        self.due = Instant::now().checked_add(self.pause).unwrap_or(self.due);
        self.pause = self.pause.saturating_mul(2).min(PAUSES.1);
    }

    fn find(&self, procs: &Procs, task: TaskId, dir: &TaskDir) -> io::Result<Vec<ProcessId>> {
        let marks = marks(task, &dir.preempt_file()).map(|(name, value)| format!("{name}={value}"));
        let own = getpid().as_raw();
        // A pid is not used again while a session of that number exists, so a leader with another
        // start time means that the task's session is gone and this one is not the task's.
        let session = self.main.filter(|main| {
            procs.identify(main.pid).is_none_or(|leader| leader.start == main.start)
        });
        let mut found = Vec::new();
        for pid in procs.pids()? {
            let Some(stat) = procs.stat(pid) else { continue };
            let in_session = session.is_some_and(|main| main.pid == stat.session);
            if pid != own && !stat.is_dead && (in_session || procs.has_environment(pid, &marks)) {
                found.push(ProcessId { pid, start: stat.start });
            }
        }
        Ok(found)
    }
}

/// Through a pidfd, so that a later process with this pid is never hit.
fn kill(procs: &Procs, process: ProcessId) {
    if let Some(fd) = procs.open(process) {
        // Another user's process cannot be killed from here: it is found again.
        pidfd_send_signal(fd, Signal::KILL).ok();
    }
}
