//! The order in which waiting jobs are considered: from the root to the child with the smallest
//! ratio that has demand, at a leaf to the user with the smallest claim, within a user in the own
//! order. Nothing changes while nobody starts, so a subtree is exhausted before its sibling.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_model::{JobId, Span, UserId};

use crate::accounts::AccountId;
use crate::books::Job;
use crate::decide::money::{Money, compare_ratios};
use crate::index::{LeafQueue, Place, UserQueue, WaitsFor, Wanted, Wishes};
use crate::money::Amount;

/// Which time is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    Protected,
    Free,
}

impl Demand {
    fn is_met_by(self, waits: WaitsFor) -> bool {
        match self {
            Self::Protected => waits.is_for_protected(),
            Self::Free => waits.is_for_free(),
        }
    }

    /// Whether any job of a leaf waits for it.
    fn is_in(self, leaf: &LeafQueue) -> bool {
        let count = match self {
            Self::Protected => leaf.protected,
            Self::Free => leaf.free,
        };
        count > 0
    }
}

/// The leaves with demand, in the order they are considered.
pub(crate) fn leaves(money: &Money<'_>, demand: Demand) -> Vec<AccountId> {
    let accounts = &money.books.accounts;
    let limbs = accounts.limbs();
    // By place in the tree: whether it is a leaf with demand, and whose job was submitted first, there
    // or below; none without demand.
    let mut has = vec![false; limbs.len()];
    let mut oldest: Vec<Option<JobId>> = vec![None; limbs.len()];
    for (leaf, queue) in &money.books.index.waiting.leaves {
        let place = accounts.place(*leaf).filter(|_| demand.is_in(queue));
        let known = place.and_then(|place| has.get_mut(place).zip(oldest.get_mut(place)));
        known.into_iter().for_each(|known| (*known.0, *known.1) = (true, queue.oldest));
    }
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
    let (mut ordered, mut stack, mut below) = (Vec::new(), vec![0_usize], Vec::new());
    while let Some(place) = stack.pop() {
        let Some(limb) = limbs.get(place) else { continue };
        if has.get(place) == Some(&true) {
            ordered.push(limb.id);
        }
        below.extend(limb.children.clone().filter_map(|child| {
            let first = oldest.get(child).copied().flatten()?;
            Some((ratio(limbs.get(child)?.id), first, child))
        }));
        below.sort_unstable_by(|a, b| compare_ratios(b.0, a.0).then_with(|| b.1.cmp(&a.1)));
        stack.extend(below.drain(..).map(|(_, _, child)| child));
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

/// Which waiting jobs are worth a closer look. What is shut once stays so while a leaf is walked.
pub(crate) trait Sieve {
    /// Whether a job passes that is before all others of its account.
    fn passes_first(&self, _: &Job) -> bool {
        true
    }
    /// Whether any job of anybody that wants this may pass.
    fn opens(&self, wanted: &Wanted) -> bool;
    /// Whether any job of the user that wants this may pass.
    fn opens_to(&self, user: UserId, wanted: &Wanted) -> bool;
    /// Whether the job at that place, to be protected for so long, passes.
    fn passes(&self, user: UserId, cell: &Wanted, place: Place, protect: Span) -> bool;
}

/// Everybody passes.
pub(crate) struct All;

impl Sieve for All {
    fn opens(&self, _: &Wanted) -> bool {
        true
    }

    fn opens_to(&self, _: UserId, _: &Wanted) -> bool {
        true
    }

    fn passes(&self, _: UserId, _: &Wanted, _: Place, _: Span) -> bool {
        true
    }
}

/// Shows the jobs of one leaf in order, until `visit` says that it is enough. Who inherits
/// protection stands first in its account, then the elders; the others are shown if they pass.
pub(crate) fn jobs<'books>(
    money: &Money<'books>,
    demand: Demand,
    leaf: AccountId,
    sieve: &impl Sieve,
    mut visit: impl FnMut(&'books Job) -> Next,
) -> Next {
    let books = money.books;
    let waiting = books.index.waiting.leaves.get(&leaf).filter(|queue| demand.is_in(queue));
    let Some(waiting) = waiting else { return Next::Continue(()) };
    let by_id = |id: &JobId| books.jobs.get(id).map(AsRef::as_ref);
    let mut first: Vec<&'books Job> = Vec::new();
    if demand == Demand::Protected {
        first.extend(
            books.index.carried.get(&leaf).into_iter().flat_map(|ids| ids.iter()).filter_map(by_id),
        );
        let elders = books.index.elders.get(&leaf).into_iter().flat_map(|ids| ids.iter());
        first.extend(elders.filter_map(|(_, job)| by_id(job)));
    }
    for job in first.iter().filter(|job| sieve.passes_first(job)) {
        visit(job)?;
    }
    let met = waiting.cells.keys().filter(|wanted| demand.is_met_by(wanted.waits));
    let open: Vec<_> = met.filter(|wanted| sieve.opens(wanted)).collect();
    if open.is_empty() {
        return Next::Continue(());
    }
    for (user, queue) in users(money, demand, leaf, waiting) {
        for id in Own::of(user, queue, &open, sieve) {
            let Some(job) = by_id(&id) else { continue };
            if first.iter().all(|seen| seen.id != job.id) {
                visit(job)?;
            }
        }
    }
    Next::Continue(())
}

/// The smallest claim first; among alike whose job was submitted first.
fn users<'books>(
    money: &Money<'_>,
    demand: Demand,
    leaf: AccountId,
    waiting: &'books LeafQueue,
) -> Vec<(UserId, &'books UserQueue)> {
    let had = |user: UserId| match demand {
        Demand::Protected => money.user_claim(leaf, user),
        Demand::Free => money.user_free(leaf, user),
    };
    let mut users: Vec<_> = waiting
        .users
        .iter()
        .map(|(user, queue)| ((had(*user), queue.oldest()), (*user, queue.as_ref())))
        .collect();
    users.sort_by_key(|(key, _)| *key);
    users.into_iter().map(|(_, user)| user).collect()
}

/// The jobs of one user that pass, in the user's own order: cells merged by place.
struct Own<'books, 'sieve, S> {
    user: UserId,
    sieve: &'sieve S,
    cells: Vec<(Wanted, Wishes<'books>)>,
    /// The next of each cell that is open: its place, which cell, its protection.
    heads: BinaryHeap<Reverse<(Place, usize, Span)>>,
}

impl<'books, 'sieve, S: Sieve> Own<'books, 'sieve, S> {
    fn of(user: UserId, queue: &'books UserQueue, open: &[&Wanted], sieve: &'sieve S) -> Self {
        let open = open.iter().copied().filter(|wanted| sieve.opens_to(user, wanted));
        let range = |cell: &Wanted| (*cell, queue.that_want(*cell));
        let cells = open.map(range).collect();
        let mut own = Self { user, sieve, cells, heads: BinaryHeap::new() };
        (0..own.cells.len()).for_each(|cell| own.advance(cell));
        own
    }

    /// Finds the next of a cell that passes.
    fn advance(&mut self, cell: usize) {
        let (user, sieve) = (self.user, self.sieve);
        let Some((key, rest)) = self.cells.get_mut(cell) else { return };
        let next = rest.find(|(wish, protect)| sieve.passes(user, key, wish.place(), **protect));
        if let Some((wish, protect)) = next {
            self.heads.push(Reverse((wish.place(), cell, *protect)));
        }
    }
}

impl<S: Sieve> Iterator for Own<'_, '_, S> {
    type Item = JobId;

    fn next(&mut self) -> Option<JobId> {
        while let Some(Reverse((place, cell, protect))) = self.heads.pop() {
            let key = self.cells.get(cell)?.0;
            // What was found since the cell was looked at may have shut it.
            if !self.sieve.opens_to(self.user, &key) {
                continue;
            }
            let passes = self.sieve.passes(self.user, &key, place, protect);
            self.advance(cell);
            if passes {
                return Some(place.1);
            }
        }
        None
    }
}
