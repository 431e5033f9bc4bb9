//! The order in which waiting jobs are considered: from the root to the child with the smallest
//! ratio that has demand, at a leaf to the user with the smallest claim, within a user in the own
//! order. Nothing changes while nobody starts, so a subtree is exhausted before its sibling.

use std::collections::BTreeMap;

use tidegate_model::{JobId, Timestamp, UserId};

use crate::accounts::AccountId;
use crate::books::{Books, Job};
use crate::decide::money::{Money, compare_ratios};
use crate::index::{LeafQueue, Place, Waiting, Wish};
use crate::money::Amount;

/// Which time is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    Protected,
    Free,
}

impl Demand {
    fn queue(self, books: &Books) -> &Waiting {
        match self {
            Self::Protected => &books.index.protected,
            Self::Free => &books.index.free,
        }
    }
}

/// The leaves with demand, in the order they are considered.
pub(crate) fn leaves(money: &Money<'_>, demand: Demand) -> Vec<AccountId> {
    let queue = demand.queue(money.books);
    let limbs = money.books.accounts.limbs();
    // By place in the tree: whose job was submitted first, there or below; none without demand.
    let mut oldest: Vec<Option<(Timestamp, JobId)>> =
        limbs.iter().map(|limb| queue.leaves.get(&limb.id)?.submits.first().copied()).collect();
    for (place, limb) in limbs.iter().enumerate().rev() {
        let first = oldest.get(place).copied().flatten();
        if let (Some(first), Some(above)) = (first, oldest.get_mut(limb.parent)) {
            *above = Some(above.map_or(first, |known| known.min(first)));
        }
    }
    let ratio = |id: AccountId| match demand {
        Demand::Protected => {
            let row = money.sheet.row(id);
            (row.claim, row.budget)
        }
        Demand::Free => free_ratio(money, id),
    };
    let (mut ordered, mut stack) = (Vec::new(), vec![0_usize]);
    while let Some(place) = stack.pop() {
        let Some(limb) = limbs.get(place) else { continue };
        if queue.leaves.contains_key(&limb.id) {
            ordered.push(limb.id);
        }
        let below = limb.children.clone().filter_map(|child| {
            let first = oldest.get(child).copied().flatten()?;
            Some((ratio(limbs.get(child)?.id), first, child))
        });
        let mut below: Vec<_> = below.collect();
        below.sort_by(|a, b| compare_ratios(b.0, a.0).then_with(|| b.1.cmp(&a.1)));
        stack.extend(below.into_iter().map(|(_, _, child)| child));
    }
    ordered
}

/// `free_a / max(B_a, installed / 1000)`.
fn free_ratio(money: &Money<'_>, id: AccountId) -> (Amount, Amount) {
    let account = money.books.accounts.get(id);
    let free = account.map_or(Amount::ZERO, |account| account.free.value(money.now));
    let least = money.books.accounts.whole().part(1, 1000).max(Amount(1));
    (free, money.sheet.row(id).budget.max(least))
}

/// Whether to go on.
pub(crate) type Next = std::ops::ControlFlow<()>;

/// Shows the jobs of one leaf in order, until `visit` says that it is enough. Who inherits
/// protection stands first in its account, then the elders; the others are shown if `hopeful`.
pub(crate) fn jobs<'books>(
    money: &Money<'books>,
    demand: Demand,
    leaf: AccountId,
    hopeful: impl Fn(&Wish) -> bool,
    mut visit: impl FnMut(&'books Job) -> Next,
) -> Next {
    let books = money.books;
    let Some(waiting) = demand.queue(books).leaves.get(&leaf) else { return Next::Continue(()) };
    let by_id = |id: &JobId| books.jobs.get(id).map(AsRef::as_ref);
    let mut first: Vec<&'books Job> = Vec::new();
    if demand == Demand::Protected {
        first.extend(books.index.carried.get(&leaf).into_iter().flatten().filter_map(by_id));
        let elders = books.index.elders.get(&leaf).into_iter().flatten();
        first.extend(elders.filter_map(|(_, job)| by_id(job)));
    }
    for job in &first {
        visit(job)?;
    }
    for wishes in users(money, demand, leaf, waiting) {
        for ((_, _, id), _) in wishes.iter().filter(|(_, wish)| hopeful(wish)) {
            let Some(job) = by_id(id) else { continue };
            if first.iter().all(|seen| seen.id != job.id) {
                visit(job)?;
            }
        }
    }
    Next::Continue(())
}

/// The smallest claim first; among alike whose first job was submitted first.
fn users<'books>(
    money: &Money<'_>,
    demand: Demand,
    leaf: AccountId,
    waiting: &'books LeafQueue,
) -> Vec<&'books BTreeMap<Place, Wish>> {
    let had = |user: UserId| match demand {
        Demand::Protected => money.user_claim(leaf, user),
        Demand::Free => money.user_free(leaf, user),
    };
    let first = |wishes: &BTreeMap<Place, Wish>| {
        wishes.first_key_value().map(|((_, submitted, id), _)| (*submitted, *id))
    };
    let mut users: Vec<_> =
        waiting.users.iter().map(|(user, wishes)| (had(*user), first(wishes), wishes)).collect();
    users.sort_by_key(|(had, first, _)| (*had, *first));
    users.into_iter().map(|(_, _, wishes)| wishes).collect()
}
