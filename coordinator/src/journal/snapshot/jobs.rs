//! Jobs, their attempts and tasks.

use scheduler_core::{
    AccountId, Attempt, Cancelled, Commits, Committed, Held, Job, JobState, Reservation, SaveOrder,
    Standing, StopOrder, Task, Writing,
};
use tidegate_model::{AttemptId, Bandwidth, Bytes, DecisionSeq, Span, Timestamp, UserId};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::{WireError, amount_bytes, narrowed, parsed, required};

use crate::journal::codec::{parts, rehearsal};
use crate::translate;

pub(super) fn message(job: &Job) -> wire::Job {
    use wire::job::{Ended, State};
    let state = match job.state {
        JobState::Pending { not_before } => State::PendingNotBeforeMs(not_before.0),
        JobState::Active { attempt } => State::ActiveAttempt(attempt),
        JobState::Ended { outcome, at } => {
            State::Ended(Ended { outcome: parts::job_outcome_number(outcome), at_ms: at.0 })
        }
    };
    let commits = job.commits.iter().flat_map(|commits| commits.iter());
    wire::Job {
        job: job.id.to_string(),
        key: job.key.to_string(),
        user: job.user.0,
        spec: Some(job.spec.clone().into()),
        submitted_ms: job.submitted.0,
        cancelled_by: job.cancelled.as_ref().map(|one| one.by.0),
        cancelled_ms: job.cancelled.as_ref().and_then(|one| one.at).map(|at| at.0),
        failures: job.failures,
        streak: job.streak,
        attempts: job.attempts.iter().map(attempt_message).collect(),
        account: Some(job.account.0),
        waits_since_ms: Some(job.waits_since.0),
        stalled: job.stalled,
        parked: job.parked.map(parts::park_reason_message),
        elder_ms: job.elder.map(|at| at.0),
        elder_allowed: job.elder_allowed,
        reservation: job.reservation.as_deref().map(reservation_message),
        waits_for: job.waits_for.iter().map(ToString::to_string).collect(),
        carried_ms: job.carried.map(|span| span.0),
        commit: job.commit().map(committed_message),
        commits: commits.map(committed_message).collect(),
        older_commits: job.commits.as_ref().map_or(0, |commits| commits.older()),
        pace_bytes_per_s: job
            .commits
            .as_ref()
            .and_then(|commits| commits.pace())
            .map(|pace| pace.0),
        judged: rehearsal::verdict_number(job.judged),
        state: Some(state),
    }
}

/// The job; one of a release before accounts is in none yet.
pub(super) fn job(message: wire::Job) -> Result<Job, WireError> {
    use wire::job::State;
    let state = match required(message.state, "Job.state")? {
        State::PendingNotBeforeMs(ms) => JobState::Pending { not_before: Timestamp(ms) },
        State::ActiveAttempt(attempt) => JobState::Active { attempt },
        State::Ended(ended) => JobState::Ended {
            outcome: parts::job_outcome(ended.outcome)?,
            at: Timestamp(ended.at_ms),
        },
    };
    let mut commits = message.commits.into_iter().map(committed).collect::<Result<Vec<_>, _>>()?;
    if commits.is_empty() {
        // A release that kept the newest only wrote no others.
        commits.extend(message.commit.map(committed).transpose()?);
    }
    let older = message.older_commits;
    let pace = message.pace_bytes_per_s.map(Bandwidth);
    let commits = (!commits.is_empty()).then(|| Box::new(Commits::restored(commits, older, pace)));
    let cancelled = |by| {
        let at = message.cancelled_ms.map(Timestamp);
        Box::new(Cancelled { by: UserId(by), at })
    };
    let waits_for = message.waits_for.iter().map(|job| parsed(job, "Job.waits_for"));
    Ok(Job {
        id: parsed(&message.job, "Job.job")?,
        key: parsed(&message.key, "Job.key")?,
        user: UserId(message.user),
        spec: required(message.spec, "Job.spec")?.try_into()?,
        submitted: Timestamp(message.submitted_ms),
        cancelled: message.cancelled_by.map(cancelled),
        failures: message.failures,
        streak: message.streak,
        account: AccountId(message.account.unwrap_or_default()),
        waits_since: Timestamp(message.waits_since_ms.unwrap_or(message.submitted_ms)),
        stalled: message.stalled,
        parked: message.parked.map(|why| parts::park_reason(Some(why))).transpose()?,
        elder: message.elder_ms.map(Timestamp),
        elder_allowed: message.elder_allowed,
        reservation: message.reservation.map(reservation).transpose()?.map(Box::new),
        waits_for: waits_for.collect::<Result<_, _>>()?,
        carried: message.carried_ms.map(Span),
        commits,
        judged: rehearsal::verdict(message.judged)?,
        state,
        attempts: message.attempts.into_iter().map(attempt).collect::<Result<_, _>>()?,
    })
}

fn reservation_message(reservation: &Reservation) -> wire::Reservation {
    wire::Reservation {
        made_ms: reservation.made.0,
        order: reservation.order,
        nodes: parts::shares_message(&reservation.nodes),
        at_ms: reservation.at.0,
        pledge: amount_bytes(reservation.pledge.0),
    }
}

fn reservation(message: wire::Reservation) -> Result<Reservation, WireError> {
    Ok(Reservation {
        made: Timestamp(message.made_ms),
        order: message.order,
        nodes: parts::shares(message.nodes)?,
        at: Timestamp(message.at_ms),
        pledge: translate::money(&message.pledge, "Reservation.pledge")?,
    })
}

fn committed_message(commit: &Committed) -> wire::Committed {
    wire::Committed {
        attempt: commit.attempt.to_string(),
        step: commit.step,
        path: commit.path.clone(),
        bytes: commit.bytes.0,
        at_ms: commit.at.0,
        request: commit.request.map(|request| request.0),
    }
}

fn committed(message: wire::Committed) -> Result<Committed, WireError> {
    Ok(Committed {
        attempt: parsed(&message.attempt, "Committed.attempt")?,
        step: message.step,
        path: message.path,
        bytes: Bytes(message.bytes),
        at: Timestamp(message.at_ms),
        request: message.request.map(DecisionSeq),
    })
}

fn attempt_message(attempt: &Attempt) -> wire::Attempt {
    let stop = attempt.stop.map(|stop| wire::attempt::StopOrder {
        why: parts::stop_reason_number(stop.why),
        decision: stop.decision.0,
    });
    let save = attempt.save.map(|save| wire::attempt::SaveOrder {
        why: Some(parts::save_reason_message(save.why)),
        decision: save.decision.0,
        at_ms: save.at.0,
        told_ms: save.told.map(|at| at.0),
        admitted_ms: save.admitted.map(|at| at.0),
        acknowledged_ms: save.acknowledged.map(|at| at.0),
        first_byte_ms: save.first_byte.map(|at| at.0),
        committed_ms: save.committed.map(|at| at.0),
        given_back: save.given_back.map(writing_message),
    });
    let held = attempt.held.iter().map(|held| wire::Held {
        standing: translate::standing_message(held.standing).into(),
        from_ms: held.from.0,
        until_ms: held.until.map(|until| until.0),
    });
    wire::Attempt {
        attempt: attempt.id.to_string(),
        planned_ms: attempt.planned.0,
        granted_ms: attempt.granted.map(|at| at.0),
        running_ms: attempt.running.map(|at| at.0),
        stop,
        ended_ms: attempt.ended.map(|(at, _)| at.0),
        outcome: attempt.ended.map_or(0, |(_, outcome)| parts::outcome_number(outcome)),
        tasks: attempt.tasks.iter().map(task_message).collect(),
        terms: Some(parts::terms_message(attempt.terms)),
        standing: translate::standing_message(attempt.standing).into(),
        promised_until_ms: attempt.promised_until.map(|until| until.0),
        held: held.collect(),
        excused: attempt.excused.iter().copied().map(parts::excused_message).collect(),
        ready_ms: attempt.ready.map(|at| at.0),
        save,
        committed_ms: attempt.committed.map(|at| at.0),
        commits_closed: attempt.commits_closed,
        writing: attempt.writing.map(writing_message),
    }
}

fn writing_message(writing: Writing) -> wire::Writing {
    wire::Writing {
        since_ms: writing.since.0,
        bytes: writing.bytes.0,
        bytes_per_s: writing.rate.map(|rate| rate.0),
        pooled: writing.pooled,
        permit: writing.permit.map(parts::permit_message),
        still_bytes_per_s: writing.still.map(|still| still.0),
        rated: writing.rated.0,
        rerated: writing.rerated,
        after_bytes_per_s: writing.after.map(|after| after.0),
        longest_ms: writing.longest.0,
    }
}

fn writing(message: wire::Writing) -> Result<Writing, WireError> {
    let permit = message.permit.map(|permit| parts::permit(Some(permit)));
    Ok(Writing {
        since: Timestamp(message.since_ms),
        bytes: Bytes(message.bytes),
        rate: message.bytes_per_s.map(Bandwidth),
        pooled: message.pooled,
        permit: permit.transpose()?,
        still: message.still_bytes_per_s.map(Bandwidth),
        rated: DecisionSeq(message.rated),
        rerated: message.rerated,
        after: message.after_bytes_per_s.map(Bandwidth),
        longest: Span(message.longest_ms),
    })
}

fn attempt(message: wire::Attempt) -> Result<Attempt, WireError> {
    let id: AttemptId = parsed(&message.attempt, "Attempt.attempt")?;
    let stop = |stop: wire::attempt::StopOrder| -> Result<_, WireError> {
        let why = parts::stop_reason(stop.why)?;
        Ok(StopOrder { why, decision: DecisionSeq(stop.decision) })
    };
    let ended =
        |ms| -> Result<_, WireError> { Ok((Timestamp(ms), parts::outcome(message.outcome)?)) };
    // Before terms an attempt was planned on idle GPUs only.
    let (standing, ready) = match message.terms {
        Some(_) => (translate::standing(message.standing)?, message.ready_ms),
        None => (Standing::Free, Some(message.planned_ms)),
    };
    Ok(Attempt {
        id,
        planned: Timestamp(message.planned_ms),
        granted: message.granted_ms.map(Timestamp),
        running: message.running_ms.map(Timestamp),
        stop: message.stop.map(stop).transpose()?,
        ended: message.ended_ms.map(ended).transpose()?,
        terms: parts::terms(message.terms)?,
        standing,
        promised_until: message.promised_until_ms.map(Timestamp),
        held: message.held.into_iter().map(held).collect::<Result<_, _>>()?,
        excused: message.excused.into_iter().map(parts::excused).collect::<Result<_, _>>()?,
        ready: ready.map(Timestamp),
        save: message.save.map(save).transpose()?,
        committed: message.committed_ms.map(Timestamp),
        commits_closed: message.commits_closed,
        writing: message.writing.map(writing).transpose()?,
        tasks: message.tasks.into_iter().map(task).collect::<Result<_, _>>()?,
    })
}

fn save(message: wire::attempt::SaveOrder) -> Result<SaveOrder, WireError> {
    Ok(SaveOrder {
        why: parts::save_reason(message.why)?,
        decision: DecisionSeq(message.decision),
        at: Timestamp(message.at_ms),
        told: message.told_ms.map(Timestamp),
        admitted: message.admitted_ms.map(Timestamp),
        acknowledged: message.acknowledged_ms.map(Timestamp),
        first_byte: message.first_byte_ms.map(Timestamp),
        committed: message.committed_ms.map(Timestamp),
        given_back: message.given_back.map(writing).transpose()?,
    })
}

fn held(message: wire::Held) -> Result<Held, WireError> {
    Ok(Held {
        standing: translate::standing(message.standing)?,
        from: Timestamp(message.from_ms),
        until: message.until_ms.map(Timestamp),
    })
}

fn task_message(task: &Task) -> wire::Task {
    wire::Task {
        place: Some(parts::place_message(&task.place)),
        port: task.port.map(u32::from),
        started: task.started,
        exit: task.exit.clone().map(Into::into),
        ended_by: task.ended_by.map(|seq| seq.0),
        ran_ms: task.ran.0,
        idle: task.idle.map(Into::into),
        released: task.released,
    }
}

fn task(message: wire::Task) -> Result<Task, WireError> {
    Ok(Task {
        place: parts::place(&required(message.place, "Task.place")?)?,
        port: message.port.map(|port| narrowed(port, "Task.port")).transpose()?,
        started: message.started,
        exit: message.exit.map(TryInto::try_into).transpose()?,
        ended_by: message.ended_by.map(DecisionSeq),
        ran: Span(message.ran_ms),
        idle: message.idle.map(Into::into),
        released: message.released,
    })
}
