//! What is reported: all that is durable, and, where nothing can be made durable, why.

use std::collections::BTreeMap;
use std::time::Instant;

use tidegate_model::{Epoch, Generation, TaskId};
use tidegate_proto::link::{NodeFacts, TaskReport};

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
        self.say(None, &told);
        self.told = Some(told);
    }

    /// Reports that the ledger cannot be written, and of tasks what was said before: without it the node
    /// would look ready, and its tasks would wait for ever to be prepared.
    pub(super) fn tell_why(&mut self) {
        let Some(why) = &self.ledger_fails else { return };
        let dir = self.config.state_dir.display();
        let note = format!("takes no new work: it cannot write to {dir}: {why}");
        let note = if self.facts.gpu_note.is_empty() {
            note
        } else {
            format!("{note}; {}", self.facts.gpu_note)
        };
        let facts = NodeFacts { gpu_note: note, ..self.facts.clone() };
        if let Some(told) = self.told.take() {
            self.say(Some(&facts), &told);
            self.told = Some(told);
        }
    }

    /// `facts`: in place of those that are seen.
    fn say(&mut self, facts: Option<&NodeFacts>, told: &Told) {
        let facts = facts.unwrap_or(&self.facts);
        let Told { tasks, applied, idle } = told;
        let (asks, writes) = (&self.node.open_asks(), &self.writes.rates());
        if let Some(reporting) = &mut self.reporting {
            let now = Now { facts, tasks, applied: *applied, idle, asks, writes };
            reporting.report(now, &mut self.renewals);
        }
    }
}
