//! What tells at a glance that a waiting job cannot start, so that a pass looks closer at few of
//! thousands. It errs on the side of looking closer.

use std::cell::Cell;
use std::rc::Rc;

use tidegate_model::GpuCount;

use crate::books::Books;
use crate::decide::spots::Spot;
use crate::index::{LeafQueue, Wish};
use crate::money::{Amount, Weight};
use crate::policy::part_of;

/// The nodes of one pass in a few numbers.
#[derive(Debug, Clone)]
pub(crate) struct Nodes {
    /// Nodes with at least so many idle GPUs: the first entry of one GPU, the second of two.
    pub(crate) idle: Vec<u32>,
    /// Idle GPUs that free work may take, of all kinds together.
    pub(crate) beyond_headroom: u32,
    /// Likewise of GPUs that are idle, coming, or not protected.
    pub(crate) most: Vec<u32>,
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
        let mut sizes = books.nodes.values().map(|node| node.size().0).filter(|size| *size > 0);
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

    /// Whether idle GPUs could take the job as free work.
    pub(crate) fn free(&self, wish: &Wish) -> bool {
        wish.gpus.0 <= self.beyond_headroom && self.fits(&self.idle, wish)
    }

    /// Whether nodes with that much could take the job, as far as numbers tell.
    pub(crate) fn fits(&self, nodes: &[u32], wish: &Wish) -> bool {
        let with = |gpus: u32| {
            let index = usize::try_from(gpus.saturating_sub(1)).unwrap_or(usize::MAX);
            nodes.get(index).copied().unwrap_or(0)
        };
        let gpus = wish.gpus.0;
        match (wish.per_node, self.alike) {
            (Some(per_node), _) => with(per_node.0) >= gpus.checked_div(per_node.0).unwrap_or(0),
            (None, Some(size)) if gpus > size => with(size) >= gpus.div_ceil(size),
            (None, Some(_)) => with(gpus) > 0,
            (None, None) => !nodes.is_empty(),
        }
    }
}

/// How many nodes have at least 1, 2, 3 ... of what each has.
fn at_least(each: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut counts: Vec<u32> = Vec::new();
    for have in each {
        let have = usize::try_from(have).unwrap_or(0);
        if counts.len() < have {
            counts.resize(have, 0);
        }
        for count in counts.iter_mut().take(have) {
            *count = count.saturating_add(1);
        }
    }
    counts
}

/// One leaf's money and the nodes.
pub(crate) struct Glance {
    /// The most an ordinary start may claim.
    pub(crate) ordinary: Amount,
    /// The most a small one may.
    pub(crate) small: Amount,
    /// The weight of the cheapest GPU.
    pub(crate) least: Weight,
    pub(crate) nodes: Rc<Nodes>,
    /// Expected starts of this pass so far, and how many shape backfill at most.
    pub(crate) expected: Rc<Cell<u32>>,
    pub(crate) most_expected: u32,
}

impl Glance {
    /// Whether anybody in the leaf could start, as far as sums tell.
    pub(crate) fn leaf(&self, waiting: &LeafQueue) -> bool {
        let least = |small| {
            let mut asks = waiting.asks.range((small, 0)..=(small, u128::MAX));
            asks.next().map(|((_, plain), _)| self.least.of(*plain))
        };
        let paid = |small, room| least(small).is_some_and(|ask| ask <= room);
        let fundable = paid(false, self.ordinary) || paid(true, self.small);
        fundable && (waiting.runs > 0 || !self.nodes.most.is_empty())
    }

    /// Who cannot start now may still have an instant that those behind it must leave alone.
    fn may_expect(&self) -> bool {
        !self.nodes.most.is_empty() && self.expected.get() < self.most_expected
    }

    pub(crate) fn protected(&self, wish: &Wish) -> bool {
        let room = if wish.small { self.small } else { self.ordinary };
        let ask = self.least.rate(wish.gpus).over(wish.protect);
        let within_cap = wish.small || self.nodes.within_cap(wish.gpus);
        let fits = wish.runs || self.nodes.fits(&self.nodes.most, wish);
        ask <= room && (within_cap && fits || !wish.runs && self.may_expect())
    }
}
