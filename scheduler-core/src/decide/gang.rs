//! The form of a gang, and the nodes that can take it: whole nodes in few blocks, small jobs
//! where they fit best.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{GpuCount, JobSpec, NodeId, TaskLayout, UserId};

use crate::books::{Books, Node, Place};

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

/// A node as placement sees it: how many GPUs it could give.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer<'books> {
    pub(crate) node: &'books Node,
    pub(crate) gpus: u32,
}

pub(crate) fn size(node: &Node) -> u32 {
    u32::try_from(node.facts.gpus.len()).unwrap_or(u32::MAX)
}

/// The forms a job may take, the best first. Decided on all nodes of the cluster, so that a
/// node's passing silence does not change a gang's form.
fn shapes(books: &Books, ask: Ask<'_>) -> Vec<Shape> {
    let Ask { user, spec } = ask;
    let gpus = spec.gpus.0;
    if let Some(per_node) = spec.gpus_per_node {
        let nodes = gpus.checked_div(per_node.0).unwrap_or(0);
        return vec![Shape { nodes, per_node: per_node.0 }];
    }
    let sizes: BTreeSet<u32> = books
        .nodes
        .values()
        .filter(|node| node.serves(user))
        .map(|node| size(node))
        .filter(|size| *size > 0)
        .collect();
    if sizes.last().is_some_and(|largest| *largest >= gpus) {
        return vec![Shape { nodes: 1, per_node: gpus }];
    }
    let whole = sizes.iter().rev().filter(|size| gpus.is_multiple_of(**size));
    whole.map(|size| Shape { nodes: gpus / size, per_node: *size }).collect()
}

/// Whether the cluster could serve the job with every node empty and in service.
pub(crate) fn servable(books: &Books, ask: Ask<'_>) -> Result<(), ShapeError> {
    let all: Vec<_> = books.nodes.values().map(|node| Offer { node, gpus: size(node) }).collect();
    if all.iter().all(|offer| offer.gpus == 0) {
        return Err(ShapeError::NoGpus);
    }
    if choose_nodes(books, ask, &all).is_some() {
        return Ok(());
    }
    let serving: Vec<_> = all.iter().filter(|offer| offer.node.serves(ask.user)).copied().collect();
    Err(if serving.is_empty() { not_of_user(ask.user) } else { never(&serving, ask.spec) })
}

fn not_of_user(user: UserId) -> ShapeError {
    let why = format!(
        "no node can run tasks of {user}: a node whose starter has no root runs those of its own \
         user only"
    );
    ShapeError::Never { why }
}

fn never(all: &[Offer<'_>], spec: &JobSpec) -> ShapeError {
    let largest = all.iter().map(|offer| offer.gpus).max().unwrap_or(0);
    let nodes = all.iter().filter(|offer| offer.gpus == largest).count();
    let total: GpuCount = all.iter().map(|offer| GpuCount(offer.gpus)).sum();
    let asked = spec.gpus;
    let on_each = spec.gpus_per_node.map(|n| format!(" with {n} on each node")).unwrap_or_default();
    let why = format!(
        "{asked} GPUs{on_each} asked, which no gang of this cluster's nodes can serve \
         ({total} GPUs; the largest: {nodes} of {largest} GPUs): up to {largest} on one node, \
         multiples of {largest} up to {}, or --gpus-per-node with a number that \
         divides the job and fits its nodes are accepted",
        GpuCount(largest.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)))
    );
    ShapeError::Never { why }
}

/// Places the job on the idle GPUs of the offered nodes: all of its gang, or nothing.
pub(crate) fn place(books: &Books, ask: Ask<'_>, offers: &[Offer<'_>]) -> Option<Vec<Place>> {
    let (shape, nodes) = choose_nodes(books, ask, offers)?;
    let per_node = usize::try_from(shape.per_node).ok()?;
    let mut places = Vec::new();
    for id in nodes {
        let node = books.nodes.get(&id)?;
        let gpus: Vec<_> = node.idle().take(per_node).map(|gpu| gpu.uuid.clone()).collect();
        match ask.spec.layout {
            TaskLayout::PerNode => places.push(Place { node: id, gpus }),
            TaskLayout::PerGpu => {
                places.extend(gpus.into_iter().map(|gpu| Place { node: id, gpus: vec![gpu] }));
            }
        }
    }
    Some(places)
}

pub(crate) fn choose_nodes(
    books: &Books,
    ask: Ask<'_>,
    offers: &[Offer<'_>],
) -> Option<(Shape, Vec<NodeId>)> {
    let choose = |shape: Shape| Some((shape, few_blocks(shape, ask.user, offers)?));
    shapes(books, ask).into_iter().find_map(choose)
}

/// The nodes for a shape: from the smallest block that can take it whole, else from the largest
/// blocks; within a block those with the fewest GPUs to spare. Blocks are told apart by their
/// first node, so that renaming one changes nothing.
fn few_blocks(shape: Shape, user: UserId, offers: &[Offer<'_>]) -> Option<Vec<NodeId>> {
    let wanted = usize::try_from(shape.nodes).ok().filter(|nodes| *nodes > 0)?;
    let mut blocks: BTreeMap<&str, Vec<(u32, NodeId)>> = BTreeMap::new();
    let fits = |offer: &&Offer<'_>| offer.gpus >= shape.per_node && offer.node.serves(user);
    for offer in offers.iter().filter(fits) {
        let block = blocks.entry(offer.node.facts.block.as_str()).or_default();
        block.push((offer.gpus, offer.node.id));
    }
    let mut blocks: Vec<_> = blocks.into_values().collect();
    blocks.iter_mut().for_each(|block| block.sort_unstable());
    if wanted == 1 {
        return blocks.into_iter().flatten().min().map(|(_, node)| vec![node]);
    }
    let first = |block: &Vec<(u32, NodeId)>| block.iter().map(|(_, node)| *node).min();
    let whole = blocks.iter().filter(|block| block.len() >= wanted);
    if let Some(block) = whole.min_by_key(|block| (block.len(), first(block))) {
        return Some(block.iter().take(wanted).map(|(_, node)| *node).collect());
    }
    blocks.sort_by_key(|block| (std::cmp::Reverse(block.len()), first(block)));
    let nodes: Vec<_> = blocks.into_iter().flatten().take(wanted).map(|(_, node)| node).collect();
    (nodes.len() == wanted).then_some(nodes)
}
