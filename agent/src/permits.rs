//! How an ask for a permit to write, and its answer, are written in files and messages of this
//! node.
//!
//! What is not here: who acts on them (`shim`), and the words of the job's socket
//! ([`crate::job_protocol`]).

use serde::{Deserialize, Serialize};
use tidegate_model::{Ask, AskSeen, Bandwidth, Bytes, DecisionSeq, Permit, Span, WriteClass};

use crate::record::cut;
use crate::since_boot::SinceBoot;

/// An end that moves on by less is not worth a file and a signal.
const WORTH_TELLING: Span = Span::seconds(1);

/// A task's newest ask, as its shim keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskRecord {
    /// Grows within a task.
    pub number: u64,
    /// What for.
    #[serde(with = "crate::text")]
    pub class: WriteClass,
    /// Of the whole gang.
    pub bytes: u64,
    /// Of the whole gang; zero = not said.
    pub files: u32,
    /// How long the job will wait; none = it did not say.
    pub patience_ms: Option<u64>,
    /// When it was asked.
    pub asked_ms: SinceBoot,
    /// What the job says it has written.
    pub written: u64,
    /// It writes no more, or no longer wants to.
    pub done: bool,
    /// The record of the newest rate that the job was told and that is no higher than the one before;
    /// zero = none.
    #[serde(default)]
    pub rated: u64,
}

impl AskRecord {
    /// What is said of it, but for how long ago it was: that grows by itself.
    #[must_use]
    pub fn seen(&self) -> AskSeen {
        let ask = Ask {
            number: self.number,
            class: self.class,
            bytes: Bytes(self.bytes),
            files: self.files,
            patience: self.patience_ms.map(Span),
        };
        AskSeen {
            ask,
            waited: Span::ZERO,
            written: Bytes(self.written),
            done: self.done,
            rated: DecisionSeq(self.rated),
        }
    }
}

/// The answer to an ask, with its end as an instant of this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PermitRecord {
    /// It may.
    Granted {
        /// The ask.
        ask: u64,
        /// The whole gang; none = not limited.
        bytes_per_s: Option<u64>,
        /// Likewise, once it is over.
        after_bytes_per_s: Option<u64>,
        /// When it is over unless it is renewed.
        until_ms: SinceBoot,
        /// The record that set the rate.
        #[serde(default)]
        rated: u64,
    },
    /// Not yet.
    Waits {
        /// The ask.
        ask: u64,
        /// So many are before it.
        position: u32,
        /// From the answer to its turn.
        expected_ms: u64,
    },
    /// Not at all.
    Denied {
        /// The ask.
        ask: u64,
        /// Why.
        why: String,
        /// After which asking again is answered otherwise; none = not known, or it never is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
}

impl PermitRecord {
    /// The coordinator's answer on a node of which it has heard what was said at `heard`. None if
    /// that is not known: then nobody knows for how long a permit holds.
    #[must_use]
    pub fn of(permit: Permit, heard: Option<SinceBoot>) -> Option<Self> {
        Some(match permit {
            Permit::Granted { ask, rate, length, after, rated } => Self::Granted {
                ask,
                bytes_per_s: rate.map(|Bandwidth(rate)| rate),
                after_bytes_per_s: after.map(|Bandwidth(rate)| rate),
                until_ms: heard?.plus(length),
                rated: rated.0,
            },
            Permit::Waits { ask, position, expected } => {
                Self::Waits { ask, position, expected_ms: expected.0 }
            }
            Permit::Denied { ask, why, retry_after } => {
                let retry_after_ms = retry_after.map(|Span(span)| span);
                Self::Denied { ask, why: cut(why), retry_after_ms }
            }
        })
    }

    /// Which ask it answers.
    #[must_use]
    pub fn ask(&self) -> u64 {
        match self {
            Self::Granted { ask, .. } | Self::Waits { ask, .. } | Self::Denied { ask, .. } => *ask,
        }
    }

    /// Whether a shim that was told `before` should be told this.
    #[must_use]
    pub fn is_news_after(&self, before: &Self) -> bool {
        let (Self::Granted { until_ms: until, .. }, Self::Granted { until_ms: known, .. }) =
            (self, before)
        else {
            return self != before;
        };
        let is_worth = until.since(*known) > WORTH_TELLING;
        is_worth || self.ending(*known) != *before
    }

    /// The record that set the rate, if it did so after `before` and to no more than that.
    #[must_use]
    pub fn rated_no_higher(&self, before: &Self) -> Option<u64> {
        let granted = |permit: &Self| match permit {
            Self::Granted { bytes_per_s, rated, .. } => {
                Some((bytes_per_s.unwrap_or(u64::MAX), *rated))
            }
            Self::Waits { .. } | Self::Denied { .. } => None,
        };
        let ((rate, rated), (was, was_rated)) = granted(self).zip(granted(before))?;
        (rate <= was && rated > was_rated).then_some(rated)
    }

    /// The same with another end.
    fn ending(&self, until_ms: SinceBoot) -> Self {
        let mut other = self.clone();
        if let Self::Granted { until_ms: until, .. } = &mut other {
            *until = until_ms;
        }
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(rate: u64, length: u64, heard: u64) -> PermitRecord {
        let (rate, after) = (Some(Bandwidth(rate)), Some(Bandwidth(1)));
        let permit =
            Permit::Granted { ask: 2, rate, length: Span(length), after, rated: DecisionSeq(7) };
        PermitRecord::of(permit, Some(SinceBoot(heard))).unwrap()
    }

    #[test]
    fn a_permit_is_news_at_another_rate_or_when_it_holds_for_a_second_longer() {
        let before = granted(100, 15_000, 5_000);
        assert!(!granted(100, 15_000, 5_000).is_news_after(&before));
        assert!(!granted(100, 15_000, 6_000).is_news_after(&before));
        assert!(granted(100, 15_000, 6_001).is_news_after(&before));
        assert!(granted(101, 15_000, 5_000).is_news_after(&before));
        let waits = PermitRecord::Waits { ask: 2, position: 1, expected_ms: 9 };
        assert!(waits.is_news_after(&before) && before.is_news_after(&waits));
        assert!(!waits.is_news_after(&waits.clone()));
    }

    #[test]
    fn nobody_is_told_of_a_permit_whose_end_is_not_known() {
        let (rated, length) = (DecisionSeq(7), Span(5));
        let permit = Permit::Granted { ask: 1, rate: None, length, after: None, rated };
        assert_eq!(PermitRecord::of(permit, None), None);
        let waits = Permit::Waits { ask: 1, position: 0, expected: Span(5) };
        assert!(PermitRecord::of(waits, None).is_some());
    }
}
