//! What users ask about jobs.

use tidegate_model::{AttemptId, JobId, JobSpec, SubmitKey, UserId};

use crate::books::JobState;
use crate::core::Turn;
use crate::decide::gang::{self, Ask, ShapeError};
use crate::decision::{Decision, JobOutcome, Refusal};
use crate::evolve::Broken;

pub(super) fn submit(
    turn: &mut Turn<'_>,
    key: SubmitKey,
    user: UserId,
    spec: &JobSpec,
) -> Result<(), Broken> {
    let books = turn.books();
    if let Some(job) = books.index.keys.get(&(user, key)).and_then(|job| books.jobs.get(job)) {
        let same = job.spec == *spec;
        let id = job.id;
        return turn.take(if same {
            Decision::SubmitRepeated(id)
        } else {
            Decision::Refused(Refusal::KeyReused { job: id })
        });
    }
    let limit = books.policy.max_live_jobs;
    if u32::try_from(books.live_jobs()).is_ok_and(|alive| alive < limit) {
        match gang::servable(books, Ask { user, spec }) {
            Ok(()) => {}
            Err(ShapeError::NoGpus) => return turn.take(Decision::Refused(Refusal::NoGpusYet)),
            Err(ShapeError::Never { why }) => {
                return turn.take(Decision::Refused(Refusal::Unsatisfiable { why }));
            }
        }
    } else {
        return turn.take(Decision::Refused(Refusal::QueueFull { limit }));
    }
    let job = JobId(books.last_job.saturating_add(1));
    turn.take(Decision::JobAccepted { job, key, user, spec: Box::new(spec.clone()) })
}

pub(super) fn cancel(turn: &mut Turn<'_>, job: JobId, by: UserId) -> Result<(), Broken> {
    let books = turn.books();
    let Some(entry) = books.jobs.get(&job) else {
        return turn.take(Decision::Refused(Refusal::NoSuchJob(job)));
    };
    if entry.user != by && !books.policy.is_admin(by) {
        return turn.take(Decision::Refused(Refusal::NotYours(job)));
    }
    let cancelled_before = entry.cancelled_by.is_some();
    match entry.state {
        JobState::Ended { .. } => Ok(()),
        JobState::Active { .. } if cancelled_before => Ok(()),
        JobState::Active { attempt } => {
            turn.take(Decision::JobCancelled { job, by })?;
            turn.touch(AttemptId { job, number: attempt });
            Ok(())
        }
        JobState::Pending { .. } => {
            turn.take(Decision::JobCancelled { job, by })?;
            turn.take(Decision::JobEnded { job, outcome: JobOutcome::Cancelled })
        }
    }
}
