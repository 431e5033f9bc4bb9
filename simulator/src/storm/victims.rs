//! Who was asked to leave, let through, and how each ended: of a simulated cluster as of a real one's
//! journal.

use std::collections::BTreeMap;

use scheduler_core::{Books, Decision, Outcome};
use tidegate_model::{AttemptId, Bandwidth, Bytes, GpuCount, Timestamp};

use super::Figures;
use crate::world::Observer;

/// Read from decisions.
#[derive(Debug, Default)]
pub struct Victims {
    all: BTreeMap<AttemptId, Victim>,
    running: BTreeMap<AttemptId, Timestamp>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Victim {
    gpus: GpuCount,
    told: Option<Timestamp>,
    ended: Option<(Timestamp, Outcome)>,
}

impl Observer for Victims {
    fn saw(&mut self, before: &Books, at: Timestamp, decision: &Decision) {
        if let Decision::SaveOrdered { attempt, .. } = decision {
            let gpus = before.attempt(*attempt).map_or(GpuCount(0), |one| one.gpus());
            self.all.insert(*attempt, Victim { gpus, ..Victim::default() });
        } else if let Decision::SaveWithdrawn(attempt) = decision {
            self.all.remove(attempt);
        } else if let Decision::SaveTold(attempt) | Decision::SaveAdmitted { attempt, .. } =
            decision
        {
            self.all.entry(*attempt).and_modify(|victim| _ = victim.told.get_or_insert(at));
        } else if let Decision::AttemptEnded { attempt, outcome, .. } = decision {
            self.all.entry(*attempt).and_modify(|victim| victim.ended = Some((at, *outcome)));
        } else if let Decision::AttemptRunning(attempt) = decision {
            self.running.insert(*attempt, at);
        }
    }
}

impl Victims {
    /// How many were asked to leave.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether all of them have ended.
    #[must_use]
    pub fn are_over(&self) -> bool {
        self.all.values().all(|victim| victim.ended.is_some())
    }

    /// When the last of them ended.
    #[must_use]
    pub fn last_end(&self) -> Option<Timestamp> {
        self.all.values().filter_map(|victim| Some(victim.ended?.0)).max()
    }

    /// When an attempt ran.
    #[must_use]
    pub fn running(&self, attempt: AttemptId) -> Option<Timestamp> {
        self.running.get(&attempt).copied()
    }

    /// What they had to write, how many lost their work, and for how long their GPUs were idle;
    /// `alone` is what so many GPUs write when nobody else does. The rest is the default.
    #[must_use]
    pub fn figures(
        &self,
        bytes: &BTreeMap<AttemptId, Bytes>,
        alone: impl Fn(GpuCount) -> Bandwidth,
    ) -> Figures {
        let mut figures = Figures::default();
        for (id, victim) in &self.all {
            let (bytes, gpus) = (bytes.get(id).copied().unwrap_or_default(), victim.gpus);
            let least = gpus.held_for(alone(gpus).takes(bytes)).0;
            figures.victims = figures.victims.saturating_add(1);
            figures.bytes = Bytes(figures.bytes.0.saturating_add(bytes.0));
            figures.idle_bound = figures.idle_bound.saturating_add(least);
            let Some((told, (ended, outcome))) = victim.told.zip(victim.ended) else {
                figures.unsaved = figures.unsaved.saturating_add(1);
                continue;
            };
            let lost = u32::from(outcome != Outcome::Saved);
            figures.unsaved = figures.unsaved.saturating_add(lost);
            figures.idle = figures.idle.saturating_add(gpus.held_for(ended.since(told)).0);
        }
        figures
    }
}
