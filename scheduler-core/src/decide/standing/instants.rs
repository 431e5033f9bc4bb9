//! The instants at which time alone changes what may be said of an account: it reaches its limit or
//! falls below it, it has room for who may return, it can fund who waits.

use tidegate_model::Timestamp;

use super::{figures, first_returning};
use crate::accounts::AccountId;
use crate::books::{Attempt, Books, Job};
use crate::decide::money::Money;
use crate::money::Amount;

/// The next such instant. Looked for up to the next regular pass, which goes on with it; what
/// changes and changes back before that makes no difference to anybody.
pub(super) fn next_crossing(books: &Books, now: Timestamp) -> Timestamp {
    let sharing = &books.policy.sharing;
    let horizon = now.plus(sharing.pass_every);
    let money = Money::at(books, now);
    let refills = next_refills(&money);
    if refills.is_empty() && !near_a_limit(&money) {
        return horizon;
    }
    let says = |money: &Money<'_>| {
        let mut said: Vec<bool> = figures(money).map(|(_, claim, limit)| claim >= limit).collect();
        let fits = |(job, attempt): (&Job, &Attempt)| {
            money.below_limit(job.account, attempt.rate().over(sharing.return_span))
        };
        said.extend(first_returning(books).into_iter().map(fits));
        said.extend(refills.iter().map(|refill| refill.has_come(money)));
        said
    };
    let before = says(&money);
    // The end of a promise is an instant of its own.
    let promise = books.index.promises.iter().map(|(until, _)| *until).find(|at| *at > now);
    let horizon = promise.map_or(horizon, |at| at.min(horizon));
    let changed = |t: Timestamp| says(&Money::at(books, t)) != before;
    if changed(horizon) { first_change(now, horizon, changed) } else { horizon }
}

/// A leaf that may soon be able to fund a waiting job that it cannot fund now.
struct Refill {
    leaf: AccountId,
    small: bool,
    ask: Amount,
}

impl Refill {
    fn has_come(&self, money: &Money<'_>) -> bool {
        let (ordinary, small) = money.room(self.leaf);
        self.ask <= if self.small { small } else { ordinary }
    }
}

/// In each leaf the least that a waiting job asks beyond what there is, as far as it may be there
/// before the next regular pass.
fn next_refills(money: &Money<'_>) -> Vec<Refill> {
    let books = money.books;
    let reach = books.accounts.installed().over(books.policy.sharing.pass_every);
    let weight = money.least_weight_of_all();
    let mut refills = Vec::new();
    for (leaf, waiting) in &books.index.waiting.leaves {
        let (ordinary, small) = money.room(*leaf);
        for (small, room) in [(false, ordinary), (true, small)] {
            let least = u128::try_from(room.0).unwrap_or(0) / u128::from(weight.0.max(1));
            let least = u64::try_from(least).unwrap_or(u64::MAX);
            let mut asks = waiting.asks(small, least).map(|plain| weight.of(plain.into()));
            let ask = asks.find(|ask| *ask > room);
            if let Some(ask) = ask.filter(|ask| *ask - room <= reach) {
                refills.push(Refill { leaf: *leaf, small, ask });
            }
        }
    }
    refills
}

/// Whether any account could reach its limit, or a leaf have room for who may return, before the
/// next regular pass: nothing moves faster than all that is installed.
fn near_a_limit(money: &Money<'_>) -> bool {
    let (books, sharing) = (money.books, &money.books.policy.sharing);
    let reach = books.accounts.installed().over(sharing.pass_every);
    let near = |away: Amount| away.0.unsigned_abs() <= reach.0.unsigned_abs();
    let returning = |(job, attempt): (&Job, &Attempt)| {
        let need = attempt.rate().over(sharing.return_span);
        let hold = money.elder_hold(job.account);
        books.accounts.path(job.account).any(|one| {
            let row = money.sheet.row(one.id);
            let held = if one.id == job.account { hold } else { Amount::ZERO };
            near(row.claim + need + held - row.limit)
        })
    };
    figures(money).any(|(_, claim, limit)| near(claim - limit))
        || first_returning(books).into_iter().any(returning)
}

/// The first instant in `(from, to]` at which `changed` holds, if it holds from some instant on.
fn first_change(from: Timestamp, to: Timestamp, changed: impl Fn(Timestamp) -> bool) -> Timestamp {
    let (mut low, mut high) = (from.0, to.0);
    while low.saturating_add(1) < high {
        let middle = low.midpoint(high);
        if changed(Timestamp(middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Timestamp(high)
}
