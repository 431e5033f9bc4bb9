//! Whether a budget can hold: children within their parent, and what was given away within what is
//! one's own.

use super::{Desk, cannot};
use crate::accounts::{Account, AccountId, Size, WHOLE};
use crate::decision::Refusal;
use crate::money::Amount;
use crate::policy::percent;

impl Desk<'_> {
    /// Children may not sum above the parent.
    pub(super) fn holds(
        &self,
        parent: AccountId,
        one: Option<AccountId>,
        size: Size,
    ) -> Result<(), Refusal> {
        let accounts = &self.books.accounts;
        let base = accounts.base(parent, self.now);
        let others = accounts.children(parent).filter(|child| Some(child.id) != one);
        let others: Amount = others.map(|child| child.nominal(base, self.now)).sum();
        let wanted = size.of(base);
        // A cut is always accepted, also where a removal of nodes left the children above.
        let lower = one
            .and_then(|id| accounts.get(id))
            .is_some_and(|account| wanted <= account.nominal(base, self.now));
        let name = accounts.name(parent);
        // Shares are compared as such: GPU-time says nothing before nodes have come.
        let share = |size: Size| match size {
            Size::Share(share) => share,
            Size::Fixed(_) => 0,
        };
        let siblings = accounts.children(parent).filter(|child| Some(child.id) != one);
        let shared = siblings.map(|child| share(child.size)).fold(0, u32::saturating_add);
        if !lower && shared.saturating_add(share(size)) > WHOLE {
            return Err(cannot(format!(
                "children may not sum above their parent: {} asked, and the other children of \
                 {name} have {}; up to {} is accepted",
                percent(share(size)),
                percent(shared),
                percent(WHOLE.saturating_sub(shared))
            )));
        }
        if lower || others + wanted <= base {
            return Ok(());
        }
        let left = (base - others).at_least(Amount::ZERO);
        Err(cannot(format!(
            "children may not sum above their parent: {wanted} GPU-hours a window asked, and the \
             other children of {name} have {others} of its {base}; up to {left} GPU-hours ({}) are \
             accepted",
            share_of(left, base)
        )))
    }

    /// A parent's own budget may not fall below what its children are given in GPU-hours.
    pub(super) fn holds_children(&self, account: &Account, size: Size) -> Result<(), Refusal> {
        let accounts = &self.books.accounts;
        let above =
            account.parent.map_or_else(|| accounts.whole(), |up| accounts.base(up, self.now));
        let wanted = size.of(above);
        let children: Amount =
            accounts.children(account.id).map(|child| child.stated(wanted)).sum();
        if children <= wanted {
            return Ok(());
        }
        let name = accounts.name(account.id);
        Err(cannot(format!(
            "children may not sum above their parent: those of {name} would have {children} \
             GPU-hours of its {wanted}; cut them first, or give at least {children}"
        )))
    }

    /// What was given away was one's own, and so it stays until it returns: else GPU-hours would be
    /// at two accounts.
    pub(super) fn holds_given(&self, account: &Account, size: Size) -> Result<(), Refusal> {
        let accounts = &self.books.accounts;
        let above = account.parent.map_or_else(|| accounts.whole(), |up| accounts.stated(up));
        let wanted = size.of(above);
        if wanted >= account.stated(above) {
            return Ok(());
        }
        let mut below = vec![(account, wanted)];
        while let Some((one, own)) = below.pop() {
            let given = one.given(self.now);
            if own < given {
                let name = accounts.name(one.id);
                return Err(cannot(format!(
                    "{name} would have {own} GPU-hours a window of its own, and has given away \
                     {given}; at least that is accepted while \
                     these transfers last"
                )));
            }
            below.extend(accounts.children(one.id).map(|child| (child, child.stated(own))));
        }
        Ok(())
    }
}

fn share_of(amount: Amount, whole: Amount) -> String {
    let share = amount.0.saturating_mul(i128::from(WHOLE)).checked_div(whole.0).unwrap_or(0);
    percent(u32::try_from(share).unwrap_or(0))
}
