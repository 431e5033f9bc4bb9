//! The books at one instant, as bytes. Indexes are not stored: they are rebuilt.

use prost::Message;
use scheduler_core::{Attempt, Books, Drain, Job, JobState, Node, Stamp, StopOrder, Task};
use tidegate_model::{AttemptId, DecisionSeq, Epoch, Span, Timestamp, UserId};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::{WireError, narrowed, parsed, required};

use super::JournalError;
use super::codec::parts;

/// The books as of `stamp`.
#[must_use]
pub fn encode(stamp: Stamp, books: &Books) -> Vec<u8> {
    let snapshot = wire::Snapshot {
        seq: stamp.seq.0,
        at_ms: stamp.at.0,
        epoch: books.epoch.map_or(0, |epoch| epoch.0),
        policy: Some(parts::policy_message(&books.policy)),
        last_job: books.last_job,
        last_node: books.last_node,
        nodes: books.nodes.values().map(|node| node_message(node)).collect(),
        jobs: books.jobs.values().map(|job| job_message(job)).collect(),
    };
    snapshot.encode_to_vec()
}

/// Reads a snapshot.
///
/// # Errors
/// [`JournalError::Damaged`] if it does not hold together.
pub fn decode(seq: DecisionSeq, bytes: &[u8]) -> Result<(Stamp, Books), JournalError> {
    let damaged = |why: String| JournalError::Damaged { at: seq.0, why };
    let snapshot = wire::Snapshot::decode(bytes).map_err(|error| damaged(error.to_string()))?;
    let stamp = Stamp { at: Timestamp(snapshot.at_ms), seq: DecisionSeq(snapshot.seq) };
    let books = books(snapshot).map_err(damaged)?;
    Ok((stamp, books))
}

fn books(snapshot: wire::Snapshot) -> Result<Books, String> {
    let told = |error: WireError| error.to_string();
    let policy = required(snapshot.policy, "Snapshot.policy").map_err(told)?;
    let mut books = Books::default();
    books.epoch = (snapshot.epoch > 0).then_some(Epoch(snapshot.epoch));
    books.policy = parts::policy(policy);
    books.last_job = snapshot.last_job;
    books.last_node = snapshot.last_node;
    for message in snapshot.nodes {
        books.restore_node(node(message).map_err(told)?)?;
    }
    for message in snapshot.jobs {
        books.restore_job(job(message).map_err(told)?)?;
    }
    Ok(books)
}

fn node_message(node: &Node) -> wire::Node {
    let drain = node.drain.as_ref().map(|drain| wire::Drain {
        by: drain.by.0,
        reason: drain.reason.clone(),
        since_ms: drain.since.0,
    });
    let facts = Some(node.facts.clone().into());
    wire::Node { node: node.id.to_string(), name: node.name.to_string(), facts, drain }
}

fn node(message: wire::Node) -> Result<Node, WireError> {
    let id = parsed(&message.node, "Node.node")?;
    let mut node = Node::admitted(id, parsed(&message.name, "Node.name")?);
    node.facts = required(message.facts, "Node.facts")?.try_into()?;
    node.drain = message.drain.map(|drain| Drain {
        by: UserId(drain.by),
        reason: drain.reason,
        since: Timestamp(drain.since_ms),
    });
    Ok(node)
}

fn job_message(job: &Job) -> wire::Job {
    use wire::job::{Ended, State};
    let state = match job.state {
        JobState::Pending { not_before } => State::PendingNotBeforeMs(not_before.0),
        JobState::Active { attempt } => State::ActiveAttempt(attempt),
        JobState::Ended { outcome, at } => {
            State::Ended(Ended { outcome: parts::job_outcome_number(outcome), at_ms: at.0 })
        }
    };
    wire::Job {
        job: job.id.to_string(),
        key: job.key.to_string(),
        user: job.user.0,
        spec: Some(job.spec.clone().into()),
        submitted_ms: job.submitted.0,
        cancelled_by: job.cancelled_by.map(|user| user.0),
        failures: job.failures,
        streak: job.streak,
        attempts: job.attempts.iter().map(attempt_message).collect(),
        state: Some(state),
    }
}

fn job(message: wire::Job) -> Result<Job, WireError> {
    use wire::job::State;
    let state = match required(message.state, "Job.state")? {
        State::PendingNotBeforeMs(ms) => JobState::Pending { not_before: Timestamp(ms) },
        State::ActiveAttempt(attempt) => JobState::Active { attempt },
        State::Ended(ended) => JobState::Ended {
            outcome: parts::job_outcome(ended.outcome)?,
            at: Timestamp(ended.at_ms),
        },
    };
    Ok(Job {
        id: parsed(&message.job, "Job.job")?,
        key: parsed(&message.key, "Job.key")?,
        user: UserId(message.user),
        spec: required(message.spec, "Job.spec")?.try_into()?,
        submitted: Timestamp(message.submitted_ms),
        cancelled_by: message.cancelled_by.map(UserId),
        failures: message.failures,
        streak: message.streak,
        state,
        attempts: message.attempts.into_iter().map(attempt).collect::<Result<_, _>>()?,
    })
}

fn attempt_message(attempt: &Attempt) -> wire::Attempt {
    let stop = attempt.stop.map(|stop| wire::attempt::StopOrder {
        why: parts::stop_reason_number(stop.why),
        decision: stop.decision.0,
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
    }
}

fn attempt(message: wire::Attempt) -> Result<Attempt, WireError> {
    let id: AttemptId = parsed(&message.attempt, "Attempt.attempt")?;
    let stop = |stop: wire::attempt::StopOrder| -> Result<_, WireError> {
        let why = parts::stop_reason(stop.why)?;
        Ok(StopOrder { why, decision: DecisionSeq(stop.decision) })
    };
    let ended =
        |ms| -> Result<_, WireError> { Ok((Timestamp(ms), parts::outcome(message.outcome)?)) };
    Ok(Attempt {
        id,
        planned: Timestamp(message.planned_ms),
        granted: message.granted_ms.map(Timestamp),
        running: message.running_ms.map(Timestamp),
        stop: message.stop.map(stop).transpose()?,
        ended: message.ended_ms.map(ended).transpose()?,
        tasks: message.tasks.into_iter().map(task).collect::<Result<_, _>>()?,
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
        released: message.released,
    })
}
