//! Decisions from messages.

use scheduler_core::{AccountId, Decision};
use tidegate_model::{Bandwidth, Bytes, Epoch, JobId, Span, Timestamp, UserId};
use tidegate_proto::journal::v1::decision::Decision as Kind;
use tidegate_proto::{WireError, narrowed, optional, parsed, required};

use super::{parts, rehearsal};
use crate::translate;

/// The decision of a record made at `at`, which stands in for instants that older releases did not
/// write.
#[allow(clippy::too_many_lines, reason = "one arm a variant, and the compiler counts them")]
pub(super) fn from_message(at: Timestamp, kind: Kind) -> Result<Decision, WireError> {
    Ok(match kind {
        Kind::EpochBegan(m) => Decision::EpochBegan(Epoch(m.epoch)),
        Kind::PolicySet(m) => {
            let policy = translate::policy(required(m.policy, "PolicySet.policy")?)?;
            Decision::PolicySet { policy, by: parts::author(m.by) }
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
            wanted_by: m.wanted_by_ms.map(Timestamp),
        },
        Kind::DrainEnded(m) => {
            Decision::DrainEnded { node: parsed(&m.node, "DrainEnded.node")?, by: UserId(m.by) }
        }
        Kind::NodeRemoved(m) => {
            Decision::NodeRemoved { node: parsed(&m.node, "NodeRemoved.node")?, by: UserId(m.by) }
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
            stalled: m.stalled,
            carried: m.carried_ms.map(Span),
        },
        Kind::JobEnded(m) => {
            Decision::JobEnded { job: job(&m.job)?, outcome: parts::job_outcome(m.outcome)? }
        }
        Kind::JobForgotten(m) => Decision::JobForgotten(job(&m.job)?),
        Kind::JobParked(m) => {
            Decision::JobParked { job: job(&m.job)?, why: parts::park_reason(m.why)? }
        }
        Kind::JobUnparked(m) => Decision::JobUnparked { job: job(&m.job)?, by: UserId(m.by) },
        Kind::ElderNamed(m) => Decision::ElderNamed { job: job(&m.job)?, at: Timestamp(m.at_ms) },
        Kind::ElderAllowed(m) => Decision::ElderAllowed { job: job(&m.job)?, by: UserId(m.by) },
        Kind::ReservationMade(m) => Decision::ReservationMade {
            job: job(&m.job)?,
            nodes: parts::shares(m.nodes)?,
            at: Timestamp(m.at_ms),
            pledge: translate::money(&m.pledge, "ReservationMade.pledge")?,
        },
        Kind::ReservationMoved(m) => Decision::ReservationMoved {
            job: job(&m.job)?,
            nodes: parts::shares(m.nodes)?,
            at: Timestamp(m.at_ms),
            cause: parts::move_cause(m.cause)?,
        },
        Kind::ReservationDropped(m) => {
            Decision::ReservationDropped { job: job(&m.job)?, by: UserId(m.by) }
        }
        Kind::AttemptPlanned(m) => Decision::AttemptPlanned {
            attempt: parsed(&m.attempt, "AttemptPlanned.attempt")?,
            places: m.places.iter().map(parts::place).collect::<Result<_, _>>()?,
            terms: parts::terms(m.terms)?,
        },
        Kind::AttemptGranted(m) => {
            Decision::AttemptGranted(parsed(&m.attempt, "AttemptGranted.attempt")?)
        }
        Kind::AttemptRunning(m) => {
            Decision::AttemptRunning(parsed(&m.attempt, "AttemptRunning.attempt")?)
        }
        Kind::StandingChanged(m) => Decision::StandingChanged {
            attempt: parsed(&m.attempt, "StandingChanged.attempt")?,
            at: Timestamp(m.at_ms),
            to: translate::standing(m.to)?,
            promised_until: m.promised_until_ms.map(Timestamp),
        },
        Kind::StopOrdered(m) => Decision::StopOrdered {
            attempt: parsed(&m.attempt, "StopOrdered.attempt")?,
            why: parts::stop_reason(m.why)?,
        },
        Kind::SaveOrdered(m) => Decision::SaveOrdered {
            attempt: parsed(&m.attempt, "SaveOrdered.attempt")?,
            why: parts::save_reason(m.why)?,
        },
        Kind::SaveWithdrawn(m) => {
            Decision::SaveWithdrawn(parsed(&m.attempt, "SaveWithdrawn.attempt")?)
        }
        Kind::SaveTold(m) => Decision::SaveTold(parsed(&m.attempt, "SaveTold.attempt")?),
        Kind::SaveAdmitted(m) => Decision::SaveAdmitted {
            attempt: parsed(&m.attempt, "SaveAdmitted.attempt")?,
            bytes: Bytes(m.bytes),
            rate: m.bytes_per_s.map(Bandwidth),
        },
        Kind::PermitGranted(m) => Decision::PermitGranted {
            permit: parts::permit(m.permit)?,
            bytes: Bytes(m.bytes),
            rate: m.bytes_per_s.map(Bandwidth),
            pooled: m.pooled,
        },
        Kind::WriteRated(m) => Decision::WriteRated {
            attempt: parsed(&m.attempt, "WriteRated.attempt")?,
            rate: Bandwidth(m.bytes_per_s),
            pooled: m.pooled,
            still: m.still_bytes_per_s.map(Bandwidth),
        },
        Kind::WriteEnded(m) => Decision::WriteEnded(parsed(&m.attempt, "WriteEnded.attempt")?),
        Kind::CapAdapted(m) => Decision::CapAdapted {
            storage: parsed(&m.storage, "CapAdapted.storage")?,
            cap: Bandwidth(m.cap_bytes_per_s),
        },
        Kind::GateSet(m) => Decision::GateSet {
            storage: parsed(&m.storage, "GateSet.storage")?,
            rule: translate::gate_rule(required(m.rule, "GateSet.rule")?)?,
            by: UserId(m.by),
        },
        Kind::GatePaused(m) => Decision::GatePaused {
            storage: parsed(&m.storage, "GatePaused.storage")?,
            by: UserId(m.by),
            reason: m.reason,
        },
        Kind::GateResumed(m) => Decision::GateResumed {
            storage: parsed(&m.storage, "GateResumed.storage")?,
            by: UserId(m.by),
        },
        Kind::SaveNoted(m) => Decision::SaveNoted {
            attempt: parsed(&m.attempt, "SaveNoted.attempt")?,
            step: parts::save_step(m.step)?,
        },
        Kind::CheckpointCommitted(m) => Decision::CheckpointCommitted {
            attempt: parsed(&m.attempt, "CheckpointCommitted.attempt")?,
            commit: Box::new(required(m.commit, "CheckpointCommitted.commit")?.try_into()?),
        },
        Kind::CommitsClosed(m) => {
            Decision::CommitsClosed(parsed(&m.attempt, "CommitsClosed.attempt")?)
        }
        Kind::AttemptEnded(m) => Decision::AttemptEnded {
            attempt: parsed(&m.attempt, "AttemptEnded.attempt")?,
            outcome: parts::outcome(m.outcome)?,
            released: m.released_ms.map_or(at, Timestamp),
            excused: m.excused.map(parts::excused).transpose()?,
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
        Kind::TaskIdled(m) => Decision::TaskIdled {
            task: parsed(&m.task, "TaskIdled.task")?,
            idle: required(m.idle, "TaskIdled.idle")?.into(),
        },
        Kind::TaskReleased(m) => Decision::TaskReleased(parsed(&m.task, "TaskReleased.task")?),
        Kind::AccountMade(m) => Decision::AccountMade {
            account: AccountId(m.account),
            parent: AccountId(m.parent),
            label: m.label,
            size: translate::size(m.size)?,
            by: UserId(m.by),
        },
        Kind::BudgetSet(m) => Decision::BudgetSet {
            account: AccountId(m.account),
            size: translate::size(m.size)?,
            cut: translate::cut(m.now),
            by: UserId(m.by),
        },
        Kind::BudgetTransferred(m) => Decision::BudgetTransferred {
            from: AccountId(m.from),
            to: AccountId(m.to),
            amount: translate::money(&m.amount, "BudgetTransferred.amount")?,
            until: m.until_ms.map(Timestamp),
            by: UserId(m.by),
            key: optional(&m.key, "BudgetTransferred.key")?,
        },
        Kind::BudgetAsked(m) => Decision::BudgetAsked {
            account: AccountId(m.account),
            size: translate::size(m.size)?,
            reason: m.reason,
            by: UserId(m.by),
        },
        Kind::BudgetAnswered(m) => Decision::BudgetAnswered {
            account: AccountId(m.account),
            asked_by: UserId(m.asked_by),
            granted: m.granted,
            by: UserId(m.by),
        },
        Kind::AccountDeleted(m) => {
            Decision::AccountDeleted { account: AccountId(m.account), by: UserId(m.by) }
        }
        Kind::RoleSet(m) => Decision::RoleSet {
            account: AccountId(m.account),
            user: UserId(m.user),
            role: translate::role(m.role)?,
            by: UserId(m.by),
        },
        Kind::RehearsalJudged(m) => {
            let shown = required(m.shown, "RehearsalJudged.shown")?;
            let (recipe, shown) = rehearsal::rehearsal(shown)?;
            Decision::RehearsalJudged { recipe, shown: Box::new(shown) }
        }
        Kind::LimitCrossed(m) => Decision::LimitCrossed {
            account: AccountId(m.account),
            at: Timestamp(m.at_ms),
            above: m.above,
        },
    })
}

fn job(text: &str) -> Result<JobId, WireError> {
    parsed(text, "Decision.job")
}
