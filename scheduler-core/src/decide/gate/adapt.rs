//! Whose permits say what of a target, and what its cap is to be by them.

use tidegate_model::{Span, Timestamp};

use super::target::Target;
use super::{GateId, is_silent, nodes_of, writing};
use crate::books::{Attempt, Books, Job, Writing};
use crate::decision::Decision;
use crate::gate::{Evidence, Flow, adapt};
use crate::observations::Observations;

/// The next cap of any gate that may adapt.
pub(super) fn next(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    let adapting = books.gates.iter().filter(|(_, gate)| gate.rule.floor.is_some());
    adapting.into_iter().find_map(|(storage, gate)| {
        let floor = gate.rule.floor?;
        let whole = gate.rule.cap_at(Flow::Writes, now)?;
        let target = Target::of(books, seen, now, GateId { storage, flow: Flow::Writes });
        let in_use = target.writers.iter().map(|one| one.rate).sum();
        let mut evidence = gate.evidence.recent(now);
        for (job, attempt, of) in writing(books).filter(|(job, ..)| job.storage() == Some(storage))
        {
            if let Some(expected) = so_far(books, seen, now, (job, attempt, of)) {
                evidence.add(now, expected, adapt::WINDOW);
            }
        }
        let bounds = adapt::Bounds { whole, floor: floor.min(whole) };
        let cap = adapt::next(now, bounds, gate.adapted, evidence, in_use)?;
        Some(Decision::CapAdapted { storage: storage.clone(), cap })
    })
}

/// Of the last window of somebody who writes under a permit, the part that what it wrote should have
/// taken; none where that says nothing.
fn so_far(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    (job, attempt, of): (&Job, &Attempt, Writing),
) -> Option<Span> {
    let heard = !nodes_of(books, attempt, of).any(|node| is_silent(books, seen, node, now));
    let whole = heard && of.permit.is_some() && now.since(of.since) >= adapt::WINDOW;
    let usual = of.usual(job.commits.as_ref()?.pace()?).filter(|_| whole)?;
    let does: u64 = seen.writes_of(attempt.id).map(|rate| rate.0).fold(0, u64::saturating_add);
    let part = u128::from(adapt::WINDOW.0).saturating_mul(does.into());
    let expected = part.checked_div(usual.0.into())?;
    Some(Span(u64::try_from(expected).unwrap_or(u64::MAX)))
}

/// When it is to be looked at again: while somebody writes, at the end of each window.
pub(super) fn next_deadline(books: &Books, now: Timestamp) -> Option<Timestamp> {
    let adapts = |job: &Job| {
        let gate = job.storage().and_then(|storage| books.gates.get(storage));
        gate.is_some_and(|gate| gate.rule.floor.is_some())
    };
    let writes = |of: Writing| of.permit.is_some() && of.flow() == Flow::Writes;
    let any = writing(books).any(|(job, _, of)| writes(of) && adapts(job));
    any.then(|| adapt::next_window(now))
}

impl Evidence {
    /// What the permit says that was used until now.
    pub(crate) fn of_permit(&mut self, job: &Job, of: Writing, now: Timestamp) {
        let taken = now.since(of.since);
        let usual = job.commits.as_ref().and_then(|commits| of.usual(commits.pace()?));
        if let Some(usual) = usual.filter(|_| of.pace(now).is_some()) {
            self.add(now, usual.takes(of.bytes), taken);
        }
    }
}
