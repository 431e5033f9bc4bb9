//! The one place where refusals and failures become gRPC statuses.

use scheduler_core::Refusal;
use tidegate_proto::WireError;
use tonic::Status;

use crate::engine::Answer;
use crate::thread::{Closed, Handle, NotTaken};
use crate::view::Busy;

pub(super) fn malformed(error: &WireError) -> Status {
    Status::invalid_argument(error.to_string())
}

pub(super) fn busy(error: &Busy) -> Status {
    Status::unavailable(error.to_string())
}

pub(super) fn refused(refusal: &Refusal) -> Status {
    let words = refusal.to_string();
    match refusal {
        Refusal::NoSuchJob(_) | Refusal::NoSuchNode(_) | Refusal::NoSuchAccount { .. } => {
            Status::not_found(words)
        }
        Refusal::NotYours(_)
        | Refusal::AdminOnly
        | Refusal::WholeCluster
        | Refusal::RoleMissing { .. } => Status::permission_denied(words),
        Refusal::KeyReused { .. } => Status::already_exists(words),
        Refusal::Unsatisfiable { .. } | Refusal::CannotHold { .. } | Refusal::ReasonMissing => {
            Status::invalid_argument(words)
        }
        Refusal::NodeNotSilent(_) | Refusal::NodeInUse(_) | Refusal::PolicyMoved { .. } => {
            Status::failed_precondition(words)
        }
        Refusal::NoGpusYet => Status::unavailable(words),
        Refusal::QueueFull { .. } => Status::resource_exhausted(words),
    }
}

/// Asks the engine; what it refuses, and that it is away, becomes a status.
pub(super) async fn ask(engine: &Handle, event: scheduler_core::Event) -> Result<Answer, Status> {
    match engine.ask(event).await {
        Ok(Ok(Answer::Refused(refusal))) => Err(refused(&refusal)),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(closed @ Closed(_))) => Err(Status::unavailable(closed.to_string())),
        Err(away @ NotTaken) => Err(Status::unavailable(away.to_string())),
    }
}
