//! When a job that cannot start now could: the instants of firm reservations, and those expected.

use std::collections::BTreeMap;

use tidegate_model::{GpuCount, NodeId, Timestamp};

use super::{Bid, Pass};
use crate::books::Job;
use crate::decide::money::Victim;
use crate::decide::spots::{self, Spot};
use crate::decide::victims::by_blocks;
use crate::decision::Standing;

/// Against whose work a job has a right, once it is Funded or Free, and when it would be an elder.
struct Entitled {
    elder_at: Option<Timestamp>,
    known: BTreeMap<(Victim, Standing), bool>,
}

impl<'books> Pass<'books> {
    /// The nodes that a reservation has earliest, and the instant.
    pub(super) fn firm_place(
        &self,
        job: &'books Job,
    ) -> Option<(Vec<(NodeId, GpuCount)>, Timestamp)> {
        let places = self.options(job).into_iter().filter_map(|one| {
            let per_node = GpuCount(one.shape.per_node);
            let instants = self.of_kind(&one).filter_map(|(index, spot)| {
                let at = spot.firm_instant(self.books, job.id, per_node, self.now)?;
                Some((at, index))
            });
            let mut instants: Vec<_> = instants.collect();
            instants.sort_unstable();
            let wanted = usize::try_from(one.shape.nodes).ok()?;
            let last = instants.get(wanted.checked_sub(1)?)?.0;
            // Whatever is had by then is as good: few blocks decide.
            let by_then = instants.iter().filter(|(at, _)| *at <= last).map(|(_, index)| *index);
            let by_then: Vec<_> = by_then.collect();
            let spots = self.spots();
            let chosen = by_blocks(spots, &by_then, one.shape, job.spec.max_blocks);
            let chosen = chosen.into_iter().next()?;
            let nodes = chosen.into_iter().take(wanted).filter_map(|index| spots.get(index));
            Some((last, nodes.map(|spot| (spot.node.id, per_node)).collect::<Vec<_>>()))
        });
        places.min_by_key(|(at, _)| *at).map(|(at, nodes)| (nodes, at))
    }

    /// Notes when the job could start at the earliest, so that nobody behind it pushes it back.
    pub(super) fn expect(&mut self, one: &Bid<'books>) {
        let Some((at, chosen)) = self.expected_place(one) else { return };
        let start = spots::start_limit(self.books, one.claimant.job);
        let ends = at.plus(start).plus(one.claimant.protect);
        if let Some(spots) = self.spots.get_mut() {
            for index in chosen {
                if let Some(spot) = spots.get_mut(index) {
                    let known = spot.expected.unwrap_or((at, ends));
                    spot.expected = Some((known.0.min(at), known.1.max(ends)));
                }
            }
        }
    }

    /// When and where a plan for it would succeed, from known instants.
    pub(crate) fn expected_place(&self, one: &Bid<'books>) -> Option<(Timestamp, Vec<usize>)> {
        let mut entitled =
            Entitled { elder_at: self.elder_instant(one.claimant.job), known: BTreeMap::new() };
        let mut instants: Vec<_> = self
            .of_kind(one)
            .filter_map(|(index, spot)| Some((self.instant(spot, one, &mut entitled)?, index)))
            .collect();
        instants.sort_unstable();
        let wanted = usize::try_from(one.shape.nodes).ok()?;
        let last = instants.get(wanted.checked_sub(1)?)?.0;
        Some((last, instants.into_iter().take(wanted).map(|(_, index)| index).collect()))
    }

    fn instant(&self, spot: &Spot<'_>, one: &Bid<'_>, rights: &mut Entitled) -> Option<Timestamp> {
        let mut known = vec![(self.now, spot.idle), (spot.coming_by, spot.coming)];
        for occupant in &spot.occupants {
            let (job, attempt) = (occupant.job, occupant.attempt);
            let start = spots::start_limit(self.books, job);
            let ends = spots::yields_at(attempt, start, self.now);
            // It will be Funded at best: then the ratios decide, or a firm reservation.
            let then = attempt.standing.max(Standing::Funded);
            let key = (self.money.as_victim(job), then);
            let entitled = *rights
                .known
                .entry(key)
                .or_insert_with(|| self.money.right(&one.claimant, job, then).is_some());
            let elder_at = rights.elder_at;
            let at = if entitled { Some(ends) } else { elder_at.map(|elder| elder.max(ends)) };
            known.extend(at.map(|at| (at, occupant.gpus)));
        }
        let own = spots::first_enough(&mut known, one.shape.per_node)?;
        let older = spot.firm.iter().take_while(|(_, of)| *of != one.claimant.job.id);
        let ends = older.filter_map(|(at, of)| {
            let older = self.books.jobs.get(of)?;
            Some(at.plus(spots::start_limit(self.books, older)).plus(older.spec.min_runtime))
        });
        // So do those before it that wait for the same nodes.
        let before = spot.expected.map(|(_, ends)| ends);
        Some(ends.chain(before).max().map_or(own, |ends| own.max(ends)))
    }

    /// When an ordinary job has waited long enough to have a firm reservation.
    fn elder_instant(&self, job: &Job) -> Option<Timestamp> {
        let sharing = &self.books.policy.sharing;
        let ordinary = job.is_ordinary(sharing);
        ordinary.then(|| job.waits_since.plus(sharing.patience).max(self.now))
    }
}
