//! Policy: all the choices. Reads the books and what is seen; only `evolve` writes.

pub(crate) mod account;
pub(crate) mod attempt;
mod cluster;
pub(crate) mod deadline;
pub(crate) mod gang;
pub(crate) mod gate;
mod glance;
pub(crate) mod leave;
pub(crate) mod money;
pub(crate) mod pass;
pub(crate) mod published;
pub(crate) mod rehearsal;
mod report;
pub(crate) mod request;
mod saving;
pub(crate) mod spots;
pub(crate) mod standing;
pub(crate) mod victims;
pub(crate) mod walk;
pub(crate) mod words;

use tidegate_model::{DecisionSeq, Epoch};

use crate::core::Turn;
use crate::decision::{Decision, Refusal};
use crate::event::Event;
use crate::evolve::Broken;
use crate::policy::{Author, PolicyChange};

/// Decides what an event itself says; what follows from it is decided by [`attempt::next`] and
/// [`pass::next`] until nothing is left.
pub(crate) fn respond(turn: &mut Turn<'_>, event: &Event) -> Result<(), Broken> {
    match event {
        Event::LeaderStarted => {
            turn.begin();
            let last = turn.books().epoch.map_or(0, |epoch| epoch.0);
            turn.take(Decision::EpochBegan(Epoch(last.saturating_add(1))))?;
            account::found_tree(turn)
        }
        Event::JobSubmitted { key, user, spec } => request::submit(turn, *key, *user, spec),
        Event::CancelRequested { job, by } => request::cancel(turn, *job, *by),
        Event::NodeReported { .. } => report::respond(turn, event),
        Event::DrainRequested { node, by, reason, wanted_by } => {
            cluster::drain(turn, node, *by, reason, *wanted_by)
        }
        Event::ResumeRequested { node, by } => cluster::resume(turn, node, *by),
        Event::NodeDeclaredLost { node, by } => cluster::declare_lost(turn, node, *by),
        Event::NodeRemovalRequested { node, by } => cluster::remove(turn, node, *by),
        Event::AccountRequested { by, request } => account::respond(turn, *by, request),
        Event::JobRequested { job, by, request } => request::about_job(turn, *job, *by, *request),
        Event::GateRequested { storage, by, request } => {
            cluster::about_gate(turn, storage, *by, request)
        }
        Event::PolicyChanged(change) => set_policy(turn, change),
        Event::WritingSeen { task } => saving::wrote(turn, *task),
        Event::DeadlineReached => deadline::work_off(turn),
    }
}

/// A change that is asked twice was made by the first: the version is then its own.
fn set_policy(turn: &mut Turn<'_>, change: &PolicyChange) -> Result<(), Broken> {
    let PolicyChange { policy, by, read } = change;
    let (now, edit) = (&turn.books().policy, turn.books().policy_edit);
    if matches!(by, Author::User(user) if !now.is_admin(*user)) {
        return turn.take(Decision::Refused(Refusal::AdminOnly));
    }
    if policy == now {
        return Ok(());
    }
    let version = edit.map_or(DecisionSeq(0), |edit| edit.record);
    if read.is_some_and(|read| read != version) {
        let by = edit.map(|edit| edit.by).unwrap_or_default();
        return turn.take(Decision::Refused(Refusal::PolicyMoved { by, record: version }));
    }
    turn.take(Decision::PolicySet { policy: policy.clone(), by: *by })
}
