//! Which nodes, and who leaves them: greedy in three ways, then pruned.
//!
//! Whoever could leave is known by its place among the candidates, who are in the order of their
//! ids: a search asks for each of them many times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{Candidate, Class};
use crate::decide::gang::Shape;
use crate::decide::spots::Spot;

/// Victims of which the costliest are spared one by one.
const SPARE_AMONG: usize = 64;

/// Occupants of a node whose subsets are all tried; with more, the costliest are left out one by
/// one. Eight GPUs hold at most eight.
const TRY_ALL: usize = 8;

/// A node, by its place among the spots, and who could leave it.
#[derive(Debug, Clone)]
pub(super) struct Ground {
    pub(super) spot: usize,
    /// GPUs that nobody has to leave.
    have: u32,
    holders: Vec<Holder>,
}

/// A candidate on a node.
#[derive(Debug, Clone, Copy)]
struct Holder {
    /// Its place among the candidates.
    who: usize,
    /// Its GPUs there.
    gpus: u32,
    /// Its cost, and the part of it for these GPUs.
    cost: u128,
    share: u128,
}

impl Ground {
    pub(super) fn of(index: usize, spot: &Spot<'_>, candidates: &[Candidate]) -> Self {
        let holders = spot.occupants.iter().filter_map(|one| {
            let id = one.attempt.id;
            let who = candidates.binary_search_by_key(&id, |other| other.id).ok()?;
            let Candidate { cost, gpus, .. } = candidates.get(who)?;
            let share = cost.saturating_mul(one.gpus.into()) / u128::from((*gpus).max(1));
            Some(Holder { who, gpus: one.gpus, cost: *cost, share })
        });
        let have = spot.idle.saturating_add(spot.coming);
        Self { spot: index, have, holders: holders.collect() }
    }

    /// With those only who are of the class or of a better one.
    pub(super) fn allowing(&self, class: Class, candidates: &[Candidate]) -> Self {
        let allowed = |one: &&Holder| candidates.get(one.who).is_some_and(|of| of.class <= class);
        let holders = self.holders.iter().filter(allowed).copied().collect();
        Self { spot: self.spot, have: self.have, holders }
    }

    /// GPUs that are to be had if those leave of whom `leaves` holds.
    pub(super) fn freed(&self, leaves: impl Fn(usize) -> bool) -> u32 {
        let leaving = self.holders.iter().filter(|one| leaves(one.who));
        leaving.map(|one| one.gpus).fold(self.have, u32::saturating_add)
    }
}

/// Ways to take the nodes from as few blocks as possible: every single block that can take the
/// gang, else the largest together; nothing if more blocks than allowed would be needed.
pub(crate) fn by_blocks(
    spots: &[Spot<'_>],
    fitting: &[usize],
    shape: Shape,
    max_blocks: Option<u32>,
) -> Vec<Vec<usize>> {
    let wanted = usize::try_from(shape.nodes).unwrap_or(usize::MAX);
    if fitting.len() < wanted {
        return Vec::new();
    }
    if wanted <= 1 {
        return vec![fitting.to_vec()];
    }
    let mut blocks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for index in fitting {
        if let Some(spot) = spots.get(*index) {
            blocks.entry(spot.node.facts.block.as_str()).or_default().push(*index);
        }
    }
    let alone = |block: &&Vec<usize>| block.len() >= wanted;
    let mut whole: Vec<Vec<usize>> = blocks.values().filter(alone).cloned().collect();
    if !whole.is_empty() {
        whole.sort_by_key(|block| (block.len(), block.first().copied()));
        return whole;
    }
    let mut blocks: Vec<_> = blocks.into_values().collect();
    blocks.sort_by_key(|block| (Reverse(block.len()), block.first().copied()));
    let (mut together, mut used) = (Vec::new(), 0_u32);
    for block in blocks {
        if together.len() >= wanted {
            break;
        }
        used = used.saturating_add(1);
        together.extend(block);
    }
    if max_blocks.is_some_and(|most| used > most) { Vec::new() } else { vec![together] }
}

/// Nodes, by their place among the spots and in their order, and who leaves them: places among the
/// candidates.
#[derive(Debug, Clone, Default)]
pub(super) struct Chosen {
    pub(super) spots: Vec<usize>,
    pub(super) victims: Vec<usize>,
    pub(super) cost: u128,
}

/// Who leaves, by place among the candidates.
#[derive(Clone)]
struct Leaving(Vec<bool>);

impl Leaving {
    fn contains(&self, who: usize) -> bool {
        self.0.get(who).copied().unwrap_or(false)
    }

    /// Whether it is new.
    fn insert(&mut self, who: usize) -> bool {
        self.0.get_mut(who).is_some_and(|leaves| !std::mem::replace(leaves, true))
    }

    fn remove(&mut self, who: usize) {
        self.0.get_mut(who).into_iter().for_each(|leaves| *leaves = false);
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, leaves)| **leaves).map(|(who, _)| who)
    }
}

/// The nodes among which is chosen, each of which can take its part of the gang.
pub(super) struct Field<'search> {
    candidates: &'search [Candidate],
    grounds: Vec<&'search Ground>,
    /// Who holds GPUs on which: places among the candidates and the nodes, in that order.
    on: Vec<(usize, usize)>,
    wanted: usize,
    per_node: u32,
}

impl<'search> Field<'search> {
    pub(super) fn new(
        candidates: &'search [Candidate],
        grounds: Vec<&'search Ground>,
        shape: Shape,
    ) -> Self {
        let there = grounds.iter().enumerate();
        let each = there.flat_map(|(place, one)| one.holders.iter().map(move |of| (of.who, place)));
        let mut on: Vec<_> = each.collect();
        on.sort_unstable();
        let wanted = usize::try_from(shape.nodes).unwrap_or(usize::MAX);
        Self { candidates, grounds, on, wanted, per_node: shape.per_node }
    }

    /// The nodes on which a candidate holds GPUs.
    fn of(&self, who: usize) -> impl Iterator<Item = usize> {
        let from = self.on.partition_point(|(other, _)| *other < who);
        let its = self.on.iter().skip(from).take_while(move |(other, _)| *other == who);
        its.map(|(_, place)| *place)
    }

    fn cost(&self, who: usize) -> u128 {
        self.candidates.get(who).map_or(0, |one| one.cost)
    }

    fn nobody(&self) -> Leaving {
        Leaving(vec![false; self.candidates.len()])
    }

    fn chosen(&self, spots: Vec<usize>, leaving: &Leaving) -> Chosen {
        let victims: Vec<usize> = leaving.all().collect();
        let cost = victims.iter().map(|who| self.cost(*who)).fold(0, u128::saturating_add);
        Chosen { spots, victims, cost }
    }

    /// Who holds anything there, the cheapest first.
    fn by_cost(&self) -> Vec<(u128, usize)> {
        let mut all: Vec<usize> = self.on.iter().map(|(who, _)| *who).collect();
        all.dedup();
        let mut by_cost: Vec<_> = all.into_iter().map(|who| (self.cost(who), who)).collect();
        by_cost.sort_unstable();
        by_cost
    }

    /// The first nodes with room enough if those leave, as far as there are any.
    fn roomy(&self, leaving: &Leaving) -> Vec<usize> {
        let fits = |one: &&&Ground| one.freed(|who| leaving.contains(who)) >= self.per_node;
        self.grounds.iter().filter(fits).map(|one| one.spot).take(self.wanted).collect()
    }

    /// Takes the cheapest node again and again, by the whole cost of its victims or by their shares
    /// of it; who yields on one node yields on all.
    pub(super) fn greedy(&self, shared: bool) -> Option<Chosen> {
        let mut leaving = self.nobody();
        let mut prices = Vec::with_capacity(self.grounds.len());
        let mut queue = BinaryHeap::with_capacity(self.grounds.len());
        for (place, ground) in self.grounds.iter().enumerate() {
            let price = cheapest_on(ground, self.per_node, &leaving, shared)?;
            queue.push(Reverse((price.0, ground.spot, place)));
            prices.push(Some(price));
        }
        let mut taken = Vec::with_capacity(self.wanted);
        while taken.len() < self.wanted {
            let Reverse((price, _, place)) = queue.pop()?;
            // It was taken, or has another price since.
            let Some(of) = prices.get_mut(place).filter(|of| is_now(of.as_ref(), price)) else {
                continue;
            };
            taken.push(place);
            for victim in of.take().into_iter().flat_map(|(_, victims)| victims) {
                if !leaving.insert(victim) {
                    continue;
                }
                for other in self.of(victim) {
                    let Some(Some(old)) = prices.get_mut(other) else { continue };
                    let ground = self.grounds.get(other)?;
                    *old = cheapest_on(ground, self.per_node, &leaving, shared)?;
                    queue.push(Reverse((old.0, ground.spot, other)));
                }
            }
        }
        self.prune(&taken, &mut leaving);
        let spots = taken.iter().filter_map(|place| self.grounds.get(*place));
        let mut spots: Vec<usize> = spots.map(|ground| ground.spot).collect();
        spots.sort_unstable();
        Some(self.chosen(spots, &leaving))
    }

    /// Drops whoever need not leave, the costliest first.
    fn prune(&self, taken: &[usize], leaving: &mut Leaving) {
        let mut is_taken = vec![false; self.grounds.len()];
        for place in taken {
            is_taken.get_mut(*place).into_iter().for_each(|one| *one = true);
        }
        // Only where one sits does it matter whether it leaves.
        let enough = |without: usize, leaving: &Leaving| {
            let mut there = self.of(without).filter(|place| is_taken.get(*place) == Some(&true));
            there.all(|place| {
                let ground = self.grounds.get(place);
                ground.is_some_and(|one| one.freed(|who| leaving.contains(who)) >= self.per_node)
            })
        };
        let mut by_cost: Vec<_> = leaving.all().map(|who| (self.cost(who), who)).collect();
        by_cost.sort_unstable();
        for (_, who) in by_cost.into_iter().rev() {
            leaving.remove(who);
            if !enough(who, leaving) {
                leaving.insert(who);
            }
        }
    }

    /// Begins with everybody and spares whoever can be, the costliest first. Only among few: it
    /// looks at every node for every one.
    pub(super) fn costliest_spared(&self) -> Option<Chosen> {
        let by_cost = self.by_cost();
        if by_cost.len() > SPARE_AMONG {
            return None;
        }
        let mut leaving = self.nobody();
        by_cost.iter().for_each(|(_, who)| _ = leaving.insert(*who));
        for (_, who) in by_cost.into_iter().rev() {
            leaving.remove(who);
            if self.roomy(&leaving).len() < self.wanted {
                leaving.insert(who);
            }
        }
        let spots = self.roomy(&leaving);
        (spots.len() == self.wanted).then(|| self.chosen(spots, &leaving))
    }

    /// The best of all sets of victims. Only among very few.
    pub(super) fn best_of_all(&self, most: usize) -> Option<Chosen> {
        let mut all: Vec<usize> = self.on.iter().map(|(who, _)| *who).collect();
        all.dedup();
        if all.len() > most {
            return None;
        }
        let sets = 1_u32.checked_shl(u32::try_from(all.len()).ok()?)?;
        let of = |set: u32| {
            let members = all.iter().enumerate().filter(move |(bit, _)| set >> *bit & 1 == 1);
            members.map(|(_, who)| *who)
        };
        let price = |set: u32| of(set).map(|who| self.cost(who)).fold(0, u128::saturating_add);
        let mut by_price: Vec<(u128, u32)> = (0..sets).map(|set| (price(set), set)).collect();
        by_price.sort_unstable();
        by_price.into_iter().find_map(|(_, set)| {
            let mut leaving = self.nobody();
            of(set).for_each(|who| _ = leaving.insert(who));
            let spots = self.roomy(&leaving);
            (spots.len() == self.wanted).then(|| self.chosen(spots, &leaving))
        })
    }
}

/// What it costs to take a node, and who leaves it for that.
type Price = (u128, Vec<usize>);

fn is_now(of: Option<&Price>, price: u128) -> bool {
    of.is_some_and(|of| of.0 == price)
}

/// Who must leave one node so that `wanted` GPUs of it come free, at the least cost beyond those
/// who leave anyway.
fn cheapest_on(ground: &Ground, wanted: u32, leaving: &Leaving, shared: bool) -> Option<Price> {
    let have = ground.freed(|who| leaving.contains(who));
    if have >= wanted {
        return Some((0, Vec::new()));
    }
    let stays = ground.holders.iter().filter(|one| !leaving.contains(one.who));
    let price = |one: &Holder| (if shared { one.share } else { one.cost }, one.gpus, one.who);
    let mut others: Vec<(u128, u32, usize)> = stays.map(price).collect();
    let missing = wanted.saturating_sub(have);
    let all = others.iter().map(|(_, gpus, _)| *gpus).fold(0, u32::saturating_add);
    if all <= missing {
        // Whole nodes leave no choice.
        let cost = others.iter().map(|(cost, _, _)| *cost).fold(0, u128::saturating_add);
        let everybody = (cost, others.into_iter().map(|(_, _, who)| who).collect());
        return (all == missing).then_some(everybody);
    }
    if others.len() > TRY_ALL {
        others.sort_unstable();
        return leave_out(&others, missing);
    }
    let masks = 1_u32.checked_shl(u32::try_from(others.len()).ok()?)?;
    let subset = |mask: u32| {
        let inside = others.iter().enumerate().filter(move |(bit, _)| mask >> *bit & 1 == 1);
        let mut total = (0_u128, 0_u32);
        for (_, (cost, gpus, _)) in inside {
            total = (total.0.saturating_add(*cost), total.1.saturating_add(*gpus));
        }
        total
    };
    let best = (1..masks)
        .filter_map(|mask| {
            let (cost, gpus) = subset(mask);
            (gpus >= missing).then_some((cost, gpus, mask))
        })
        .min()?;
    let members = others.iter().enumerate().filter(|(bit, _)| best.2 >> *bit & 1 == 1);
    Some((best.0, members.map(|(_, (_, _, who))| *who).collect()))
}

/// Starts with all and leaves out the costliest that are not needed.
fn leave_out(others: &[(u128, u32, usize)], missing: u32) -> Option<Price> {
    let mut have: u32 = others.iter().map(|(_, gpus, _)| *gpus).fold(0, u32::saturating_add);
    if have < missing {
        return None;
    }
    let mut kept = others.to_vec();
    for one in others.iter().rev() {
        if have.saturating_sub(one.1) >= missing {
            have = have.saturating_sub(one.1);
            kept.retain(|other| other.2 != one.2);
        }
    }
    let cost = kept.iter().map(|(cost, _, _)| *cost).fold(0, u128::saturating_add);
    Some((cost, kept.into_iter().map(|(_, _, who)| who).collect()))
}
