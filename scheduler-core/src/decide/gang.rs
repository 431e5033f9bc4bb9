//! The form of a gang: on which kind of GPU, how many nodes, how many GPUs on each, and whether
//! the cluster could serve it at all.

use std::collections::BTreeSet;

use tidegate_model::{GpuCount, GpuUuid, JobSpec, NodeId, Span, TaskLayout, UserId};

use crate::accounts::WHOLE;
use crate::books::{Books, Place};
use crate::decide::words;
use crate::policy::{Kind, part_of, percent};

/// How many nodes a gang takes and how many GPUs on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Nodes.
    pub(crate) nodes: u32,
    /// GPUs on each.
    pub(crate) per_node: u32,
}

/// Why no gang of the cluster's nodes can serve a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShapeError {
    /// No node has reported GPUs.
    NoGpus,
    /// None ever will, as the cluster is.
    Never {
        /// With the figures, and what would be accepted.
        why: String,
    },
}

/// What is placed: whose job, and what it asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'job> {
    pub(crate) user: UserId,
    pub(crate) spec: &'job JobSpec,
}

/// The kinds of GPU that may serve a job: the one it names, else all that nodes have, the
/// cheapest first.
pub(crate) fn kinds(books: &Books, spec: &JobSpec) -> Vec<Kind> {
    let sharing = &books.policy.sharing;
    if let Some(name) = &spec.gpu_type {
        return sharing.kind_named(name).into_iter().collect();
    }
    if sharing.gpu_types.is_empty() {
        return vec![Kind::default()];
    }
    let kinds: BTreeSet<Kind> = books.index.makes.keys().map(|make| make.kind).collect();
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|kind| (sharing.weight(*kind), *kind));
    kinds
}

/// The forms a job may take on one kind of GPU, the best first. Decided on all nodes of the
/// cluster, so that a node's passing silence does not change a gang's form.
pub(crate) fn shapes(books: &Books, ask: Ask<'_>, kind: Kind) -> Vec<Shape> {
    let Ask { user, spec } = ask;
    let gpus = spec.gpus.0;
    if let Some(per_node) = spec.gpus_per_node {
        let nodes = gpus.checked_div(per_node.0).unwrap_or(0);
        return vec![Shape { nodes, per_node: per_node.0 }];
    }
    let serving = books.index.makes.keys().filter(|make| make.kind == kind && make.serves(user));
    let sizes: BTreeSet<u32> = serving.map(|make| make.size).filter(|size| *size > 0).collect();
    if sizes.last().is_some_and(|largest| *largest >= gpus) {
        return vec![Shape { nodes: 1, per_node: gpus }];
    }
    let whole = sizes.iter().rev().filter(|size| gpus.is_multiple_of(**size));
    whole.map(|size| Shape { nodes: gpus / size, per_node: *size }).collect()
}

/// The most GPUs of a kind that one gang may hold, `without` so many that are out of service: the
/// policy's part of the others, rounded down to nodes, but at least all but one node, and at least one
/// node.
fn gang_limit(books: &Books, kind: Kind, without: u32) -> GpuCount {
    let (mut total, mut largest) = (0_u32, 0_u32);
    for (make, count) in books.index.makes.iter().filter(|(make, _)| make.kind == kind) {
        total = total.saturating_add(make.size.saturating_mul(*count));
        largest = largest.max(make.size);
    }
    let total = total.saturating_sub(without);
    let part = part_of(total.into(), books.policy.sharing.gang_cap);
    let part = u32::try_from(part).unwrap_or(u32::MAX);
    let by_nodes = part.checked_div(largest).unwrap_or(0).saturating_mul(largest);
    GpuCount(by_nodes.max(total.saturating_sub(largest)).max(largest))
}

/// Whether the cluster could serve the job with every node empty and in service.
pub(crate) fn servable(books: &Books, ask: Ask<'_>) -> Result<(), ShapeError> {
    let sharing = &books.policy.sharing;
    let makes = &books.index.makes;
    if makes.keys().all(|make| make.size == 0) {
        return Err(ShapeError::NoGpus);
    }
    let kinds = kinds(books, ask.spec);
    if let (Some(name), true) = (&ask.spec.gpu_type, kinds.is_empty()) {
        let known = match sharing.gpu_types.as_slice() {
            [] => "gpu".to_owned(),
            rules => words::any_of(rules.iter().map(|rule| rule.name.to_string())),
        };
        let why = format!("gpu_type {name} is not known here; {known} is accepted");
        return Err(ShapeError::Never { why });
    }
    let there: BTreeSet<Kind> =
        makes.keys().filter(|make| make.size > 0).map(|make| make.kind).collect();
    if let (Some(name), false) = (&ask.spec.gpu_type, kinds.iter().any(|kind| there.contains(kind)))
    {
        let have = words::any_of(there.iter().map(|kind| sharing.kind_name(*kind).to_owned()));
        let why = format!("gpu_type {name}: no node has GPUs of that kind; {have} is accepted");
        return Err(ShapeError::Never { why });
    }
    let fits = |kind: &Kind| {
        let able = |per_node: u32| {
            let able = makes.iter().filter(|(make, _)| {
                make.kind == *kind && make.serves(ask.user) && make.size >= per_node
            });
            able.map(|(_, count)| *count).fold(0, u32::saturating_add)
        };
        let mut shapes = shapes(books, ask, *kind).into_iter();
        shapes.any(|shape| shape.nodes > 0 && able(shape.per_node) >= shape.nodes)
    };
    let fitting: Vec<_> = kinds.into_iter().filter(fits).collect();
    if fitting.is_empty() {
        let serving = makes.iter().filter(|(make, _)| make.serves(ask.user));
        let serving: Vec<_> = serving.map(|(make, count)| (make.size, *count)).collect();
        return Err(if serving.is_empty() {
            not_of_user(ask.user)
        } else {
            never(&serving, ask.spec)
        });
    }
    if ask.spec.whole_cluster { Ok(()) } else { within_limit(books, ask.spec, &fitting) }
}

/// 100 % of the policy is no limit: then whoever asks all waits until all nodes are in service. Else only who
/// asks is held to what is in service now: who was accepted stays so, whatever is drained.
fn within_limit(books: &Books, spec: &JobSpec, kinds: &[Kind]) -> Result<(), ShapeError> {
    if books.policy.sharing.gang_cap == WHOLE {
        return Ok(());
    }
    let drained = |kind: Kind| {
        let nodes = books.index.drained.iter().filter_map(|node| books.nodes.get(node));
        let of_kind = nodes.filter(move |node| node.kind(&books.policy) == kind);
        of_kind.map(|node| node.size().0).fold(0, u32::saturating_add)
    };
    let with = |kind: &Kind| (gang_limit(books, *kind, drained(*kind)), drained(*kind), *kind);
    let Some((most, out, kind)) = kinds.iter().map(with).max() else { return Ok(()) };
    if spec.gpus <= most {
        return Ok(());
    }
    let (asked, part) = (spec.gpus, percent(books.policy.sharing.gang_cap));
    let healthy = if out > 0 {
        let then = gang_limit(books, kind, 0);
        format!(" while {out} GPUs are on drained nodes, {then} when all are in service")
    } else {
        String::new()
    };
    let why = format!(
        "{asked} GPUs asked; a gang may hold at most {part} of the GPUs of a kind, in whole nodes: \
         up to {most} are accepted{healthy}; an admin may submit more, with whole_cluster"
    );
    Err(ShapeError::Never { why })
}

/// The longest protection a job of that size may ask for: less for a gang above the policy's part
/// of the GPUs, which nobody else could be protected beside.
pub(crate) fn longest_protection(books: &Books, spec: &JobSpec) -> Span {
    let sharing = &books.policy.sharing;
    let large = part_of(books.installed_gpus(), sharing.large_gang);
    let one_node = books.index.makes.keys().any(|make| make.size >= spec.gpus.0);
    if u64::from(spec.gpus.0) > large && !one_node {
        sharing.large_min_runtime.min(sharing.max_min_runtime)
    } else {
        sharing.max_min_runtime
    }
}

fn not_of_user(user: UserId) -> ShapeError {
    let why = format!(
        "no node can run tasks of {user}: a node whose starter has no root runs those of its own \
         user only"
    );
    ShapeError::Never { why }
}

/// `all`: sizes of nodes, and how many have them.
fn never(all: &[(u32, u32)], spec: &JobSpec) -> ShapeError {
    let largest = all.iter().map(|(size, _)| *size).max().unwrap_or(0);
    let of_largest = all.iter().filter(|(size, _)| *size == largest);
    let nodes = of_largest.map(|(_, count)| *count).fold(0, u32::saturating_add);
    let total: GpuCount =
        all.iter().map(|(size, count)| GpuCount(size.saturating_mul(*count))).sum();
    let asked = spec.gpus;
    let on_each = spec.gpus_per_node.map(|n| format!(" with {n} on each node")).unwrap_or_default();
    let why = format!(
        "{asked} GPUs{on_each} asked, which no gang of this cluster's nodes can serve \
         ({total} GPUs; the largest: {nodes} of {largest} GPUs): up to {largest} on one node, \
         multiples of {largest} up to {}, or --gpus-per-node with a number that \
         divides the job and fits its nodes are accepted",
        GpuCount(largest.saturating_mul(nodes))
    );
    ShapeError::Never { why }
}

/// The tasks of a gang on the chosen GPUs, in rank order.
pub(crate) fn places(spec: &JobSpec, nodes: Vec<(NodeId, Vec<GpuUuid>)>) -> Vec<Place> {
    let mut places = Vec::new();
    for (node, gpus) in nodes {
        match spec.layout {
            TaskLayout::PerNode => places.push(Place { node, gpus }),
            TaskLayout::PerGpu => {
                places.extend(gpus.into_iter().map(|gpu| Place { node, gpus: vec![gpu] }));
            }
        }
    }
    places
}
