//! The policy: read, and given back as a whole.

use scheduler_core::{Author, Books, Event, PolicyChange, Refusal};
use tidegate_model::{DecisionSeq, UserId};
use tidegate_proto::{required, v1};
use tonic::Status;

use super::Api;
use crate::engine::Answer;
use crate::ingress::status;
use crate::translate::{policy, policy_message};

/// The policy in force, with who set it.
pub(super) fn in_force(books: &Books) -> v1::GetPolicyReply {
    let edit = books.policy_edit;
    let by = edit.map(|edit| edit.by).unwrap_or_default();
    v1::GetPolicyReply {
        policy: Some(policy_message(&books.policy)),
        version: edit.map_or(0, |edit| edit.record.0),
        set_ms: edit.map(|edit| edit.at.0),
        by_uid: match by {
            Author::User(user) => Some(user.0),
            Author::Unknown | Author::Configuration => None,
        },
        by_configuration: by == Author::Configuration,
    }
}

impl Api {
    pub(super) async fn policy_set(
        &self,
        by: UserId,
        ask: v1::SetPolicyRequest,
    ) -> Result<v1::ChangeReply, Status> {
        // Who may not is told so first. The engine judges it again.
        if !self.view().await?.core.books().policy.is_admin(by) {
            return Err(status::refused(&Refusal::AdminOnly));
        }
        let malformed = |error| status::malformed(&error);
        let given = required(ask.policy, "SetPolicyRequest.policy").map_err(malformed)?;
        required(given.sharing.as_ref(), "Policy.sharing").map_err(malformed)?;
        let policy = policy(given).map_err(malformed)?;
        policy.check().map_err(|why| status::refused(&Refusal::CannotHold { why }))?;
        let read = ask.version.map(DecisionSeq);
        let change = PolicyChange { policy, by: Author::User(by), read };
        let answer = status::ask(&self.engine, Event::PolicyChanged(change)).await?;
        Ok(v1::ChangeReply { changed: answer == Answer::Changed, replaced: None })
    }
}
