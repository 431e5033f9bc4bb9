//! The one place where refusals and failures become gRPC statuses.

use scheduler_core::Refusal;
use tidegate_proto::WireError;
use tonic::Status;

use crate::engine::Answer;
use crate::thread::{Closed, Handle, NotTaken};
use crate::view::Busy;

/// Most bytes of a refusal. They travel in a header: written out one is up to three bytes there, and
/// clients take 16 KiB of headers, else the connection counts as lost.
const MAX_WORDS: usize = 4000;

/// Words that fit a status, whatever they quote.
pub(super) fn cut(mut words: String) -> String {
    if words.len() > MAX_WORDS {
        let end = words.floor_char_boundary(MAX_WORDS);
        let more = words.len().saturating_sub(end);
        words.truncate(end);
        words.push_str(&format!("... ({more} more bytes)"));
    }
    words
}

pub(super) fn malformed(error: &WireError) -> Status {
    Status::invalid_argument(cut(error.to_string()))
}

pub(super) fn busy(error: &Busy) -> Status {
    Status::unavailable(error.to_string())
}

pub(super) fn refused(refusal: &Refusal) -> Status {
    let words = cut(refusal.to_string());
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
        Refusal::NodeNotSilent(_)
        | Refusal::NodeInUse(_)
        | Refusal::PolicyMoved { .. }
        | Refusal::NotRehearsed { .. } => Status::failed_precondition(words),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_to_what_a_header_holds() {
        assert_eq!(cut("short".to_owned()), "short");
        let told = cut("\u{fc}".repeat(3000));
        assert_eq!(told, format!("{}... (2000 more bytes)", "\u{fc}".repeat(2000)));
    }
}
