//! Setting GPUs aside: verified free by the driver, and a port with them.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use tidegate_model::{GpuUuid, TaskId};
use tracing::{info, warn};

use super::{Event, Shell, later};
use crate::sense::gpu::Verdict;

/// How long a GPU may still be in use by a process that is ending before a task that wants it is
/// refused.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);

/// How long a check may go unanswered. Then the driver hangs.
const CHECK_PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks at a GPU that is in use.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// A task whose GPUs are being verified.
pub(super) struct Verifying {
    gpus: Vec<GpuUuid>,
    since: Instant,
}

impl Shell {
    pub(super) fn prepare(&mut self, task: TaskId, gpus: Vec<GpuUuid>) {
        if let Entry::Vacant(vacant) = self.verifying.entry(task) {
            vacant.insert(Verifying { gpus: gpus.clone(), since: Instant::now() });
            self.verify(task, gpus);
        }
    }

    pub(super) fn look_again(&mut self, task: TaskId) {
        if let Some(Verifying { gpus, .. }) = self.verifying.get(&task) {
            self.verify(task, gpus.clone());
        }
    }

    /// What waits for a driver that hangs is not kept waiting for ever.
    pub(super) fn refuse_hung(&mut self) {
        let hung = self.verifying.iter().filter(|(_, v)| v.since.elapsed() > CHECK_PATIENCE);
        let hung: Vec<TaskId> = hung.map(|(task, _)| *task).collect();
        for task in hung {
            if self.node.is_to_prepare(task) {
                self.refuse(task, "the GPU driver does not answer".to_owned());
            } else {
                self.verifying.remove(&task);
            }
        }
    }

    fn verify(&mut self, task: TaskId, gpus: Vec<GpuUuid>) {
        if !self.gpus.check(task, gpus) {
            self.take_verdict(task, Verdict::Busy("the GPU driver does not answer".to_owned()));
        }
    }

    pub(super) fn take_verdict(&mut self, task: TaskId, verdict: Verdict) {
        let Some(verifying) = self.verifying.get(&task) else { return };
        if !self.node.is_to_prepare(task) {
            self.verifying.remove(&task);
            return;
        }
        match verdict {
            Verdict::Busy(_) if verifying.since.elapsed() < BUSY_PATIENCE => {
                later(self.events.clone(), BUSY_PAUSE, Event::LookAgain(task));
            }
            Verdict::Unused => {
                let gpus = verifying.gpus.clone();
                self.verifying.remove(&task);
                self.set_aside(task, gpus);
            }
            Verdict::Busy(why) | Verdict::Refused(why) => self.refuse(task, why),
        }
    }

    fn set_aside(&mut self, task: TaskId, gpus: Vec<GpuUuid>) {
        let taken = self.node.ledger().prepared.values().map(|prepared| prepared.port);
        let taken: BTreeSet<u16> = taken.collect();
        match self.ports.take(&taken) {
            Some(port) => {
                info!(%task, port, gpus = gpus.len(), "prepared");
                self.node.prepared(task, gpus, port);
            }
            None => {
                let why = format!("no port of {} is unused", self.config.master_ports);
                self.refuse(task, why);
            }
        }
    }

    fn refuse(&mut self, task: TaskId, why: String) {
        warn!(%task, %why, "cannot be prepared");
        self.verifying.remove(&task);
        self.node.prepare_refused(task, why);
    }
}
