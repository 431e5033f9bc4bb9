//! Who holds a permit and does not write.
//!
//! A permit is its holder's for as long as the job does not say that it is done. Where nothing is seen to be
//! written long after all of it could have been, that word may have been forgotten. So that it keeps nobody
//! from the target, the job is told to keep to what a silent node has, out of the pool. As soon as it writes,
//! it may have more again. Where there is no cap it is none of the number of writers meanwhile.

use tidegate_model::{Bandwidth, Bytes, Span, Timestamp};

use super::{is_silent, writing};
use crate::books::{Attempt, Books, Job, Writing};
use crate::decide::victims::expected_save;
use crate::decision::Decision;
use crate::gate::Flow;
use crate::observations::Observations;

/// From when on a permit is not kept for who does not write; none of who is asked to leave, as its grace ends
/// that too.
fn from(books: &Books, (job, attempt, of): (&Job, &Attempt, Writing)) -> Option<Timestamp> {
    let holds = of.permit.is_some() && of.flow() == Flow::Writes;
    if !holds || attempt.save.is_some() || attempt.stop.is_some() {
        return None;
    }
    if keeps_to_share(of) {
        return Some(of.since);
    }
    let kept = match of.rate {
        // Three times what its bytes take at the slowest that it was told.
        Some(_) => Span(of.longest.0.saturating_mul(2)),
        // Without a cap nobody knows what they take.
        None => Span(expected_save(books, job).0.saturating_mul(3)),
    };
    Some(of.since.plus(kept))
}

/// Of those that write out of the pool it alone had more that it might go on with.
fn keeps_to_share(of: Writing) -> bool {
    of.pooled && of.still.is_some()
}

/// Whether its permit is held for nothing.
pub(crate) fn is(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    of: (&Job, &Attempt, Writing),
) -> bool {
    if from(books, of).is_none_or(|at| at > now) {
        return false;
    }
    // What a job says that it wrote may be what nobody can measure.
    let said = of.2.permit.and_then(|permit| seen.ask_of(permit.task));
    if said.is_none_or(|noted| noted.seen.written > Bytes(0)) {
        return false;
    }
    // Nodes say it of those that write.
    let all = seen.writes_of(of.1.id).all(|rate| rate == Bandwidth(0));
    let mut tasks = of.1.tasks().filter(|(_, task)| task.exit.is_none());
    all && tasks.all(|(_, task)| !is_silent(books, seen, task.place.node, now))
}

/// Who is to keep to its share from now on.
pub(super) fn next(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    let unused =
        |one: &(&Job, &Attempt, Writing)| !keeps_to_share(one.2) && is(books, seen, now, *one);
    writing(books).filter(unused).find_map(|(job, attempt, of)| {
        // Without a cap nothing is kept for it.
        books.safe_rate(job, attempt, of.flow())?;
        let rate = of.after?;
        let still = of.still.max(of.rate).filter(|still| *still > rate);
        still?;
        Some(Decision::WriteRated { attempt: attempt.id, rate, pooled: true, still })
    })
}

/// The next instant at which somebody may be found not to write.
pub(super) fn next_deadline(books: &Books, now: Timestamp) -> Option<Timestamp> {
    let whole = writing(books).filter(|(_, _, of)| !keeps_to_share(*of));
    whole.filter_map(|one| from(books, one)).filter(|at| *at > now).min()
}
