//! How live attempts stand, each change at its exact instant: the end of a promise, an account at
//! its limit, returns, elders.

mod instants;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_model::{AttemptId, Span, Timestamp};

use crate::accounts::{Account, AccountId};
use crate::books::{Attempt, Books, Job};
use crate::decide::money::Money;
use crate::decision::{Decision, Standing};
use crate::money::{Amount, Rate};

/// The next change that is due at `now`, the earliest first.
pub(crate) fn next(books: &Books, now: Timestamp) -> Option<Decision> {
    let promise = books.index.promises.first().filter(|(until, _)| *until <= now);
    let elder = next_elder(books, now).filter(|(at, _)| *at <= now);
    match (promise, elder) {
        (Some((until, attempt)), _) => return promise_over(books, *until, *attempt),
        // Who is named is a choice, and choices are made now.
        (None, Some((_, job))) => return Some(Decision::ElderNamed { job, at: now }),
        (None, None) => {}
    }
    let marked = || books.accounts.live().any(|account| account.over_since.is_some());
    if books.index.funded.is_empty() && books.index.returning.is_empty() && !marked() {
        return None;
    }
    let money = Money::at(books, now);
    limit_crossed(&money).or_else(|| flip(&money)).or_else(|| turn_back(&money))
}

/// The next instant after `now` at which [`next`] may say something.
pub(crate) fn next_deadline(books: &Books, now: Timestamp) -> Option<Timestamp> {
    let promise = books.index.promises.iter().map(|(until, _)| *until).find(|at| *at > now);
    let elder = next_elder(books, now).map(|(at, _)| at).filter(|at| *at > now);
    let settle = books.accounts.live().filter_map(|account| settle_by(books, account, now));
    let nobody = books.index.funded.is_empty() && books.index.returning.is_empty();
    let limits = if nobody && !books.index.waiting.any_protected() {
        None
    } else {
        Some(instants::next_crossing(books, now))
    };
    [promise, elder, limits].into_iter().flatten().chain(settle).min()
}

/// Funded while every account on the path is below its limit, else Free.
fn promise_over(books: &Books, at: Timestamp, id: AttemptId) -> Option<Decision> {
    let (job, attempt) = (books.jobs.get(&id.job)?, books.attempt(id)?);
    let to = match attempt.standing {
        Standing::Protected => {
            let below = Money::at(books, at).below_limit(job.account, Amount::ZERO);
            if below { Standing::Funded } else { Standing::Free }
        }
        Standing::Funded => Standing::Funded,
        Standing::Free => Standing::Free,
    };
    Some(Decision::StandingChanged { attempt: id, at, to, promised_until: None })
}

/// Notes that an account with Funded work reached its limit, or is below it again.
fn limit_crossed(money: &Money<'_>) -> Option<Decision> {
    let (books, now) = (money.books, money.now);
    figures(money).find_map(|(id, claim, limit)| {
        let known = books.accounts.get(id)?.over_since.is_some();
        let above = claim >= limit && has_funded(books, id);
        (above != known).then_some(Decision::LimitCrossed { account: id, at: now, above })
    })
}

/// Every account's claim, with what a leaf's elder waits for, and its limit.
fn figures(money: &Money<'_>) -> impl Iterator<Item = (AccountId, Amount, Amount)> {
    money.books.accounts.limbs().iter().map(|limb| {
        let row = money.sheet.row(limb.id);
        let leaf = limb.children.is_empty();
        let hold = if leaf { money.elder_hold(limb.id) } else { Amount::ZERO };
        (limb.id, row.claim + hold, row.limit)
    })
}

fn is_below(books: &Books, leaf: AccountId, account: AccountId) -> bool {
    books.accounts.path(leaf).any(|above| above.id == account)
}

fn funded_below(books: &Books, account: AccountId) -> impl Iterator<Item = (&Job, &Attempt)> {
    let funded = books.index.funded.iter().rev();
    funded.filter_map(move |(_, id)| {
        let job = books.jobs.get(&id.job)?;
        is_below(books, job.account, account).then_some(())?;
        Some((job.as_ref(), job.attempt(id.number)?))
    })
}

fn has_funded(books: &Books, account: AccountId) -> bool {
    funded_below(books, account).next().is_some()
}

/// When an account over its limit is to be back at it: a whole number of settle spans after it
/// crossed, the next to come.
fn settle_by(books: &Books, account: &Account, now: Timestamp) -> Option<Timestamp> {
    let since = account.over_since?;
    let settle = books.policy.sharing.settle.0.max(1);
    let passed = now.since(since).0 / settle;
    Some(since.plus(Span(settle.saturating_mul(passed.saturating_add(1)))))
}

/// At its limit, the newest grant of an account turns Free first, and only as many as bring it
/// back within `settle` at the known rates. Leaves first, the root last.
fn flip(money: &Money<'_>) -> Option<Decision> {
    let (books, now) = (money.books, money.now);
    let mut over: Vec<_> =
        books.accounts.live().filter(|account| account.over_since.is_some()).collect();
    over.sort_by_key(|account| std::cmp::Reverse(books.accounts.path(account.id).count()));
    over.into_iter().find_map(|account| {
        let by = settle_by(books, account, now)?;
        let then = books.accounts.sheet(by, books.policy.sharing.small_reserve);
        let leaf = books.accounts.is_leaf(account.id);
        let hold = if leaf { money.elder_hold(account.id) } else { Amount::ZERO };
        let projected = projected(books, account, now, by) + hold;
        if projected <= then.row(account.id).limit {
            return None;
        }
        // Nobody older turns before it: if its return is still promised, all wait for that.
        let (_, newest) = funded_below(books, account.id).next()?;
        if newest.promised_until.is_some_and(|until| until > now) {
            return None;
        }
        let attempt = newest.id;
        let (to, promised_until) = (Standing::Free, None);
        Some(Decision::StandingChanged { attempt, at: now, to, promised_until })
    })
}

/// The claim at `by` if what is Funded stays so, nothing else begins, and the window slides.
fn projected(books: &Books, account: &Account, now: Timestamp, by: Timestamp) -> Amount {
    let still = Rate::default();
    let slides = account.charged.projected(now, still) - account.charged.projected(by, still);
    let inflow: Amount = funded_below(books, account.id)
        .map(|(_, attempt)| {
            let from = attempt.promised_until.map_or(now, |until| until.max(now));
            attempt.rate().over(by.since(from))
        })
        .sum();
    account.claim(now) + inflow - slides
}

/// A Free attempt that was protected returns with a promise of `return_span`, in the order of
/// submission; in a leaf nobody before an earlier one.
fn turn_back(money: &Money<'_>) -> Option<Decision> {
    let (books, now) = (money.books, money.now);
    let span = books.policy.sharing.return_span;
    first_returning(books).into_iter().find_map(|(job, attempt)| {
        let need = attempt.rate().over(span);
        let fits = money.below_limit(job.account, need) && !is_reserved(books, attempt);
        fits.then_some(Decision::StandingChanged {
            attempt: attempt.id,
            at: now,
            to: Standing::Funded,
            promised_until: Some(now.plus(span)),
        })
    })
}

/// Of each leaf the first that may return.
fn first_returning(books: &Books) -> Vec<(&Job, &Attempt)> {
    let mut seen = BTreeSet::new();
    let all = books.index.returning.iter().filter_map(|(_, id)| books.with_job(*id));
    all.filter(|(job, _)| seen.insert(job.account)).collect()
}

/// Whether a firm reservation has the attempt's nodes: nobody returns to Funded there.
fn is_reserved(books: &Books, attempt: &Attempt) -> bool {
    let reserved = books.index.reservations.iter().filter_map(|(_, job)| {
        let reservation = books.jobs.get(job)?.reservation.as_ref()?;
        Some(&reservation.nodes)
    });
    let nodes: BTreeSet<_> = reserved.flatten().map(|(node, _)| *node).collect();
    attempt.tasks.iter().any(|task| nodes.contains(&task.place.node))
}

/// The next elder of any leaf and its exact instant.
fn next_elder(books: &Books, now: Timestamp) -> Option<(Timestamp, tidegate_model::JobId)> {
    let sharing = &books.policy.sharing;
    let money = OnceCell::new();
    let due = |(leaf, waiting): (&AccountId, &Arc<BTreeSet<_>>)| {
        let named = books.accounts.get(*leaf)?.elder_named;
        let gap_over = named.map_or_else(Timestamp::default, |named| named.plus(sharing.elder_gap));
        let first: &(Timestamp, tidegate_model::JobId) = waiting.first()?;
        let earliest = first.0.plus(sharing.patience).max(gap_over);
        if earliest > now {
            return Some((earliest, first.1));
        }
        let money = money.get_or_init(|| Money::at(books, now));
        let mut eligible = waiting.iter().filter(|(_, id)| may_be_elder(money, *id));
        let (since, job) = eligible.next()?;
        Some((since.plus(sharing.patience).max(gap_over), *job))
    };
    books.index.ordinary.iter().filter_map(due).min()
}

/// Who asks more than half of its account's limit becomes an elder only by its manager's leave.
fn may_be_elder(money: &Money<'_>, id: tidegate_model::JobId) -> bool {
    let Some(job) = money.books.jobs.get(&id) else { return false };
    let ask = money.least_weight(job).rate(job.spec.gpus).over(job.spec.min_runtime);
    let half = money.sheet.row(job.account).limit.part(1, 2);
    // Its own array keeps it waiting, not the cluster.
    let held_back = money.books.array_full(job).is_some();
    !held_back && (job.elder_allowed || ask <= half)
}
