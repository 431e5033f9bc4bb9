//! What would happen to a job if it were submitted now, for several min runtimes: asked of a copy
//! of the core, so that the answer is the scheduler's own.

use tidegate_model::{DecisionSeq, JobId, JobSpec, Span, SubmitKey, Timestamp, UserId};

use crate::books::AttemptState;
use crate::core::Core;
use crate::decide::money::Money;
use crate::decide::request::acceptable;
use crate::decision::{Decision, Refusal, Standing};
use crate::event::Event;
use crate::evolve::Stamp;
use crate::explain::Explanation;
use crate::money::Amount;

/// Beside the min runtime that the job asks, those that people choose between.
const OTHERS: [Span; 4] = [Span::ZERO, Span::hours(1), Span::hours(4), Span::hours(8)];

/// What one min runtime would bring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DryRun {
    /// The min runtime.
    pub min_runtime: Span,
    /// Whether the job would be small.
    pub small: bool,
    /// What a start pledges of its account.
    pub pledge: Amount,
    /// How it would stand at once; none if it would wait.
    pub starts: Option<Standing>,
    /// When it is expected to have its GPUs; none if nothing known brings them.
    pub at: Option<Timestamp>,
    /// When it would become its account's elder; none if it never would by itself.
    pub elder_at: Option<Timestamp>,
    /// Why, with numbers; or why it would be refused.
    pub why: Result<Explanation, Refusal>,
}

impl Core {
    /// What would happen if `user` submitted `spec` at `now`, with its own min runtime and with 0,
    /// 1, 4 and 8 h. Changes nothing.
    ///
    /// # Errors
    /// If the job would be refused whatever its min runtime.
    pub fn dry_run(
        &self,
        now: Timestamp,
        user: UserId,
        spec: &JobSpec,
    ) -> Result<Vec<DryRun>, Refusal> {
        let asks_nothing = JobSpec { min_runtime: Span::ZERO, ..spec.clone() };
        acceptable(self.books(), user, &asks_nothing)?;
        let mut spans: Vec<_> = OTHERS.into_iter().chain([spec.min_runtime]).collect();
        spans.sort_unstable();
        spans.dedup();
        Ok(spans.into_iter().map(|span| self.dry_run_of(now, user, spec, span)).collect())
    }

    fn dry_run_of(
        &self,
        now: Timestamp,
        user: UserId,
        spec: &JobSpec,
        min_runtime: Span,
    ) -> DryRun {
        let spec = JobSpec { min_runtime, ..spec.clone() };
        let sharing = &self.books().policy.sharing;
        let small = sharing.is_small(spec.gpus, min_runtime);
        let mut dry = DryRun {
            min_runtime,
            small,
            pledge: Amount::ZERO,
            starts: None,
            at: None,
            elder_at: None,
            why: Err(Refusal::NoGpusYet),
        };
        let mut copy = self.clone();
        // A user may have any key: this one has a job under it already, or is free.
        let mut key = SubmitKey(u128::MAX);
        while self.books().index.job_of(user, key).is_some() {
            key = SubmitKey(key.0.saturating_sub(1));
        }
        let event = Event::JobSubmitted { key, user, spec: Box::new(spec) };
        let stamp = Stamp { at: now, seq: DecisionSeq(u64::MAX) };
        let decided = copy.apply(stamp, &event).unwrap_or_default();
        let answer = decided.iter().find_map(Decision::answers);
        let job = match answer {
            Some(Ok((job, _))) => job,
            Some(Err(refusal)) => return DryRun { why: Err(refusal.clone()), ..dry },
            None => return dry,
        };
        let (books, explanation) = (copy.books(), copy.explain(now, job));
        let Some((entry, explanation)) = books.jobs.get(&job).zip(explanation) else { return dry };
        let money = Money::at(books, now);
        let weight = money.least_weight(entry);
        dry.pledge = weight.rate(entry.spec.gpus).over(min_runtime);
        let half = money.sheet.row(entry.account).limit.part(1, 2);
        let ordinary = entry.is_ordinary(sharing) && dry.pledge <= half;
        dry.elder_at = ordinary.then(|| now.plus(sharing.patience));
        let instant = |key| explanation.numbers.get(key).map(|ms| Timestamp(*ms));
        dry.at = instant("at_ms").or_else(|| instant("until_ms"));
        if let Some(attempt) = entry.active_attempt() {
            dry.starts = Some(attempt.standing);
            if attempt.ready.is_some() && attempt.state() == AttemptState::Planned {
                dry.at = Some(now);
            }
        }
        dry.why = Ok(without_number(explanation, job));
        dry
    }
}

/// The job has no number yet, and the one that it had in the copy may be another's soon.
fn without_number(explanation: Explanation, job: JobId) -> Explanation {
    let id = job.to_string();
    let named = |word: &str| {
        let (bare, rest) = word.split_at_checked(id.len()).unwrap_or_default();
        bare == id && !rest.starts_with(|next: char| next.is_ascii_digit())
    };
    let told = |line: &String| {
        let line = match line.split_once(": ") {
            Some((first, rest)) if named(first) => rest,
            Some(_) | None => line,
        };
        let words = line.split(' ').map(|word| if named(word) { "it" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    let lines = explanation.lines.iter().map(told).collect();
    Explanation { lines, ..explanation }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::explain::Reason;

    fn check(line: &str, expected: &str) {
        let lines = vec![line.to_owned()];
        let numbers = BTreeMap::new();
        let told = Explanation { reason: Reason::Starting, lines, numbers };
        assert_eq!(without_number(told, JobId(12)).lines, [expected]);
    }

    #[test]
    fn a_job_that_is_not_submitted_is_not_named() {
        check(
            "job-12.1: its 2 tasks' GPUs are being verified",
            "its 2 tasks' GPUs are being verified",
        );
        check("job-12.1: job-3.1 to save and leave", "job-3.1 to save and leave");
        check("waits for job-123 and job-1", "waits for job-123 and job-1");
        check("job-120.1: all", "job-120.1: all");
        check(
            "`tidegate release` for job-12 lets it start",
            "`tidegate release` for it lets it start",
        );
    }
}
