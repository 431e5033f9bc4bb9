//! Which nodes, and who leaves them: greedy in three ways, then pruned.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::AttemptId;

use super::Candidate;
use crate::decide::gang::Shape;
use crate::decide::spots::{Occupant, Spot};

/// Victims of which the costliest are spared one by one.
const SPARE_AMONG: usize = 64;

/// Occupants of a node whose subsets are all tried; with more, the costliest are left out one by
/// one. Eight GPUs hold at most eight.
const TRY_ALL: usize = 8;

#[derive(Debug, Clone, Default)]
pub(super) struct Chosen {
    pub(super) spots: Vec<usize>,
    pub(super) victims: BTreeSet<AttemptId>,
}

pub(super) fn sum(chosen: &Chosen, allowed: &dyn Fn(AttemptId) -> Option<Candidate>) -> u128 {
    let costs = chosen.victims.iter().filter_map(|id| allowed(*id)).map(|one| one.cost);
    costs.fold(0, u128::saturating_add)
}

/// The spots on which the shape fits if all that is allowed yields.
pub(super) fn fitting(
    spots: &[Spot<'_>],
    usable: &[usize],
    shape: Shape,
    allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
) -> Vec<usize> {
    let fits = |index: &&usize| {
        let yields = |one: &Occupant<'_>| allowed(one.attempt.id).is_some();
        spots.get(**index).is_some_and(|spot| spot.with(yields) >= shape.per_node)
    };
    usable.iter().filter(fits).copied().collect()
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
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.len()), block.first().copied()));
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

/// Takes the cheapest node again and again; who yields on one node yields on all.
pub(super) fn greedy(
    spots: &[Spot<'_>],
    among: &[usize],
    shape: Shape,
    allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
    shared: bool,
) -> Option<Chosen> {
    let wanted = usize::try_from(shape.nodes).ok()?;
    let mut chosen = Chosen::default();
    let mut queue: BTreeSet<(u128, usize)> = BTreeSet::new();
    let mut priced: BTreeMap<usize, (u128, Vec<AttemptId>)> = BTreeMap::new();
    let mut on: BTreeMap<AttemptId, Vec<usize>> = BTreeMap::new();
    for index in among {
        let spot = spots.get(*index)?;
        for one in &spot.occupants {
            on.entry(one.attempt.id).or_default().push(*index);
        }
        let price = cheapest_on(spot, shape.per_node, allowed, &chosen.victims, shared)?;
        queue.insert((price.0, *index));
        priced.insert(*index, price);
    }
    while chosen.spots.len() < wanted {
        let (_, index) = queue.pop_first()?;
        let (_, victims) = priced.remove(&index)?;
        chosen.spots.push(index);
        for victim in victims {
            if !chosen.victims.insert(victim) {
                continue;
            }
            for other in on.get(&victim).into_iter().flatten() {
                let Some(old) = priced.get(other) else { continue };
                queue.remove(&(old.0, *other));
                let spot = spots.get(*other)?;
                let price = cheapest_on(spot, shape.per_node, allowed, &chosen.victims, shared)?;
                queue.insert((price.0, *other));
                priced.insert(*other, price);
            }
        }
    }
    chosen.spots.sort_unstable();
    prune(spots, shape, allowed, &mut chosen);
    Some(chosen)
}

/// Begins with everybody and spares whoever can be, the costliest first. Only among few: it looks
/// at every node for every one.
pub(super) fn costliest_spared(
    spots: &[Spot<'_>],
    among: &[usize],
    shape: Shape,
    allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
) -> Option<Chosen> {
    let wanted = usize::try_from(shape.nodes).ok()?;
    let all = among.iter().filter_map(|index| spots.get(*index)).flat_map(|spot| &spot.occupants);
    let ids = all.map(|one| one.attempt.id);
    let mut by_cost: Vec<_> = ids.filter_map(|id| Some((allowed(id)?.cost, id))).collect();
    by_cost.sort_unstable();
    by_cost.dedup();
    if by_cost.len() > SPARE_AMONG {
        return None;
    }
    let mut victims: BTreeSet<AttemptId> = by_cost.iter().map(|(_, id)| *id).collect();
    let roomy = |victims: &BTreeSet<AttemptId>| {
        let fits = among.iter().filter(|index| {
            spots.get(**index).is_some_and(|spot| freed(spot, victims) >= shape.per_node)
        });
        fits.copied().take(wanted).collect::<Vec<_>>()
    };
    for (_, id) in by_cost.into_iter().rev() {
        victims.remove(&id);
        if roomy(&victims).len() < wanted {
            victims.insert(id);
        }
    }
    let spots = roomy(&victims);
    (spots.len() == wanted).then_some(Chosen { spots, victims })
}

/// The best of all sets of victims. Only among very few.
pub(super) fn best_of_all(
    spots: &[Spot<'_>],
    among: &[usize],
    shape: Shape,
    allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
    most: usize,
) -> Option<Chosen> {
    let wanted = usize::try_from(shape.nodes).ok()?;
    let here = || among.iter().filter_map(|index| Some((*index, spots.get(*index)?)));
    let ids = here().flat_map(|(_, spot)| &spot.occupants).map(|one| one.attempt.id);
    let costs: BTreeMap<AttemptId, u128> =
        ids.filter_map(|id| Some((id, allowed(id)?.cost))).collect();
    if costs.len() > most {
        return None;
    }
    let sets = 1_u32.checked_shl(u32::try_from(costs.len()).ok()?)?;
    let of = |set: u32| {
        let members = costs.iter().enumerate().filter(move |(bit, _)| set >> *bit & 1 == 1);
        members.map(|(_, (id, cost))| (*id, *cost))
    };
    let price = |set: u32| of(set).map(|(_, cost)| cost).fold(0, u128::saturating_add);
    let mut by_price: Vec<(u128, u32)> = (0..sets).map(|set| (price(set), set)).collect();
    by_price.sort_unstable();
    by_price.into_iter().find_map(|(_, set)| {
        let victims: BTreeSet<AttemptId> = of(set).map(|(id, _)| id).collect();
        let roomy = here().filter(|(_, spot)| freed(spot, &victims) >= shape.per_node);
        let spots: Vec<usize> = roomy.map(|(index, _)| index).take(wanted).collect();
        (spots.len() == wanted).then_some(Chosen { spots, victims })
    })
}

/// GPUs of a node that are to be had if those leave.
fn freed(spot: &Spot<'_>, victims: &BTreeSet<AttemptId>) -> u32 {
    spot.with(|one| victims.contains(&one.attempt.id))
}

/// Who must leave one node so that `wanted` GPUs of it come free, at the least cost beyond those
/// who leave anyway.
fn cheapest_on(
    spot: &Spot<'_>,
    wanted: u32,
    allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
    leaving: &BTreeSet<AttemptId>,
    shared: bool,
) -> Option<(u128, Vec<AttemptId>)> {
    let mut have = spot.idle.saturating_add(spot.coming);
    let mut others: Vec<(u128, u32, AttemptId)> = Vec::new();
    for one in &spot.occupants {
        let id = one.attempt.id;
        if leaving.contains(&id) {
            have = have.saturating_add(one.gpus);
        } else if let Some(candidate) = allowed(id) {
            let all = one.attempt.gpus().0.max(1);
            let share = candidate.cost.saturating_mul(one.gpus.into()) / u128::from(all);
            others.push((if shared { share } else { candidate.cost }, one.gpus, id));
        }
    }
    if have >= wanted {
        return Some((0, Vec::new()));
    }
    let missing = wanted.saturating_sub(have);
    let all = others.iter().map(|(_, gpus, _)| *gpus).fold(0, u32::saturating_add);
    if all <= missing {
        // Whole nodes leave no choice.
        let cost = others.iter().map(|(cost, _, _)| *cost).fold(0, u128::saturating_add);
        let everybody = (cost, others.into_iter().map(|(_, _, id)| id).collect());
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
    Some((best.0, members.map(|(_, (_, _, id))| *id).collect()))
}

/// Starts with all and leaves out the costliest that are not needed.
fn leave_out(others: &[(u128, u32, AttemptId)], missing: u32) -> Option<(u128, Vec<AttemptId>)> {
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
    Some((cost, kept.into_iter().map(|(_, _, id)| id).collect()))
}

/// Drops whoever need not leave, the costliest first.
fn prune(
    spots: &[Spot<'_>],
    shape: Shape,
    allowed: &dyn Fn(AttemptId) -> Option<Candidate>,
    chosen: &mut Chosen,
) {
    // Only where one sits does it matter whether it leaves.
    let mut on: BTreeMap<AttemptId, Vec<&Spot<'_>>> = BTreeMap::new();
    for spot in chosen.spots.iter().filter_map(|index| spots.get(*index)) {
        for one in &spot.occupants {
            on.entry(one.attempt.id).or_default().push(spot);
        }
    }
    let enough = |without: AttemptId, victims: &BTreeSet<AttemptId>| {
        let mut there = on.get(&without).into_iter().flatten();
        there.all(|spot| freed(spot, victims) >= shape.per_node)
    };
    let mut by_cost: Vec<_> =
        chosen.victims.iter().map(|id| (allowed(*id).map_or(0, |one| one.cost), *id)).collect();
    by_cost.sort_unstable();
    let mut victims = chosen.victims.clone();
    for (_, id) in by_cost.into_iter().rev() {
        victims.remove(&id);
        if !enough(id, &victims) {
            victims.insert(id);
        }
    }
    chosen.victims = victims;
}
