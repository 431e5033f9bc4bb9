//! What becomes of all who wait, if nobody else comes and everybody writes as expected.

use std::collections::BTreeMap;

use tidegate_model::{AttemptId, Bytes, Timestamp};

use super::{Limits, Line, Step, Want, Writer, step};

/// From when until when somebody writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// For who writes already, the instant asked about.
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    /// In the order of their beginnings, from 0; who writes already comes first.
    pub(crate) position: usize,
}

/// The slots of all. Who never gets room (nothing is left beside what is kept) has none.
pub(crate) fn schedule(
    now: Timestamp,
    limits: Limits,
    writers: Vec<Writer>,
    wants: Vec<Want>,
) -> BTreeMap<AttemptId, Slot> {
    let mut slots = BTreeMap::new();
    for one in &writers {
        let position = slots.len();
        slots.insert(one.who, Slot { from: now, until: now, position });
    }
    let (mut at, mut writers, mut queue) = (now, writers, Queue::of(wants, limits));
    loop {
        while let Some(step) = step(at, limits, &writers, queue.line()) {
            match step {
                Step::Raise { who, rate } | Step::Lower { who, rate } => {
                    let mut all = writers.iter_mut();
                    if let Some(one) = all.find(|one| one.who == who) {
                        (one.rate, one.told, one.pooled) = (rate, rate, one.pooled_at(rate));
                    }
                }
                Step::Admit { who, rate, pooled } => {
                    let Some(Want { bytes, own, asks, .. }) = queue.take(who) else { break };
                    let position = slots.len();
                    slots.insert(who, Slot { from: at, until: at, position });
                    // Who writes out of the pool may wait for its turn meanwhile.
                    writers.retain(|one| one.who != who);
                    writers.push(Writer { who, rate, told: rate, own, asks, pooled, left: bytes });
                }
            }
        }
        let Some(next) = writers.iter().map(|one| one.ends(at)).min() else { return slots };
        writers.retain_mut(|one| {
            if one.ends(at) <= next {
                slots.entry(one.who).and_modify(|slot| slot.until = next);
                return false;
            }
            let written = one.rate.over(next.since(at));
            one.left = Bytes(one.left.0.saturating_sub(written.0));
            true
        });
        at = next;
    }
}

/// Those that wait, of whom mostly the first is taken.
struct Queue {
    wants: Vec<Want>,
    /// So many of them are taken.
    front: usize,
    limits: Limits,
    /// Of the others, those whom the pool is there for.
    for_pool: usize,
}

impl Queue {
    fn of(wants: Vec<Want>, limits: Limits) -> Self {
        let for_pool = wants.iter().filter(|want| want.may_use(limits.pool)).count();
        Self { wants, front: 0, limits, for_pool }
    }

    fn line(&self) -> Line<'_> {
        let wants = self.wants.get(self.front..).unwrap_or_default();
        Line { wants, pool_needed: self.for_pool > 0 }
    }

    fn take(&mut self, who: AttemptId) -> Option<Want> {
        let left = self.wants.get_mut(self.front..)?;
        let place = left.iter().position(|want| want.who == who)?;
        left.get_mut(..=place)?.rotate_right(1);
        let taken = left.first().copied()?;
        self.front = self.front.saturating_add(1);
        let of_pool = taken.may_use(self.limits.pool);
        self.for_pool = self.for_pool.saturating_sub(usize::from(of_pool));
        Some(taken)
    }
}
