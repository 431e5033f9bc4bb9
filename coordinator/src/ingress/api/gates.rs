//! Requests about write gates.

use std::collections::BTreeSet;

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
        if matches!(request, GateRequest::Pause { .. } | GateRequest::Resume) {
            self.known_target(&storage, by).await?;
        }
        let event = Event::GateRequested { storage, by, request };
        let answer = status::ask(&self.engine, event).await?;
        Ok(v1::ChangeReply { changed: answer == Answer::Changed, replaced: None })
    }
}

impl Api {
    /// Who pauses a target that nobody knows has mistaken its name, and the one that was meant writes on. A
    /// target may be made at any time, by its limits.
    async fn known_target(&self, wanted: &StorageName, by: UserId) -> Result<(), Status> {
        let view = self.view().await?;
        let books = view.core.books();
        let offers = || books.jobs.values().filter_map(|job| job.spec.checkpoint.as_ref());
        let of_jobs = || offers().map(|offer| &offer.storage);
        // Whoever is no admin hears that from the core.
        let is_known = books.gates.contains_key(wanted) || of_jobs().any(|one| one == wanted);
        if is_known || !books.policy.is_admin(by) {
            return Ok(());
        }
        let known: BTreeSet<_> = books.gates.keys().chain(of_jobs()).collect();
        let count = known.len();
        let mut names: Vec<_> =
            known.into_iter().take(MAX_NAMED).map(ToString::to_string).collect();
        names.extend((count > MAX_NAMED).then(|| "more".to_owned()));
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Status::not_found(format!(
            "{wanted} has no limits, and no job names it; known are: {names}; `tidegate gate set \
             {wanted}` makes it"
        )))
    }
}

/// Most targets that a refusal names.
const MAX_NAMED: usize = 8;

fn storage(name: &str) -> Result<StorageName, Status> {
    parsed(name, "storage").map_err(|error| status::malformed(&error))
}
