//! The budget tree.

use super::{Applied, Stamp, ensure};
use crate::accounts::{Account, AccountId, Cut, Edit, MAX_EDITS_KEPT, ROOT, Role, Size, Transfer};
use crate::books::{ANSWER_KEPT, Books, BudgetAnswer, BudgetAsk};
use crate::decision::Decision;
use crate::money::Amount;
use tidegate_model::{AccountPath, Timestamp, UserId};

/// Lapsed transfers are forgotten with the next edit; more at a time are refused by `decide`.
pub(crate) const MAX_TRANSFERS: usize = 256;

impl Books {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    pub(super) fn evolve_account(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::AccountMade { account, parent, label, size, by } => {
                self.make_account(*account, *parent, label, *size)?;
                self.set_budget(
                    *account,
                    Edit { at: stamp.at, by: *by, size: *size, cut: Cut::Now },
                )
            }
            Decision::BudgetSet { account, size, cut, by } => {
                self.set_budget(*account, Edit { at: stamp.at, by: *by, size: *size, cut: *cut })
            }
            Decision::BudgetTransferred { from, to, amount, until, by, key } => {
                let (from, to, key) = (*from, *to, key.map(|key| (*by, key)));
                let given = Transfer { from, to, amount: *amount, until: *until, key };
                self.transfer(stamp.at, given)
            }
            Decision::BudgetAsked { account, size, reason, by } => {
                let ask = BudgetAsk { size: *size, reason: reason.clone(), at: stamp.at };
                self.asked.insert((*account, *by), ask);
                Ok(())
            }
            Decision::BudgetAnswered { account, asked_by, granted, by } => {
                let who = (*account, *asked_by);
                let ask = self.asked.remove(&who).ok_or("only what was asked is answered")?;
                let (size, granted, by, at) = (ask.size, *granted, *by, stamp.at);
                self.answered.retain(|_, answer| at.since(answer.at) < ANSWER_KEPT);
                self.answered.insert(who, BudgetAnswer { size, granted, by, at });
                Ok(())
            }
            Decision::AccountDeleted { account, by: _ } => {
                ensure(*account != ROOT, "the root stays")?;
                ensure(self.accounts.is_leaf(*account), "an account with children stays")?;
                self.delete_account(*account, stamp.at)
            }
            Decision::RoleSet { account, user, role, by: _ } => {
                self.set_role(*account, *user, *role)
            }
            Decision::LimitCrossed { account, at, above } => {
                let entry = self.accounts.note(*account).ok_or("no such account")?;
                entry.over_since = above.then_some(*at);
                Ok(())
            }
            _ => Err("not about an account"),
        }
    }

    fn account(&mut self, id: AccountId) -> Result<&mut Account, &'static str> {
        self.accounts.change(id).ok_or("no such account")
    }

    /// A new one of an old name goes on with what the old one spent.
    fn make_account(
        &mut self,
        id: AccountId,
        parent: AccountId,
        label: &str,
        size: Size,
    ) -> Applied {
        ensure(self.accounts.get(parent).is_some(), "an account has a parent")?;
        if let Some(old) = self.accounts.change(id) {
            ensure(old.deleted.is_some(), "an account's number is never reused")?;
            ensure(old.parent == Some(parent) && old.label == label, "it is the same account")?;
            old.deleted = None;
            old.transfers.clear();
            old.excess = Amount::ZERO;
            self.accounts.grow();
            return Ok(());
        }
        ensure(id == self.accounts.next_id(), "accounts are numbered in order")?;
        let made = self.accounts.insert(Account::made(id, Some(parent), label, size));
        ensure(made, "an account is made once")
    }

    fn set_budget(&mut self, id: AccountId, edit: Edit) -> Applied {
        let Edit { at, size, cut, by: _ } = edit;
        let parent = self.accounts.get(id).and_then(|account| account.parent);
        let base = match parent {
            Some(parent) => self.accounts.base(parent, at),
            None => self.accounts.whole(),
        };
        let entry = self.account(id)?;
        let before = entry.nominal(base, at);
        entry.size = size;
        entry.since = at;
        entry.excess = match cut {
            Cut::Gradual => (before - entry.stated(base)).at_least(Amount::ZERO),
            Cut::Now => Amount::ZERO,
        };
        entry.edits.push_back(edit);
        while entry.edits.len() > MAX_EDITS_KEPT {
            entry.edits.pop_front();
        }
        Ok(())
    }

    /// What it spent stays with its parent and waits for a new one of its name. What it gave returns to
    /// it and goes with it, what it was given returns to the givers; its people and what they asked
    /// for go as well.
    fn delete_account(&mut self, id: AccountId, at: Timestamp) -> Applied {
        let entry = self.account(id)?;
        entry.deleted = Some(at);
        entry.roles.clear();
        self.asked.retain(|(account, _), _| *account != id);
        self.answered.retain(|(account, _), _| *account != id);
        let is_of = |one: &Transfer| one.from == id || one.to == id;
        let party = |account: &&Account| account.transfers.iter().any(is_of);
        let parties: Vec<_> = self.accounts.all().filter(party).map(|account| account.id).collect();
        for party in parties {
            self.account(party)?.transfers.retain(|one| !is_of(one));
        }
        self.accounts.grow();
        Ok(())
    }

    /// Moves GPU-time at both accounts and at their ancestors up to the common one.
    fn transfer(&mut self, now: Timestamp, given: Transfer) -> Applied {
        let taken = Transfer { amount: Amount::ZERO - given.amount, ..given };
        let path = |id| self.accounts.path(id).map(|account| account.id).collect::<Vec<_>>();
        let (above_from, above_to) = (path(given.from), path(given.to));
        let alone = |own: &[AccountId], other: &[AccountId]| {
            own.iter().filter(|id| !other.contains(id)).copied().collect::<Vec<_>>()
        };
        let moved = alone(&above_from, &above_to).into_iter().map(|id| (id, taken));
        let moved: Vec<_> =
            moved.chain(alone(&above_to, &above_from).into_iter().map(|id| (id, given))).collect();
        for (id, transfer) in moved {
            let entry = self.account(id)?;
            entry.transfers.retain(|one| one.until.is_none_or(|until| now < until));
            ensure(entry.transfers.len() < MAX_TRANSFERS, "an account has few transfers")?;
            entry.transfers.push(transfer);
        }
        Ok(())
    }

    fn set_role(&mut self, account: AccountId, user: UserId, role: Option<Role>) -> Applied {
        let entry = self.account(account)?;
        match role {
            Some(role) => entry.roles.insert(user, role),
            None => entry.roles.remove(&user),
        };
        Ok(())
    }

    /// The account of a job whose snapshot knew of none.
    ///
    /// # Errors
    /// If it does not fit the tree.
    pub fn adopt_account(&mut self, path: &AccountPath) -> Result<AccountId, &'static str> {
        self.account_of(path)
    }

    /// The account of a path, made without a budget where it is missing: releases before budgets
    /// took any name.
    pub(super) fn account_of(&mut self, path: &AccountPath) -> Result<AccountId, &'static str> {
        if let Some(known) = self.accounts.find_any(path) {
            return Ok(known.id);
        }
        let mut parent = ROOT;
        for label in path.as_str().split('/') {
            let child = |one: &&Account| one.parent == Some(parent) && one.label == label;
            let known = self.accounts.all().find(child).map(|known| known.id);
            parent = match known {
                Some(known) => known,
                None => {
                    let id = self.accounts.next_id();
                    self.make_account(id, parent, label, Size::Share(0))?;
                    id
                }
            };
        }
        Ok(parent)
    }
}
