//! How long a user's own runs of one shape took, and whether a job asks to be protected for far
//! longer: that costs its account a pledge, and the job a later start.

use tidegate_model::{JobSpec, Span, UserId};

use crate::books::{Attempt, Books};
use crate::decision::{Outcome, StopReason};

/// Fewer runs say little of the next one.
const RUNS_THAT_TELL: usize = 5;

/// Jobs that are looked at, the newest: older ones say less, and it is done for each submit, within
/// a millisecond or so.
const MAX_JOBS: usize = 10_000;

/// Runs that are counted, the newest.
const MAX_RUNS: usize = 200;

/// A min runtime above twice what nine of ten own runs took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongAsk {
    /// The min runtime.
    pub asked: Span,
    /// Nine of ten runs were over after it, by the nearest rank.
    pub p90: Span,
    /// So many runs were counted.
    pub runs: usize,
}

impl LongAsk {
    /// Whether a job of `user` asks so much, by the runs of the same number and kind of GPUs that
    /// are kept. Of those that ended by themselves or by their owner: others would have gone on.
    #[must_use]
    pub fn of(books: &Books, user: UserId, spec: &JobSpec) -> Option<Self> {
        if spec.min_runtime == Span::ZERO {
            return None;
        }
        let newest = books.jobs.values().rev().take(MAX_JOBS);
        let alike = newest.filter(|job| {
            let of = &job.spec;
            job.user == user && (of.gpus, &of.gpu_type) == (spec.gpus, &spec.gpu_type)
        });
        let runs = alike.flat_map(|job| job.attempts.iter().rev().filter_map(own_run));
        let mut runs: Vec<_> = runs.take(MAX_RUNS).collect();
        if runs.len() < RUNS_THAT_TELL {
            return None;
        }
        runs.sort_unstable();
        let rank = runs.len().saturating_mul(9).div_ceil(10);
        let p90 = runs.get(rank.saturating_sub(1)).copied()?;
        let asked = spec.min_runtime;
        let far = asked.0 > p90.0.saturating_mul(2);
        far.then_some(Self { asked, p90, runs: runs.len() })
    }
}

/// How long its longest task ran, if nobody but its owner cut it short. By the nodes' clocks: of a
/// short one nobody may have seen that it ran.
fn own_run(attempt: &Attempt) -> Option<Span> {
    let (_, outcome) = attempt.ended?;
    let ran = attempt.tasks.iter().map(|task| task.ran).max()?;
    let cancelled = attempt.stop.is_some_and(|stop| stop.why == StopReason::Cancelled);
    let own = match outcome {
        Outcome::Done | Outcome::Failed => true,
        Outcome::Unsaved | Outcome::Lost | Outcome::Saved | Outcome::Unknown => cancelled,
    };
    (own && ran > Span::ZERO).then_some(ran)
}

/// In one sentence, with its numbers.
impl std::fmt::Display for LongAsk {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { asked, p90, runs } = self;
        let whole = |span: Span| if span.0 < 1000 { span } else { Span(span.0 / 1000 * 1000) };
        write!(
            out,
            "min_runtime {asked} is more than twice what your own runs of this shape take: of the \
             last {runs}, nine in ten were over after {}; what is more costs pledge and a later start",
            whole(*p90)
        )
    }
}
