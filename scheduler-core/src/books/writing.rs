//! What an attempt may write, and from how many nodes.

use tidegate_model::{Bandwidth, Bytes, DecisionSeq, Span, TaskId, Timestamp, WriteClass};

use super::{Attempt, Books, Job};
use crate::gate::{Flow, POOL_PART, length};

/// What an attempt may write or read, or, of one that never asks, what it is reckoned to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writing {
    /// Since when.
    pub since: Timestamp,
    /// How much in all.
    pub bytes: Bytes,
    /// At most, or as reckoned; none = its target has no cap.
    pub rate: Option<Bandwidth>,
    /// Whether it comes out of what is kept for those who wait too long and for silent nodes.
    pub pooled: bool,
    /// The ask that it answers; none = it was told to save, and has not asked.
    pub permit: Option<PermitOf>,
    /// What it may go on with until its node says that its job was told the rate; none = no more than that.
    pub still: Option<Bandwidth>,
    /// The record that set the rate.
    pub rated: DecisionSeq,
    /// Whether it had another rate before.
    pub rerated: bool,
    /// The most that it was told to go on with once its permit is over unrenewed; none = as it did, since its
    /// target has no cap. Who is not heard goes by a permit that it knows, whatever was decided since.
    pub after: Option<Bandwidth>,
    /// Likewise the longest that any of its permits holds unrenewed.
    pub longest: Span,
}

impl Writing {
    /// How long its permit holds unrenewed.
    #[must_use]
    pub(crate) fn length(&self) -> Span {
        self.rate.map_or(UNLIMITED, |rate| length(self.bytes, rate))
    }

    /// What its permits say from now on, as its rate was set.
    pub(crate) fn told(&mut self, safe: Option<Bandwidth>) {
        let after = self.rate.map(|rate| safe.map_or(rate, |safe| safe.min(rate)));
        self.after = after.max(self.after);
        // Of one that goes on as it was the end says nothing.
        if self.rate > after || self.rate.is_none() {
            self.longest = self.length().max(self.longest);
        }
    }

    /// How fast a job of that pace usually is under this permit: a fourth less than it is known to be able.
    #[must_use]
    pub(crate) fn usual(&self, pace: Bandwidth) -> Option<Bandwidth> {
        Some(self.rate?.min(Bandwidth(pace.0 / 5 * 4)))
    }

    /// How fast it wrote all that it asked for, and what it was granted for that; none where that says nothing
    /// of what it can.
    #[must_use]
    pub(crate) fn pace(&self, now: Timestamp) -> Option<(Bandwidth, Bandwidth)> {
        let alike = self.permit.is_some() && self.flow() == Flow::Writes && !self.rerated;
        let does = Bandwidth::of(self.bytes, now.since(self.since)).filter(|_| alike)?;
        Some((does, self.rate?))
    }

    /// Whether it was told to keep to its share, as it did not write. Of those that write out of the pool it
    /// alone had more that it might go on with.
    #[must_use]
    pub(crate) fn keeps_to_share(&self) -> bool {
        self.pooled && self.still.is_some()
    }

    /// Whether it writes by a permit, and not out of the pool: it waits for no turn.
    #[must_use]
    pub(crate) fn has_a_turn(&self) -> bool {
        self.permit.is_some() && self.flow() == Flow::Writes && !self.pooled
    }

    /// Whether it writes, or reads back what was written.
    #[must_use]
    pub fn flow(&self) -> Flow {
        self.permit.map_or(Flow::Writes, |permit| Flow::of(permit.class))
    }
}

/// Which ask a permit answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermitOf {
    /// The task that speaks for its gang.
    pub task: TaskId,
    /// The number of its ask.
    pub ask: u64,
    /// What for.
    pub class: WriteClass,
}

/// A permit that says no rate holds for so long.
const UNLIMITED: Span = Span::hours(24);

impl Books {
    /// What an attempt may write or read whose agents are not heard: its nodes' share of the pool at the
    /// lowest cap that may come by itself.
    #[must_use]
    pub(crate) fn safe_rate(&self, job: &Job, attempt: &Attempt, flow: Flow) -> Option<Bandwidth> {
        let rule = &self.gates.get(job.storage()?)?.rule;
        let floor = rule.floor.filter(|_| flow == Flow::Writes);
        let cap = rule.least_cap(flow).into_iter().chain(floor).min()?;
        let all = u64::try_from(self.nodes.len()).unwrap_or(u64::MAX).max(1);
        Some(Bandwidth((cap.0 / POOL_PART).saturating_mul(attempt.node_count()) / all))
    }
}

impl Attempt {
    /// How many nodes it has tasks on.
    #[must_use]
    pub fn node_count(&self) -> u64 {
        // Tasks of a node stand beside each other.
        let runs = self.tasks.chunk_by(|one, next| one.place.node == next.place.node);
        u64::try_from(runs.count()).unwrap_or(u64::MAX)
    }
}
