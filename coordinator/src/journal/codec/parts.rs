//! The parts that records and snapshots share.

use scheduler_core::{JobOutcome, Outcome, Place, Policy, StopReason};
use tidegate_model::{NodeId, Span, UserId};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::{WireError, parsed};

pub(in crate::journal) fn place_message(place: &Place) -> wire::Place {
    let gpus = place.gpus.iter().map(ToString::to_string).collect();
    wire::Place { node: place.node.to_string(), gpus }
}

pub(in crate::journal) fn place(message: &wire::Place) -> Result<Place, WireError> {
    let node: NodeId = parsed(&message.node, "Place.node")?;
    let gpus =
        message.gpus.iter().map(|gpu| parsed(gpu, "Place.gpus")).collect::<Result<_, _>>()?;
    Ok(Place { node, gpus })
}

pub(in crate::journal) fn policy_message(policy: &Policy) -> wire::Policy {
    wire::Policy {
        start_timeout_ms: policy.start_timeout.0,
        restart_backoff_ms: policy.restart_backoff.0,
        restart_backoff_max_ms: policy.restart_backoff_max.0,
        steady_after_ms: policy.steady_after.0,
        keep_ended_ms: policy.keep_ended.0,
        silent_after_ms: policy.silent_after.0,
        max_live_jobs: policy.max_live_jobs,
        admins: policy.admins.iter().map(|user| user.0).collect(),
    }
}

pub(in crate::journal) fn policy(message: wire::Policy) -> Policy {
    Policy {
        start_timeout: Span(message.start_timeout_ms),
        restart_backoff: Span(message.restart_backoff_ms),
        restart_backoff_max: Span(message.restart_backoff_max_ms),
        steady_after: Span(message.steady_after_ms),
        keep_ended: Span(message.keep_ended_ms),
        silent_after: Span(message.silent_after_ms),
        max_live_jobs: message.max_live_jobs,
        admins: message.admins.into_iter().map(UserId).collect(),
    }
}

/// An enum of the journal: both ways, with what is unknown refused by name.
macro_rules! journal_enum {
    ($to:ident, $from:ident, $core:ident, $field:literal, $($variant:ident),+) => {
        pub(in crate::journal) fn $to(value: $core) -> i32 {
            match value {
                $($core::$variant => wire::$core::$variant.into(),)+
            }
        }

        pub(in crate::journal) fn $from(value: i32) -> Result<$core, WireError> {
            match wire::$core::try_from(value) {
                $(Ok(wire::$core::$variant) => Ok($core::$variant),)+
                Ok(wire::$core::Unspecified) => Err(WireError::Missing { field: $field }),
                Err(_) => Err(WireError::UnknownEnum { field: $field, value }),
            }
        }
    };
}

journal_enum!(
    stop_reason_number,
    stop_reason,
    StopReason,
    "StopReason",
    Cancelled,
    GangBroken,
    StartTimeout
);
journal_enum!(outcome_number, outcome, Outcome, "Outcome", Done, Failed, Unsaved, Lost);
journal_enum!(job_outcome_number, job_outcome, JobOutcome, "JobOutcome", Done, Failed, Cancelled);
