//! A pass: who starts next, on which GPUs, and who has to leave for it.
//!
//! Firm reservations first, the oldest first; then protected demand in order, each job on idle
//! GPUs, else by a plan that displaces, else with an expected instant that shapes backfill; then
//! free work on what is idle beyond the headroom.

mod bids;
mod expect;
mod start;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tidegate_model::{AttemptId, JobId, NodeId, Span, Timestamp, UserId};

pub(crate) use self::bids::Bid;
use self::bids::{Form, ShapeKey, Shapes};
use crate::accounts::AccountId;
use crate::books::{Attempt, Books, Job, JobState, Place, Reservation};
use crate::decide::glance::{Glance, Nodes};
use crate::decide::money::Money;
use crate::decide::spots::{self, Spot};
use crate::decide::walk::{self, Demand, Next};
use crate::decision::{Decision, Grounds, MoveCause, Right, SaveReason, Standing};
use crate::index::Wish;
use crate::money::Amount;
use crate::observations::Observations;

/// What the next start needs: one plan and the requests to its victims, or a reservation.
pub(crate) fn next(books: &Books, seen: &Observations, now: Timestamp) -> Option<Vec<Decision>> {
    let index = &books.index;
    let nobody = index.protected.leaves.is_empty() && index.free.leaves.is_empty();
    if nobody && index.reservations.is_empty() {
        return None;
    }
    let mut pass = Pass::new(books, seen, now);
    let firm = pass.reserved().or_else(|| pass.elders());
    firm.or_else(|| pass.protected()).or_else(|| pass.free())
}

/// One pass over the waiting jobs. Nothing it remembers outlives it.
pub(crate) struct Pass<'books> {
    pub(crate) books: &'books Books,
    pub(crate) seen: &'books Observations,
    pub(crate) now: Timestamp,
    pub(crate) money: Money<'books>,
    spots: OnceCell<Vec<Spot<'books>>>,
    nodes: OnceCell<Rc<Nodes>>,
    funded_jobs: OnceCell<Vec<&'books Job>>,
    /// Forms of a job by what of it they depend on.
    shapes: RefCell<BTreeMap<ShapeKey, Shapes>>,
    /// Expected starts that shape backfill so far.
    expected: Rc<Cell<u32>>,
    /// Those of them whose instants nobody needed yet.
    deferred: Vec<Bid<'books>>,
    /// Jobs that this pass has started already, and the GPUs it has given to protected ones.
    started: BTreeSet<JobId>,
    newly_protected: u64,
    /// Forms that did not fit the idle GPUs, with the shortest protection they failed with.
    failed: BTreeMap<Form, Span>,
    /// Forms that no right of a user in an account could plan, with the least claim they failed
    /// with.
    unplanned: BTreeMap<(UserId, AccountId, Form, i32, bool), Amount>,
}

impl<'books> Pass<'books> {
    pub(crate) fn new(books: &'books Books, seen: &'books Observations, now: Timestamp) -> Self {
        Self {
            books,
            seen,
            now,
            money: Money::at(books, now),
            spots: OnceCell::new(),
            nodes: OnceCell::new(),
            funded_jobs: OnceCell::new(),
            shapes: RefCell::default(),
            expected: Rc::default(),
            deferred: Vec::new(),
            started: BTreeSet::new(),
            newly_protected: 0,
            failed: BTreeMap::new(),
            unplanned: BTreeMap::new(),
        }
    }

    pub(crate) fn spots(&self) -> &[Spot<'books>] {
        self.spots.get_or_init(|| spots::spots(self.books, self.seen, self.now))
    }

    /// Firm reservations: they start when their nodes can be had, and move only for a cause.
    fn reserved(&self) -> Option<Vec<Decision>> {
        self.books.index.reservations.iter().find_map(|(_, id)| {
            let job = self.books.jobs.get(id)?;
            let held = job.reservation.as_ref()?;
            if let Some(run) = job.waiting_run() {
                return self.reserved_and_free(job, run, held);
            }
            if !is_due(job, self.now) {
                return None;
            }
            let due = held.at <= self.now;
            let own = due.then(|| held.nodes.iter().map(|(node, _)| *node).collect());
            let planned = own.and_then(|own| self.plan_any(job, Some(&own)));
            planned.or_else(|| self.plan_any(job, None)).or_else(|| self.moved(job, held))
        })
    }

    /// Its run turns protected where it may; else, when its instant comes, it leaves its GPUs for
    /// those that are its own.
    fn reserved_and_free(
        &self,
        job: &'books Job,
        run: &'books Attempt,
        held: &Reservation,
    ) -> Option<Vec<Decision>> {
        if let Some(decisions) = self.turn_in_place(job, run) {
            return Some(decisions);
        }
        if held.at > self.now {
            return self.moved(job, held);
        }
        let grounds = Grounds::plain(Right::Reservation);
        let number = run.id.number.saturating_add(1);
        let why = SaveReason::Displaced { by: AttemptId { job: job.id, number }, grounds };
        Some(vec![Decision::SaveOrdered { attempt: run.id, why }])
    }

    /// A reservation whose nodes left service, or were let go too late, has others.
    fn moved(&self, job: &'books Job, held: &Reservation) -> Option<Vec<Decision>> {
        let in_service = |node: &NodeId| self.spots().iter().any(|spot| spot.node.id == *node);
        let gone = !held.nodes.iter().all(|(node, _)| in_service(node));
        if !gone && held.at > self.now {
            return None;
        }
        let (nodes, at) = self.firm_place(job)?;
        let cause = if gone { MoveCause::NodeGone } else { MoveCause::LateRelease };
        let moved = nodes != held.nodes || at > held.at;
        (moved && at > self.now)
            .then(|| vec![Decision::ReservationMoved { job: job.id, nodes, at, cause }])
    }

    /// Every funded elder starts, turns protected where it runs, or gets a firm reservation.
    fn elders(&self) -> Option<Vec<Decision>> {
        let mut elders: Vec<_> = self.books.index.elders.values().flatten().copied().collect();
        elders.sort_unstable();
        elders.into_iter().find_map(|(_, id)| {
            let job = self.books.jobs.get(&id)?;
            if job.reservation.is_some() {
                return None;
            }
            let run = job.waiting_run();
            let in_place = run.and_then(|run| self.turn_in_place(job, run));
            if in_place.is_some() || run.is_none() && !is_due(job, self.now) {
                return in_place;
            }
            let option = self.options(job).into_iter().find(|one| self.funded(one))?;
            let (nodes, at) = self.firm_place(job)?;
            if at <= self.now {
                // Its instant has come with its being funded: who is there yields. But who runs
                // free never displaces to move.
                let own = nodes.iter().map(|(node, _)| *node).collect();
                let planned = if run.is_none() { self.plan_any(job, Some(&own)) } else { None };
                if planned.is_some() || run.is_some() {
                    return planned;
                }
            }
            // An inherited promise is held by the reservation from now on.
            let pledge = option.weight.rate(job.spec.gpus).over(option.claimant.protect);
            Some(vec![Decision::ReservationMade { job: id, nodes, at, pledge }])
        })
    }

    /// A plan: on nodes whose firm reservation is due, where everybody yields, or by the job's
    /// ordinary rights.
    fn plan_any(&self, job: &'books Job, due: Option<&BTreeSet<NodeId>>) -> Option<Vec<Decision>> {
        self.options(job).into_iter().filter(|one| self.funded(one)).find_map(|one| {
            let choice = self.choose(&one, due)?;
            Some(self.planned(&one, &choice, Standing::Protected))
        })
    }

    /// Protected demand in order. Starts on idle GPUs are decided together, each on figures that
    /// hold those before it; a plan that displaces somebody ends the pass.
    fn protected(&mut self) -> Option<Vec<Decision>> {
        let mut decided = Vec::new();
        let mut exhausted = BTreeSet::new();
        while let Some(found) = self.first_protected(&mut exhausted) {
            let alone = !matches!(found.as_slice(), [Decision::AttemptPlanned { .. }]);
            let last = alone || self.expected.get() > 0 || !self.occupy(&found);
            decided.extend(found);
            if last {
                break;
            }
        }
        (!decided.is_empty()).then_some(decided)
    }

    fn first_protected(&mut self, exhausted: &mut BTreeSet<AccountId>) -> Option<Vec<Decision>> {
        let mut found = None;
        for leaf in walk::leaves(&self.money, Demand::Protected) {
            if exhausted.contains(&leaf) {
                continue;
            }
            let mut looked = 0_u32;
            let (money, glance) = (self.money.clone(), self.glance(leaf));
            let index = &self.books.index;
            let waiting = index.protected.leaves.get(&leaf);
            let inherits = index.carried.contains_key(&leaf);
            if !inherits && !waiting.is_some_and(|waiting| glance.leaf(waiting)) {
                exhausted.insert(leaf);
                continue;
            }
            let hopeful = |wish: &Wish| glance.protected(wish);
            let walked = walk::jobs(&money, Demand::Protected, leaf, hopeful, |job| {
                looked = looked.saturating_add(1);
                let plans = looked <= self.books.policy.sharing.look_ahead;
                found = self.try_protected(job, plans);
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

    /// Counts a start on idle GPUs in the figures of this pass. False if it was none.
    fn occupy(&mut self, decisions: &[Decision]) -> bool {
        let [Decision::AttemptPlanned { attempt, places, terms }] = decisions else { return false };
        let Some(job) = self.books.jobs.get(&attempt.job) else { return false };
        let held = |place: &Place| {
            let node = self.books.nodes.get(&place.node);
            node.is_some_and(|node| place.gpus.iter().any(|gpu| node.held.contains_key(gpu)))
        };
        if places.iter().any(held) {
            return false;
        }
        let taken = places.iter().map(|place| (place.node, place.gpus.len()));
        let mut by_node: BTreeMap<NodeId, u32> = BTreeMap::new();
        for (node, gpus) in taken {
            let sum = by_node.entry(node).or_default();
            *sum = sum.saturating_add(u32::try_from(gpus).unwrap_or(u32::MAX));
        }
        let taken: BTreeSet<_> = places.iter().flat_map(|place| place.gpus.clone()).collect();
        for spot in self.spots.get_mut().into_iter().flatten() {
            if let Some(gpus) = by_node.get(&spot.node.id) {
                spot.idle = spot.idle.saturating_sub(*gpus);
                spot.taken.extend(taken.iter().cloned());
            }
        }
        self.nodes.take();
        self.started.insert(job.id);
        if terms.standing == Standing::Protected {
            let gpus = job.spec.gpus;
            self.newly_protected = self.newly_protected.saturating_add(gpus.0.into());
            let held = job.carried.is_some();
            let ask = if held { Amount::ZERO } else { terms.weight.rate(gpus).over(terms.protect) };
            self.money.claim_more((job.account, job.user), ask, terms.small);
        }
        true
    }

    /// What of a leaf's money and of the nodes tells at a glance that a job cannot start. It errs
    /// on the side of looking closer.
    fn glance(&self, leaf: AccountId) -> Glance {
        let (ordinary, small) = self.money.room(leaf);
        let elder_first = self.money.waiting_elder(leaf).is_some();
        let ordinary = if elder_first { Amount::ZERO } else { ordinary };
        let least = self.money.least_weight_of_all();
        let nodes = Rc::clone(self.nodes());
        let expected = Rc::clone(&self.expected);
        let most_expected = self.books.policy.sharing.max_reservations;
        Glance { ordinary, small, least, nodes, expected, most_expected }
    }

    fn nodes(&self) -> &Rc<Nodes> {
        self.nodes
            .get_or_init(|| Rc::new(Nodes::of(self.books, self.spots(), self.newly_protected)))
    }

    fn try_protected(&mut self, job: &'books Job, plans: bool) -> Option<Vec<Decision>> {
        if let Some(run) = job.waiting_run() {
            return self.turn_in_place(job, run);
        }
        if !self.may_start(job) {
            return None;
        }
        let options: Vec<_> =
            self.options(job).into_iter().filter(|one| self.funded(one)).collect();
        for one in &options {
            if let Some(decisions) = self.start(one) {
                return Some(decisions);
            }
        }
        if !plans {
            return None;
        }
        for one in &options {
            if let Some(decisions) = self.plan(one) {
                return Some(decisions);
            }
        }
        let most = self.books.policy.sharing.max_reservations;
        let room = self.expected.get() < most && !self.nodes().most.is_empty();
        if let Some(one) = options.into_iter().next().filter(|_| room) {
            self.expected.set(self.expected.get().saturating_add(1));
            self.deferred.push(one);
        }
        None
    }

    /// Free work, on idle GPUs beyond the headroom. What is planned here is charged to nobody yet,
    /// so the order stays as it is.
    fn free(&mut self) -> Option<Vec<Decision>> {
        let mut decided = Vec::new();
        for leaf in walk::leaves(&self.money, Demand::Free) {
            if self.nodes().beyond_headroom == 0 {
                break;
            }
            let (money, glance) = (self.money.clone(), Rc::clone(self.nodes()));
            let hopeful = |wish: &Wish| glance.free(wish);
            let walked = walk::jobs(&money, Demand::Free, leaf, hopeful, |job| {
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
        (!decided.is_empty()).then_some(decided)
    }

    /// Whether it waits for its turn only.
    fn may_start(&self, job: &Job) -> bool {
        let started = self.started.contains(&job.id);
        is_due(job, self.now) && job.reservation.is_none() && !started
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
