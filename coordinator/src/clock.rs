//! The only place that reads the time.
//!
//! Now = the last journaled instant + what the monotonic clock says has passed since. The wall
//! clock is asked once, at start: jumps of it afterwards move nothing.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tidegate_model::{Span, Timestamp};

/// How far the wall clock may lie behind the journal at start.
pub const TOLERATED_LAG: Span = Span::minutes(5);

/// The wall clock lies too far behind what the journal has seen.
#[derive(Debug, thiserror::Error)]
#[error(
    "this machine's clock ({wall}) is {lag} behind the newest record of the store ({journaled}); \
     set the clock, or wait"
)]
pub struct ClockBehind {
    wall: Timestamp,
    journaled: Timestamp,
    lag: Span,
}

/// Time since a start, anchored in the journal.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    anchor: Timestamp,
    started: Instant,
}

impl Clock {
    /// Starts at the later of the wall clock and the last journaled instant.
    ///
    /// # Errors
    /// If the wall clock lies more than [`TOLERATED_LAG`] before that instant.
    pub fn start(last_journaled: Timestamp) -> Result<Self, ClockBehind> {
        Ok(Self { anchor: anchor(wall(), last_journaled)?, started: Instant::now() })
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let passed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.anchor.plus(Span(passed))
    }
}

fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

fn anchor(wall: Timestamp, journaled: Timestamp) -> Result<Timestamp, ClockBehind> {
    let lag = journaled.since(wall);
    if lag > TOLERATED_LAG {
        return Err(ClockBehind { wall, journaled, lag });
    }
    Ok(wall.max(journaled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_back_over_a_restart_and_a_clock_far_behind_is_refused() {
        let at = |minutes| Timestamp(0).plus(Span::minutes(minutes));
        assert_eq!(anchor(at(10), at(7)).unwrap(), at(10));
        assert_eq!(anchor(at(7), at(10)).unwrap(), at(10));
        let told = anchor(at(1), at(10)).unwrap_err().to_string();
        assert!(told.contains("is 9m behind the newest record"), "{told}");
    }
}
