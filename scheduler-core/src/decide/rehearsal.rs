//! Rehearsals: a job is started, asked to save, stopped and started again, by the very decisions
//! that displace others. Here is only when it is asked, and what it has shown.
//!
//! Nothing of where a rehearsal stands is kept beside its attempts: the newest one that ended Saved
//! is the one whose checkpoint the next is to go on from. So it does not matter who asked it to
//! save, nor what was lost with a node meanwhile.

use tidegate_model::{AttemptId, GpuCount, SaveDelivery, Span, Timestamp};

use crate::books::{Attempt, Books, Job};
use crate::decide::gang::{self, Ask};
use crate::decision::{Decision, Outcome, Refusal, SaveReason, StopReason};
use crate::observations::Observations;
use crate::rehearsal::{Recipe, Rehearsal, RehearsalFault, RehearsedSave};

/// Steps below which a job that went on has come no further than one that began again.
const LEAST_STEPS: u64 = 2;

/// Attempts after which it is called unsettled: two are what it needs, and each node lost or late
/// start costs one.
pub(crate) const MAX_ATTEMPTS: usize = 6;

/// The request to save that is due, if one is.
pub(crate) fn next(books: &Books, now: Timestamp) -> Option<Decision> {
    let due = asks(books).find(|(at, _)| *at <= now);
    due.map(|(_, attempt)| Decision::SaveOrdered { attempt, why: SaveReason::Rehearsed })
}

/// The next instant after `now` at which one is.
pub(crate) fn next_deadline(books: &Books, now: Timestamp) -> Option<Timestamp> {
    asks(books).map(|(at, _)| at).filter(|at| *at > now).min()
}

/// Attempts that are to be asked, and when.
fn asks(books: &Books) -> impl Iterator<Item = (Timestamp, AttemptId)> {
    books.index.rehearsals.iter().filter_map(|id| {
        let job = books.jobs.get(id)?;
        let attempt = job.active_attempt()?;
        let leaves = attempt.save.is_some() || attempt.stop.is_some() || attempt.is_broken();
        let is_over = attempt.tasks.iter().all(|task| task.exit.is_some());
        if leaves || is_over || job.cancelled.is_some() {
            return None;
        }
        Some((asked_at(job, attempt)?, attempt.id))
    })
}

/// The first time after it has trained for a while, or has committed by itself. Then at once: it is to
/// save what it resumed from, or little more. One that began again, however much faster it starts
/// than before, has come less far by then.
pub(crate) fn asked_at(job: &Job, attempt: &Attempt) -> Option<Timestamp> {
    let after = job.spec.rehearsal().filter(|_| job.judged.is_none())?;
    let running = attempt.running?;
    if saved(job).is_some() {
        return Some(running);
    }
    let own = job.commit().filter(|one| one.attempt == attempt.id && one.step >= LEAST_STEPS);
    let trained = running.plus(after);
    Some(own.map_or(trained, |own| own.at.min(trained)))
}

/// The attempt whose checkpoint the next one goes on from. One that was told to stop is none: its end may
/// have been heard only when the next had been planned, and nobody has judged it.
fn saved(job: &Job) -> Option<&Attempt> {
    let mut newest_first = job.attempts.iter().rev();
    newest_first.find(|one| matches!(one.ended, Some((_, Outcome::Saved))) && one.stop.is_none())
}

/// What the first commit after the new start shows, of a rehearsal that is not judged.
pub(super) fn resumed(job: &Job, id: AttemptId, step: u64, now: Timestamp) -> Option<Decision> {
    job.spec.rehearsal()?;
    let attempt = job.active_attempt().filter(|one| one.id == id && one.is_live())?;
    let open = job.judged.is_none() && job.cancelled.is_none();
    let before = job.commit().filter(|before| before.attempt != id)?;
    saved(job).filter(|_| open)?;
    let fault = (step < before.step).then_some(RehearsalFault::BeganAgain);
    Some(shown((job, attempt), Some(step), fault, now))
}

/// What the end of an attempt shows; none = it is started again.
pub(super) fn judged(
    seen: &Observations,
    now: Timestamp,
    (job, attempt): (&Job, &Attempt),
    outcome: Outcome,
) -> Option<Decision> {
    let is_late = |why| matches!(why, StopReason::StartTimeout | StopReason::PlanFailed);
    let fault = match outcome {
        Outcome::Done | Outcome::Failed => Some(RehearsalFault::EndedEarly),
        Outcome::Unknown => Some(RehearsalFault::LeftUnsaved),
        Outcome::Lost => None,
        Outcome::Unsaved if attempt.stop.is_some_and(|stop| is_late(stop.why)) => None,
        Outcome::Unsaved => Some(unsaved(seen, job, attempt)),
        // What it committed was not because it was asked.
        Outcome::Saved if attempt.stop.is_some() => {
            let why = unsaved(seen, job, attempt);
            let ignored = Some(why).filter(|why| *why == RehearsalFault::Ignored);
            ignored.or(Some(RehearsalFault::Stayed))
        }
        Outcome::Saved => {
            let few = job.commit().is_none_or(|saved| saved.step < LEAST_STEPS);
            few.then_some(RehearsalFault::TooEarly)
        }
    };
    let unsettled = (job.attempts.len() >= MAX_ATTEMPTS).then_some(RehearsalFault::Unsettled);
    let fault = fault.or(unsettled)?;
    Some(shown((job, attempt), None, Some(fault), now))
}

/// Why nothing was committed within the grace, as far as its nodes have said.
fn unsaved(seen: &Observations, job: &Job, attempt: &Attempt) -> RehearsalFault {
    let by_signal = job.spec.checkpoint.as_ref().is_some_and(|offer| offer.signal.is_some());
    let told: Vec<_> =
        attempt.tasks().filter_map(|(id, _)| seen.save_of(id).map(|save| save.delivery)).collect();
    let all = |wanted| by_signal && !told.is_empty() && told.iter().all(|one| *one == wanted);
    if all(SaveDelivery::Unwilling) {
        RehearsalFault::Ignored
    } else if all(SaveDelivery::Announced) {
        RehearsalFault::Unheard
    } else {
        RehearsalFault::Unsaved
    }
}

fn shown(
    (job, attempt): (&Job, &Attempt),
    resumed: Option<u64>,
    fault: Option<RehearsalFault>,
    at: Timestamp,
) -> Decision {
    let shown = Rehearsal {
        job: job.id,
        at,
        gpus: attempt.gpus(),
        nodes: u32::try_from(attempt.node_count()).unwrap_or(u32::MAX),
        save: saved(job).and_then(|first| how_saved(job, first)),
        resumed,
        fault,
    };
    Decision::RehearsalJudged { recipe: Recipe::of(&job.spec), shown: Box::new(shown) }
}

fn how_saved(job: &Job, first: &Attempt) -> Option<RehearsedSave> {
    let commits = job.commits.iter().flat_map(|all| all.iter());
    let saved = commits.filter(|one| one.attempt == first.id).last()?;
    let order = first.save?;
    let told = order.said()?;
    let (left, _) = first.ended?;
    Some(RehearsedSave {
        step: saved.step,
        bytes: saved.bytes,
        waited: told.since(order.at),
        took: saved.at.since(told),
        left: left.since(told),
    })
}

/// Whether a job may be submitted as far as rehearsals go.
pub(super) fn required(books: &Books, ask: Ask<'_>) -> Result<(), Refusal> {
    let spec = ask.spec;
    let most = books.policy.sharing.require_rehearsal.filter(|most| spec.gpus > *most);
    let Some(most) = most.filter(|_| spec.min_runtime > Span::ZERO && spec.rehearsal().is_none())
    else {
        return Ok(());
    };
    if counting(books, ask).is_some_and(Rehearsal::passed) {
        return Ok(());
    }
    Err(Refusal::NotRehearsed { why: not_rehearsed(books, ask, most) })
}

/// The rehearsal that decides on a job: the newest of its recipe that says something of it.
fn counting<'books>(books: &'books Books, ask: Ask<'_>) -> Option<&'books Rehearsal> {
    books.rehearsals.counting(ask.spec, takes_several(books, ask))
}

impl Job {
    /// What is known of its recipe: the newest result, and the newest that decides on a job such as
    /// this.
    #[must_use]
    pub fn rehearsed<'books>(
        &self,
        books: &'books Books,
    ) -> Option<(&'books Rehearsal, Option<&'books Rehearsal>)> {
        let newest = books.rehearsals.of_job(&self.spec)?;
        Some((newest, counting(books, Ask { user: self.user, spec: &self.spec })))
    }
}

/// Whether it may run on several nodes.
fn takes_several(books: &Books, ask: Ask<'_>) -> bool {
    let kinds = gang::kinds(books, ask.spec).into_iter();
    kinds.flat_map(|kind| gang::shapes(books, ask, kind)).any(|shape| shape.nodes > 1)
}

fn not_rehearsed(books: &Books, ask: Ask<'_>, most: GpuCount) -> String {
    let (spec, several) = (ask.spec, takes_several(books, ask));
    let (gpus, min_runtime) = (spec.gpus, spec.min_runtime);
    let noun = if most == GpuCount(1) { "GPU" } else { "GPUs" };
    let on = if several { ", on two nodes or more as it takes several" } else { "" };
    let rule = format!(
        "min_runtime: {min_runtime} asked for {gpus} GPUs; above {most} {noun} a protected job must \
         have passed a rehearsal with the same command, directory, environment, tasks, grace and \
         checkpoint{on}"
    );
    let fewer = if several { "--gpus 2 --gpus-per-node 1" } else { "--gpus N" };
    let help = format!("`tidegate rehearse FILE` makes one (with {fewer} on fewer GPUs)");
    let free = "a min_runtime of 0 needs none";
    let newest = books.rehearsals.of_job(spec);
    match counting(books, ask).or(newest) {
        _ if spec.checkpoint.is_none() => {
            let table = "give it a table checkpoint that says how it saves";
            format!("{rule}, and it cannot be asked to save; {table}, then {help}; {free}")
        }
        Some(last) => format!("{rule}; {last}; {help}; {free}"),
        None => format!("{rule}, and none is known; {help}; {free}"),
    }
}
