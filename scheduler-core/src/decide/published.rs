//! The instants that people are told: T, what the write gate, the grace and the kill of those who must
//! leave take from then on, and the time to verify (2-scheduling, "A pass"). The books keep T alone.
//!
//! "At the latest" counts limits, "expected" what is usual. Where nobody has to leave it is T itself.

use std::collections::BTreeMap;

use tidegate_model::{JobId, Span, Timestamp};

use crate::books::{Attempt, Books, Job, Reservation};
use crate::decide::gate;
use crate::decide::pass::{Bid, Pass};
use crate::decide::spots::{
    Backlog, Spot, gate_time, permit_wait, save_grace, start_limit, yields_at,
};
use crate::decide::victims::expected_save;
use crate::observations::Observations;

/// By when the job with a firm reservation has its GPUs, at the latest. None if it has none.
pub(crate) fn latest(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    job: JobId,
) -> Option<Timestamp> {
    books.jobs.get(&job)?.reservation.as_ref()?;
    let pass = Pass::new(books, seen, now);
    let mut older = BTreeMap::new();
    for (_, id) in &books.index.reservations {
        let one = books.jobs.get(id)?;
        let at = pass.latest_after(one, one.reservation.as_ref()?, &older);
        if *id == job {
            return Some(at);
        }
        older.insert(*id, at);
    }
    None
}

/// When the job is expected to have the GPUs of those spots, of which it is expected to have the
/// last from `from` on.
pub(crate) fn expected(
    pass: &Pass<'_>,
    bid: &Bid<'_>,
    from: Timestamp,
    spots: &[usize],
) -> Timestamp {
    let verify = pass.books.policy.sharing.verify_limit;
    let chosen = || spots.iter().filter_map(|index| pass.spots().get(*index));
    let leaving = chosen().flat_map(|spot| leavers(spot, bid.shape.per_node, from));
    let leaving = leaving.filter(|(job, _)| job.id != bid.claimant.job.id);
    let save = expected_saves(pass.books, leaving);
    // Who leaves after an older reservation's turn has saved by then: it is in T.
    let before = chosen().any(|spot| !spot.firm.is_empty()).then_some(Span::ZERO);
    save.or(before).map_or(from, |save| from.plus(save).plus(verify))
}

/// How long all of them take to save: those that write to a target with a cap one after the other.
fn expected_saves<'books>(
    books: &Books,
    leaving: impl Iterator<Item = (&'books Job, &'books Attempt)>,
) -> Option<Span> {
    let all: BTreeMap<_, _> = leaving.map(|(job, attempt)| (attempt.id, (job, attempt))).collect();
    let (mut alone, mut in_turn) = (None, BTreeMap::new());
    for (job, attempt) in all.into_values() {
        alone = alone.max(Some(expected_save(books, job)));
        if let Some(write) = gate::expected_write(books, job, attempt) {
            let sum: &mut Span = in_turn.entry(job.storage()).or_default();
            *sum = Span(sum.0.saturating_add(write.0));
        }
    }
    alone.max(in_turn.into_values().max())
}

impl Pass<'_> {
    /// `older`: by when those before it have theirs.
    fn latest_after(
        &self,
        job: &Job,
        held: &Reservation,
        older: &BTreeMap<JobId, Timestamp>,
    ) -> Timestamp {
        let (books, backlog) = (self.books, self.backlog());
        let from = held.at.max(self.now);
        // A run of its own leaves before it takes what is reserved.
        let begin = match job.active_attempt() {
            Some(run) if run.save.is_some() => backlog.gone_by(books, job, run).max(from),
            Some(run) if run.is_live() => gone(books, backlog, from, &[(job, run)]),
            Some(_) | None => from,
        };
        let (mut at, mut leaving) = (begin, Vec::new());
        for (spot, gpus) in held.nodes.iter().filter_map(|(id, gpus)| Some((self.spot(*id)?, gpus)))
        {
            let before = spot.firm.iter().take_while(|(_, of)| *of != job.id);
            for first in before.filter_map(|(_, of)| books.jobs.get(of)) {
                let begun = older.get(&first.id).copied().unwrap_or(from);
                let protect = first.carried.unwrap_or(first.spec.min_runtime);
                let yields = begun.plus(start_limit(books, first)).plus(protect);
                let grace = first.spec.checkpoint.as_ref().map_or(Span::ZERO, |offer| offer.grace);
                at = at.max(left(books, yields.plus(grace), first));
            }
            if spot.idle < gpus.0 {
                at = at.max(spot.coming_by);
            }
            leaving.extend(leavers(spot, gpus.0, begin).filter(|(other, _)| other.id != job.id));
        }
        at.max(gone(books, backlog, begin, &leaving))
    }
}

/// Who may have to leave a node so that a gang has `wanted` GPUs of it at `from`: whoever yields by
/// then, unless what is idle or coming is enough.
fn leavers<'spot, 'books>(
    spot: &'spot Spot<'books>,
    wanted: u32,
    from: Timestamp,
) -> impl Iterator<Item = (&'books Job, &'books Attempt)> + use<'spot, 'books> {
    let enough = spot.idle.saturating_add(spot.coming) >= wanted;
    let yield_then = spot.occupants.iter().filter(move |one| !enough && one.yields_at <= from);
    yield_then.map(|one| (one.job, one.attempt))
}

/// By when all of those have left if they are asked together at `from`: after whole rounds of the
/// gate, the last of them included, each for the longest grace; then its own grace.
pub(crate) fn gone(
    books: &Books,
    backlog: &Backlog<'_>,
    from: Timestamp,
    leaving: &[(&Job, &Attempt)],
) -> Timestamp {
    let mut at = from;
    for (job, attempt) in leaving {
        let alike = leaving.iter().filter(|(other, _)| other.storage() == job.storage());
        let mut round = backlog.outlasting(books, job, from);
        for (other, attempt) in alike {
            let own = gate::own_bandwidth(books, other, attempt);
            round.add(gate_time(books, other, attempt), own);
        }
        let rounds =
            round.count.saturating_sub(1) / gate::at_a_time(books, job.storage(), round.own);
        let admitted = from.plus(Span(round.takes.0.saturating_mul(rounds)));
        let grace_over =
            admitted.plus(permit_wait(books, job, attempt)).plus(save_grace(books, job, attempt));
        at = at.max(left(books, grace_over, job));
    }
    at
}

/// Whose grace is over by then has left, and that is verified.
fn left(books: &Books, grace_over: Timestamp, job: &Job) -> Timestamp {
    grace_over.plus(job.spec.grace).plus(books.policy.sharing.verify_limit)
}

/// By when an attempt has left a node that takes no work, `beside` those that leave it as well.
pub(crate) fn leaves_by(
    books: &Books,
    backlog: &Backlog<'_>,
    now: Timestamp,
    (job, attempt): (&Job, &Attempt),
    beside: &[(&Job, &Attempt)],
) -> Timestamp {
    if attempt.save.is_some() || attempt.stop.is_some() {
        return backlog.gone_by(books, job, attempt);
    }
    let asked_at = |job: &Job, attempt: &Attempt| yields_at(attempt, start_limit(books, job), now);
    let from = asked_at(job, attempt);
    // Who is asked earlier may still be before it at the gate.
    let before = |other: &&(&Job, &Attempt)| {
        let (other, one) = **other;
        let first = asked_at(other, one);
        one.save.is_none() && first <= from && gone(books, backlog, first, beside) > from
    };
    let together: Vec<_> = beside.iter().filter(before).copied().collect();
    gone(books, backlog, from, &together)
}
