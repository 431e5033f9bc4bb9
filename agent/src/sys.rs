//! The one file with unsafe code: what happens between fork and exec of a task.

#![allow(unsafe_code, reason = "CommandExt::pre_exec is unsafe; see the safety comment")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, signal, sigprocmask};
use nix::unistd::{Pid, getppid, setsid};
use rustix::process::ioctl_tiocsctty;

/// What a task's standard input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    Nothing,
    /// The terminal of the task's session.
    Terminal,
}

/// Prepares a task's process: a session of its own, no blocked or ignored signals, and killed at
/// once if its parent, the process `supervisor`, dies.
pub(crate) fn prepare_task(command: &mut Command, supervisor: Pid, stdin: Stdin) {
    // SAFETY: the closure runs in a forked child of a process with one thread; it calls only
    // system calls that are async-signal-safe and allocates nothing.
    unsafe {
        command.pre_exec(move || before_exec(supervisor, stdin));
    }
}

fn before_exec(supervisor: Pid, stdin: Stdin) -> io::Result<()> {
    setsid()?;
    if stdin == Stdin::Terminal {
        ioctl_tiocsctty(rustix::stdio::stdin())?;
    }
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    // The supervisor may have died before the line above took effect.
    if getppid() != supervisor {
        return Err(io::Error::from(io::ErrorKind::Interrupted));
    }
    for number in Signal::iterator() {
        if !matches!(number, Signal::SIGKILL | Signal::SIGSTOP) {
            // SAFETY: the default disposition runs no code of ours.
            unsafe { signal(number, SigHandler::SigDfl) }?;
        }
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    Ok(())
}
