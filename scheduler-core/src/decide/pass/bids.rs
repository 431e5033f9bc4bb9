//! What a job could take: kinds of GPU, forms, nodes that fit best; and the plan that comes of it.

use std::collections::BTreeSet;
use std::rc::Rc;

use tidegate_model::{AttemptId, GpuCount, GpuType, Span, Timestamp, UserId};

use super::Pass;
use crate::books::Job;
use crate::decide::gang::{self, Ask, Shape};
use crate::decide::money::Claimant;
use crate::decide::spots::Spot;
use crate::decide::victims::{Choice, by_blocks};
use crate::decision::{Decision, SaveReason, Standing, Terms};
use crate::money::Weight;
use crate::policy::Kind;

/// All of a job that placement depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Form {
    kind: Kind,
    nodes: u32,
    per_node: u32,
    max_blocks: Option<u32>,
    /// Whom the nodes must serve; only where some serve one user only.
    user: Option<UserId>,
}

/// What of a job its forms depend on.
pub(super) type ShapeKey = (GpuCount, Option<GpuCount>, Option<GpuType>, Option<UserId>);

/// The forms of a job, the best first.
pub(super) type Shapes = Rc<[(Kind, Shape)]>;

/// One kind and shape that a job may take, and what it claims there.
#[derive(Clone, Copy)]
pub(crate) struct Bid<'books> {
    pub(crate) claimant: Claimant<'books>,
    pub(crate) weight: Weight,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
}

impl<'books> Pass<'books> {
    /// The kinds and shapes that the job may take, the best first.
    pub(crate) fn options(&self, job: &'books Job) -> Vec<Bid<'books>> {
        let spec = &job.spec;
        let user = self.nodes().picky.then_some(job.user);
        let key = (spec.gpus, spec.gpus_per_node, spec.gpu_type.clone(), user);
        let known = self.shapes.borrow().get(&key).cloned();
        let shapes = known.unwrap_or_else(|| {
            let shapes: Shapes = self.shapes_of(job).into();
            self.shapes.borrow_mut().insert(key, Rc::clone(&shapes));
            shapes
        });
        let bid = |(kind, shape): &(Kind, Shape)| {
            let weight = self.books.policy.sharing.weight(*kind);
            let claimant = self.money.claimant(job, weight);
            Bid { claimant, weight, kind: *kind, shape: *shape }
        };
        shapes.iter().map(bid).collect()
    }

    pub(super) fn shapes_of(&self, job: &Job) -> Vec<(Kind, Shape)> {
        let ask = Ask { user: job.user, spec: &job.spec };
        let of_kind = |kind| {
            let shapes = gang::shapes(self.books, ask, kind).into_iter();
            shapes.map(move |shape| (kind, shape))
        };
        gang::kinds(self.books, &job.spec).into_iter().flat_map(of_kind).collect()
    }

    pub(super) fn form(&self, one: &Bid<'_>) -> Form {
        let job = one.claimant.job;
        Form {
            kind: one.kind,
            nodes: one.shape.nodes,
            per_node: one.shape.per_node,
            max_blocks: job.spec.max_blocks,
            user: self.nodes().picky.then_some(job.user),
        }
    }

    pub(crate) fn of_kind<'pass>(
        &'pass self,
        one: &Bid<'_>,
    ) -> impl Iterator<Item = (usize, &'pass Spot<'books>)> {
        let one = *one;
        let spots = self.spots().iter().enumerate();
        spots.filter(move |(_, spot)| of_its_kind(spot, &one))
    }

    /// Of nodes that can all serve it: from the smallest block that can take it whole, else from
    /// the largest; within a block those with the fewest GPUs to spare, and beside work that ends
    /// at about the same time.
    pub(super) fn best_fit(
        &self,
        usable: &[usize],
        one: &Bid<'_>,
        until: Option<Timestamp>,
    ) -> Option<Vec<usize>> {
        let spots = self.spots();
        let wanted = usize::try_from(one.shape.nodes).ok().filter(|nodes| *nodes > 0)?;
        let max_blocks = one.claimant.job.spec.max_blocks;
        let among = by_blocks(spots, usable, one.shape, max_blocks).into_iter().next()?;
        let fit = |index: &usize| {
            let spot = spots.get(*index);
            let spare = spot.map_or(0, |spot| spot.idle.saturating_sub(one.shape.per_node));
            let ends = spot.and_then(|spot| {
                spot.occupants.iter().filter_map(|one| one.attempt.promised_until).max()
            });
            let apart = until.zip(ends).map_or(0, |(until, ends)| until.0.abs_diff(ends.0));
            (spare, apart, *index)
        };
        let block = |index: &usize| spots.get(*index).map(|spot| spot.node.facts.block.as_str());
        let mut among = among;
        let first = among.first().and_then(block);
        if wanted == 1 || among.iter().all(|index| block(index) == first) {
            among.sort_by_key(fit);
        }
        among.truncate(wanted);
        (among.len() == wanted).then_some(among)
    }

    /// One plan: the gang with its GPUs by name, and the requests to whoever has to leave.
    pub(super) fn planned(
        &self,
        one: &Bid<'books>,
        choice: &Choice,
        standing: Standing,
    ) -> Vec<Decision> {
        let job = one.claimant.job;
        let victims: BTreeSet<AttemptId> = choice.victims.keys().copied().collect();
        let spots = choice.spots.iter().filter_map(|index| self.spots().get(*index));
        let nodes = spots.map(|spot| (spot.node.id, spot.gpus(one.shape.per_node, &victims)));
        let places = gang::places(&job.spec, nodes.collect());
        let number = u32::try_from(job.attempts.len()).unwrap_or(u32::MAX).saturating_add(1);
        let attempt = AttemptId { job: job.id, number };
        let sharing = &self.books.policy.sharing;
        let terms = Terms {
            standing,
            protect: if standing == Standing::Free { Span::ZERO } else { one.claimant.protect },
            weight: one.weight,
            small: sharing.is_small(job.spec.gpus, job.spec.min_runtime),
        };
        let mut decisions = vec![Decision::AttemptPlanned { attempt, places, terms }];
        decisions.extend(choice.victims.iter().map(|(victim, grounds)| {
            let why = SaveReason::Displaced { by: attempt, grounds: *grounds };
            Decision::SaveOrdered { attempt: *victim, why }
        }));
        decisions
    }
}

/// Whether a node is of the bid's kind and serves its user.
pub(super) fn of_its_kind(spot: &Spot<'_>, one: &Bid<'_>) -> bool {
    spot.kind == one.kind && spot.node.serves(one.claimant.job.user)
}
