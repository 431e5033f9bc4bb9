//! Values that people set and the journal keeps. Every default has its reason.

use std::collections::BTreeSet;

use tidegate_model::{Span, UserId};

/// The cluster's rules, in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// From planned to running; a gang that takes longer is stopped and placed again (10 min).
    pub start_timeout: Span,
    /// First pause before a failed job is started again; doubles with each (1 s).
    pub restart_backoff: Span,
    /// Longest such pause (5 min).
    pub restart_backoff_max: Span,
    /// An attempt that ran this long ends a streak of failures (10 min).
    pub steady_after: Span,
    /// How long an ended job, its key and its history are kept (7 days, as submit keys promise).
    pub keep_ended: Span,
    /// A node not heard for this long is unreachable (15 s: three heartbeats).
    pub silent_after: Span,
    /// Jobs that may be alive at once (100,000: 1 KiB each is 100 MB of memory).
    pub max_live_jobs: u32,
    /// Who may drain nodes and end the jobs of others. Root always may.
    pub admins: BTreeSet<UserId>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            start_timeout: Span::minutes(10),
            restart_backoff: Span::seconds(1),
            restart_backoff_max: Span::minutes(5),
            steady_after: Span::minutes(10),
            keep_ended: Span::hours(7 * 24),
            silent_after: Span::seconds(15),
            max_live_jobs: 100_000,
            admins: BTreeSet::new(),
        }
    }
}

impl Policy {
    /// Holds the values against their bounds.
    ///
    /// # Errors
    /// The first that is outside, and what would be accepted.
    pub fn check(&self) -> Result<(), String> {
        let spans = [
            ("start_timeout", self.start_timeout, Span::seconds(1), Span::hours(24)),
            ("restart_backoff", self.restart_backoff, Span::ZERO, self.restart_backoff_max),
            ("restart_backoff_max", self.restart_backoff_max, Span::ZERO, Span::hours(24)),
            ("steady_after", self.steady_after, Span::ZERO, Span::hours(7 * 24)),
            ("keep_ended", self.keep_ended, Span::hours(1), Span::hours(365 * 24)),
            ("silent_after", self.silent_after, Span::seconds(1), Span::hours(1)),
        ];
        for (key, value, least, most) in spans {
            if value < least || value > most {
                return Err(format!("{key}: {value} given; {least} to {most} is accepted"));
            }
        }
        let jobs = self.max_live_jobs;
        if (1..=1_000_000).contains(&jobs) {
            return Ok(());
        }
        Err(format!("max_live_jobs: {jobs} given; 1 to 1000000 is accepted"))
    }

    /// Whether `user` may do what only admins may.
    #[must_use]
    pub fn is_admin(&self, user: UserId) -> bool {
        user == UserId(0) || self.admins.contains(&user)
    }

    /// The pause before the next start after `streak` attempts that did not last: 0, then
    /// `restart_backoff` doubling with each, at most `restart_backoff_max`.
    #[must_use]
    pub fn backoff(&self, streak: u32) -> Span {
        let Some(doublings) = streak.checked_sub(1) else {
            return Span::ZERO;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        Span(self.restart_backoff.0.saturating_mul(factor)).min(self.restart_backoff_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_its_bounds_is_refused_with_what_would_be_accepted() {
        assert_eq!(Policy::default().check(), Ok(()));
        let none = Policy { max_live_jobs: 0, ..Policy::default() };
        assert_eq!(none.check().unwrap_err(), "max_live_jobs: 0 given; 1 to 1000000 is accepted");
        let deaf = Policy { silent_after: Span::ZERO, ..Policy::default() };
        assert_eq!(deaf.check().unwrap_err(), "silent_after: 0 given; 1s to 1h is accepted");
        let slow = Policy { restart_backoff: Span::minutes(10), ..Policy::default() };
        assert_eq!(slow.check().unwrap_err(), "restart_backoff: 10m given; 0 to 5m is accepted");
    }

    #[test]
    fn the_pause_doubles_up_to_its_limit() {
        let pauses: Vec<_> = [0, 1, 2, 9, 10, 64, u32::MAX]
            .map(|streak| Policy::default().backoff(streak).to_string())
            .into();
        assert_eq!(pauses, ["0", "1s", "2s", "4m16s", "5m", "5m", "5m"]);
    }
}
