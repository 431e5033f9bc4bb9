//! Budgets, limits and claims of all accounts at one instant.

use tidegate_model::Timestamp;

use super::{AccountId, Accounts, WHOLE, slot};
use crate::money::Amount;

/// One account's figures at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Row {
    /// B.
    pub budget: Amount,
    /// L = B less the small reserve.
    pub limit: Amount,
    /// Charged and promised.
    pub claim: Amount,
    /// Whether its children ask for more than it has and are scaled down.
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

impl Accounts {
    pub(super) fn drawn_up(&self, t: Timestamp, small_reserve: u32) -> Sheet {
        let rows = usize::try_from(self.next_id().0).unwrap_or(0);
        let mut sheet = Sheet { rows: vec![Row::default(); rows] };
        // What each account has of its own, by its place: transfers are not for its children.
        let mut own = vec![Amount::ZERO; self.limbs.len()];
        own.iter_mut().take(1).for_each(|root| *root = self.whole());
        for (place, limb) in self.limbs.iter().enumerate() {
            let (Some(account), Some(base)) = (self.get(limb.id), own.get(place).copied()) else {
                continue;
            };
            let budget = (base + account.transferred(t)).at_least(Amount::ZERO);
            let limit = budget - budget.part(small_reserve.into(), WHOLE.into());
            let mut sum = Amount::ZERO;
            for child in limb.children.clone() {
                let account = self.limbs.get(child).and_then(|limb| self.get(limb.id));
                let size = account.map_or(Amount::ZERO, |account| account.nominal(base, t));
                own.get_mut(child).into_iter().for_each(|slot| *slot = size);
                sum += size;
            }
            let scaled = sum > base && sum > Amount::ZERO;
            if scaled {
                for slot in own.get_mut(limb.children.clone()).into_iter().flatten() {
                    *slot = Amount(slot.0.saturating_mul(base.0) / sum.0);
                }
            }
            sheet.set(limb.id, Row { budget, limit, claim: account.claim(t), scaled });
        }
        sheet
    }
}
