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
use self::choose::{Chosen, best_of_all, costliest_spared, fitting, greedy, sum};

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
    grounds: Grounds,
    class: Class,
    cost: u128,
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
        let classes: BTreeSet<Class> = candidates.values().map(|one| one.class).collect();
        let nobody = [(false, false, false)];
        for class in nobody.into_iter().chain(classes) {
            let allowed =
                |id: AttemptId| candidates.get(&id).filter(|one| one.class <= class).copied();
            let fitting = fitting(spots, usable, shape, &allowed);
            let ways = by_blocks(spots, &fitting, shape, max_blocks);
            let choices = ways.into_iter().filter_map(|among| {
                let (cost, choice) = self.select(spots, &among, shape, &allowed)?;
                Some((cost, self.checked(choice)?))
            });
            // Of alike the first: the smallest block.
            if let Some((_, choice)) =
                choices.reduce(|best, other| if other.0 < best.0 { other } else { best })
            {
                return Some(choice);
            }
        }
        None
    }

    fn candidates(&self, spots: &[Spot<'_>], usable: &[usize]) -> BTreeMap<AttemptId, Candidate> {
        let mut candidates = BTreeMap::new();
        let mut asked = BTreeSet::new();
        for one in usable.iter().filter_map(|spot| spots.get(*spot)).flat_map(|s| &s.occupants) {
            if asked.insert(one.attempt.id) {
                candidates.extend(self.candidate(one).map(|found| (one.attempt.id, found)));
            }
        }
        candidates
    }

    fn candidate(&self, one: &Occupant<'_>) -> Option<Candidate> {
        let (job, attempt) = (one.job, one.attempt);
        if !attempt.is_displaceable() || job.id == self.claimant.job.id {
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
        Some(Candidate { grounds: grounds?, class, cost: cost(books, job, attempt, now) })
    }

    /// The cheapest nodes of `among`: taken greedily by the whole cost of their victims, by each
    /// one's share of it, or by sparing the costliest victims; the best of the three. Among very
    /// few the best of all.
    fn select(
        &self,
        spots: &[Spot<'_>],
        among: &[usize],
        shape: Shape,
        allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
    ) -> Option<(u128, Choice)> {
        if let Some(best) = best_of_all(spots, among, shape, allowed, self.exact_among) {
            return Some(self.as_choice(best, allowed));
        }
        let ways = [
            greedy(spots, among, shape, allowed, false),
            greedy(spots, among, shape, allowed, true),
            costliest_spared(spots, among, shape, allowed),
        ];
        let weighed = ways.into_iter().flatten().map(|chosen| (sum(&chosen, allowed), chosen));
        let best = weighed.min_by(|a, b| (a.0, &a.1.spots).cmp(&(b.0, &b.1.spots)));
        best.map(|(_, chosen)| self.as_choice(chosen, allowed))
    }

    fn as_choice(
        &self,
        chosen: Chosen,
        allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
    ) -> (u128, Choice) {
        let cost = sum(&chosen, allowed);
        let victims = chosen.victims.into_iter();
        let victims = victims.filter_map(|id| Some((id, allowed(id)?.grounds))).collect();
        (cost, Choice { spots: chosen.spots, victims })
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
