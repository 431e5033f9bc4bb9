//! Policy: all the choices. Reads the books and what is seen; only `evolve` writes.

pub(crate) mod attempt;
mod cluster;
mod deadline;
pub(crate) mod gang;
pub(crate) mod place;
mod report;
mod request;

use tidegate_model::Epoch;

use crate::core::Turn;
use crate::decision::Decision;
use crate::event::Event;
use crate::evolve::Broken;

/// Decides what an event itself says; what follows from it is decided by [`attempt::next`] and
/// [`place::next`] until nothing is left.
pub(crate) fn respond(turn: &mut Turn<'_>, event: &Event) -> Result<(), Broken> {
    match event {
        Event::LeaderStarted => {
            turn.begin();
            let last = turn.books().epoch.map_or(0, |epoch| epoch.0);
            turn.take(Decision::EpochBegan(Epoch(last.saturating_add(1))))
        }
        Event::JobSubmitted { key, user, spec } => request::submit(turn, *key, *user, spec),
        Event::CancelRequested { job, by } => request::cancel(turn, *job, *by),
        Event::NodeReported { .. } => report::respond(turn, event),
        Event::DrainRequested { node, by, reason } => cluster::drain(turn, node, *by, reason),
        Event::ResumeRequested { node, by } => cluster::resume(turn, node, *by),
        Event::NodeDeclaredLost { node, by } => cluster::declare_lost(turn, node, *by),
        Event::PolicyChanged(policy) if *policy == turn.books().policy => Ok(()),
        Event::PolicyChanged(policy) => turn.take(Decision::PolicySet(policy.clone())),
        Event::DeadlineReached => deadline::work_off(turn),
    }
}
