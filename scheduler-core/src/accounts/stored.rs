//! The tree as it was stored, put back whole.

use std::fmt;
use std::sync::Arc;

use super::{Account, AccountId, Accounts, ROOT};
use crate::money::Rate;

/// Why stored accounts are no tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoTree {
    /// The account that has no place.
    pub account: AccountId,
    /// Below which it is said to be.
    pub parent: Option<AccountId>,
    /// The number that was expected.
    pub expected: AccountId,
}

impl fmt::Display for NoTree {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account: AccountId(account), parent, expected: AccountId(expected) } = self;
        write!(out, "account {account} ")?;
        match parent {
            Some(AccountId(parent)) => write!(out, "below account {parent}")?,
            None => write!(out, "without a parent")?,
        }
        write!(out, " stands where account {expected} was expected, ")?;
        match expected {
            0 => write!(out, "the root"),
            expected => write!(out, "below one of account 0 to {}", expected.saturating_sub(1)),
        }
    }
}

impl std::error::Error for NoTree {}

impl Accounts {
    /// The tree of stored accounts, in the order of their numbers; of none, the one of a new cluster.
    /// What is installed follows from the nodes, where they are known.
    ///
    /// # Errors
    /// If they are no tree: a number out of turn, a first that is not the root, or a parent that was not
    /// there before its child. Nothing is set aside for a number that is only claimed.
    pub fn restored(
        accounts: impl IntoIterator<Item = Account>,
        installed: Rate,
    ) -> Result<Self, NoTree> {
        let mut by_id: Vec<Arc<Account>> = Vec::new();
        for account in accounts {
            let expected = AccountId(u32::try_from(by_id.len()).unwrap_or(u32::MAX));
            let has_place = match account.parent {
                None => expected == ROOT,
                Some(parent) => parent < expected,
            };
            if account.id != expected || !has_place {
                return Err(NoTree { account: account.id, parent: account.parent, expected });
            }
            by_id.push(Arc::new(account));
        }
        if by_id.is_empty() {
            return Ok(Self { installed, ..Self::default() });
        }
        let mut restored = Self { by_id, installed, ..Self::default() };
        restored.grow();
        Ok(restored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accounts::{Size, WHOLE};

    fn account(id: u32, parent: Option<u32>) -> Account {
        let label = if id == 0 { String::new() } else { format!("a{id}") };
        Account::made(AccountId(id), parent.map(AccountId), &label, Size::Share(WHOLE))
    }

    fn check(stored: &[(u32, Option<u32>)], expected: &str) {
        let stored = stored.iter().map(|(id, parent)| account(*id, *parent));
        let restored = Accounts::restored(stored, Rate::default());
        let paths = |tree: Accounts| tree.limbs().iter().map(|limb| tree.name(limb.id)).collect();
        let told = restored.map(|tree| {
            let paths: Vec<String> = paths(tree);
            paths.join(" ")
        });
        assert_eq!(told.unwrap_or_else(|error| error.to_string()), expected);
    }

    #[test]
    fn accounts_come_back_as_the_tree_they_were_or_are_refused_by_name() {
        check(&[], "root");
        check(&[(0, None)], "root");
        check(&[(0, None), (1, Some(0)), (2, Some(1)), (3, Some(0))], "root a1 a3 a1/a2");
        let below = |last| format!("was expected, below one of account 0 to {last}");
        // What is claimed of a number takes no room: this one would be 32 GiB of accounts.
        check(
            &[(0, None), (u32::MAX, Some(0))],
            &format!("account 4294967295 below account 0 stands where account 1 {}", below(0)),
        );
        check(
            &[(0, None), (2, Some(0))],
            &format!("account 2 below account 0 stands where account 1 {}", below(0)),
        );
        check(
            &[(0, None), (1, Some(0)), (1, Some(0))],
            &format!("account 1 below account 0 stands where account 2 {}", below(1)),
        );
        check(
            &[(0, None), (1, Some(1))],
            &format!("account 1 below account 1 stands where account 1 {}", below(0)),
        );
        check(
            &[(0, None), (1, None)],
            &format!("account 1 without a parent stands where account 1 {}", below(0)),
        );
        check(
            &[(1, Some(0))],
            "account 1 below account 0 stands where account 0 was expected, the root",
        );
    }
}
