//! What users ask about jobs.

use tidegate_model::{AttemptId, JobId, JobSpec, SubmitKey, UserId};

use crate::accounts::Role;
use crate::books::{Books, Job, JobState};
use crate::core::Turn;
use crate::decide::account;
use crate::decide::gang::{self, Ask, ShapeError};
use crate::decide::rehearsal;
use crate::decision::{Decision, JobOutcome, ParkReason, Refusal};
use crate::event::JobRequest;
use crate::evolve::Broken;

pub(super) fn submit(
    turn: &mut Turn<'_>,
    key: SubmitKey,
    user: UserId,
    spec: &JobSpec,
) -> Result<(), Broken> {
    let books = turn.books();
    if let Some(job) = books.index.job_of(user, key).and_then(|job| books.jobs.get(&job)) {
        let same = job.spec == *spec;
        let id = job.id;
        return turn.take(if same {
            Decision::SubmitRepeated(id)
        } else {
            Decision::Refused(Refusal::KeyReused { job: id })
        });
    }
    if let Err(refusal) = acceptable(books, user, spec) {
        return turn.take(Decision::Refused(refusal));
    }
    let job = JobId(books.last_job.saturating_add(1));
    turn.take(Decision::JobAccepted { job, key, user, spec: Box::new(spec.clone()) })
}

/// Whether a job would be taken, whatever its key.
pub(crate) fn acceptable(books: &Books, user: UserId, spec: &JobSpec) -> Result<(), Refusal> {
    let limit = books.policy.max_live_jobs;
    if u32::try_from(books.live_jobs()).is_ok_and(|alive| alive >= limit) {
        return Err(Refusal::QueueFull { limit });
    }
    let account = account::leaf(books, &spec.account)?;
    account::need(books, account, user, Role::Member)?;
    if spec.whole_cluster && !books.policy.is_admin(user) {
        return Err(Refusal::WholeCluster);
    }
    let unknown = spec.after.iter().find(|after| !books.jobs.contains_key(&after.job));
    if let Some(unknown) = unknown {
        return Err(Refusal::NoSuchJob(unknown.job));
    }
    let never = spec.after.iter().filter(|after| after.success).find(|after| {
        let state = books.jobs.get(&after.job).map(|job| job.state);
        matches!(state, Some(JobState::Ended { outcome, .. }) if outcome != JobOutcome::Done)
    });
    if let Some(after) = never {
        let job = after.job;
        let why = format!("after: {job} has ended and was not done; another job is accepted");
        return Err(Refusal::Unsatisfiable { why });
    }
    match gang::servable(books, Ask { user, spec }) {
        Ok(()) => {}
        Err(ShapeError::NoGpus) => return Err(Refusal::NoGpusYet),
        Err(ShapeError::Never { why }) => return Err(Refusal::Unsatisfiable { why }),
    }
    let most = gang::longest_protection(books, spec);
    if spec.min_runtime > most {
        let (asked, gpus) = (spec.min_runtime, spec.gpus);
        let why = format!("min_runtime: {asked} asked for {gpus} GPUs; 0 to {most} is accepted");
        return Err(Refusal::Unsatisfiable { why });
    }
    rehearsal::required(books, Ask { user, spec })
}

/// What people ask about waiting jobs.
pub(super) fn about_job(
    turn: &mut Turn<'_>,
    job: JobId,
    by: UserId,
    request: JobRequest,
) -> Result<(), Broken> {
    let decided = match request {
        JobRequest::Park => park(turn.books(), job, by),
        JobRequest::Release => release(turn.books(), job, by),
        JobRequest::AllowElder => allow_elder(turn.books(), job, by),
        JobRequest::DropReservation => drop_reservation(turn.books(), job, by),
    };
    match decided {
        Ok(Some(decision)) => turn.take(decision),
        Ok(None) => Ok(()),
        Err(refusal) => turn.take(Decision::Refused(refusal)),
    }
}

/// Jobs that waited for one that did not end as it must are not started.
pub(crate) fn park_dependents(turn: &mut Turn<'_>, ended: JobId) -> Result<(), Broken> {
    let dependents = turn.books().index.dependents.range((ended, JobId(0))..);
    let dependents: Vec<_> = dependents
        .take_while(|(other, _)| *other == ended)
        .map(|(_, dependent)| *dependent)
        .filter(|id| {
            turn.books().jobs.get(id).is_some_and(|job| job.is_alive() && job.parked.is_none())
        })
        .collect();
    dependents.into_iter().try_for_each(|job| {
        turn.take(Decision::JobParked { job, why: ParkReason::DependencyFailed { job: ended } })
    })
}

type Decided = Result<Option<Decision>, Refusal>;

fn alive(job: &Job) -> Result<&Job, Refusal> {
    let why = || format!("{} has ended; a job that waits or runs is accepted", job.id);
    if job.is_alive() { Ok(job) } else { Err(Refusal::CannotHold { why: why() }) }
}

fn park(books: &Books, id: JobId, by: UserId) -> Decided {
    let job = alive(own_job(books, id, by)?)?;
    let why = ParkReason::Asked { by };
    Ok(job.parked.is_none().then_some(Decision::JobParked { job: id, why }))
}

fn release(books: &Books, id: JobId, by: UserId) -> Decided {
    let job = alive(own_job(books, id, by)?)?;
    Ok(job.parked.is_some().then_some(Decision::JobUnparked { job: id, by }))
}

fn allow_elder(books: &Books, id: JobId, by: UserId) -> Decided {
    let job = books.jobs.get(&id).ok_or(Refusal::NoSuchJob(id))?;
    account::need(books, job.account, by, Role::Manager)?;
    let job = alive(job)?;
    Ok((!job.elder_allowed).then_some(Decision::ElderAllowed { job: id, by }))
}

fn drop_reservation(books: &Books, id: JobId, by: UserId) -> Decided {
    if !books.policy.is_admin(by) {
        return Err(Refusal::AdminOnly);
    }
    let job = books.jobs.get(&id).ok_or(Refusal::NoSuchJob(id))?;
    let held = job.reservation.is_some();
    Ok(held.then_some(Decision::ReservationDropped { job: id, by }))
}

/// The job, if the user may end it: the owner, a manager of its account, or an admin.
fn own_job(books: &Books, id: JobId, by: UserId) -> Result<&Job, Refusal> {
    let job = books.jobs.get(&id).ok_or(Refusal::NoSuchJob(id))?;
    let manages = books.accounts.role(job.account, by) == Some(Role::Manager);
    if job.user == by || manages || books.policy.is_admin(by) {
        Ok(job)
    } else {
        Err(Refusal::NotYours(id))
    }
}

pub(super) fn cancel(turn: &mut Turn<'_>, job: JobId, by: UserId) -> Result<(), Broken> {
    let books = turn.books();
    let entry = match own_job(books, job, by) {
        Ok(entry) => entry,
        Err(refusal) => return turn.take(Decision::Refused(refusal)),
    };
    let cancelled_before = entry.cancelled.is_some();
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
