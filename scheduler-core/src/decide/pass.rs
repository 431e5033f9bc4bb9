//! A pass: who starts next, on which GPUs, and who has to leave for it.
//!
//! Firm reservations first, the oldest first; then protected demand in order, each job on idle
//! GPUs, else by a plan that displaces, else with an expected instant that shapes backfill; then
//! free work on what is idle beyond the headroom.

mod bids;
mod expect;
mod firm;
mod start;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tidegate_model::{JobId, NodeId, SubmitKey, Timestamp, UserId};

pub(crate) use self::bids::Bid;
use self::bids::{Form, ShapeKey, Shapes};
use crate::accounts::AccountId;
use crate::books::{Books, Job, JobState};
use crate::decide::glance::{Found, FreeGlance, Funded, Glance, LeafPurse, Nodes, Rights};
use crate::decide::money::Money;
use crate::decide::spots::{self, Backlog, Spot};
use crate::decide::walk::{self, Demand, Next};
use crate::decision::{Decision, Standing};
use crate::money::Amount;
use crate::observations::Observations;

/// What a pass came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Starts on GPUs that nobody has to leave; at the end perhaps one plan with the requests to its
    /// victims, or a reservation.
    pub(crate) decisions: Vec<Decision>,
    /// Whether nothing more is left to decide when these are in the books.
    pub(crate) settled: bool,
    /// How many jobs were looked at closely.
    pub(crate) examined: u64,
}

/// What happens next, and whether that is all.
pub(crate) fn next(books: &Books, seen: &Observations, now: Timestamp) -> Outcome {
    if books.index.waiting.leaves.is_empty() && books.index.reservations.is_empty() {
        return Outcome { settled: true, ..Outcome::default() };
    }
    let mut pass = Pass::new(books, seen, now);
    let firm = pass.reserved().or_else(|| pass.elders());
    let (decisions, settled) = firm.map_or_else(|| pass.starts(), |firm| (firm, false));
    Outcome { decisions, settled, examined: pass.examined }
}

/// When nodes come, with their places among the spots; the earliest first.
type Comings = Rc<[(Timestamp, usize)]>;

/// Whose rights made no room for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Failed {
    leaf: AccountId,
    form: Form,
    small: bool,
    /// Nobody's in the account who comes later, or only this user's, in that own order.
    own: Option<(UserId, i32)>,
}

/// One pass over the waiting jobs. Nothing it remembers outlives it.
pub(crate) struct Pass<'books> {
    pub(crate) books: &'books Books,
    pub(crate) seen: &'books Observations,
    pub(crate) now: Timestamp,
    pub(crate) money: Money<'books>,
    spots: OnceCell<Vec<Spot<'books>>>,
    backlog: OnceCell<Backlog<'books>>,
    /// By how many GPUs of each node are wanted: when the nodes come, the earliest first.
    comings: RefCell<BTreeMap<u32, Comings>>,
    nodes: OnceCell<Rc<Nodes>>,
    funded_users: OnceCell<Rc<Funded>>,
    /// Forms of a job by what of it they depend on.
    shapes: RefCell<BTreeMap<ShapeKey, Shapes>>,
    /// Of each leaf that was looked at, as claims are.
    rights: RefCell<BTreeMap<AccountId, Rc<Rights<'books>>>>,
    /// What was found out so far, whoever asked.
    found: Rc<Found>,
    /// Jobs whose expected starts shape backfill, and those whose instants nobody needed yet.
    awaited: BTreeSet<JobId>,
    deferred: Vec<Bid<'books>>,
    /// Whether an instant was needed.
    expected: bool,
    /// Jobs that this pass has started already, and the GPUs it has given to protected ones.
    started: BTreeSet<JobId>,
    newly_protected: u64,
    /// Jobs that were looked at closely.
    examined: u64,
    /// Places in arrays that this pass has given away.
    places: BTreeMap<(UserId, SubmitKey), u32>,
    /// Forms that no idle GPUs admit, to be protected until then or longer.
    full: BTreeMap<Form, Timestamp>,
    /// Likewise forms that no nodes admit, whoever leaves them.
    kept: RefCell<BTreeMap<Form, Timestamp>>,
    /// Forms that do not fit the idle GPUs beyond the headroom.
    no_room: BTreeSet<Form>,
    /// Likewise forms on whose nodes those who may have to leave hold too little, whatever somebody of
    /// the account claims.
    unyielding: RefCell<BTreeMap<(AccountId, Form), Timestamp>>,
    /// For whom no right made room, with the least claim they failed with.
    unplanned: BTreeMap<Failed, Amount>,
}

impl<'books> Pass<'books> {
    pub(crate) fn new(books: &'books Books, seen: &'books Observations, now: Timestamp) -> Self {
        Self {
            books,
            seen,
            now,
            money: Money::at(books, now),
            spots: OnceCell::new(),
            backlog: OnceCell::new(),
            comings: RefCell::default(),
            nodes: OnceCell::new(),
            funded_users: OnceCell::new(),
            shapes: RefCell::default(),
            rights: RefCell::default(),
            found: Rc::default(),
            awaited: BTreeSet::new(),
            deferred: Vec::new(),
            expected: false,
            started: BTreeSet::new(),
            newly_protected: 0,
            examined: 0,
            places: BTreeMap::new(),
            full: BTreeMap::new(),
            kept: RefCell::default(),
            unyielding: RefCell::default(),
            no_room: BTreeSet::new(),
            unplanned: BTreeMap::new(),
        }
    }

    pub(crate) fn spots(&self) -> &[Spot<'books>] {
        self.spots.get_or_init(|| spots::spots(self.books, self.seen, self.backlog()))
    }

    pub(crate) fn backlog(&self) -> &Backlog<'books> {
        self.backlog.get_or_init(|| Backlog::of(self.books, self.now))
    }

    /// The node, if it takes work.
    pub(crate) fn spot(&self, node: NodeId) -> Option<&Spot<'books>> {
        let spots = self.spots();
        spots.binary_search_by_key(&node, |spot| spot.id).ok().and_then(|at| spots.get(at))
    }

    /// Starts, protected ones first, and whether nothing more is left to decide after them. Who
    /// starts leaves less for others, but may give them a right against who stands behind it now: all
    /// are asked again until nobody starts.
    fn starts(&mut self) -> (Vec<Decision>, bool) {
        let mut decided = Vec::new();
        loop {
            let before = decided.len();
            if self.protected(&mut decided).is_break() || self.needs_books() {
                return (decided, false);
            }
            if decided.len() == before {
                break;
            }
            self.look_again();
        }
        decided.extend(self.free());
        (decided, true)
    }

    /// Whether what follows from its starts is not to be told without the books that hold them: what
    /// is expected depends on them, and so does the leaf of an elder.
    fn needs_books(&self) -> bool {
        let of_elder = |id: &JobId| self.books.jobs.get(id).is_some_and(|job| job.elder.is_some());
        !self.started.is_empty() && (self.expected || self.started.iter().any(of_elder))
    }

    /// Forgets what was found out before somebody started.
    fn look_again(&mut self) {
        self.found = Rc::default();
        self.awaited.clear();
        self.deferred.clear();
        self.full.clear();
        self.kept.get_mut().clear();
        self.unyielding.get_mut().clear();
        self.unplanned.clear();
        self.expected = false;
        let spots = self.spots.get_mut().into_iter().flatten();
        spots.for_each(|spot| spot.expected = None);
    }

    /// Protected demand in order, once. Starts on idle GPUs are decided together, each on figures that
    /// hold those before it; a plan that displaces somebody ends the pass.
    fn protected(&mut self, decided: &mut Vec<Decision>) -> Next {
        let mut exhausted = BTreeSet::new();
        while let Some(found) = self.first_protected(&mut exhausted) {
            let alone = !matches!(found.as_slice(), [Decision::AttemptPlanned { .. }]);
            let last = alone || !self.occupy(&found);
            decided.extend(found);
            if last {
                return Next::Break(());
            }
        }
        Next::Continue(())
    }

    fn first_protected(&mut self, exhausted: &mut BTreeSet<AccountId>) -> Option<Vec<Decision>> {
        let mut found = None;
        for leaf in walk::leaves(&self.money, Demand::Protected) {
            if exhausted.contains(&leaf) {
                continue;
            }
            let purse = LeafPurse::of(&self.money, leaf);
            let index = &self.books.index;
            let waiting = index.waiting.leaves.get(&leaf);
            let inherits = index.carried.contains_key(&leaf);
            if !inherits && !waiting.is_some_and(|waiting| purse.pays(waiting, self.nodes())) {
                exhausted.insert(leaf);
                continue;
            }
            let (nodes, shared) = (Rc::clone(self.nodes()), Rc::clone(&self.found));
            let glance = Glance::new(purse, self.rights_of(leaf), nodes, shared);
            let money = self.money.clone();
            let walked = walk::jobs(&money, Demand::Protected, leaf, &glance, |job| {
                if self.array_full(job) {
                    return Next::Continue(());
                }
                glance.looked.set(glance.looked.get().saturating_add(1));
                found = self.try_protected(job, glance.looks_ahead());
                if found.is_some() { Next::Break(()) } else { Next::Continue(()) }
            });
            if walked.is_break() {
                break;
            }
            // Whoever starts after this leaves less for it; the pass after this one makes sure.
            exhausted.insert(leaf);
        }
        found
    }

    /// Counts a start on GPUs that are idle or coming in the figures of this pass. False if it was
    /// none.
    fn occupy(&mut self, decisions: &[Decision]) -> bool {
        let [Decision::AttemptPlanned { attempt, places, terms }] = decisions else { return false };
        let Some(job) = self.books.jobs.get(&attempt.job) else { return false };
        let spots = self.spots.get_mut().map_or(&mut [][..], Vec::as_mut_slice);
        for place in places {
            let at = spots.binary_search_by_key(&place.node, |spot| spot.id);
            if let Some(spot) = at.ok().and_then(|index| spots.get_mut(index)) {
                spot.take(&place.gpus);
            }
        }
        self.nodes.take();
        self.comings.get_mut().clear();
        self.rights.get_mut().clear();
        self.started.insert(job.id);
        if let Some(array) = &job.spec.array {
            let given = self.places.entry((job.user, array.key)).or_default();
            *given = given.saturating_add(1);
        }
        if terms.standing == Standing::Protected {
            let gpus = job.spec.gpus;
            self.newly_protected = self.newly_protected.saturating_add(gpus.0.into());
            let held = job.carried.is_some();
            let ask = if held { Amount::ZERO } else { terms.weight.rate(gpus).over(terms.protect) };
            self.money.claim_more((job.account, job.user), ask, terms.small);
        }
        true
    }

    /// Who has Funded work.
    fn funded_users(&self) -> &Rc<Funded> {
        self.funded_users.get_or_init(|| {
            let mut funded = Funded::new();
            let ids = self.books.index.funded.iter();
            for job in ids.filter_map(|(_, id)| self.books.jobs.get(&id.job)) {
                let order = job.spec.own_order;
                let users = funded.entry(job.account).or_default();
                let last = users.entry(job.user).or_insert(order);
                *last = order.max(*last);
            }
            Rc::new(funded)
        })
    }

    /// What those of a leaf may displace.
    fn rights_of(&self, leaf: AccountId) -> Rc<Rights<'books>> {
        let new = || Rights::new(self.money.clone(), leaf, Rc::clone(self.funded_users()));
        Rc::clone(self.rights.borrow_mut().entry(leaf).or_insert_with(|| Rc::new(new())))
    }

    fn nodes(&self) -> &Rc<Nodes> {
        self.nodes
            .get_or_init(|| Rc::new(Nodes::of(self.books, self.spots(), self.newly_protected)))
    }

    fn try_protected(&mut self, job: &'books Job, plans: bool) -> Option<Vec<Decision>> {
        self.examined = self.examined.saturating_add(1);
        if let Some(run) = job.waiting_run() {
            return self.turn_in_place(job, run);
        }
        if !self.may_start(job) {
            return None;
        }
        let all = self.options(job);
        let options = || all.iter().filter(|one| self.money.funding(&one.claimant).is_ok());
        let funded: Vec<_> = options().collect();
        let started = funded.iter().find_map(|one| self.start(one));
        if started.is_some() {
            return started;
        }
        let planned = if plans { funded.iter().find_map(|one| self.plan(one)) } else { None };
        if planned.is_some() {
            return planned;
        }
        self.note_found(&all);
        if let Some(one) = funded.first().filter(|_| plans) {
            self.await_start(one);
        }
        None
    }

    /// The start of an ordinary job shapes backfill. A small one takes the first GPUs that it may.
    fn await_start(&mut self, one: &Bid<'books>) {
        let most = self.books.policy.sharing.max_reservations;
        let counts = !one.claimant.small && !self.nodes().most.is_empty();
        let expected = &self.found.expected;
        if counts && expected.get() < most && self.awaited.insert(one.claimant.job.id) {
            expected.set(expected.get().saturating_add(1));
            self.deferred.push(*one);
        }
    }

    /// What did not fit in any form of a job fits nobody who asks the same for as long.
    fn note_found(&self, options: &[Bid<'_>]) {
        let Some(first) = options.first().filter(|_| !self.nodes().picky) else { return };
        let (job, until) = (first.claimant.job, self.protected_until(&first.claimant));
        let (kept, unyielding) = (self.kept.borrow(), self.unyielding.borrow());
        let leaf = first.claimant.leaf;
        let yields_not = |one: &Bid<'_>| {
            unyielding.get(&(leaf, self.form(one))).is_some_and(|from| *from <= until)
        };
        let shut = |of: &BTreeMap<Form, Timestamp>| {
            options.iter().all(|one| of.get(&self.form(one)).is_some_and(|from| *from <= until))
        };
        if shut(&self.full) {
            self.found.full(job, until);
        }
        if shut(&kept) {
            self.found.kept(job, until);
        }
        if options.iter().all(yields_not) {
            self.found.unyielding(leaf, job, until);
        }
        let failed = |one: &Bid<'_>| {
            let key = self.failed(one);
            let failed = self.unplanned.get(&key).is_some_and(|ask| *ask <= one.claimant.ask);
            failed && key.own.is_none()
        };
        if options.iter().all(failed) {
            self.found.unplanned(&first.claimant);
        }
    }

    /// Free work, on idle GPUs beyond the headroom. What is planned here is charged to nobody yet,
    /// so the order stays as it is.
    fn free(&mut self) -> Vec<Decision> {
        let mut decided = Vec::new();
        if self.nodes().beyond_headroom == 0 {
            return decided;
        }
        for leaf in walk::leaves(&self.money, Demand::Free) {
            let (nodes, found) = (Rc::clone(self.nodes()), Rc::clone(&self.found));
            let (money, glance) = (self.money.clone(), FreeGlance { nodes, found });
            let walked = walk::jobs(&money, Demand::Free, leaf, &glance, |job| {
                self.examined = self.examined.saturating_add(1);
                if let Some(found) = self.start_free(job) {
                    self.occupy(&found);
                    decided.extend(found);
                }
                if self.nodes().beyond_headroom == 0 { Next::Break(()) } else { Next::Continue(()) }
            });
            if walked.is_break() {
                break;
            }
        }
        decided
    }

    /// Whether it waits for its turn only.
    fn may_start(&self, job: &Job) -> bool {
        let started = self.started.contains(&job.id) || self.array_full(job);
        is_due(job, self.now) && job.reservation.is_none() && !started
    }

    /// Whether as many of its array run as may at a time.
    fn array_full(&self, job: &Job) -> bool {
        let Some(array) = &job.spec.array else { return false };
        let given = self.places.get(&(job.user, array.key)).copied().unwrap_or(0);
        let held = self.books.index.arrays.get(&(job.user, array.key)).copied().unwrap_or(0);
        self.books.array_full(job).is_some()
            || given > 0
                && job.active_attempt().is_none()
                && given.saturating_add(held) >= array.at_a_time
    }

    fn funded(&self, one: &Bid<'_>) -> bool {
        self.money.funding(&one.claimant).is_ok()
    }
}

pub(crate) fn is_due(job: &Job, now: Timestamp) -> bool {
    match job.state {
        JobState::Pending { not_before } => not_before <= now && job.is_startable(),
        JobState::Active { .. } | JobState::Ended { .. } => false,
    }
}
