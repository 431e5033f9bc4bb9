//! Signals as a file descriptor, for the starter and the shim.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Blocks the signals that a daemon is asked with or should not die of, and returns where to read
/// them. Blocked signals stay blocked across exec, so a shim never meets a moment in which TERM
/// would kill it.
pub(crate) fn blocked() -> nix::Result<SignalFd> {
    let mut mask = SigSet::empty();
    for signal in [
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGQUIT,
        Signal::SIGPIPE,
        Signal::SIGTERM,
        Signal::SIGCHLD,
    ] {
        mask.add(signal);
    }
    mask.thread_block()?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// The signals that have arrived since the last call.
pub(crate) fn arrived(signals: &SignalFd) -> nix::Result<Vec<Signal>> {
    let mut arrived = Vec::new();
    while let Some(info) = signals.read_signal()? {
        let number = i32::try_from(info.ssi_signo).unwrap_or(0);
        arrived.extend(Signal::try_from(number));
    }
    Ok(arrived)
}
