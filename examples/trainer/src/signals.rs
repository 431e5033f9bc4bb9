//! What the signals asked for. Handlers are installed, not a signalfd: a scheduler looks at the
//! caught-signals mask of `/proc/PID/status` before it dares to send SIGUSR1.
#![allow(unsafe_code, reason = "sigaction(2) has no safe form; the handlers only store to atomics")]

use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static SAVE_ASKED: AtomicBool = AtomicBool::new(false);
static STOP_ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_save(_: i32) {
    SAVE_ASKED.store(true, Ordering::Relaxed);
}

extern "C" fn on_stop(_: i32) {
    STOP_ASKED.store(true, Ordering::Relaxed);
}

/// Catches SIGUSR1 and SIGTERM from here on, but for one that is to be ignored.
///
/// # Errors
/// When the kernel refuses, which it does not for these signals.
pub(crate) fn install(ignore_term: bool, ignore_save: bool) -> nix::Result<()> {
    let term = if ignore_term { SigHandler::SigIgn } else { SigHandler::Handler(on_stop) };
    let save = if ignore_save { SigHandler::SigIgn } else { SigHandler::Handler(on_save) };
    for (signal, handler) in [(Signal::SIGUSR1, save), (Signal::SIGTERM, term)] {
        let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handlers are async-signal-safe: each does one atomic store.
        unsafe { sigaction(signal, &action) }?;
    }
    // The launcher starts its ranks with SIGTERM blocked, so that none arrives before this line.
    let mut caught = SigSet::empty();
    caught.add(Signal::SIGUSR1);
    caught.add(Signal::SIGTERM);
    caught.thread_unblock()
}

/// Whether the process was asked to save and leave. Stays true.
pub(crate) fn save_asked() -> bool {
    SAVE_ASKED.load(Ordering::Relaxed)
}

/// Whether the process was asked to stop. Stays true.
pub(crate) fn stop_asked() -> bool {
    STOP_ASKED.load(Ordering::Relaxed)
}
