//! Instants that every process of a node reads alike: time since it booted, sleep included.
//!
//! A wall clock may be set and differs between nodes; [`std::time::Instant`] means nothing to
//! another process.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tidegate_model::Span;

/// Milliseconds since boot, by `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SinceBoot(pub u64);

impl SinceBoot {
    /// This instant. The clock is there on every Linux since 2.6.39; without it time stands still.
    #[must_use]
    pub fn now() -> Self {
        let passed = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Into::into);
        Self(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
    }

    /// So much later.
    #[must_use]
    pub fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long after `earlier` this is; zero if it is before.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}
