//! Requests about write gates.

use scheduler_core::{Event, GateRequest};
use tidegate_model::{StorageName, UserId};
use tidegate_proto::{parsed, required, v1};
use tonic::Status;

use super::Api;
use crate::engine::Answer;
use crate::ingress::{messages, status};
use crate::translate;

impl Api {
    pub(super) async fn gates(
        &self,
        ask: v1::ListGatesRequest,
    ) -> Result<v1::ListGatesReply, Status> {
        let wanted = ask.storage.map(|name| storage(&name)).transpose()?;
        let view = self.view().await?;
        let mut gates = view.core.gates(view.at);
        if let Some(wanted) = wanted {
            gates.retain(|gate| gate.storage == wanted);
            if gates.is_empty() {
                return Err(Status::not_found(format!(
                    "{wanted} has no limits, and nobody writes to it; `tidegate gate` lists what is \
                     known"
                )));
            }
        }
        Ok(v1::ListGatesReply { gates: gates.into_iter().map(messages::gates::gate).collect() })
    }

    pub(super) async fn changed_gate(
        &self,
        by: UserId,
        ask: v1::ChangeGateRequest,
    ) -> Result<v1::ChangeReply, Status> {
        use v1::change_gate_request::{Change, Pause, Resume};
        let malformed = |error| status::malformed(&error);
        let storage = storage(&ask.storage)?;
        let change = required(ask.change, "ChangeGateRequest.change").map_err(malformed)?;
        let request = match change {
            Change::Set(rule) => GateRequest::Set(translate::gate_rule(rule).map_err(malformed)?),
            Change::Pause(Pause { reason }) => GateRequest::Pause { reason },
            Change::Resume(Resume {}) => GateRequest::Resume,
        };
        let event = Event::GateRequested { storage, by, request };
        let answer = status::ask(&self.engine, event).await?;
        Ok(v1::ChangeReply { changed: answer == Answer::Changed, replaced: None })
    }
}

fn storage(name: &str) -> Result<StorageName, Status> {
    parsed(name, "storage").map_err(|error| status::malformed(&error))
}
