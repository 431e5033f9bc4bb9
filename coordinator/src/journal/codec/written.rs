//! Decisions as messages.

use scheduler_core::Decision;
use tidegate_proto::amount_bytes;
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::journal::v1::decision as message;
use tidegate_proto::journal::v1::decision::Decision as Kind;

use super::{parts, rehearsal};
use crate::translate;

/// The message of a decision; none for those that are not journaled.
pub(super) fn message(decision: &Decision) -> Option<wire::Decision> {
    kind(decision).map(|kind| wire::Decision { decision: Some(kind) })
}

#[allow(clippy::too_many_lines, reason = "one arm a variant, and the compiler counts them")]
fn kind(decision: &Decision) -> Option<Kind> {
    Some(match decision {
        Decision::EpochBegan(epoch) => Kind::EpochBegan(message::EpochBegan { epoch: epoch.0 }),
        Decision::PolicySet { policy, by } => {
            let (policy, by) =
                (Some(translate::policy_message(policy)), parts::author_message(*by));
            Kind::PolicySet(message::PolicySet { policy, by })
        }
        Decision::NodeAdmitted { node, name } => {
            let (node, name) = (node.to_string(), name.to_string());
            Kind::NodeAdmitted(message::NodeAdmitted { node, name })
        }
        Decision::NodeRefreshed { node, facts } => {
            let (node, facts) = (node.to_string(), Some(facts.clone().into()));
            Kind::NodeRefreshed(message::NodeRefreshed { node, facts })
        }
        Decision::DrainBegan { node, by, reason, wanted_by } => {
            Kind::DrainBegan(message::DrainBegan {
                node: node.to_string(),
                by: by.0,
                reason: reason.clone(),
                wanted_by_ms: wanted_by.map(|at| at.0),
            })
        }
        Decision::DrainEnded { node, by } => {
            Kind::DrainEnded(message::DrainEnded { node: node.to_string(), by: by.0 })
        }
        Decision::NodeRemoved { node, by } => {
            Kind::NodeRemoved(message::NodeRemoved { node: node.to_string(), by: by.0 })
        }
        Decision::JobAccepted { job, key, user, spec } => Kind::JobAccepted(message::JobAccepted {
            job: job.to_string(),
            key: key.to_string(),
            user: user.0,
            spec: Some((**spec).clone().into()),
        }),
        Decision::JobCancelled { job, by } => {
            Kind::JobCancelled(message::JobCancelled { job: job.to_string(), by: by.0 })
        }
        Decision::JobRequeued { job, not_before, own_failure, streak, stalled, carried } => {
            Kind::JobRequeued(message::JobRequeued {
                job: job.to_string(),
                not_before_ms: not_before.0,
                own_failure: *own_failure,
                streak: *streak,
                stalled: *stalled,
                carried_ms: carried.map(|span| span.0),
            })
        }
        Decision::JobEnded { job, outcome } => {
            let outcome = parts::job_outcome_number(*outcome);
            Kind::JobEnded(message::JobEnded { job: job.to_string(), outcome })
        }
        Decision::JobForgotten(job) => {
            Kind::JobForgotten(message::JobForgotten { job: job.to_string() })
        }
        Decision::JobParked { job, why } => {
            let why = Some(parts::park_reason_message(*why));
            Kind::JobParked(message::JobParked { job: job.to_string(), why })
        }
        Decision::JobUnparked { job, by } => {
            Kind::JobUnparked(message::JobUnparked { job: job.to_string(), by: by.0 })
        }
        Decision::ElderNamed { job, at } => {
            Kind::ElderNamed(message::ElderNamed { job: job.to_string(), at_ms: at.0 })
        }
        Decision::ElderAllowed { job, by } => {
            Kind::ElderAllowed(message::ElderAllowed { job: job.to_string(), by: by.0 })
        }
        Decision::ReservationMade { job, nodes, at, pledge } => {
            Kind::ReservationMade(message::ReservationMade {
                job: job.to_string(),
                nodes: parts::shares_message(nodes),
                at_ms: at.0,
                pledge: amount_bytes(pledge.0),
            })
        }
        Decision::ReservationMoved { job, nodes, at, cause } => {
            Kind::ReservationMoved(message::ReservationMoved {
                job: job.to_string(),
                nodes: parts::shares_message(nodes),
                at_ms: at.0,
                cause: parts::move_cause_number(*cause),
            })
        }
        Decision::ReservationDropped { job, by } => {
            Kind::ReservationDropped(message::ReservationDropped { job: job.to_string(), by: by.0 })
        }
        Decision::AttemptPlanned { attempt, places, terms } => {
            Kind::AttemptPlanned(message::AttemptPlanned {
                attempt: attempt.to_string(),
                places: places.iter().map(parts::place_message).collect(),
                terms: Some(parts::terms_message(*terms)),
            })
        }
        Decision::AttemptGranted(attempt) => {
            Kind::AttemptGranted(message::AttemptGranted { attempt: attempt.to_string() })
        }
        Decision::AttemptRunning(attempt) => {
            Kind::AttemptRunning(message::AttemptRunning { attempt: attempt.to_string() })
        }
        Decision::StandingChanged { attempt, at, to, promised_until } => {
            Kind::StandingChanged(message::StandingChanged {
                attempt: attempt.to_string(),
                at_ms: at.0,
                to: translate::standing_message(*to).into(),
                promised_until_ms: promised_until.map(|until| until.0),
            })
        }
        Decision::StopOrdered { attempt, why } => {
            let why = parts::stop_reason_number(*why);
            Kind::StopOrdered(message::StopOrdered { attempt: attempt.to_string(), why })
        }
        Decision::SaveOrdered { attempt, why } => {
            let why = Some(parts::save_reason_message(*why));
            Kind::SaveOrdered(message::SaveOrdered { attempt: attempt.to_string(), why })
        }
        Decision::SaveWithdrawn(attempt) => {
            Kind::SaveWithdrawn(message::SaveWithdrawn { attempt: attempt.to_string() })
        }
        Decision::SaveTold(attempt) => {
            Kind::SaveTold(message::SaveTold { attempt: attempt.to_string() })
        }
        Decision::SaveAdmitted { attempt, bytes, rate } => {
            Kind::SaveAdmitted(message::SaveAdmitted {
                attempt: attempt.to_string(),
                bytes: bytes.0,
                bytes_per_s: rate.map(|rate| rate.0),
            })
        }
        Decision::PermitGranted { permit, bytes, rate, pooled } => {
            Kind::PermitGranted(message::PermitGranted {
                permit: Some(parts::permit_message(*permit)),
                bytes: bytes.0,
                bytes_per_s: rate.map(|rate| rate.0),
                pooled: *pooled,
            })
        }
        Decision::WriteRated { attempt, rate, pooled, still } => {
            Kind::WriteRated(message::WriteRated {
                attempt: attempt.to_string(),
                bytes_per_s: rate.0,
                pooled: *pooled,
                still_bytes_per_s: still.map(|still| still.0),
            })
        }
        Decision::WriteEnded(attempt) => {
            Kind::WriteEnded(message::WriteEnded { attempt: attempt.to_string() })
        }
        Decision::CapAdapted { storage, cap } => Kind::CapAdapted(message::CapAdapted {
            storage: storage.to_string(),
            cap_bytes_per_s: cap.0,
        }),
        Decision::GateSet { storage, rule, by } => Kind::GateSet(message::GateSet {
            storage: storage.to_string(),
            rule: Some(translate::gate_rule_message(rule)),
            by: by.0,
        }),
        Decision::GatePaused { storage, by, reason } => Kind::GatePaused(message::GatePaused {
            storage: storage.to_string(),
            by: by.0,
            reason: reason.clone(),
        }),
        Decision::GateResumed { storage, by } => {
            Kind::GateResumed(message::GateResumed { storage: storage.to_string(), by: by.0 })
        }
        Decision::SaveNoted { attempt, step } => Kind::SaveNoted(message::SaveNoted {
            attempt: attempt.to_string(),
            step: parts::save_step_number(*step),
        }),
        Decision::CheckpointCommitted { attempt, commit } => {
            let (attempt, commit) = (attempt.to_string(), Some((**commit).clone().into()));
            Kind::CheckpointCommitted(message::CheckpointCommitted { attempt, commit })
        }
        Decision::CommitsClosed(attempt) => {
            Kind::CommitsClosed(message::CommitsClosed { attempt: attempt.to_string() })
        }
        Decision::AttemptEnded { attempt, outcome, released, excused } => {
            Kind::AttemptEnded(message::AttemptEnded {
                attempt: attempt.to_string(),
                outcome: parts::outcome_number(*outcome),
                released_ms: Some(released.0),
                excused: excused.map(parts::excused_message),
            })
        }
        Decision::TaskPrepared { task, port } => {
            let (task, port) = (task.to_string(), (*port).into());
            Kind::TaskPrepared(message::TaskPrepared { task, port })
        }
        Decision::TaskStarted(task) => {
            Kind::TaskStarted(message::TaskStarted { task: task.to_string() })
        }
        Decision::TaskEnded { task, exit, ran } => {
            let (task, exit) = (task.to_string(), Some(exit.clone().into()));
            Kind::TaskEnded(message::TaskEnded { task, exit, ran_ms: ran.0 })
        }
        Decision::TaskIdled { task, idle } => {
            let (task, idle) = (task.to_string(), Some((*idle).into()));
            Kind::TaskIdled(message::TaskIdled { task, idle })
        }
        Decision::TaskReleased(task) => {
            Kind::TaskReleased(message::TaskReleased { task: task.to_string() })
        }
        Decision::AccountMade { account, parent, label, size, by } => {
            Kind::AccountMade(message::AccountMade {
                account: account.0,
                parent: parent.0,
                label: label.clone(),
                size: Some(translate::size_message(*size)),
                by: by.0,
            })
        }
        Decision::BudgetSet { account, size, cut, by } => Kind::BudgetSet(message::BudgetSet {
            account: account.0,
            size: Some(translate::size_message(*size)),
            now: translate::is_now(*cut),
            by: by.0,
        }),
        Decision::BudgetTransferred { from, to, amount, until, by, key } => {
            Kind::BudgetTransferred(message::BudgetTransferred {
                from: from.0,
                to: to.0,
                amount: amount_bytes(amount.0),
                until_ms: until.map(|until| until.0),
                by: by.0,
                key: key.map(|key| key.to_string()).unwrap_or_default(),
            })
        }
        Decision::BudgetAsked { account, size, reason, by } => {
            Kind::BudgetAsked(message::BudgetAsked {
                account: account.0,
                size: Some(translate::size_message(*size)),
                reason: reason.clone(),
                by: by.0,
            })
        }
        Decision::BudgetAnswered { account, asked_by, granted, by } => {
            Kind::BudgetAnswered(message::BudgetAnswered {
                account: account.0,
                asked_by: asked_by.0,
                granted: *granted,
                by: by.0,
            })
        }
        Decision::AccountDeleted { account, by } => {
            Kind::AccountDeleted(message::AccountDeleted { account: account.0, by: by.0 })
        }
        Decision::RoleSet { account, user, role, by } => Kind::RoleSet(message::RoleSet {
            account: account.0,
            user: user.0,
            role: translate::role_message(*role).into(),
            by: by.0,
        }),
        Decision::LimitCrossed { account, at, above } => {
            let (account, at_ms, above) = (account.0, at.0, *above);
            Kind::LimitCrossed(message::LimitCrossed { account, at_ms, above })
        }
        Decision::RehearsalJudged { recipe, shown } => {
            let shown = Some(rehearsal::message(*recipe, shown));
            Kind::RehearsalJudged(message::RehearsalJudged { shown })
        }
        Decision::Refused(_) | Decision::SubmitRepeated(_) => return None,
    })
}
