//! Budgets, limits and claims of all accounts at one instant.

use std::ops::Range;

use tidegate_model::Timestamp;

use super::{AccountId, Accounts, WHOLE, slot};
use crate::money::{Amount, WINDOW};

/// One account's figures at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Row {
    /// B.
    pub budget: Amount,
    /// L = B less the small reserve.
    pub limit: Amount,
    /// Charged and promised.
    pub claim: Amount,
    /// Whether its children ask for more than it has, or have given away what they no longer have,
    /// as after a removal of nodes; they are scaled down.
    pub scaled: bool,
}

/// All accounts' figures at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sheet {
    rows: Vec<Row>,
}

impl Sheet {
    /// One account's figures; zero of a deleted one.
    #[must_use]
    pub fn row(&self, id: AccountId) -> Row {
        self.rows.get(slot(id)).copied().unwrap_or_default()
    }

    fn set(&mut self, id: AccountId, row: Row) {
        if let Some(old) = self.rows.get_mut(slot(id)) {
            *old = row;
        }
    }

    /// Counts a further claim at each of some accounts.
    pub(crate) fn claim_more(&mut self, accounts: &[AccountId], more: Amount) {
        for id in accounts {
            let row = self.row(*id);
            self.set(*id, Row { claim: row.claim + more, ..row });
        }
    }
}

/// All accounts' budgets and limits, claims left out: true from one instant on and before another.
#[derive(Debug)]
pub(super) struct Budgets {
    small_reserve: u32,
    from: Timestamp,
    before: Timestamp,
    rows: Vec<Row>,
}

impl Budgets {
    pub(super) fn hold_at(&self, t: Timestamp, small_reserve: u32) -> bool {
        small_reserve == self.small_reserve && self.from <= t && t < self.before
    }
}

impl Accounts {
    /// Of budgets that hold at `t`.
    pub(super) fn drawn_up(&self, budgets: &Budgets, t: Timestamp) -> Sheet {
        let mut sheet = Sheet { rows: budgets.rows.clone() };
        for account in self.limbs.iter().filter_map(|limb| self.get(limb.id)) {
            if let Some(row) = sheet.rows.get_mut(slot(account.id)) {
                row.claim = account.claim(t);
            }
        }
        sheet
    }

    pub(super) fn budgets(&self, t: Timestamp, small_reserve: u32) -> Budgets {
        let accounts = usize::try_from(self.next_id().0).unwrap_or(0);
        let mut rows = vec![Row::default(); accounts];
        // What each account has of its own, and with transfers, by its place: transfers are not for
        // its children.
        let mut own = vec![self.whole(); self.limbs.len()];
        let mut with_transfers = own.clone();
        for (place, limb) in self.limbs.iter().enumerate() {
            let (Some(base), Some(budget), Some(row)) = (
                own.get(place).copied(),
                with_transfers.get(place).copied(),
                rows.get_mut(slot(limb.id)),
            ) else {
                continue;
            };
            let limit = budget - budget.part(small_reserve.into(), WHOLE.into());
            let scaled = self.divide(&limb.children, base, t, (&mut own, &mut with_transfers));
            *row = Row { budget, limit, claim: Amount::ZERO, scaled };
        }
        let (from, before) = self.as_they_are(t);
        Budgets { small_reserve, from, before, rows }
    }

    /// From when until when budgets are what they are at `t`, if nobody edits them: while no transfer
    /// lapses and no gradual cut goes on.
    fn as_they_are(&self, t: Timestamp) -> (Timestamp, Timestamp) {
        let live = || self.limbs.iter().filter_map(|limb| self.get(limb.id));
        let cut = live().filter(|account| account.excess != Amount::ZERO);
        let cuts = cut.map(|account| account.since.plus(WINDOW));
        let lapses = live().flat_map(|one| &one.transfers).filter_map(|one| one.until);
        let (mut from, mut before) = (Timestamp::default(), Timestamp(u64::MAX));
        for lapse in lapses {
            if lapse <= t {
                from = from.max(lapse);
            } else {
                before = before.min(lapse);
            }
        }
        for through in cuts {
            from = from.max(through.min(t));
            if through > t {
                before = before.min(Timestamp(t.0.saturating_add(1)));
            }
        }
        (from, before)
    }

    /// Divides a parent's own budget among the children at some places: what each has of its own, and
    /// with transfers. Whether any was scaled down.
    fn divide(
        &self,
        places: &Range<usize>,
        base: Amount,
        t: Timestamp,
        (own, budgets): (&mut [Amount], &mut [Amount]),
    ) -> bool {
        let child = |place: usize| self.limbs.get(place).and_then(|limb| self.get(limb.id));
        let (Some(own), Some(budgets)) =
            (own.get_mut(places.clone()), budgets.get_mut(places.clone()))
        else {
            return false;
        };
        for (place, own) in places.clone().zip(own.iter_mut()) {
            *own = child(place).map_or(Amount::ZERO, |child| child.nominal(base, t));
        }
        let asks_more = scale(own, base);
        let mut moved = Amount::ZERO;
        for ((place, own), budget) in places.clone().zip(own.iter()).zip(budgets.iter_mut()) {
            let transferred = child(place).map_or(Amount::ZERO, |child| child.transferred(t));
            moved += transferred;
            *budget = (*own + transferred).at_least(Amount::ZERO);
        }
        let gave_more = scale(budgets, base + moved);
        asks_more || gave_more
    }
}

/// Scales amounts that sum above `whole` down to it, pro rata.
fn scale(amounts: &mut [Amount], whole: Amount) -> bool {
    let sum: Amount = amounts.iter().copied().sum();
    let whole = whole.at_least(Amount::ZERO);
    let scaled = sum > whole && sum > Amount::ZERO;
    if scaled {
        for amount in amounts {
            *amount = Amount(amount.0.saturating_mul(whole.0) / sum.0);
        }
    }
    scaled
}
