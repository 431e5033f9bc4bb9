//! The cheapest victims for a gang: nodes whose occupants may all be displaced now, one decision.
//!
//! Cost is lexicographic: the worst class among the victims (standing, then idle attempts first,
//! then not displaced lately), then the sum of GPUs times (time since the last commit + expected
//! save and restore). The class is exact: classes are allowed one by one until the gang fits. The
//! sum is greedy by node, then pruned; every right is checked again on what is left.

mod choose;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{AttemptId, Span, Timestamp};

pub(crate) use self::choose::by_blocks;
use self::choose::{Chosen, Field, Ground};

use crate::books::{Attempt, Books, Job};
use crate::decide::gang::Shape;
use crate::decide::gate;
use crate::decide::money::{Claimant, Money};
use crate::decide::spots::{Occupant, Spot, save_grace};
use crate::decision::{Grounds, Right, SaveReason, Standing};
use crate::money::Amount;
use crate::observations::Observations;

/// Saving and restoring of a job of which nothing is known yet.
const EXPECTED_SAVE: Span = Span::minutes(1);

/// The nodes, by their place among the spots, and who must leave them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Choice {
    pub(crate) spots: Vec<usize>,
    pub(crate) victims: BTreeMap<AttemptId, Grounds>,
}

/// Better first.
type Class = (bool, bool, bool);

/// A possible victim.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: AttemptId,
    grounds: Grounds,
    class: Class,
    cost: u128,
    /// Of the whole gang.
    gpus: u32,
}

/// For whom victims are looked for.
pub(crate) struct Search<'pass, 'books> {
    pub(crate) money: &'pass Money<'books>,
    pub(crate) seen: &'pass Observations,
    pub(crate) claimant: Claimant<'books>,
    /// From the instant of a firm reservation its occupants yield whatever the ratios.
    pub(crate) firm: bool,
    /// Among so many possible victims all sets are tried; [`EXACT_AMONG`], and none in tests of
    /// the rest.
    pub(crate) exact_among: usize,
}

/// 1,024 sets.
pub(crate) const EXACT_AMONG: usize = 10;

impl Search<'_, '_> {
    /// The cheapest choice among the spots that `usable` names, if the gang fits at all.
    pub(crate) fn cheapest(
        &self,
        spots: &[Spot<'_>],
        usable: &[usize],
        shape: Shape,
        max_blocks: Option<u32>,
    ) -> Option<Choice> {
        let candidates = self.candidates(spots, usable);
        let classes: BTreeSet<Class> = candidates.iter().map(|one| one.class).collect();
        let with_spot = usable.iter().filter_map(|index| Some((*index, spots.get(*index)?)));
        let grounds: Vec<_> =
            with_spot.map(|(index, spot)| Ground::of(index, spot, &candidates)).collect();
        let nobody = [(false, false, false)];
        nobody.into_iter().chain(classes).find_map(|class| {
            let allowing = grounds.iter().map(|one| one.allowing(class, &candidates));
            let fitting = allowing.filter(|one| one.freed(|_| true) >= shape.per_node);
            let fitting: Vec<Ground> = fitting.collect();
            let indices: Vec<usize> = fitting.iter().map(|one| one.spot).collect();
            let ways = by_blocks(spots, &indices, shape, max_blocks);
            let choices = ways.into_iter().filter_map(|among| {
                let at = |index| indices.binary_search(index).ok().and_then(|at| fitting.get(at));
                let field = Field::new(&candidates, among.iter().filter_map(at).collect(), shape);
                let chosen = self.select(&field)?;
                Some((chosen.cost, self.checked(as_choice(chosen, &candidates))?))
            });
            // Of alike the first: the smallest block.
            let best = choices.reduce(|best, other| if other.0 < best.0 { other } else { best });
            best.map(|(_, choice)| choice)
        })
    }

    /// In the order of their ids.
    fn candidates(&self, spots: &[Spot<'_>], usable: &[usize]) -> Vec<Candidate> {
        let usable = usable.iter().filter_map(|index| spots.get(*index));
        let mut all: Vec<&Occupant<'_>> = usable.flat_map(|spot| &spot.occupants).collect();
        all.sort_unstable_by_key(|one| one.attempt.id);
        all.dedup_by_key(|one| one.attempt.id);
        all.into_iter().filter_map(|one| self.candidate(one)).collect()
    }

    fn candidate(&self, one: &Occupant<'_>) -> Option<Candidate> {
        let (job, attempt) = (one.job, one.attempt);
        if !one.is_displaceable() || job.id == self.claimant.job.id {
            return None;
        }
        let lapse = self.money.lapse(attempt);
        let grounds = self.money.right(&self.claimant, job, attempt.standing, lapse);
        let grounds = if self.firm && attempt.standing != Standing::Protected {
            Some(Grounds::plain(Right::Reservation))
        } else {
            grounds
        };
        let (books, now) = (self.money.books, self.money.now);
        let class = (
            attempt.standing == Standing::Funded,
            !self.seen.is_idle(attempt.id, now),
            displaced_lately(books, job, now),
        );
        let (id, gpus) = (attempt.id, attempt.gpus().0);
        Some(Candidate { id, grounds: grounds?, class, cost: cost(books, job, attempt, now), gpus })
    }

    /// The cheapest nodes of the field: taken greedily by the whole cost of their victims, by each
    /// one's share of it, or by sparing the costliest victims; the best of the three. Among very
    /// few the best of all.
    fn select(&self, field: &Field<'_>) -> Option<Chosen> {
        field.best_of_all(self.exact_among).or_else(|| {
            let ways = [field.greedy(false), field.greedy(true), field.costliest_spared()];
            let all = ways.into_iter().flatten();
            all.min_by(|a, b| (a.cost, &a.spots).cmp(&(b.cost, &b.spots)))
        })
    }

    /// Every right once more, on the pruned set: what lapses together is not compared.
    fn checked(&self, choice: Choice) -> Option<Choice> {
        if self.firm {
            return Some(choice);
        }
        let (money, claimant) = (&self.money, &self.claimant);
        let victims: Vec<_> =
            choice.victims.keys().filter_map(|id| money.books.with_job(*id)).collect();
        let mut lapses: BTreeMap<_, Amount> = BTreeMap::new();
        for (job, attempt) in &victims {
            let sum = lapses.entry(money.compared(claimant, job)).or_default();
            *sum += money.lapse(attempt);
        }
        let holds = |(job, attempt): &(&Job, &Attempt)| {
            let lapse = lapses.get(&money.compared(claimant, job)).copied().unwrap_or_default();
            money.right(claimant, job, attempt.standing, lapse).is_some()
        };
        let all = victims.len() == choice.victims.len() && victims.iter().all(holds);
        all.then_some(choice)
    }
}

fn as_choice(chosen: Chosen, candidates: &[Candidate]) -> Choice {
    let victims = chosen.victims.into_iter().filter_map(|who| candidates.get(who));
    let victims = victims.map(|one| (one.id, one.grounds)).collect();
    Choice { spots: chosen.spots, victims }
}

/// GPUs times (time since the last commit + expected save and restore).
pub(crate) fn cost(books: &Books, job: &Job, attempt: &Attempt, now: Timestamp) -> u128 {
    let since = attempt.committed.or(attempt.running).unwrap_or(now);
    let around = expected_save(books, job).0.saturating_add(expected_restore(job).0);
    let span = Span(now.since(since).0.saturating_add(around));
    attempt.gpus().held_for(span).0
}

/// How long the job took to save the last time it did; else what its bytes take at its gate. Never longer
/// than it is let.
pub(crate) fn expected_save(books: &Books, job: &Job) -> Span {
    let saved = job.attempts.iter().rev().find_map(|attempt| {
        let admitted = attempt.save?.admitted?;
        let (ended, _) = attempt.ended?;
        attempt.committed.filter(|at| *at >= admitted)?;
        Some(ended.since(admitted))
    });
    let at_gate = || gate::expected_write(books, job, job.active_attempt()?);
    saved.or_else(at_gate).unwrap_or(EXPECTED_SAVE).min(longest_save(books, job))
}

/// After which it is gone, saved or not: its grace and that of its stop. Without a way to save there
/// is only the stop.
fn longest_save(books: &Books, job: &Job) -> Span {
    let save = match (job.active_attempt(), &job.spec.checkpoint) {
        (Some(attempt), _) => save_grace(books, job, attempt),
        (None, Some(offer)) => offer.grace,
        (None, None) => Span::ZERO,
    };
    Span(save.0.saturating_add(job.spec.grace.0))
}

/// How long the job took to start the last time it did.
pub(crate) fn expected_restore(job: &Job) -> Span {
    let started = job
        .attempts
        .iter()
        .rev()
        .find_map(|attempt| Some(attempt.running?.since(attempt.granted?)));
    started.unwrap_or(Span::ZERO)
}

pub(crate) fn displaced_lately(books: &Books, job: &Job, now: Timestamp) -> bool {
    let spare = books.policy.sharing.spare_recent;
    let before = job.attempts.iter().rev().filter_map(|attempt| attempt.save);
    let mut displaced = before.filter(|save| matches!(save.why, SaveReason::Displaced { .. }));
    displaced.next().is_some_and(|save| now.since(save.at) < spare)
}
