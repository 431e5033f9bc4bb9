//! Policy: all the choices. Reads the books and what is seen; only `evolve` writes.

pub(crate) mod account;
pub(crate) mod attempt;
mod cluster;
pub(crate) mod deadline;
pub(crate) mod gang;
mod glance;
pub(crate) mod leave;
pub(crate) mod money;
pub(crate) mod pass;
mod report;
pub(crate) mod request;
pub(crate) mod spots;
pub(crate) mod standing;
pub(crate) mod victims;
pub(crate) mod walk;

use tidegate_model::Epoch;

use crate::core::Turn;
use crate::decision::Decision;
use crate::event::Event;
use crate::evolve::Broken;

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
        Event::PolicyChanged(policy) if *policy == turn.books().policy => Ok(()),
        Event::PolicyChanged(policy) => turn.take(Decision::PolicySet(policy.clone())),
        Event::DeadlineReached => deadline::work_off(turn),
    }
}
