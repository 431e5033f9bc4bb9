//! When a job that cannot start now could: the instants of firm reservations, and those expected.

use std::collections::BinaryHeap;
use std::rc::Rc;

use tidegate_model::{GpuCount, NodeId, Span, Timestamp};

use super::bids::of_its_kind;
use super::{Bid, Comings, Pass};
use crate::books::Job;
use crate::decide::spots::{self, Occupant};
use crate::decide::victims::{by_blocks, expected_restore, expected_save};
use crate::decision::Standing;

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
        let elder_at = self.elder_instant(one.claimant.job);
        // It will be Funded at best: then the ratios decide, or a firm reservation.
        let right = |occupant: &Occupant<'books>| {
            let then = occupant.standing.max(Standing::Funded);
            // What is promised to it lapses before the GPUs come.
            let lapse = self.money.lapse(occupant.attempt);
            self.money.right(&one.claimant, occupant.job, then, lapse).is_some()
        };
        let rights = self.rights_of(one.claimant.leaf);
        let mut entitled = |occupant: &Occupant<'books>| {
            if occupant.standing == Standing::Free {
                true
            } else if one.claimant.small || occupant.account == one.claimant.leaf {
                right(occupant)
            } else {
                // Between accounts the ratios alone decide, whoever it is.
                one.claimant.ask <= rights.against(occupant.account)
            }
        };
        let around = |older: &Job| {
            Span(expected_save(self.books, older).0.saturating_add(expected_restore(older).0))
        };
        let (wanted, per_node) = (usize::try_from(one.shape.nodes).ok()?, one.shape.per_node);
        // The earliest nodes so far, the last of them on top.
        let mut earliest: BinaryHeap<(Timestamp, usize)> = BinaryHeap::new();
        for (all, index) in self.comings(per_node).iter().copied() {
            let enough = earliest.len() >= wanted;
            if enough && earliest.peek().is_none_or(|(last, _)| *last < all) {
                break;
            }
            let spot = self.spots().get(index).filter(|spot| of_its_kind(spot, one));
            let Some(spot) = spot else { continue };
            let older = spot.older_end(self.books, one.claimant.job.id, around);
            // So do those before it that wait for the same nodes.
            let before = spot.expected.map(|(_, ends)| ends).max(older).unwrap_or(all);
            // Whatever its rights are it comes no earlier.
            let least = (all.max(before), index);
            if enough && earliest.peek().is_none_or(|last| *last <= least) {
                continue;
            }
            if let Some(own) = spot.instant(per_node, self.now, elder_at, &mut entitled) {
                earliest.push((own.max(before), index));
            }
            if earliest.len() > wanted {
                earliest.pop();
            }
        }
        let (last, _) = *earliest.peek().filter(|_| earliest.len() == wanted)?;
        Some((last, earliest.into_sorted_vec().into_iter().map(|(_, index)| index).collect()))
    }

    /// When so many GPUs of each node have come if all yield that may ever, the earliest first.
    fn comings(&self, per_node: u32) -> Comings {
        let all = || {
            let all = self.spots().iter().enumerate().filter_map(|(index, spot)| {
                Some((spot.instant(per_node, self.now, None, |_| true)?, index))
            });
            let mut all: Vec<_> = all.collect();
            all.sort_unstable();
            all.into()
        };
        Rc::clone(self.comings.borrow_mut().entry(per_node).or_insert_with(all))
    }

    /// When an ordinary job has waited long enough to have a firm reservation.
    fn elder_instant(&self, job: &Job) -> Option<Timestamp> {
        let sharing = &self.books.policy.sharing;
        let ordinary = job.is_ordinary(sharing);
        ordinary.then(|| job.waits_since.plus(sharing.patience).max(self.now))
    }
}
