//! Who holds a permit and does not write.
//!
//! A permit is its holder's for as long as the job does not say that it is done. Where nothing is seen to be
//! written long after all of it could have been, that word may have been forgotten. So that it keeps nobody
//! from the target, the job is told to keep to what a silent node has, out of the pool. As soon as it writes,
//! it may have more again. Where there is no cap it is none of the number of writers meanwhile.

use tidegate_model::{Bandwidth, Bytes, LEAST_SEEN, Span, Timestamp};

use super::{is_silent, may_still, writing};
use crate::books::{Attempt, Books, Job, Writing};
use crate::decide::victims::expected_save;
use crate::decision::Decision;
use crate::gate::Flow;
use crate::observations::Observations;

/// For so long nothing is to be seen: six reports of the slowest pace. Some write in bursts, and an agent that has
/// just begun has seen nothing yet.
const QUIET: Span = Span::seconds(30);

/// From when on a permit is not kept for who does not write; none of who is asked to leave, as its grace ends
/// that too.
fn from(books: &Books, (job, attempt, of): (&Job, &Attempt, Writing)) -> Option<Timestamp> {
    let holds = of.permit.is_some() && of.flow() == Flow::Writes;
    if !holds || attempt.save.is_some() || attempt.stop.is_some() {
        return None;
    }
    if of.keeps_to_share() {
        return Some(of.since);
    }
    let kept = match of.rate {
        // Three times what its bytes take at the slowest that it was told.
        Some(_) => Span(of.longest.max(of.length()).0.saturating_mul(2)),
        // Without a cap nobody knows what they take.
        None => Span(expected_save(books, job).0.saturating_mul(3)),
    };
    Some(of.since.plus(kept))
}

/// What is left to it: what a silent node has, but no less than its nodes can see that it writes.
fn share(books: &Books, job: &Job, attempt: &Attempt, of: Writing) -> Option<Bandwidth> {
    let safe = books.safe_rate(job, attempt, of.flow())?;
    Some(safe.max(least_seen(attempt)).min(of.rate?))
}

/// Less of a gang is not seen: each node tells of tasks that write half of that.
fn least_seen(attempt: &Attempt) -> Bandwidth {
    let tasks = u64::try_from(attempt.tasks.len()).unwrap_or(u64::MAX);
    Bandwidth(LEAST_SEEN.0.saturating_mul(2).saturating_mul(tasks))
}

/// Since when its nodes have seen it write nothing; none while they do, or are not heard.
fn quiet_since(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    attempt: &Attempt,
) -> Option<Timestamp> {
    let mut tasks = attempt.tasks().filter(|(_, task)| task.exit.is_none());
    tasks.try_fold(Timestamp(0), |since, (id, task)| {
        let heard = !is_silent(books, seen, task.place.node, now);
        Some(since.max(seen.quiet_since(id, task.place.node).filter(|_| heard)?))
    })
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
    quiet_since(books, seen, now, of.1).is_some_and(|since| since.plus(QUIET) <= now)
}

/// Who is to keep to its share from now on.
pub(super) fn next(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    let unused = writing(books).filter(|one| is(books, seen, now, *one));
    unused.into_iter().find_map(|(job, attempt, of)| {
        // Without a cap nothing is kept for it.
        let (rate, before) = (share(books, job, attempt, of)?, of.rate?);
        let still = may_still(seen, of).max(Some(before)).filter(|_| rate < before);
        still.map(|_| Decision::WriteRated { attempt: attempt.id, rate, pooled: true, still })
    })
}

/// The next instant at which somebody may be found not to write.
pub(super) fn next_deadline(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
) -> Option<Timestamp> {
    let whole = writing(books).filter(|(_, _, of)| !of.keeps_to_share());
    let times = whole.filter_map(|one| {
        let quiet = quiet_since(books, seen, now, one.1)?.plus(QUIET);
        Some(from(books, one)?.max(quiet))
    });
    times.filter(|at| *at > now).min()
}
