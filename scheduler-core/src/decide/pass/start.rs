//! How one job starts: where it runs free already, on idle GPUs, or by displacing others.

use std::collections::BTreeSet;

use tidegate_model::{NodeId, Timestamp};

use super::{Bid, Failed, Pass};
use crate::books::{Attempt, Job};
use crate::decide::money::Claimant;
use crate::decide::spots::{Occupant, Spot, start_limit};
use crate::decide::victims::{Choice, EXACT_AMONG, Search};
use crate::decision::{Decision, Standing};
use crate::policy::{Kind, part_of};

impl<'books> Pass<'books> {
    /// On idle GPUs.
    pub(super) fn start(&mut self, one: &Bid<'books>) -> Option<Vec<Decision>> {
        if !self.within_cap(&one.claimant) {
            return None;
        }
        let (form, until) = (self.form(one), self.protected_until(&one.claimant));
        if self.full.get(&form).is_some_and(|from| *from <= until) {
            return None;
        }
        let Some(mut spots) = self.idle_for(one, until) else {
            self.full.insert(form, until);
            return None;
        };
        if self.expect_those_before(&one.claimant) {
            let Some(others) = self.idle_for(one, until) else {
                self.full.insert(form, until);
                return None;
            };
            spots = others;
        }
        let choice = Choice { spots, ..Choice::default() };
        Some(self.planned(one, &choice, Standing::Protected))
    }

    /// If it got its GPUs now.
    pub(super) fn protected_until(&self, claimant: &Claimant<'_>) -> Timestamp {
        self.now.plus(start_limit(self.books, claimant.job)).plus(claimant.protect)
    }

    pub(super) fn idle_for(&self, one: &Bid<'books>, until: Timestamp) -> Option<Vec<usize>> {
        let fits = |spot: &Spot<'_>| {
            spot.idle >= one.shape.per_node && admits(spot, &one.claimant, until, false)
        };
        let usable: Vec<_> =
            self.of_kind(one).filter(|(_, spot)| fits(spot)).map(|(index, _)| index).collect();
        self.best_fit(&usable, one, Some(until))
    }

    /// Somebody could start past those who wait before it: now their instants matter. False if
    /// they are counted already, or do not hold it up: a small job passes them.
    fn expect_those_before(&mut self, claimant: &Claimant<'_>) -> bool {
        if claimant.small {
            return false;
        }
        let before = std::mem::take(&mut self.deferred);
        self.expected |= !before.is_empty() || !self.awaited.is_empty();
        before.iter().for_each(|one| self.expect(one));
        !before.is_empty()
    }

    /// By displacing whom the job may displace now.
    pub(super) fn plan(&mut self, one: &Bid<'books>) -> Option<Vec<Decision>> {
        if !self.within_cap(&one.claimant) {
            return None;
        }
        let claimant = &one.claimant;
        let key = self.failed(one);
        if self.unplanned.get(&key).is_some_and(|least| *least <= claimant.ask) {
            return None;
        }
        let until = self.protected_until(claimant);
        let kept = self.kept.get_mut().get(&key.form);
        if kept.is_some_and(|from| *from <= until) {
            return None;
        }
        let unyielding = self.unyielding.get_mut().get(&(claimant.leaf, key.form));
        if !claimant.small && unyielding.is_some_and(|from| *from <= until) {
            return None;
        }
        if !self.may_displace(one) {
            return None;
        }
        let mut choice = self.choose(one, None);
        if choice.is_some() && self.expect_those_before(&one.claimant) {
            choice = self.choose(one, None);
        }
        match choice {
            Some(choice) => Some(self.planned(one, &choice, Standing::Protected)),
            // Whose promise is held claims nothing: that it fails says nothing of others.
            None if claimant.held => None,
            None => {
                self.unplanned.insert(key, claimant.ask);
                None
            }
        }
    }

    /// What is known if no right of its makes room. Users come in the order of what they have had, but
    /// elders and who inherits protection before all.
    pub(super) fn failed(&self, one: &Bid<'_>) -> Failed {
        let Claimant { job, leaf, user, small, .. } = one.claimant;
        let order = job.spec.own_order;
        let rights = self.rights_of(leaf);
        let first = job.elder.is_some() || job.carried.is_some();
        let own = first || rights.own(user, order);
        Failed { leaf, form: self.form(one), small, own: own.then_some((user, order)) }
    }

    /// Whether free work alone makes room, or there may be a right against anybody's Funded work.
    fn may_displace(&self, one: &Bid<'books>) -> bool {
        let (nodes, claimant) = (self.nodes(), &one.claimant);
        let spec = &claimant.job.spec;
        let rights = self.rights_of(claimant.leaf);
        nodes.fits(&nodes.without_funded, (spec.gpus, spec.gpus_per_node))
            || rights.any(Some((claimant.user, spec.own_order)), claimant.small, claimant.ask)
    }

    pub(super) fn choose(
        &self,
        one: &Bid<'books>,
        due: Option<&BTreeSet<NodeId>>,
    ) -> Option<Choice> {
        let (spots, claimant) = (self.spots(), one.claimant);
        let start = start_limit(self.books, claimant.job);
        let until = |from: Timestamp| from.plus(start).plus(claimant.protect);
        let usable = self.yielding(one, until, due)?;
        let (money, seen, firm) = (&self.money, self.seen, due.is_some());
        let search = Search { money, seen, claimant, firm, exact_among: EXACT_AMONG };
        let max_blocks = claimant.job.spec.max_blocks;
        let choice = search.cheapest(spots, &usable, one.shape, max_blocks)?;
        // A gang starts when the last of its nodes is empty.
        let chosen = || choice.spots.iter().filter_map(|index| spots.get(*index));
        let last = chosen().map(|spot| self.emptied(spot)).max().unwrap_or(self.now);
        chosen().all(|spot| admits_bid(spot, one, until(last))).then_some(choice)
    }

    /// The nodes that admit it and on which those who may have to leave hold enough, as far as their
    /// accounts tell, if they are enough. A search that cannot succeed is the common one.
    fn yielding(
        &self,
        one: &Bid<'books>,
        until: impl Fn(Timestamp) -> Timestamp,
        due: Option<&BTreeSet<NodeId>>,
    ) -> Option<Vec<usize>> {
        let Claimant { leaf, ask, small, .. } = one.claimant;
        let (wanted, per_node) = (usize::try_from(one.shape.nodes).ok()?, one.shape.per_node);
        let could = |spot: &Spot<'_>| {
            spot.most() >= per_node
                && (spot.is_unclaimed() || admits_bid(spot, one, until(self.emptied(spot))))
                && due.is_none_or(|own| own.contains(&spot.id))
        };
        let rights = self.rights_of(leaf);
        let all = due.is_some() || small;
        let may = |occupant: &Occupant<'_>| match occupant.standing {
            Standing::Protected => false,
            Standing::Free => true,
            Standing::Funded => {
                all || occupant.account == leaf || ask <= rights.against(occupant.account)
            }
        };
        let (mut open, mut usable) = (0_usize, Vec::new());
        for (index, spot) in self.of_kind(one).filter(|(_, spot)| could(spot)) {
            open = open.saturating_add(1);
            if spot.with(may) >= per_node {
                usable.push(index);
            }
        }
        if open < wanted && due.is_none() {
            self.kept.borrow_mut().insert(self.form(one), until(self.now));
        }
        if usable.len() < wanted && due.is_none() && one.claimant.held {
            // Nobody of the account claims less.
            self.unyielding.borrow_mut().insert((leaf, self.form(one)), until(self.now));
        }
        (usable.len() >= wanted).then_some(usable)
    }

    /// When a node is empty if all that could yield were asked now. Only where somebody else comes
    /// later does it matter how long they take to leave.
    fn emptied(&self, spot: &Spot<'_>) -> Timestamp {
        if spot.is_unclaimed() { self.now } else { spot.emptied_by(self.books, self.backlog()) }
    }

    pub(super) fn start_free(&mut self, job: &'books Job) -> Option<Vec<Decision>> {
        if !self.may_start(job) {
            return None;
        }
        let options = self.options(job);
        let started = options.iter().find_map(|one| self.start_free_so(one));
        if started.is_none() && !self.nodes().picky {
            self.found.no_room(job);
        }
        started
    }

    fn start_free_so(&mut self, one: &Bid<'books>) -> Option<Vec<Decision>> {
        let form = self.form(one);
        if self.no_room.contains(&form) {
            return None;
        }
        let usable: Vec<_> = self
            .of_kind(one)
            .filter(|(_, spot)| spot.idle >= one.shape.per_node)
            .map(|(index, _)| index)
            .collect();
        let room = self.beyond_headroom(one.kind) >= one.claimant.job.spec.gpus.0;
        let spots = if room { self.best_fit(&usable, one, None) } else { None };
        let Some(spots) = spots else {
            self.no_room.insert(form);
            return None;
        };
        let choice = Choice { spots, ..Choice::default() };
        Some(self.planned(one, &choice, Standing::Free))
    }

    /// Idle GPUs of the kind that free work may take.
    pub(super) fn beyond_headroom(&self, kind: Kind) -> u32 {
        let (idle, kept) = self.headroom(kind);
        idle.saturating_sub(kept)
    }

    /// Idle GPUs of the kind, and how many of the kind free work leaves idle.
    pub(crate) fn headroom(&self, kind: Kind) -> (u32, u32) {
        let of_kind = self.spots().iter().filter(|spot| spot.kind == kind);
        let (idle, all) = of_kind.fold((0_u32, 0_u64), |(idle, all), spot| {
            (idle.saturating_add(spot.idle), all.saturating_add(spot.node.size().0.into()))
        });
        let kept = part_of(all, self.books.policy.sharing.headroom);
        (idle, u32::try_from(kept).unwrap_or(u32::MAX))
    }

    /// Ordinary work starts protected only while protected work holds at most the policy's part of
    /// the GPUs; small jobs, gangs above that part, elders and inherited promises are exempt.
    pub(crate) fn within_cap(&self, claimant: &Claimant<'_>) -> bool {
        let gpus = claimant.job.spec.gpus;
        let exempt = claimant.small || claimant.held || claimant.job.elder.is_some();
        exempt || self.nodes().within_cap(gpus)
    }

    /// A job that runs free is protected where it is, for a full min runtime from now.
    pub(super) fn turn_in_place(
        &self,
        job: &'books Job,
        run: &'books Attempt,
    ) -> Option<Vec<Decision>> {
        let claimant = self.money.claimant(job, run.terms.weight);
        let until = self.now.plus(claimant.protect);
        let in_order = self.money.funding(&claimant).is_ok() && self.within_cap(&claimant);
        let stays = run.tasks.iter().all(|task| {
            let spot = self.spot(task.place.node);
            spot.is_some_and(|spot| spot.before_firm(job.id, until))
        });
        (in_order && stays).then(|| {
            vec![Decision::StandingChanged {
                attempt: run.id,
                at: self.now,
                to: Standing::Protected,
                promised_until: Some(until),
            }]
        })
    }
}

fn admits_bid(spot: &Spot<'_>, one: &Bid<'_>, until: Timestamp) -> bool {
    let displaces = spot.without_funded() < one.shape.per_node;
    admits(spot, &one.claimant, until, displaces)
}

/// Whether the claimant, protected until then at the longest, may go to a node that others are to
/// have. Nobody goes past an older firm reservation. Expected starts are estimates that shape
/// backfill: they keep GPUs that are idle, or that only free work has to leave (it may have taken them
/// this instant), from everybody but small jobs. A right to displace Funded work is not theirs to hold
/// up.
fn admits(spot: &Spot<'_>, claimant: &Claimant<'_>, until: Timestamp, displaces: bool) -> bool {
    let passes = displaces || claimant.small || spot.before_expected(until);
    passes && spot.before_firm(claimant.job.id, until)
}
