//! The task's processes, as the reaper of all its orphans sees them.

use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus, wait};
use tidegate_model::TaskExit;

use crate::procs::Procs;

/// What is left of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// No process: the kernel says that there is no child, and orphans become children.
    Nothing,
    /// At least one.
    Some,
}

/// The task's main process and all its descendants.
pub(super) struct Family {
    main: Pid,
    main_exit: Option<TaskExit>,
    procs: Procs,
}

impl Family {
    pub(super) fn of(main: Pid, procs: Procs) -> Self {
        Self { main, main_exit: None, procs }
    }

    /// How the main process ended; none while it runs.
    pub(super) fn main_exit(&self) -> Option<TaskExit> {
        self.main_exit.clone()
    }

    /// Takes every end that has not been taken.
    pub(super) fn reap(&mut self) -> Left {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(None) => return Left::Some,
                Ok(Some((pid, status))) => self.note(pid.as_raw_pid(), status),
                Err(rustix::io::Errno::INTR) => {}
                // ECHILD, the only other answer that Linux gives here.
                Err(_) => return Left::Nothing,
            }
        }
    }

    /// TERM to the main process: not to its group, which a launcher would take for a kill of its
    /// ranks.
    pub(super) fn terminate_main(&self) -> io::Result<()> {
        self.send(self.main, Signal::SIGTERM)
    }

    /// HUP to the main process.
    pub(super) fn hang_up_main(&self) -> io::Result<()> {
        self.send(self.main, Signal::SIGHUP)
    }

    /// KILL to every direct child; their children become ours as they die, so that repeating it
    /// reaches all. Only direct children: their pids are not used again before they are reaped
    /// here.
    pub(super) fn kill_all(&self) -> io::Result<()> {
        for pid in self.procs.children(Pid::this().as_raw())? {
            self.send(Pid::from_raw(pid), Signal::SIGKILL)?;
        }
        Ok(())
    }

    fn note(&mut self, pid: i32, status: WaitStatus) {
        if pid != self.main.as_raw() {
            return;
        }
        // The kernel keeps eight bits of an exit code and seven of a signal.
        let narrow = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
        if let Some(code) = status.exit_status() {
            self.main_exit = Some(TaskExit::Exited(narrow(code)));
        } else if let Some(signal) = status.terminating_signal() {
            self.main_exit = Some(TaskExit::Signaled(narrow(signal)));
        }
    }

    fn send(&self, pid: Pid, signal: Signal) -> io::Result<()> {
        match kill(pid, signal) {
            // A process of another user (a setuid program) cannot be killed from here; the task
            // stays unreleased until it ends.
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
