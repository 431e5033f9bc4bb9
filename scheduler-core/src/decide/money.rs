//! Who can be funded, who comes first, who may displace whom. All comparisons of ratios are
//! cross-multiplied.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_model::{Span, Timestamp, UserId};

use crate::accounts::{AccountId, Sheet, WHOLE};
use crate::books::{Attempt, Books, Job};
use crate::decision::{Grounds, Right, Standing};
use crate::money::{Amount, Weight};

/// Money at one instant: the books, and every account's figures then.
#[derive(Clone)]
pub(crate) struct Money<'books> {
    pub(crate) books: &'books Books,
    pub(crate) now: Timestamp,
    pub(crate) sheet: Arc<Sheet>,
    /// Claims that this pass has added, of all jobs and of small ones, by account and user.
    more: Rc<BTreeMap<(AccountId, UserId), (Amount, Amount)>>,
}

/// What a start of a job pledges, and who is charged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant<'books> {
    pub(crate) job: &'books Job,
    pub(crate) leaf: AccountId,
    pub(crate) user: UserId,
    /// How long it is to be protected.
    pub(crate) protect: Span,
    /// GPUs times that span, weighted; zero if its promise is held already.
    pub(crate) ask: Amount,
    pub(crate) small: bool,
    /// Whether the promise is held already: inherited, or by a firm reservation.
    pub(crate) held: bool,
}

/// Account, user, own order, and whether it is small.
pub(crate) type Victim = (AccountId, UserId, i32, bool);

/// Which account lacks how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) account: AccountId,
    pub(crate) by: Amount,
}

impl<'books> Money<'books> {
    pub(crate) fn at(books: &'books Books, now: Timestamp) -> Self {
        let sheet = books.accounts.sheet(now, books.policy.sharing.small_reserve);
        Self { books, now, sheet, more: Rc::default() }
    }

    /// The claim that a protected start of the job makes.
    pub(crate) fn claimant(&self, job: &'books Job, weight: Weight) -> Claimant<'books> {
        let sharing = &self.books.policy.sharing;
        let held = job.carried.is_some() || job.reservation.is_some();
        let protect = job.carried.unwrap_or(job.spec.min_runtime);
        let ask = if held { Amount::ZERO } else { weight.rate(job.spec.gpus).over(protect) };
        let small = job.carried.is_none() && sharing.is_small(job.spec.gpus, protect);
        Claimant { job, leaf: job.account, user: job.user, protect, ask, small, held }
    }

    /// What the leaf's first elder that waits for budget will pledge: it counts in its own leaf.
    pub(crate) fn elder_hold(&self, leaf: AccountId) -> Amount {
        let elder = self.waiting_elder(leaf);
        elder.map_or(Amount::ZERO, |job| {
            self.least_weight(job).rate(job.spec.gpus).over(job.spec.min_runtime)
        })
    }

    /// The leaf's longest-standing elder whose budget is not held yet, and whose array lets it start.
    pub(crate) fn waiting_elder(&self, leaf: AccountId) -> Option<&'books Job> {
        let elders = self.books.index.elders.get(&leaf)?;
        let jobs = elders.iter().filter_map(|(_, job)| self.books.jobs.get(job));
        let waits = |job: &&Job| job.reservation.is_none() && self.books.array_full(job).is_none();
        jobs.map(AsRef::as_ref).find(waits)
    }

    /// The weight of the cheapest kind of GPU that could serve the job.
    pub(crate) fn least_weight(&self, job: &Job) -> Weight {
        let sharing = &self.books.policy.sharing;
        if let Some(name) = &job.spec.gpu_type {
            let kind = sharing.kind_named(name).unwrap_or_default();
            return sharing.weight(kind);
        }
        self.least_weight_of_all()
    }

    /// The weight of the cheapest kind of GPU.
    pub(crate) fn least_weight_of_all(&self) -> Weight {
        let rules = self.books.policy.sharing.gpu_types.iter().map(|rule| rule.weight);
        rules.min().unwrap_or(Weight::REFERENCE)
    }

    /// The funding test (2-scheduling, "Money").
    pub(crate) fn funding(&self, claimant: &Claimant<'_>) -> Result<(), Short> {
        if claimant.held {
            return Ok(());
        }
        if !claimant.small {
            let elder = self.waiting_elder(claimant.leaf);
            if let Some(elder) = elder.filter(|elder| elder.id != claimant.job.id) {
                let by = self.least_weight(elder).rate(elder.spec.gpus);
                return Err(Short { account: claimant.leaf, by: by.over(elder.spec.min_runtime) });
            }
        }
        let reserve = claimant.small && self.small_use_allows(claimant);
        for account in self.books.accounts.path(claimant.leaf) {
            let row = self.sheet.row(account.id);
            let most = if reserve { row.budget } else { row.limit };
            let claim = row.claim + claimant.ask;
            if claim > most {
                return Err(Short { account: account.id, by: claim - most });
            }
        }
        Ok(())
    }

    /// Whether the user has not yet drawn more of the small reserve than one user may.
    fn small_use_allows(&self, claimant: &Claimant<'_>) -> bool {
        let row = self.sheet.row(claimant.leaf);
        let half = (row.budget - row.limit).part(1, 2);
        let most = half.max(self.books.policy.sharing.small_floor);
        let purse = self.purse_small_use(claimant.leaf, claimant.user);
        purse + claimant.ask <= most
    }

    fn purse_small_use(&self, leaf: AccountId, user: UserId) -> Amount {
        let account = self.books.accounts.get(leaf);
        let purse = account.and_then(|account| account.purses.get(&user));
        let more = self.more.get(&(leaf, user)).map_or(Amount::ZERO, |(_, small)| *small);
        purse.map_or(Amount::ZERO, |purse| purse.small_use(self.now)) + more
    }

    /// Charged and promised to the user in the account.
    pub(crate) fn user_claim(&self, leaf: AccountId, user: UserId) -> Amount {
        let account = self.books.accounts.get(leaf);
        let purse = account.and_then(|account| account.purses.get(&user));
        let more = self.more.get(&(leaf, user)).map_or(Amount::ZERO, |(all, _)| *all);
        purse.map_or(Amount::ZERO, |purse| purse.claim(self.now)) + more
    }

    /// Counts a start that this pass has decided.
    pub(crate) fn claim_more(
        &mut self,
        (leaf, user): (AccountId, UserId),
        ask: Amount,
        small: bool,
    ) {
        Arc::make_mut(&mut self.sheet).claim_more(self.books.accounts.way(leaf), ask);
        let more = Rc::make_mut(&mut self.more).entry((leaf, user)).or_default();
        more.0 += ask;
        if small {
            more.1 += ask;
        }
    }

    /// What the user has had free in the account.
    pub(crate) fn user_free(&self, leaf: AccountId, user: UserId) -> Amount {
        let account = self.books.accounts.get(leaf);
        let purse = account.and_then(|account| account.purses.get(&user));
        purse.map_or(Amount::ZERO, |purse| purse.free.value(self.now))
    }

    /// Whether every account on the path is below its limit; in the leaf with what its elder waits
    /// for, and everywhere with `more`.
    pub(crate) fn below_limit(&self, leaf: AccountId, more: Amount) -> bool {
        let hold = self.elder_hold(leaf);
        self.books.accounts.path(leaf).all(|account| {
            let row = self.sheet.row(account.id);
            let held = if account.id == leaf { hold } else { Amount::ZERO };
            let claim = row.claim + held + more;
            if more > Amount::ZERO { claim <= row.limit } else { claim < row.limit }
        })
    }

    /// By which right the claimant may displace an attempt of `victim` that stands so, if by any.
    /// `lapses`: promises that count in the victim's claim and lapse when it, and whoever leaves
    /// with it, leaves; else it could come back by the very right by which it was displaced.
    pub(crate) fn right(
        &self,
        claimant: &Claimant<'_>,
        victim: &Job,
        standing: Standing,
        lapses: Amount,
    ) -> Option<Grounds> {
        let whole = |rule| Some(Grounds::plain(rule));
        // Else two small jobs of one user would displace each other in turn.
        let same_user = (victim.account, victim.user) == (claimant.leaf, claimant.user);
        let (_, _, _, victim_small) = as_victim(self.books, victim);
        match standing {
            Standing::Protected => None,
            Standing::Free => whole(Right::Free),
            Standing::Funded if claimant.small && !(same_user && victim_small) => {
                whole(Right::Small)
            }
            Standing::Funded if victim.account != claimant.leaf => {
                self.by_ratio(claimant, victim, lapses)
            }
            Standing::Funded if victim.user != claimant.user => {
                self.by_claim(claimant, victim, lapses)
            }
            Standing::Funded => {
                let first = claimant.job.spec.own_order < victim.spec.own_order;
                first.then(|| whole(Right::OwnOrder)).flatten()
            }
        }
    }

    /// What of a victim's promise lapses when it leaves.
    pub(crate) fn lapse(&self, attempt: &Attempt) -> Amount {
        let until = attempt.promised_until.filter(|_| attempt.standing == Standing::Funded);
        until.map_or(Amount::ZERO, |until| attempt.rate().over(until.since(self.now)))
    }

    /// Where the claim of a victim is compared: the child of the lowest common ancestor on its side,
    /// and within one account its user.
    pub(crate) fn compared(
        &self,
        claimant: &Claimant<'_>,
        victim: &Job,
    ) -> (AccountId, Option<UserId>) {
        match self.below_common(claimant.leaf, victim.account) {
            Some((_, theirs)) => (theirs, None),
            None => (victim.account, Some(victim.user)),
        }
    }

    /// Between accounts: (claim + ask) / B + slack <= claim / B, for the children of the lowest
    /// common ancestor.
    fn by_ratio(&self, claimant: &Claimant<'_>, victim: &Job, lapses: Amount) -> Option<Grounds> {
        let (mine, theirs) = self.below_common(claimant.leaf, victim.account)?;
        let (mine, theirs) = (self.sheet.row(mine), self.sheet.row(theirs));
        let (asked, had) = (mine.claim + claimant.ask, theirs.claim - lapses);
        let slack = mine.budget.part(self.books.policy.sharing.slack.into(), WHOLE.into());
        let left = (asked + slack).0.saturating_mul(theirs.budget.0);
        let right = had.0.saturating_mul(mine.budget.0);
        let entitled = mine.budget > Amount::ZERO && left <= right;
        let (claimant, victim) = ((asked, mine.budget), (had, theirs.budget));
        entitled.then_some(Grounds { rule: Right::Ratio, claimant, victim })
    }

    /// The most that a start in `leaf` may claim to displace Funded work of another leaf.
    pub(crate) fn most_by_ratio(&self, leaf: AccountId, other: AccountId) -> Option<Amount> {
        let (mine, theirs) = self.below_common(leaf, other)?;
        let (mine, theirs) = (self.sheet.row(mine), self.sheet.row(theirs));
        if mine.budget <= Amount::ZERO {
            return None;
        }
        let slack = mine.budget.part(self.books.policy.sharing.slack.into(), WHOLE.into());
        let right = theirs.claim.0.saturating_mul(mine.budget.0);
        let asked = right.checked_div_euclid(theirs.budget.0).unwrap_or(i128::MAX);
        Some(Amount(asked.saturating_sub((mine.claim + slack).0)))
    }

    /// Within one account: claim + ask + 1 % of B <= claim, of the users.
    fn by_claim(&self, claimant: &Claimant<'_>, victim: &Job, lapses: Amount) -> Option<Grounds> {
        let leaf = claimant.leaf;
        let budget = self.sheet.row(leaf).budget;
        let slack = budget.part(self.books.policy.sharing.slack.into(), WHOLE.into());
        let asked = self.user_claim(leaf, claimant.user) + claimant.ask;
        let theirs = self.user_claim(leaf, victim.user) - lapses;
        let (claimant, victim) = ((asked, budget), (theirs, budget));
        let entitled = asked + slack <= theirs;
        entitled.then_some(Grounds { rule: Right::SmallerClaim, claimant, victim })
    }

    /// The children of the lowest common ancestor on the two sides.
    pub(crate) fn below_common(
        &self,
        one: AccountId,
        other: AccountId,
    ) -> Option<(AccountId, AccountId)> {
        let way = |to| self.books.accounts.way(to).iter();
        let mut pairs = way(one).zip(way(other));
        pairs.find(|(mine, theirs)| mine != theirs).map(|(mine, theirs)| (*mine, *theirs))
    }

    /// What an ordinary and a small start may still claim in a leaf, at most.
    pub(crate) fn room(&self, leaf: AccountId) -> (Amount, Amount) {
        let rows = self.books.accounts.way(leaf).iter().map(|id| self.sheet.row(*id));
        rows.fold((Amount(i128::MAX), Amount(i128::MAX)), |(ordinary, small), row| {
            (ordinary.min(row.limit - row.claim), small.min(row.budget - row.claim))
        })
    }
}

/// All of a victim that a right depends on, its standing aside.
pub(crate) fn as_victim(books: &Books, job: &Job) -> Victim {
    let small = books.policy.sharing.is_small(job.spec.gpus, job.spec.min_runtime);
    (job.account, job.user, job.spec.own_order, small)
}

/// Compares `a.0 / a.1` with `b.0 / b.1`; who has no budget comes after all others.
pub(crate) fn compare_ratios(a: (Amount, Amount), b: (Amount, Amount)) -> Ordering {
    match (a.1 > Amount::ZERO, b.1 > Amount::ZERO) {
        (true, true) => {
            let left = a.0.0.saturating_mul(b.1.0);
            left.cmp(&b.0.0.saturating_mul(a.1.0))
        }
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => Ordering::Equal,
    }
}
