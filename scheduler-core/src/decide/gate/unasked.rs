//! Who said that it asks before it writes, was let through, and did not ask.
//!
//! Nobody may assume that it writes nothing. So it counts as one that never asks: its part of the cap is
//! kept for as long as what it has would take to be written. If by then its nodes have measured nothing,
//! it has not begun, and the part is kept no longer.

use tidegate_model::{Span, Timestamp};

use super::target::asks_within;
use super::{is_silent, nodes_of, open_ask};
use crate::books::{Attempt, Books, Job, Writing};
use crate::decide::victims::expected_save;
use crate::gate::Flow;
use crate::observations::Observations;

/// By how much later than it said a job is heard to ask: three heartbeats of the slowest pace.
pub(crate) const ASK_SLACK: Span = Span::seconds(15);

/// By when an attempt that was let through is to have asked, and until when its place is kept if it does
/// not; none of who has asked, said nothing of it, or was seen to write.
pub(crate) fn kept_until(
    books: &Books,
    job: &Job,
    attempt: &Attempt,
) -> Option<(Timestamp, Timestamp)> {
    let of = attempt.writing.filter(|of| of.permit.is_none())?;
    attempt.save.filter(|save| save.first_byte.is_none())?;
    let asks = of.since.plus(asks_within(job)?);
    // Without a cap nobody knows how long anybody writes.
    let takes = of.rate.map_or_else(|| expected_save(books, job), |rate| rate.takes(of.bytes));
    Some((asks, asks.plus(ASK_SLACK).plus(takes)))
}

/// Whether it asks to write, and is not done.
pub(crate) fn has_asked(seen: &Observations, attempt: &Attempt) -> bool {
    open_ask(seen, attempt, Flow::Writes).is_some()
}

/// Whether it is to give its place back.
pub(super) fn gives_back(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    (job, attempt, of): (&Job, &Attempt, Writing),
) -> bool {
    let due = kept_until(books, job, attempt).is_some_and(|(_, until)| until <= now);
    let silent = || nodes_of(books, attempt, of).any(|node| is_silent(books, seen, node, now));
    due && !has_asked(seen, attempt) && !silent() && is_told(seen, attempt)
}

/// Whether all agents have said that they know of the request: those also measure, and older ones do not.
fn is_told(seen: &Observations, attempt: &Attempt) -> bool {
    let asked = attempt.save.map(|save| save.decision);
    let mut tasks = attempt.tasks().filter(|(_, task)| task.exit.is_none());
    tasks.all(|(id, _)| seen.save_of(id).map(|save| save.request) == asked)
}
