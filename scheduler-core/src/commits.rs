//! The checkpoints of a job that are known, over all its attempts.

use imbl::Vector;
use tidegate_model::{AttemptId, Bandwidth, Bytes, DecisionSeq, Timestamp};

/// A checkpoint that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Of which attempt.
    pub attempt: AttemptId,
    /// The training step.
    pub step: u64,
    /// Where.
    pub path: String,
    /// Its size.
    pub bytes: Bytes,
    /// When it was journaled.
    pub at: Timestamp,
    /// The request that was announced before it; none = none was, or it was not kept.
    pub request: Option<DecisionSeq>,
}

/// Checkpoints that are kept of a job: three days of one each hour. Of older ones only the number is.
const MAX_COMMITS: usize = 72;

/// Oldest first. A copy shares them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commits {
    newest: Vector<Committed>,
    older: u64,
    pace: Option<Bandwidth>,
}

impl Commits {
    /// As they were kept.
    #[must_use]
    pub fn restored(newest: Vec<Committed>, older: u64, pace: Option<Bandwidth>) -> Self {
        Self { newest: newest.into(), older, pace }
    }

    /// Those that are kept, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Committed> {
        self.newest.iter()
    }

    /// How many there were before those.
    #[must_use]
    pub fn older(&self) -> u64 {
        self.older
    }

    /// What its job can write in a second by what it made of its permits, with room to be faster; none = it
    /// has had none.
    #[must_use]
    pub fn pace(&self) -> Option<Bandwidth> {
        self.pace
    }

    /// It wrote so fast under a permit for `granted`. Who kept up with that may be faster than is known: what
    /// one permit held back must not hold back the next.
    pub(crate) fn wrote(&mut self, does: Bandwidth, granted: Bandwidth) {
        let part = |of: Bandwidth, of_four: u64| Bandwidth((of.0 / 4).saturating_mul(of_four));
        let known = self.pace.unwrap_or(Bandwidth(u64::MAX));
        self.pace = Some(if does < part(granted, 3) {
            part(does, 5).max(Bandwidth(1))
        } else if granted >= part(known, 3) {
            part(known, 8)
        } else {
            known
        });
    }

    /// The one that counts.
    #[must_use]
    pub fn newest(&self) -> Option<&Committed> {
        self.newest.last()
    }

    pub(crate) fn add(&mut self, commit: Committed) {
        self.newest.push_back(commit);
        if self.newest.len() > MAX_COMMITS {
            self.newest.pop_front();
            self.older = self.older.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_model::{AttemptId, Bytes, JobId, Timestamp};

    use super::*;

    #[test]
    fn who_kept_up_with_its_permit_is_given_more_and_who_did_not_what_it_can_use() {
        let mut commits = Commits::default();
        let mut after = |does: u64, granted: u64| {
            commits.wrote(Bandwidth(does), Bandwidth(granted));
            commits.pace()
        };
        let unknown = Some(Bandwidth(u64::MAX));
        assert_eq!(after(98, 100), unknown, "it may be faster");
        assert_eq!(after(40, 400), Some(Bandwidth(50)), "what it can, and a fourth");
        assert_eq!(after(20, 20), Some(Bandwidth(50)), "less than it can was granted");
        assert_eq!(after(40, 50), Some(Bandwidth(96)), "it kept up");
        assert_eq!(after(40, 96), Some(Bandwidth(50)), "it did not");
    }

    #[test]
    fn the_newest_commits_of_a_job_are_kept_and_the_others_counted() {
        let mut commits = Commits::default();
        let attempt = AttemptId { job: JobId(1), number: 1 };
        for step in 1..=75 {
            let (path, bytes, at) = (format!("/c/{step}"), Bytes(1), Timestamp(step));
            commits.add(Committed { attempt, step, path, bytes, at, request: None });
        }
        let steps: Vec<_> = commits.iter().map(|commit| commit.step).collect();
        assert_eq!((steps, commits.older()), ((4..=75).collect(), 3));
    }
}
