//! The checkpoints of a job that are known, over all its attempts.

use imbl::Vector;
use tidegate_model::{AttemptId, Bytes, DecisionSeq, Timestamp};

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
}

impl Commits {
    /// As they were kept.
    #[must_use]
    pub fn restored(newest: Vec<Committed>, older: u64) -> Self {
        Self { newest: newest.into(), older }
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
