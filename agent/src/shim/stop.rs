//! The ladder of a stop: TERM, a grace, KILL. Pure but for the instants it is given.

use std::time::{Duration, Instant};

/// Where a task is on its way down.
#[derive(Debug, Default)]
pub(super) struct Ladder {
    /// When everything is killed; none before the first stop.
    deadline: Option<Instant>,
}

impl Ladder {
    /// A stop with this grace. Returns whether it is the first, the one that sends TERM. A later
    /// one may bring the deadline nearer, never move it away.
    pub(super) fn ask(&mut self, now: Instant, grace: Duration) -> bool {
        let asked = now.checked_add(grace).unwrap_or(now);
        let is_first = self.deadline.is_none();
        self.deadline = Some(self.deadline.map_or(asked, |earlier| earlier.min(asked)));
        is_first
    }

    /// Whether the grace is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// What is left of the grace; none before the first stop.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_stop_may_only_shorten_the_grace() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let grace = Duration::from_secs;
        let mut ladder = Ladder::default();
        assert!(!ladder.is_over(after(100)) && ladder.left(start).is_none());
        assert!(ladder.ask(start, grace(30)), "the first sends TERM");
        assert!(!ladder.ask(after(1), grace(60)));
        assert_eq!(ladder.left(after(10)), Some(grace(20)));
        assert!(!ladder.ask(after(10), grace(5)));
        assert!(!ladder.is_over(after(14)) && ladder.is_over(after(15)));
    }
}
