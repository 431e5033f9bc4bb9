//! What a task directory says after the starter has been away.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Flock, FlockType, Pid, PidfdFlags, fcntl_getlk, pidfd_open};
use tidegate_model::{Span, TaskExit};

use super::sweep::Sweep;
use crate::procs::Procs;
use crate::task_dir::{Exit, Intent, State, TaskDir, load};

/// How a task is found.
pub(super) enum Found {
    /// Its shim is alive.
    Alive { shim: OwnedFd },
    /// Its shim is dead and has not finished; what is left must be cleared away.
    Abandoned(Sweep),
    /// It ran in an earlier boot: nothing of it can be left.
    Rebooted,
    /// The starter died before the intent was written: the start was never begun.
    Blank,
    /// The starter died between intent and spawn, or its shim before it began. Another shim may
    /// be spawned: the lock of the intent lets one begin, whoever comes first.
    Unbegun,
    /// It has ended and nothing of it is left.
    Ended(Exit),
}

/// Looks at a task's directory, and at the kernel for its shim.
pub(super) fn look(dir: &TaskDir, procs: &Procs, boot_id: &str) -> io::Result<Found> {
    if let Some(exit) = exit_of(dir)?.filter(|exit| exit.released) {
        return Ok(Found::Ended(exit));
    }
    if let Some(shim) = living_shim(dir)? {
        return Ok(Found::Alive { shim });
    }
    // The shim may have finished between the two looks above.
    let exit = exit_of(dir)?;
    if let Some(exit) = exit.clone().filter(|exit| exit.released) {
        return Ok(Found::Ended(exit));
    }
    match load::<Intent>(&dir.intent()) {
        Ok(Some(intent)) if intent.boot_id != boot_id => Ok(Found::Rebooted),
        Ok(None) if !has_begun(dir) => Ok(Found::Blank),
        Ok(Some(_)) if !has_begun(dir) => Ok(Found::Unbegun),
        // One that is gone or cannot be read may have been acted on before it was damaged.
        Ok(_) | Err(_) => Ok(Found::Abandoned(abandoned(dir, procs, exit)?)),
    }
}

fn has_begun(dir: &TaskDir) -> bool {
    dir.begun().exists() || dir.state().exists()
}

/// The recorded end. One that cannot be read is none: the damage of one task must not keep the
/// others of its node from being looked after.
pub(super) fn exit_of(dir: &TaskDir) -> io::Result<Option<Exit>> {
    match load::<Exit>(&dir.exit()) {
        Err(why)
            if why.kind() == io::ErrorKind::InvalidData
                || why.kind() == io::ErrorKind::UnexpectedEof =>
        {
            tracing::warn!(path = %dir.exit().display(), %why, "damaged; taken as not there");
            Ok(None)
        }
        read => read,
    }
}

/// The clearing away of a task whose shim is dead.
pub(super) fn abandoned(dir: &TaskDir, procs: &Procs, exit: Option<Exit>) -> io::Result<Sweep> {
    let main = load::<State>(&dir.state()).ok().flatten().map(|state| state.main);
    if let Some(Exit { exit, released: _, ran_ms, dropped_output: _ }) = exit {
        return Ok(Sweep::new(exit.into(), Span(ran_ms), main));
    }
    let (why, ran) = match main {
        // Without an exit nobody knows when it ended; it ended before now.
        Some(main) => ("its shim died", procs.age_ms(main.start).unwrap_or(0)),
        None => ("its shim died before the task ran", 0),
    };
    let said = std::fs::read_to_string(dir.shim_log()).unwrap_or_default();
    let why = match said.lines().next() {
        Some(line) => format!("{why}: {line}"),
        None => why.to_owned(),
    };
    Ok(Sweep::new(TaskExit::Lost(why), Span(ran), main))
}

/// Keeps any shim from starting this task as long as the file is held; none if a shim is alive.
/// An intent that is gone is made anew, empty: no shim can start from it either.
pub(super) fn bar_shims(dir: &TaskDir) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(dir.intent())?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A handle on the process that holds the lock of the task's intent. Opened first, compared then:
/// the kernel names the holder again, so it is not a later process with its pid.
fn living_shim(dir: &TaskDir) -> io::Result<Option<OwnedFd>> {
    let intent = match OpenOptions::new().read(true).write(true).open(dir.intent()) {
        Ok(intent) => intent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    while let Some(pid) = holder(&intent)? {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) if holder(&intent)? == Some(pid) => return Ok(Some(fd)),
            Ok(_) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn holder(intent: &File) -> io::Result<Option<Pid>> {
    let asked: Flock = FlockType::WriteLock.into();
    Ok(fcntl_getlk(intent, &asked)?.and_then(|held| held.pid))
}
