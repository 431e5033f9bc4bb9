//! Who is before whom.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use tidegate_model::{AttemptId, DecisionSeq, GpuCount, Span, Timestamp};

use super::{Urgency, Want};

/// Those who write one after the other: the victims of a gang, or one alone.
struct Block {
    urgency: Urgency,
    /// Whether one of them was told.
    told: bool,
    /// That are free for somebody when all have written.
    gpus: GpuCount,
    bytes: u128,
    since: Timestamp,
    record: DecisionSeq,
    first: Want,
    /// Mostly none: room is made for them only where there are some.
    others: Vec<Want>,
}

impl Block {
    fn of(want: Want) -> Self {
        let Want { urgency, told, bytes, since, record, .. } = want;
        let gpus = want.gang.map_or(want.gpus, |(_, gpus)| gpus);
        let others = Vec::new();
        Self { urgency, told, gpus, bytes: bytes.0.into(), since, record, first: want, others }
    }

    fn add(&mut self, want: Want) {
        self.told |= want.told;
        self.bytes = self.bytes.saturating_add(want.bytes.0.into());
        self.since = self.since.min(want.since);
        self.record = self.record.min(want.record);
        self.others.push(want);
    }

    /// GPUs times the square of the age: after `max_wait` one counts four times, so that nobody
    /// waits for ever behind those that keep coming.
    fn weight(&self, now: Timestamp, max_wait: Span) -> u128 {
        let age = now.since(self.since).0.saturating_add(max_wait.0) / 1000;
        let age = u128::from(age.max(1));
        u128::from(self.gpus.0).saturating_mul(age).saturating_mul(age)
    }

    /// Smith's rule: more GPUs for each byte first. Who was told to save, as its turn was near, stands
    /// still or is about to: nobody who trains on goes before it.
    fn against(&self, other: &Self, now: Timestamp, max_wait: Span) -> Ordering {
        let before = (self.urgency, other.urgency);
        let ratio = || {
            let this = self.weight(now, max_wait).saturating_mul(other.bytes);
            let that = other.weight(now, max_wait).saturating_mul(self.bytes);
            if before == (Urgency::Firm, Urgency::Firm) { Ordering::Equal } else { that.cmp(&this) }
        };
        before
            .0
            .cmp(&before.1)
            .then(other.told.cmp(&self.told))
            .then_with(ratio)
            .then_with(|| self.record.cmp(&other.record))
            .then_with(|| self.first.who.cmp(&other.first.who))
    }
}

/// In the order in which they are to write.
pub(crate) fn order(wants: Vec<Want>, now: Timestamp, max_wait: Span) -> Vec<Want> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut of_gang: BTreeMap<(Urgency, AttemptId), usize> = BTreeMap::new();
    for want in wants {
        let known = want.gang.and_then(|(gang, _)| {
            let next = blocks.len();
            let place = *of_gang.entry((want.urgency, gang)).or_insert(next);
            blocks.get_mut(place)
        });
        match known {
            Some(block) => block.add(want),
            None => blocks.push(Block::of(want)),
        }
    }
    blocks.sort_by(|one, other| one.against(other, now, max_wait));
    let mut ordered = Vec::with_capacity(blocks.len());
    for block in blocks {
        let begin = ordered.len();
        ordered.push(block.first);
        ordered.extend(block.others);
        // The densest last: each trains on until it is told, and the gang starts when all have left.
        ordered.get_mut(begin..).into_iter().for_each(|own| own.sort_by(denser_last));
    }
    ordered
}

fn denser_last(one: &Want, other: &Want) -> Ordering {
    let (this, that) = (u128::from(one.gpus.0), u128::from(other.gpus.0));
    let this = this.saturating_mul(other.bytes.0.into());
    let that = that.saturating_mul(one.bytes.0.into());
    // Who stands still holds its GPUs for nothing: it is not kept back.
    let still = other.asks.cmp(&one.asks);
    still.then(this.cmp(&that)).then_with(|| (one.record, one.who).cmp(&(other.record, other.who)))
}
