//! The arithmetic of a write gate: who writes next to a storage target and at which rate.
//!
//! One target at a time, and nothing of jobs or nodes: [`decide::gate`](crate::decide) says who
//! wants what. Conservation is kept here: no step is taken after which what may be written exceeds
//! the cap (3-checkpoint, "Write gate").
//!
//! * [`order`] sorts who waits. Who holds GPUs and stands still goes by Smith's rule: the most GPUs
//!   for each byte first; who was told that its turn is near keeps it. The victims of one gang are
//!   one block, placed by the gang's GPUs, and inside it the densest are last: they train for
//!   longest.
//! * [`step`] is the next change at an instant: a larger rate, or one more writer.
//! * [`adapt`] lowers a cap that the target does not carry, and raises it again.
//! * [`schedule`] repeats steps until all have written: positions and instants for people.

pub(crate) mod adapt;
mod order;
mod rule;
mod schedule;
#[cfg(test)]
mod tests;

use tidegate_model::{
    AttemptId, Bandwidth, Bytes, DecisionSeq, GpuCount, Span, Timestamp, WriteClass,
};

pub use self::adapt::{Adapted, Evidence};
pub(crate) use self::order::order;
pub use self::rule::{CapHours, Gate, GateRule, Pause};
pub(crate) use self::schedule::{Slot, schedule};

/// The part of a cap that is kept for who waits too long and for silent nodes.
pub(crate) const POOL_PART: u64 = 10;

/// A permit is not worth its round trip below this part of what its holder could use.
const LEAST_PART: u64 = 16;

/// Smaller changes of a rate are not worth a record.
const CHANGE_PART: u64 = 20;

/// Behind the first that must wait so many are looked at for one that fits beside it.
const LOOK_PAST: usize = 64;

/// Which way bytes go. Each has a gate of its own at a target: who restores waits for others that do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flow {
    /// Checkpoints that are written.
    Writes,
    /// Checkpoints that are read back.
    Reads,
}

impl Flow {
    /// That of a class.
    #[must_use]
    pub fn of(class: WriteClass) -> Self {
        match class {
            WriteClass::Preemption | WriteClass::Final | WriteClass::Periodic => Self::Writes,
            WriteClass::Restore => Self::Reads,
        }
    }
}

/// What a target may carry at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes per second of all writers together.
    pub(crate) cap: Bandwidth,
    /// The part of it that is kept for who has waited too long and for silent nodes; lent while
    /// there is neither.
    pub(crate) pool: Bandwidth,
    /// Most writers at a time.
    pub(crate) writers: usize,
}

/// Who goes before whom, whatever the ratios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// A small job waits for its GPUs.
    Small,
    /// A firm reservation does, to which an instant was told: in the order of the requests.
    Firm,
    /// It was asked to leave.
    Preemption,
    /// It is done after this.
    Final,
    /// For itself.
    Periodic,
}

/// Somebody who wants to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) who: AttemptId,
    pub(crate) urgency: Urgency,
    /// Its GPUs.
    pub(crate) gpus: GpuCount,
    pub(crate) bytes: Bytes,
    /// The most that it can write in a second.
    pub(crate) own: Bandwidth,
    /// Whether it keeps to the rate that it is given, and stands still until it is. Who does not
    /// trains on until it is told, and then writes as fast as it can.
    pub(crate) asks: bool,
    /// Whether it was told to save, so that it asks by the time its turn comes.
    pub(crate) told: bool,
    /// The gang that waits for its GPUs, and that gang's GPUs.
    pub(crate) gang: Option<(AttemptId, GpuCount)>,
    /// Since when it waits.
    pub(crate) since: Timestamp,
    /// Of alike the first.
    pub(crate) record: DecisionSeq,
    /// Whether it has waited as long as anybody may: then the pool is there for it.
    pub(crate) overdue: bool,
}

/// Somebody who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) who: AttemptId,
    /// What is reckoned for it.
    pub(crate) rate: Bandwidth,
    /// What it is told. Less than is reckoned until its node says that it was.
    pub(crate) told: Bandwidth,
    /// The most that it can use.
    pub(crate) own: Bandwidth,
    /// Whether it keeps to the rate that it is given.
    pub(crate) asks: bool,
    /// Whether it writes out of the pool.
    pub(crate) pooled: bool,
    /// What it has left to write.
    pub(crate) left: Bytes,
}

impl Writer {
    /// Whether it writes out of the pool at another rate: whoever gets more gets it of the ordinary part.
    pub(crate) fn pooled_at(&self, rate: Bandwidth) -> bool {
        self.pooled && rate < self.told
    }

    fn ends(&self, now: Timestamp) -> Timestamp {
        now.plus(self.rate.takes(self.left))
    }
}

/// The next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Who waits may write.
    Admit { who: AttemptId, rate: Bandwidth, pooled: bool },
    /// Who writes may write more, and out of the ordinary part from now on.
    Raise { who: AttemptId, rate: Bandwidth },
    /// Who writes may write less, as less may be written.
    Lower { who: AttemptId, rate: Bandwidth },
}

/// Those that wait, in their order, and whether the pool is there for any of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'wants> {
    wants: &'wants [Want],
    pool_needed: bool,
}

impl<'wants> Line<'wants> {
    pub(crate) fn of(wants: &'wants [Want], limits: Limits) -> Self {
        let pool_needed = wants.iter().any(|want| want.may_use(limits.pool));
        Self { wants, pool_needed }
    }
}

/// Whether anybody at all could be let through: else nobody needs to be asked what he wants.
pub(crate) fn has_room(limits: Limits, writers: &[Writer]) -> bool {
    let room = Room::of(limits, writers, false);
    one_more(limits, writers) && (room.free > Bandwidth(0) || room.pool > Bandwidth(0))
}

/// The next change at `now`, if there is one. Nobody in line writes but out of the pool.
pub(crate) fn step(
    now: Timestamp,
    limits: Limits,
    writers: &[Writer],
    line: Line<'_>,
) -> Option<Step> {
    let Line { wants, pool_needed } = line;
    let raised = |pooled: bool| {
        let mut held = writers.iter().filter(move |one| one.asks && one.pooled == pooled);
        held.find_map(|one| raise(limits, writers, pool_needed, one))
    };
    let admitted = || {
        let room = Room::of(limits, writers, pool_needed);
        let any = one_more(limits, writers);
        any.then(|| room.next(now, writers, wants).or_else(|| room.overdue(wants))).flatten()
    };
    // Who writes out of the pool was not the first in the order: those that are go before it. It writes all
    // the same, so that as many write as may is no reason to keep it slow.
    let returned = || raised(true);
    lowered(limits, writers, pool_needed)
        .or_else(|| raised(false))
        .or_else(admitted)
        .or_else(returned)
}

/// Whether another may write. Who writes out of the pool is none of the number: silent nodes would take
/// all places.
fn one_more(limits: Limits, writers: &[Writer]) -> bool {
    writers.iter().filter(|one| !one.pooled).count() < limits.writers
}

/// Who came last is told to write less if all may write more than the cap, as after it became lower, or if
/// somebody needs the pool that was lent. Nobody is told less than what a permit is worth.
fn lowered(limits: Limits, writers: &[Writer], pool_needed: bool) -> Option<Step> {
    let alike = |pooled: bool| writers.iter().filter(move |one| one.pooled == pooled);
    let kept: Bandwidth = alike(true).map(|one| one.rate).sum();
    let kept = if pool_needed { kept.max(limits.pool) } else { kept };
    let told = |pooled: bool| -> Bandwidth { alike(pooled).map(|one| one.told).sum() };
    let over = |pooled: bool| {
        if pooled {
            // What is above the pool is no harm while all together are not above the cap.
            return told(true).less(limits.pool).min(told(true).plus(told(false)).less(limits.cap));
        }
        told(false).less(limits.cap.less(kept))
    };
    [true, false].into_iter().find_map(|pooled| last_less(limits, writers, pooled, over(pooled)))
}

/// The last of those that can be told to write less, by so much.
fn last_less(limits: Limits, writers: &[Writer], pooled: bool, over: Bandwidth) -> Option<Step> {
    if over == Bandwidth(0) {
        return None;
    }
    let last = writers.iter().rev().filter(|one| one.asks && one.pooled == pooled);
    last.filter_map(|one| {
        let least = Bandwidth((one.own.min(limits.cap).0 / LEAST_PART).max(1));
        let rate = one.told.less(over).max(least);
        (rate < one.told).then_some(Step::Lower { who: one.who, rate })
    })
    .next()
}

/// Whether a writer may have more, and out of the ordinary part. What is small is left.
fn raise(limits: Limits, writers: &[Writer], pool_needed: bool, one: &Writer) -> Option<Step> {
    if one.told >= one.own {
        return None;
    }
    let others: Vec<Writer> =
        writers.iter().filter(|other| other.who != one.who).copied().collect();
    let room = Room::of(limits, &others, pool_needed);
    let rate = one.own.min(room.most).min(room.free);
    let worth = one.told.0.saturating_add(one.told.0 / CHANGE_PART);
    (rate.0 > worth).then_some(Step::Raise { who: one.who, rate })
}

/// What is left at an instant.
struct Room {
    /// The most that anybody gets of the ordinary part.
    most: Bandwidth,
    /// Of it, what nobody uses.
    free: Bandwidth,
    /// Of the pool likewise.
    pool: Bandwidth,
}

impl Room {
    fn of(limits: Limits, writers: &[Writer], pool_needed: bool) -> Self {
        let used = |pooled: bool| -> Bandwidth {
            let alike = writers.iter().filter(|one| one.pooled == pooled);
            alike.map(|one| one.rate).sum()
        };
        let of_pool = used(true);
        let kept = if pool_needed { limits.pool.max(of_pool) } else { of_pool };
        let most = limits.cap.less(kept);
        let free = most.less(used(false));
        // What of the pool is lent comes back only as those who have it end.
        let lent = used(false).less(limits.cap.less(limits.pool));
        Self { most, free, pool: limits.pool.less(of_pool).less(lent) }
    }

    /// Who has waited longest writes out of the pool, if that has room for it.
    fn overdue(&self, wants: &[Want]) -> Option<Step> {
        let late = wants.iter().filter(|want| want.may_use(self.pool));
        let first = late.min_by_key(|want| (want.since, want.record, want.who))?;
        let rate = first.rate(self.pool, self.pool)?;
        Some(Step::Admit { who: first.who, rate, pooled: true })
    }

    /// The first that has room; nobody who keeps one before it waiting for longer.
    fn next(&self, now: Timestamp, writers: &[Writer], wants: &[Want]) -> Option<Step> {
        let mut head: Option<Head> = None;
        for want in wants.iter().take(LOOK_PAST) {
            let rate = want.rate(self.most, self.free);
            let rate = rate.filter(|rate| {
                head.is_none_or(|head| head.allows(now.plus(rate.takes(want.bytes)), *rate))
            });
            if let Some(rate) = rate {
                return Some(Step::Admit { who: want.who, rate, pooled: false });
            }
            if head.is_none() {
                head = Some(Head::of(now, want.own.min(self.most), self.free, writers));
            }
        }
        None
    }
}

impl Want {
    /// Whether the pool is there for it.
    fn may_use(&self, pool: Bandwidth) -> bool {
        self.overdue && (self.asks || self.own <= pool)
    }

    /// What it would get of `free`, where nobody gets above `most`; none if that is no use.
    fn rate(&self, most: Bandwidth, free: Bandwidth) -> Option<Bandwidth> {
        let most = self.own.min(most);
        let least = if self.asks { Bandwidth(most.0 / LEAST_PART) } else { most };
        let rate = most.min(free);
        (rate >= least && rate.0 > 0).then_some(rate)
    }
}

/// When the first that waits has its room, and what is left beside it then.
#[derive(Clone, Copy)]
struct Head {
    at: Timestamp,
    beside: Bandwidth,
}

impl Head {
    fn of(now: Timestamp, wanted: Bandwidth, free: Bandwidth, writers: &[Writer]) -> Self {
        let mut ends: Vec<_> = writers.iter().map(|one| (one.ends(now), one.rate)).collect();
        ends.sort_unstable();
        let (mut at, mut free) = (now, free);
        for (end, rate) in ends {
            if free >= wanted {
                break;
            }
            (at, free) = (end, free.plus(rate));
        }
        Self { at, beside: free.less(wanted) }
    }

    fn allows(self, ends: Timestamp, rate: Bandwidth) -> bool {
        ends <= self.at || rate <= self.beside
    }
}

/// How long a permit holds without being renewed: half as long again as its bytes take.
pub(crate) fn length(bytes: Bytes, rate: Bandwidth) -> Span {
    let takes = rate.takes(bytes).0;
    Span(takes.saturating_add(takes / 2).max(LEAST_LENGTH.0))
}

/// Below it a permit would be over before its renewal came: three heartbeats of the slowest pace.
const LEAST_LENGTH: Span = Span::seconds(15);

/// By how much two clocks drift apart in a span: a hundredth, far above any that is not broken, and
/// a second for what is on its way.
pub(crate) fn drift(length: Span) -> Span {
    Span((length.0 / 100).saturating_add(1000))
}
