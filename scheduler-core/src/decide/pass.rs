//! A pass: who starts next, on which GPUs, and who has to leave for it.
//!
//! Firm reservations first, the oldest first; then protected demand in order, each job on idle
//! GPUs, else by a plan that displaces, else with an expected instant that shapes backfill; then
//! free work on what is idle beyond the headroom.

mod bids;
mod expect;
mod start;

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tidegate_model::{AttemptId, GpuCount, JobId, NodeId, SubmitKey, Timestamp, UserId};

pub(crate) use self::bids::Bid;
use self::bids::{Form, ShapeKey, Shapes};
use crate::accounts::AccountId;
use crate::books::{Attempt, Books, Job, JobState, Reservation};
use crate::decide::glance::{Found, FreeGlance, Funded, Glance, Nodes, Rights};
use crate::decide::money::Money;
use crate::decide::spots::{self, Backlog, Spot};
use crate::decide::walk::{self, Demand, Next};
use crate::decision::{Decision, Grounds, MoveCause, Right, SaveReason, Standing};
use crate::money::Amount;
use crate::observations::Observations;

/// What the next start needs: one plan and the requests to its victims, or a reservation. And how
/// many jobs were looked at closely.
pub(crate) fn next(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
) -> (Option<Vec<Decision>>, u64) {
    if books.index.waiting.leaves.is_empty() && books.index.reservations.is_empty() {
        return (None, 0);
    }
    let mut pass = Pass::new(books, seen, now);
    let firm = pass.reserved().or_else(|| pass.elders());
    let decided = firm.or_else(|| pass.protected()).or_else(|| pass.free());
    (decided, pass.examined)
}

/// One pass over the waiting jobs. Nothing it remembers outlives it.
pub(crate) struct Pass<'books> {
    pub(crate) books: &'books Books,
    pub(crate) seen: &'books Observations,
    pub(crate) now: Timestamp,
    pub(crate) money: Money<'books>,
    spots: OnceCell<Vec<Spot<'books>>>,
    backlog: OnceCell<Backlog<'books>>,
    nodes: OnceCell<Rc<Nodes>>,
    funded_users: OnceCell<Rc<Funded>>,
    /// Forms of a job by what of it they depend on.
    shapes: RefCell<BTreeMap<ShapeKey, Shapes>>,
    /// Of the leaf that is looked at.
    rights: Option<Rc<Rights<'books>>>,
    /// The most that starts of one account may claim against another, as claims are.
    ratios: RefCell<BTreeMap<(AccountId, AccountId), Amount>>,
    /// What was found out so far, whoever asked.
    found: Rc<Found>,
    /// Jobs whose expected starts shape backfill, and those whose instants nobody needed yet.
    awaited: BTreeSet<JobId>,
    deferred: Vec<Bid<'books>>,
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
            backlog: OnceCell::new(),
            nodes: OnceCell::new(),
            funded_users: OnceCell::new(),
            shapes: RefCell::default(),
            rights: None,
            ratios: RefCell::default(),
            found: Rc::default(),
            awaited: BTreeSet::new(),
            deferred: Vec::new(),
            started: BTreeSet::new(),
            newly_protected: 0,
            examined: 0,
            places: BTreeMap::new(),
            full: BTreeMap::new(),
            kept: RefCell::default(),
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

    /// A reservation whose nodes left service, or were let go too late, has others; one whose own
    /// nodes are to be had earlier has them then.
    fn moved(&self, job: &'books Job, held: &Reservation) -> Option<Vec<Decision>> {
        let in_service = |node: &NodeId| self.spot(*node).is_some();
        let gone = !held.nodes.iter().all(|(node, _)| in_service(node));
        if !gone && held.at > self.now {
            return self.earlier(job, held);
        }
        let (nodes, at) = self.firm_place(job)?;
        let cause = if gone { MoveCause::NodeGone } else { MoveCause::LateRelease };
        let moved = nodes != held.nodes || at > held.at;
        (moved && at > self.now)
            .then(|| vec![Decision::ReservationMoved { job: job.id, nodes, at, cause }])
    }

    /// On its own nodes only: elsewhere it might come before others that were told their instants.
    fn earlier(&self, job: &'books Job, held: &Reservation) -> Option<Vec<Decision>> {
        let had = |(node, gpus): &(NodeId, GpuCount)| {
            self.spot(*node)?.firm_instant(self.books, job.id, *gpus, self.now)
        };
        let instants = held.nodes.iter().map(had).collect::<Option<Vec<_>>>()?;
        let at = instants.into_iter().max()?;
        // Less is not worth a record.
        let worth = at.plus(self.books.policy.sharing.pass_every) <= held.at;
        let (nodes, cause) = (held.nodes.clone(), MoveCause::Earlier);
        worth.then(|| vec![Decision::ReservationMoved { job: job.id, nodes, at, cause }])
    }

    /// The node, if it takes work.
    pub(crate) fn spot(&self, node: NodeId) -> Option<&Spot<'books>> {
        let spots = self.spots();
        spots.binary_search_by_key(&node, |spot| spot.node.id).ok().and_then(|at| spots.get(at))
    }

    /// Every funded elder starts, turns protected where it runs, or gets a firm reservation.
    fn elders(&self) -> Option<Vec<Decision>> {
        let mut elders: Vec<_> = self.books.index.elders.values().flatten().copied().collect();
        elders.sort_unstable();
        elders.into_iter().find_map(|(_, id)| {
            let job = self.books.jobs.get(&id)?;
            if job.reservation.is_some() || self.array_full(job) {
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
            let last = alone || !self.occupy(&found);
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
            let rights =
                Rc::new(Rights::new(self.money.clone(), leaf, Rc::clone(self.funded_users())));
            self.rights = Some(Rc::clone(&rights));
            let (nodes, shared) = (Rc::clone(self.nodes()), Rc::clone(&self.found));
            let (money, glance) = (self.money.clone(), Glance::new(rights, nodes, shared));
            let index = &self.books.index;
            let waiting = index.waiting.leaves.get(&leaf);
            let inherits = index.carried.contains_key(&leaf);
            if !inherits && !waiting.is_some_and(|waiting| glance.leaf(waiting)) {
                exhausted.insert(leaf);
                continue;
            }
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
            let at = spots.binary_search_by_key(&place.node, |spot| spot.node.id);
            if let Some(spot) = at.ok().and_then(|index| spots.get_mut(index)) {
                spot.take(&place.gpus);
            }
        }
        self.nodes.take();
        self.ratios.get_mut().clear();
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
        let kept = self.kept.borrow();
        let shut = |of: &BTreeMap<Form, Timestamp>| {
            options.iter().all(|one| of.get(&self.form(one)).is_some_and(|from| *from <= until))
        };
        if shut(&self.full) {
            self.found.full(job, until);
        }
        if shut(&kept) {
            self.found.kept(job, until);
        }
    }

    /// Free work, on idle GPUs beyond the headroom. What is planned here is charged to nobody yet,
    /// so the order stays as it is.
    fn free(&mut self) -> Option<Vec<Decision>> {
        let mut decided = Vec::new();
        for leaf in walk::leaves(&self.money, Demand::Free) {
            if self.nodes().beyond_headroom == 0 {
                break;
            }
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
        (!decided.is_empty()).then_some(decided)
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
