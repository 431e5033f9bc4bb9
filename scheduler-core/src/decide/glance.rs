//! What tells at a glance that a waiting job cannot start, so that a pass looks closer at few of
//! thousands. It errs on the side of looking closer.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tidegate_model::{GpuCount, Span, Timestamp, UserId};

use crate::accounts::AccountId;
use crate::books::{Books, Job};
use crate::decide::money::{Claimant, Money};
use crate::decide::spots::Spot;
use crate::decide::walk::Sieve;
use crate::index::{LeafQueue, Place, Wanted};
use crate::money::{Amount, Weight};
use crate::policy::part_of;

/// What jobs ask of the nodes: GPUs, and those on each node if they name them.
pub(crate) type Asked = (GpuCount, Option<GpuCount>);

/// The nodes of one pass in a few numbers.
#[derive(Debug, Clone)]
pub(crate) struct Nodes {
    /// Nodes with at least so many idle GPUs: the first entry of one GPU, the second of two.
    pub(crate) idle: Vec<u32>,
    /// Idle GPUs that free work may take, of all kinds together.
    pub(crate) beyond_headroom: u32,
    /// Likewise of GPUs that are idle, coming, or not protected.
    pub(crate) most: Vec<u32>,
    /// Likewise of GPUs that are idle, coming, or in the hands of free work.
    pub(crate) without_funded: Vec<u32>,
    /// The size of all nodes, if they are alike.
    alike: Option<u32>,
    /// Whether some nodes run the tasks of one user only.
    pub(crate) picky: bool,
    /// Ordinary protected work starts while protected work holds at most this many GPUs with it.
    cap: u64,
    /// Gangs of more GPUs are exempt.
    large: u64,
    held: u64,
}

impl Nodes {
    /// `newly_protected`: GPUs that the pass has given to protected work.
    pub(crate) fn of(books: &Books, spots: &[Spot<'_>], newly_protected: u64) -> Self {
        let sharing = &books.policy.sharing;
        let installed = books.installed_gpus();
        let mut sizes = books.index.makes.keys().map(|make| make.size).filter(|size| *size > 0);
        let first = sizes.next();
        let idle = spots.iter().map(|spot| spot.idle);
        let (all, sum) = spots.iter().fold((0_u64, 0_u32), |(all, sum), spot| {
            (all.saturating_add(spot.node.size().0.into()), sum.saturating_add(spot.idle))
        });
        // Each kind keeps its own, rounded down: together they keep no more than this.
        let kinds = u64::try_from(sharing.gpu_types.len()).unwrap_or(0);
        let kept = part_of(all, sharing.headroom);
        let kept = u32::try_from(kept.saturating_sub(kinds)).unwrap_or(0);
        Self {
            idle: at_least(idle),
            beyond_headroom: sum.saturating_sub(kept),
            most: at_least(spots.iter().map(Spot::most)),
            without_funded: at_least(spots.iter().map(Spot::without_funded)),
            alike: first.filter(|first| sizes.all(|size| size == *first)),
            picky: spots.iter().any(|spot| spot.node.facts.only_user.is_some()),
            cap: part_of(installed, sharing.protected_cap),
            large: part_of(installed, sharing.large_gang),
            held: books.index.protected_gpus.saturating_add(newly_protected),
        }
    }

    pub(crate) fn within_cap(&self, gpus: GpuCount) -> bool {
        let gpus = u64::from(gpus.0);
        gpus > self.large || self.held.saturating_add(gpus) <= self.cap
    }

    /// Whether nodes with that much could take the job, as far as numbers tell.
    pub(crate) fn fits(&self, nodes: &[u32], (gpus, per_node): Asked) -> bool {
        let with = |gpus: u32| {
            let index = usize::try_from(gpus.saturating_sub(1)).unwrap_or(usize::MAX);
            nodes.get(index).copied().unwrap_or(0)
        };
        let gpus = gpus.0;
        match (per_node, self.alike) {
            (Some(per_node), _) => with(per_node.0) >= gpus.checked_div(per_node.0).unwrap_or(0),
            (None, Some(size)) if gpus > size => with(size) >= gpus.div_ceil(size),
            (None, Some(_)) => with(gpus) > 0,
            (None, None) => !nodes.is_empty(),
        }
    }
}

/// How many nodes have at least 1, 2, 3 ... of what each has.
fn at_least(each: impl Iterator<Item = u32>) -> Vec<u32> {
    // First how many have just so much.
    let mut counts: Vec<u32> = Vec::new();
    for have in each.filter_map(|have| usize::try_from(have).ok()) {
        let Some(place) = have.checked_sub(1) else { continue };
        if counts.len() < have {
            counts.resize(have, 0);
        }
        counts.get_mut(place).into_iter().for_each(|count| *count = count.saturating_add(1));
    }
    let mut more = 0_u32;
    for count in counts.iter_mut().rev() {
        more = more.saturating_add(*count);
        *count = more;
    }
    counts
}

/// What a pass has found out so far, whoever asks. Starts and expected starts only take away, so
/// that what does not fit once does not fit later.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Expected starts that shape backfill.
    pub(crate) expected: Cell<u32>,
    /// No idle GPUs take who is to be protected until then or longer.
    full: RefCell<BTreeMap<Asked, Timestamp>>,
    /// No nodes do, whoever leaves them.
    kept: RefCell<BTreeMap<Asked, Timestamp>>,
    /// Nor whoever of the account claims it, with any claim; small jobs apart.
    unyielding: RefCell<BTreeMap<(AccountId, Asked), Timestamp>>,
    /// No idle GPUs beyond the headroom take it as free work.
    no_room: RefCell<BTreeSet<Asked>>,
    /// No right that those still to come in the account have makes room for who is to be protected for
    /// so long or longer, small jobs apart. Later users of an account have had more: they have no right
    /// that those before them lack, but against their own jobs.
    unplanned: RefCell<BTreeMap<(AccountId, Asked, bool), Span>>,
}

impl Found {
    /// No idle GPUs took the job, to be protected until then.
    pub(crate) fn full(&self, job: &Job, until: Timestamp) {
        note(&mut self.full.borrow_mut(), job, until);
    }

    /// No nodes take it, to be protected until then, whoever leaves them.
    pub(crate) fn kept(&self, job: &Job, until: Timestamp) {
        note(&mut self.kept.borrow_mut(), job, until);
    }

    /// No nodes yield to whoever of the leaf asks as the job does, to be protected until then.
    pub(crate) fn unyielding(&self, leaf: AccountId, job: &Job, until: Timestamp) {
        if let Some(asked) = asked(job) {
            let mut unyielding = self.unyielding.borrow_mut();
            let known = unyielding.entry((leaf, asked)).or_insert(until);
            *known = until.min(*known);
        }
    }

    fn yields_not(&self, leaf: AccountId, asked: Asked, until: Timestamp) -> bool {
        let unyielding = self.unyielding.borrow();
        unyielding.get(&(leaf, asked)).is_some_and(|from| until >= *from)
    }

    /// No right of who may claim that made room for it.
    pub(crate) fn unplanned(&self, of: &Claimant<'_>) {
        if let Some(asked) = asked(of.job) {
            let mut unplanned = self.unplanned.borrow_mut();
            let known = unplanned.entry((of.leaf, asked, of.small)).or_insert(of.protect);
            *known = of.protect.min(*known);
        }
    }

    fn is_unplanned(&self, leaf: AccountId, asked: Asked, small: bool, protect: Span) -> bool {
        let unplanned = self.unplanned.borrow();
        unplanned.get(&(leaf, asked, small)).is_some_and(|from| protect >= *from)
    }

    /// No idle GPUs beyond the headroom took it.
    pub(crate) fn no_room(&self, job: &Job) {
        self.no_room.borrow_mut().extend(asked(job));
    }
}

fn is_shut(of: &RefCell<BTreeMap<Asked, Timestamp>>, asked: Asked, until: Timestamp) -> bool {
    of.borrow().get(&asked).is_some_and(|from| until >= *from)
}

fn asked(job: &Job) -> Option<Asked> {
    let plain = job.spec.gpu_type.is_none() && job.spec.max_blocks.is_none();
    plain.then_some((job.spec.gpus, job.spec.gpus_per_node))
}

fn note(of: &mut BTreeMap<Asked, Timestamp>, job: &Job, until: Timestamp) {
    if let Some(asked) = asked(job) {
        let known = of.entry(asked).or_insert(until);
        *known = until.min(*known);
    }
}

/// Who has Funded work, by account and user, with the last of the user's own orders.
pub(crate) type Funded = BTreeMap<AccountId, BTreeMap<UserId, i32>>;

/// Against whose Funded work the jobs of a leaf have a right, as far as sums tell.
pub(crate) struct Rights<'books> {
    money: Money<'books>,
    pub(crate) leaf: AccountId,
    funded: Rc<Funded>,
    /// The most that a start may claim which displaces work of another account: of any, and of each
    /// by its number, as far as somebody asked.
    by_ratio: OnceCell<Amount>,
    against: OnceCell<Vec<OnceCell<Amount>>>,
}

impl<'books> Rights<'books> {
    pub(crate) fn new(money: Money<'books>, leaf: AccountId, funded: Rc<Funded>) -> Self {
        Self { money, leaf, funded, by_ratio: OnceCell::new(), against: OnceCell::new() }
    }

    /// Whether a start that asks so much may have a right against anybody. `user`: whose, and in
    /// which own order; none = anybody's.
    pub(crate) fn any(&self, user: Option<(UserId, i32)>, small: bool, ask: Amount) -> bool {
        if small {
            return !self.funded.is_empty();
        }
        ask <= *self.by_ratio.get_or_init(|| self.by_ratio()) || self.by_claim(user, ask)
    }

    fn by_ratio(&self) -> Amount {
        let others = self.funded.keys().filter(|other| **other != self.leaf);
        others.map(|other| self.against(*other)).max().unwrap_or(Amount(i128::MIN))
    }

    /// The most that a start may claim to have a right against Funded work of another account.
    pub(crate) fn against(&self, other: AccountId) -> Amount {
        let most = || self.money.most_by_ratio(self.leaf, other).unwrap_or(Amount(i128::MIN));
        let accounts = || usize::try_from(self.money.books.accounts.next_id().0).unwrap_or(0);
        let all = self.against.get_or_init(|| vec![OnceCell::new(); accounts()]);
        let known = usize::try_from(other.0).ok().and_then(|place| all.get(place));
        known.map_or_else(most, |known| *known.get_or_init(most))
    }

    /// Against the user's own later jobs.
    pub(crate) fn own(&self, user: UserId, order: i32) -> bool {
        let own = self.funded.get(&self.leaf).and_then(|here| here.get(&user));
        own.is_some_and(|last| order < *last)
    }

    /// Within the leaf: against who has had more, or the user's own later jobs.
    fn by_claim(&self, user: Option<(UserId, i32)>, ask: Amount) -> bool {
        let Some(here) = self.funded.get(&self.leaf) else { return false };
        let Some((user, order)) = user else { return true };
        let asked = || self.money.user_claim(self.leaf, user) + ask;
        self.own(user, order)
            || here
                .keys()
                .any(|other| *other != user && asked() <= self.money.user_claim(self.leaf, *other))
    }
}

/// What a leaf may pay for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafPurse {
    /// The most an ordinary start may claim, and a small one.
    room: (Amount, Amount),
    /// The weight of the cheapest GPU.
    least: Weight,
}

impl LeafPurse {
    pub(crate) fn of(money: &Money<'_>, leaf: AccountId) -> Self {
        let (ordinary, small) = money.room(leaf);
        let elder_first = money.waiting_elder(leaf).is_some();
        let ordinary = if elder_first { Amount::ZERO } else { ordinary };
        Self { room: (ordinary, small), least: money.least_weight_of_all() }
    }

    /// Whether anybody in the leaf could start, as far as sums tell.
    pub(crate) fn pays(&self, waiting: &LeafQueue, nodes: &Nodes) -> bool {
        let cells = || waiting.cells.keys().filter(|cell| cell.waits.is_for_protected());
        cells().any(|cell| self.is_paid(cell, cell.least_protection()))
            && (!nodes.most.is_empty() || cells().any(Wanted::runs))
    }

    fn ask(&self, of: &Wanted, protect: Span) -> Amount {
        self.least.rate(of.gpus).over(protect)
    }

    fn is_paid(&self, of: &Wanted, protect: Span) -> bool {
        self.ask(of, protect) <= if of.small { self.room.1 } else { self.room.0 }
    }
}

/// What of a leaf's money, of the nodes and of others' work tells at a glance that a job cannot
/// start protected.
pub(crate) struct Glance<'books> {
    purse: LeafPurse,
    pub(crate) rights: Rc<Rights<'books>>,
    pub(crate) nodes: Rc<Nodes>,
    pub(crate) found: Rc<Found>,
    /// Jobs of the leaf that were looked at closely.
    pub(crate) looked: Cell<u32>,
}

impl<'books> Glance<'books> {
    pub(crate) fn new(
        purse: LeafPurse,
        rights: Rc<Rights<'books>>,
        nodes: Rc<Nodes>,
        found: Rc<Found>,
    ) -> Self {
        Self { purse, rights, nodes, found, looked: Cell::new(0) }
    }

    fn books(&self) -> &'books Books {
        self.rights.money.books
    }

    /// Whether jobs of the leaf may still plan and be expected.
    pub(crate) fn looks_ahead(&self) -> bool {
        self.looked.get() <= self.books().policy.sharing.look_ahead
    }

    /// Who cannot start now may still have an instant that those behind it must leave alone.
    fn may_expect(&self, small: bool) -> bool {
        let most = self.books().policy.sharing.max_reservations;
        !small
            && self.looks_ahead()
            && !self.nodes.most.is_empty()
            && self.found.expected.get() < most
    }

    /// Whether the job could start, or has an instant to be noted. `user`: whose, and in which own
    /// order; none = anybody's.
    fn could(&self, user: Option<(UserId, i32)>, of: &Wanted, protect: Span) -> bool {
        if !self.purse.is_paid(of, protect) {
            return false;
        }
        let within_cap = of.small || self.nodes.within_cap(of.gpus);
        if of.runs() {
            return within_cap;
        }
        let ask = self.purse.ask(of, protect);
        self.may_expect(of.small) || within_cap && self.has_room(user, of, protect, ask)
    }

    /// Whether idle GPUs could take a job, or those that it may have a right to.
    fn has_room(
        &self,
        user: Option<(UserId, i32)>,
        of: &Wanted,
        protect: Span,
        ask: Amount,
    ) -> bool {
        let start = self.books().policy.start_timeout;
        let until = self.rights.money.now.plus(start).plus(protect);
        let asked = (of.gpus, of.per_node());
        let shut = |found| of.is_plain() && is_shut(found, asked, until);
        let starts = || self.nodes.fits(&self.nodes.idle, asked) && !shut(&self.found.full);
        let leaf = self.rights.leaf;
        let failed = || {
            if of.is_plain() && !of.small && self.found.yields_not(leaf, asked, until) {
                return true;
            }
            let own = user.is_none_or(|(user, order)| self.rights.own(user, order));
            of.is_plain() && !own && self.found.is_unplanned(leaf, asked, of.small, protect)
        };
        let plans = || {
            self.looks_ahead()
                && !failed()
                && self.nodes.fits(&self.nodes.most, asked)
                && !shut(&self.found.kept)
                && (self.nodes.fits(&self.nodes.without_funded, asked)
                    || self.rights.any(user, of.small, ask))
        };
        starts() || plans()
    }
}

impl Sieve for Glance<'_> {
    fn passes_first(&self, job: &Job) -> bool {
        let Some(of) = Wanted::in_line(job, &self.books().policy.sharing) else { return true };
        let user = Some((job.user, job.spec.own_order));
        // Whose promise is held claims nothing, and is not small.
        let (protect, ask) = match job.carried {
            Some(protect) => (protect, Amount::ZERO),
            None => (job.spec.min_runtime, self.purse.ask(&of, job.spec.min_runtime)),
        };
        let of = if job.carried.is_some() { of.ordinary() } else { of };
        of.runs() || self.may_expect(of.small) || self.has_room(user, &of, protect, ask)
    }

    fn opens(&self, of: &Wanted) -> bool {
        self.could(None, of, of.least_protection())
    }

    fn opens_to(&self, user: UserId, of: &Wanted) -> bool {
        self.could(Some((user, i32::MIN)), of, of.least_protection())
    }

    fn passes(&self, user: UserId, of: &Wanted, place: Place, protect: Span) -> bool {
        self.could(Some((user, place.0)), of, protect)
    }
}

/// What of the nodes tells at a glance that a job cannot start as free work.
pub(crate) struct FreeGlance {
    pub(crate) nodes: Rc<Nodes>,
    pub(crate) found: Rc<Found>,
}

impl Sieve for FreeGlance {
    fn opens(&self, of: &Wanted) -> bool {
        let no_room =
            of.is_plain() && self.found.no_room.borrow().contains(&(of.gpus, of.per_node()));
        !no_room
            && of.gpus.0 <= self.nodes.beyond_headroom
            && self.nodes.fits(&self.nodes.idle, (of.gpus, of.per_node()))
    }

    fn opens_to(&self, _: UserId, of: &Wanted) -> bool {
        self.opens(of)
    }

    fn passes(&self, _: UserId, of: &Wanted, _: Place, _: Span) -> bool {
        self.opens(of)
    }
}
