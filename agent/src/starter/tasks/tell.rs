//! What tasks' shims are told: to end, to save, that the job may write.

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Signal, pidfd_send_signal};
use tidegate_model::TaskId;
use tracing::{info, warn};

use super::{Live, Phase, Tasks};
use crate::durable;
use crate::permits::PermitRecord;
use crate::saving::SaveRecord;
use crate::task_dir::{StopRecord, bytes_of, load};

impl Tasks {
    /// Tells a task's shim to end it.
    pub(in crate::starter) fn stop(
        &mut self,
        task: TaskId,
        stop: &StopRecord,
    ) -> Result<(), String> {
        let known = self.known.get(&task).ok_or_else(|| unknown(task))?;
        let Phase::Live(live) = &known.phase else { return Ok(()) };
        let path = known.dir.stop();
        // What cannot be read is written anew.
        let before = load::<StopRecord>(&path).ok().flatten();
        // One that is later and no shorter ends no earlier; writing it could hide the shorter one
        // from a shim that has not read it yet.
        if before.is_some_and(|before| before.grace_ms <= stop.grace_ms) {
            return Ok(());
        }
        info!(%task, decision = stop.decision, grace_ms = stop.grace_ms, "stopping it");
        match bytes_of(stop).and_then(|bytes| durable::publish(&path, &bytes)) {
            Ok(()) => signal(&live.shim, Signal::TERM),
            // Its shim can no longer be told how long to wait, nor leave a record of the end.
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                warn!(%task, "its directory is gone; its shim is killed");
                signal(&live.shim, Signal::KILL)
            }
            Err(why) => Err(format!("the stop cannot be written: {why}")),
        }
    }

    /// Tells a task's shim to ask its ranks to save. The request is durable, so that a shim that
    /// has not begun yet, or a starter that is killed here, finds it.
    pub(in crate::starter) fn save(&self, task: TaskId, save: &SaveRecord) -> Result<(), String> {
        let known = self.known.get(&task).ok_or_else(|| unknown(task))?;
        let Phase::Live(live) = &known.phase else { return Ok(()) };
        let path = known.dir.save();
        // What cannot be read is written anew.
        let before = load::<SaveRecord>(&path).ok().flatten().map(|before| before.request);
        if before.is_none_or(|before| before < save.request) {
            info!(%task, request = save.request, "asking it to save");
            let written = bytes_of(save).and_then(|bytes| durable::replace(&path, &bytes));
            written.map_err(|why| format!("the request cannot be written: {why}"))?;
        }
        // Also when it is repeated: a starter may have been killed between the two.
        signal(&live.shim, Signal::TERM)
    }

    /// Tells a task's shim the answer to an ask of its job. Not durable: who asked is gone after a
    /// reboot.
    pub(in crate::starter) fn permit(
        &self,
        task: TaskId,
        permit: &PermitRecord,
    ) -> Result<(), String> {
        let known = self.known.get(&task).ok_or_else(|| unknown(task))?;
        let Phase::Live(live) = &known.phase else { return Ok(()) };
        if known.told.permit.as_ref() != Some(permit) {
            let written =
                bytes_of(permit).and_then(|bytes| durable::publish(&known.dir.permit(), &bytes));
            written.map_err(|why| format!("the permit cannot be written: {why}"))?;
        }
        signal(&live.shim, Signal::TERM)
    }

    /// Sends a signal to a task's main process.
    pub(in crate::starter) fn signal(&self, task: TaskId, number: i32) -> Result<(), String> {
        let known = self.known.get(&task).ok_or_else(|| unknown(task))?;
        let Phase::Live(Live { main: Some(main), .. }) = &known.phase else {
            return Err(format!("{task} does not run"));
        };
        let wanted = Signal::from_named_raw(number);
        let wanted = wanted.ok_or_else(|| format!("{number} is not a signal's number"))?;
        let process = self.procs.open(*main).ok_or_else(|| format!("{task} does not run"))?;
        signal(&process, wanted)
    }
}

pub(super) fn signal(process: &OwnedFd, signal: Signal) -> Result<(), String> {
    match pidfd_send_signal(process, signal) {
        // It has ended; its end is seen elsewhere.
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(why) => Err(format!("it cannot be signalled: {why}")),
    }
}

fn unknown(task: TaskId) -> String {
    format!("{task} is not known here")
}
