//! What is reported: of tasks all that is durable, of the node what it is.

use std::collections::BTreeMap;
use std::time::Instant;

use tidegate_model::{Epoch, Generation, TaskId};
use tidegate_proto::link::TaskReport;

use super::Shell;
use crate::reporting::Now;

/// What was reported of tasks.
pub(super) struct Told {
    tasks: BTreeMap<TaskId, TaskReport>,
    applied: Option<(Epoch, Generation)>,
    idle: BTreeMap<TaskId, Instant>,
}

impl Shell {
    /// Reports what is, which the ledger holds.
    pub(super) fn tell(&mut self) {
        if !self.node.starter_heard() || !self.facts_known {
            return;
        }
        let ledger = self.node.ledger();
        let applied = (ledger.epoch > Epoch(0)).then_some((ledger.epoch, ledger.generation));
        let idle = self.idleness.idle(Instant::now());
        let told = Told { tasks: self.node.report(), applied, idle };
        self.say(&told);
        self.told = Some(told);
    }

    /// Reports of the node what it is, and of tasks what was said before: the ledger cannot be
    /// written, and without a word of it the node would look ready.
    pub(super) fn tell_of_node(&mut self) {
        if let Some(told) = self.told.take() {
            self.say(&told);
            self.told = Some(told);
        }
    }

    fn say(&mut self, told: &Told) {
        let facts = &self.facts;
        let Told { tasks, applied, idle } = told;
        let (asks, writes) = (&self.node.open_asks(), &self.writes.rates());
        if let Some(reporting) = &mut self.reporting {
            let now = Now { facts, tasks, applied: *applied, idle, asks, writes };
            reporting.report(now, &mut self.renewals);
        }
    }
}
