//! A node's own clock. Nothing but its drift is bounded: it is as far from the others' as it likes.

use tidegate_agent::since_boot::SinceBoot;

/// A clock that keeps to the coordinator's, in parts of a million.
const RIGHT: u64 = 1_000_000;

/// By so much of it clocks may drift apart: a hundredth, as permits allow for.
const DRIFT: u64 = 10_000;

/// Time since the node's boot, sleep included.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeClock {
    booted: u64,
    /// Milliseconds that went by while nothing here ran.
    slept: u64,
    rate: u64,
}

impl NodeClock {
    /// As fast or slow as it may be.
    pub(super) fn new(rng: &mut fastrand::Rng) -> Self {
        let rate = rng.u64(RIGHT - DRIFT..=RIGHT + DRIFT);
        Self { booted: 0, slept: 0, rate }
    }

    pub(super) fn reboot(&mut self, now: u64) {
        (self.booted, self.slept) = (now, 0);
    }

    /// It steps: forward only, as the kernel's does.
    pub(super) fn step(&mut self, by: u64) {
        self.slept = self.slept.saturating_add(by);
    }

    /// What it shows.
    pub(super) fn read(&self, now: u64) -> SinceBoot {
        let passed = now.saturating_sub(self.booted);
        SinceBoot((passed.saturating_mul(self.rate) / RIGHT).saturating_add(self.slept))
    }
}
