//! When a job that cannot start now could: the instants of firm reservations, and those expected.

use tidegate_model::{GpuCount, NodeId, Span, Timestamp};

use super::{Bid, Pass};
use crate::accounts::AccountId;
use crate::books::Job;
use crate::decide::spots::{self, Occupant, Spot};
use crate::decide::victims::{by_blocks, expected_restore, expected_save};
use crate::decision::Standing;
use crate::money::Amount;

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
            let then = occupant.attempt.standing.max(Standing::Funded);
            // What is promised to it lapses before the GPUs come.
            let lapse = self.money.lapse(occupant.attempt);
            self.money.right(&one.claimant, occupant.job, then, lapse).is_some()
        };
        // Between accounts the ratios alone decide, whoever it is.
        let mut by_account: Vec<Option<bool>> = Vec::new();
        let accounts = usize::try_from(self.books.accounts.next_id().0).unwrap_or(0);
        by_account.resize(accounts, None);
        let mut entitled = |occupant: &Occupant<'books>| {
            let account = occupant.job.account;
            if occupant.attempt.standing == Standing::Free {
                return true;
            }
            if one.claimant.small || account == one.claimant.leaf {
                return right(occupant);
            }
            let ratio = || one.claimant.ask <= self.most_by_ratio(one.claimant.leaf, account);
            let known = usize::try_from(account.0).ok().and_then(|slot| by_account.get_mut(slot));
            known.map_or_else(ratio, |known| *known.get_or_insert_with(ratio))
        };
        let around = |older: &Job| {
            Span(expected_save(self.books, older).0.saturating_add(expected_restore(older).0))
        };
        let mut instant = |spot: &Spot<'books>| {
            let own = spot.instant(one.shape.per_node, self.now, elder_at, &mut entitled)?;
            let older = spot.older_end(self.books, one.claimant.job.id, around);
            // So do those before it that wait for the same nodes.
            let before = spot.expected.map(|(_, ends)| ends);
            Some(older.into_iter().chain(before).fold(own, Timestamp::max))
        };
        let spots = self.of_kind(one);
        let instants = spots.filter_map(|(index, spot)| Some((instant(spot)?, index)));
        let mut instants: Vec<_> = instants.collect();
        let wanted = usize::try_from(one.shape.nodes).ok()?.checked_sub(1)?;
        if wanted >= instants.len() {
            return None;
        }
        let (_, last, _) = instants.select_nth_unstable(wanted);
        let last = last.0;
        instants.truncate(wanted.saturating_add(1));
        Some((last, instants.into_iter().map(|(_, index)| index).collect()))
    }

    /// The most that a start may claim to have a right against Funded work of another account.
    pub(super) fn most_by_ratio(&self, leaf: AccountId, other: AccountId) -> Amount {
        let most = || self.money.most_by_ratio(leaf, other).unwrap_or(Amount(i128::MIN));
        *self.ratios.borrow_mut().entry((leaf, other)).or_insert_with(most)
    }

    /// When an ordinary job has waited long enough to have a firm reservation.
    fn elder_instant(&self, job: &Job) -> Option<Timestamp> {
        let sharing = &self.books.policy.sharing;
        let ordinary = job.is_ordinary(sharing);
        ordinary.then(|| job.waits_since.plus(sharing.patience).max(self.now))
    }
}
