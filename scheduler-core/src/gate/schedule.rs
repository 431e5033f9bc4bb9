//! What becomes of all who wait, if nobody else comes and everybody writes as expected.

use std::collections::BTreeMap;

use tidegate_model::{AttemptId, Bytes, Timestamp};

use super::{Limits, Step, Want, Writer, step};

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
    mut writers: Vec<Writer>,
    mut wants: Vec<Want>,
) -> BTreeMap<AttemptId, Slot> {
    let mut slots = BTreeMap::new();
    for one in &writers {
        let position = slots.len();
        slots.insert(one.who, Slot { from: now, until: now, position });
    }
    let mut at = now;
    loop {
        while let Some(step) = step(at, limits, &writers, &wants) {
            match step {
                Step::Raise { who, rate } => raise(&mut writers, who, |one| {
                    (one.rate, one.pooled) = (rate, false);
                }),
                Step::Admit { who, rate, pooled } => {
                    let Some(place) = wants.iter().position(|want| want.who == who) else { break };
                    let Want { bytes, own, asks, .. } = wants.remove(place);
                    let position = slots.len();
                    slots.insert(who, Slot { from: at, until: at, position });
                    writers.push(Writer { who, rate, own, asks, pooled, left: bytes });
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

fn raise(writers: &mut [Writer], who: AttemptId, by: impl Fn(&mut Writer)) {
    writers.iter_mut().filter(|one| one.who == who).for_each(by);
}
