//! What an attempt may write, and from how many nodes.

use tidegate_model::{Bandwidth, Bytes, DecisionSeq, TaskId, Timestamp, WriteClass};

use super::Attempt;
use crate::gate::Flow;

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
}

impl Writing {
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

impl Attempt {
    /// How many nodes it has tasks on.
    #[must_use]
    pub fn node_count(&self) -> u64 {
        // Tasks of a node stand beside each other.
        let runs = self.tasks.chunk_by(|one, next| one.place.node == next.place.node);
        u64::try_from(runs.count()).unwrap_or(u64::MAX)
    }
}
