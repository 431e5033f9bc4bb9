//! Decisions as messages, and back.

use scheduler_core::Decision;
use tidegate_model::{Epoch, JobId, Span, Timestamp, UserId};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::journal::v1::decision::Decision as Kind;
use tidegate_proto::{WireError, narrowed, parsed, required};

use super::parts;

/// The message of a decision; none for those that are not journaled.
#[allow(clippy::too_many_lines, reason = "one arm a variant, and the compiler counts them")]
pub(super) fn message(decision: &Decision) -> Option<wire::Decision> {
    use wire::decision::{
        AttemptEnded, AttemptGranted, AttemptPlanned, AttemptRunning, DrainBegan, DrainEnded,
        EpochBegan, JobAccepted, JobCancelled, JobEnded, JobForgotten, JobRequeued, NodeAdmitted,
        NodeRefreshed, PolicySet, StopOrdered, TaskEnded, TaskPrepared, TaskReleased, TaskStarted,
    };
    let kind = match decision {
        Decision::EpochBegan(epoch) => Kind::EpochBegan(EpochBegan { epoch: epoch.0 }),
        Decision::PolicySet(policy) => {
            Kind::PolicySet(PolicySet { policy: Some(parts::policy_message(policy)) })
        }
        Decision::NodeAdmitted { node, name } => {
            Kind::NodeAdmitted(NodeAdmitted { node: node.to_string(), name: name.to_string() })
        }
        Decision::NodeRefreshed { node, facts } => {
            let facts = Some(facts.clone().into());
            Kind::NodeRefreshed(NodeRefreshed { node: node.to_string(), facts })
        }
        Decision::DrainBegan { node, by, reason } => {
            let (node, reason) = (node.to_string(), reason.clone());
            Kind::DrainBegan(DrainBegan { node, by: by.0, reason })
        }
        Decision::DrainEnded { node, by } => {
            Kind::DrainEnded(DrainEnded { node: node.to_string(), by: by.0 })
        }
        Decision::JobAccepted { job, key, user, spec } => Kind::JobAccepted(JobAccepted {
            job: job.to_string(),
            key: key.to_string(),
            user: user.0,
            spec: Some((**spec).clone().into()),
        }),
        Decision::JobCancelled { job, by } => {
            Kind::JobCancelled(JobCancelled { job: job.to_string(), by: by.0 })
        }
        Decision::JobRequeued { job, not_before, own_failure, streak } => {
            Kind::JobRequeued(JobRequeued {
                job: job.to_string(),
                not_before_ms: not_before.0,
                own_failure: *own_failure,
                streak: *streak,
            })
        }
        Decision::JobEnded { job, outcome } => {
            let outcome = parts::job_outcome_number(*outcome);
            Kind::JobEnded(JobEnded { job: job.to_string(), outcome })
        }
        Decision::JobForgotten(job) => Kind::JobForgotten(JobForgotten { job: job.to_string() }),
        Decision::AttemptPlanned { attempt, places } => {
            let places = places.iter().map(parts::place_message).collect();
            Kind::AttemptPlanned(AttemptPlanned { attempt: attempt.to_string(), places })
        }
        Decision::AttemptGranted(attempt) => {
            Kind::AttemptGranted(AttemptGranted { attempt: attempt.to_string() })
        }
        Decision::AttemptRunning(attempt) => {
            Kind::AttemptRunning(AttemptRunning { attempt: attempt.to_string() })
        }
        Decision::StopOrdered { attempt, why } => {
            let why = parts::stop_reason_number(*why);
            Kind::StopOrdered(StopOrdered { attempt: attempt.to_string(), why })
        }
        Decision::AttemptEnded { attempt, outcome } => {
            let outcome = parts::outcome_number(*outcome);
            Kind::AttemptEnded(AttemptEnded { attempt: attempt.to_string(), outcome })
        }
        Decision::TaskPrepared { task, port } => {
            Kind::TaskPrepared(TaskPrepared { task: task.to_string(), port: (*port).into() })
        }
        Decision::TaskStarted(task) => Kind::TaskStarted(TaskStarted { task: task.to_string() }),
        Decision::TaskEnded { task, exit, ran } => Kind::TaskEnded(TaskEnded {
            task: task.to_string(),
            exit: Some(exit.clone().into()),
            ran_ms: ran.0,
        }),
        Decision::TaskReleased(task) => Kind::TaskReleased(TaskReleased { task: task.to_string() }),
        Decision::Refused(_) | Decision::SubmitRepeated(_) => return None,
    };
    Some(wire::Decision { decision: Some(kind) })
}

#[allow(clippy::too_many_lines, reason = "one arm a variant, and the compiler counts them")]
pub(super) fn from_message(kind: Kind) -> Result<Decision, WireError> {
    Ok(match kind {
        Kind::EpochBegan(m) => Decision::EpochBegan(Epoch(m.epoch)),
        Kind::PolicySet(m) => {
            Decision::PolicySet(parts::policy(required(m.policy, "PolicySet.policy")?))
        }
        Kind::NodeAdmitted(m) => Decision::NodeAdmitted {
            node: parsed(&m.node, "NodeAdmitted.node")?,
            name: parsed(&m.name, "NodeAdmitted.name")?,
        },
        Kind::NodeRefreshed(m) => Decision::NodeRefreshed {
            node: parsed(&m.node, "NodeRefreshed.node")?,
            facts: required(m.facts, "NodeRefreshed.facts")?.try_into()?,
        },
        Kind::DrainBegan(m) => Decision::DrainBegan {
            node: parsed(&m.node, "DrainBegan.node")?,
            by: UserId(m.by),
            reason: m.reason,
        },
        Kind::DrainEnded(m) => {
            Decision::DrainEnded { node: parsed(&m.node, "DrainEnded.node")?, by: UserId(m.by) }
        }
        Kind::JobAccepted(m) => Decision::JobAccepted {
            job: parsed(&m.job, "JobAccepted.job")?,
            key: parsed(&m.key, "JobAccepted.key")?,
            user: UserId(m.user),
            spec: Box::new(required(m.spec, "JobAccepted.spec")?.try_into()?),
        },
        Kind::JobCancelled(m) => Decision::JobCancelled { job: job(&m.job)?, by: UserId(m.by) },
        Kind::JobRequeued(m) => Decision::JobRequeued {
            job: job(&m.job)?,
            not_before: Timestamp(m.not_before_ms),
            own_failure: m.own_failure,
            streak: m.streak,
        },
        Kind::JobEnded(m) => {
            Decision::JobEnded { job: job(&m.job)?, outcome: parts::job_outcome(m.outcome)? }
        }
        Kind::JobForgotten(m) => Decision::JobForgotten(job(&m.job)?),
        Kind::AttemptPlanned(m) => Decision::AttemptPlanned {
            attempt: parsed(&m.attempt, "AttemptPlanned.attempt")?,
            places: m.places.iter().map(parts::place).collect::<Result<_, _>>()?,
        },
        Kind::AttemptGranted(m) => {
            Decision::AttemptGranted(parsed(&m.attempt, "AttemptGranted.attempt")?)
        }
        Kind::AttemptRunning(m) => {
            Decision::AttemptRunning(parsed(&m.attempt, "AttemptRunning.attempt")?)
        }
        Kind::StopOrdered(m) => Decision::StopOrdered {
            attempt: parsed(&m.attempt, "StopOrdered.attempt")?,
            why: parts::stop_reason(m.why)?,
        },
        Kind::AttemptEnded(m) => Decision::AttemptEnded {
            attempt: parsed(&m.attempt, "AttemptEnded.attempt")?,
            outcome: parts::outcome(m.outcome)?,
        },
        Kind::TaskPrepared(m) => Decision::TaskPrepared {
            task: parsed(&m.task, "TaskPrepared.task")?,
            port: narrowed(m.port, "TaskPrepared.port")?,
        },
        Kind::TaskStarted(m) => Decision::TaskStarted(parsed(&m.task, "TaskStarted.task")?),
        Kind::TaskEnded(m) => Decision::TaskEnded {
            task: parsed(&m.task, "TaskEnded.task")?,
            exit: required(m.exit, "TaskEnded.exit")?.try_into()?,
            ran: Span(m.ran_ms),
        },
        Kind::TaskReleased(m) => Decision::TaskReleased(parsed(&m.task, "TaskReleased.task")?),
    })
}

fn job(text: &str) -> Result<JobId, WireError> {
    parsed(text, "Decision.job")
}
