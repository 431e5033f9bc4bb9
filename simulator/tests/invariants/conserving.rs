//! Work conserving (2-scheduling, invariant 8): after a pass no idle, unreserved GPU beyond headroom
//! and caps fits a job that may start.
//!
//! * Free: idle GPUs beyond the headroom fit a due job that may run Free; a gang over several nodes
//!   where enough nodes have enough idle, in few enough blocks.
//! * Protected: besides, the job is funded on its path, no elder of its leaf waits for budget before
//!   it, Protected work stays within its cap, and it ends before the firm reservations on its nodes.
//!   Ordinary jobs only where no expected start shapes backfill (`max_reservations` 0): which nodes
//!   those need is the scheduler's own estimate.
//!
//! Of an array that runs so many at a time the next may start only when one of them is over, and never
//! more than so many have their turn.
//!
//! Of one kind of GPU, without nodes of one user. Figures are those of the accounts, the rest is
//! reckoned here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scheduler_core::{Amount, Books, Core, Job, JobState, Node, NodeState, Standing, Weight};
use tidegate_model::{ArrayPlace, JobId, NodeId, Span, Timestamp};

/// A node that takes work, and its idle GPUs.
type Idle<'books> = (&'books Node, usize);

/// A job that could start now and does not, or that is one too many of its array.
pub(crate) fn who_could_start(core: &Core, now: Timestamp) -> Option<String> {
    let books = core.books();
    let ready = |node: &&Node| core.node_state(now, node.id) == Some(NodeState::Ready);
    let nodes = books.nodes.values().map(AsRef::as_ref).filter(ready);
    let nodes: Vec<Idle<'_>> = nodes.map(|node| (node, node.idle().count())).collect();
    let waiting = books.jobs.values().filter(|job| is_due(job, now) && array_has_room(books, job));
    let found = waiting.filter_map(|job| {
        let free = could_run_free(books, job, &nodes);
        let how = if free { "Free" } else { could_be_protected(books, job, &nodes, now)? };
        let idle: Vec<_> =
            nodes.iter().map(|(node, idle)| format!("{} {idle}", node.name)).collect();
        let (id, gpus) = (job.id, job.spec.gpus);
        Some(format!("{id} of {gpus} GPUs could start {how}, with idle {}", idle.join(", ")))
    });
    let too_many = || who_is_too_many(books).map(|id| format!("{id} is too many of its array"));
    found.into_iter().next().or_else(too_many)
}

fn is_due(job: &Job, now: Timestamp) -> bool {
    let due = matches!(job.state, JobState::Pending { not_before } if not_before <= now);
    let held_up = job.parked.is_some() || !job.waits_for.is_empty() || job.cancelled.is_some();
    due && !held_up && job.reservation.is_none()
}

fn array_has_room(books: &Books, job: &Job) -> bool {
    job.spec.array.as_ref().is_none_or(|array| in_array(books, job).count() < places(array))
}

/// A job of an array of which more hold a place than may at a time.
fn who_is_too_many(books: &Books) -> Option<JobId> {
    let over = |job: &&Arc<Job>| {
        job.spec.array.as_ref().is_some_and(|array| in_array(books, job).count() > places(array))
    };
    books.jobs.values().find(over).map(|job| job.id)
}

fn places(array: &ArrayPlace) -> usize {
    usize::try_from(array.at_a_time).unwrap_or(usize::MAX)
}

/// Who of the job's array runs, or has a firm reservation.
fn in_array<'books>(books: &'books Books, job: &Job) -> impl Iterator<Item = &'books Job> {
    let of = |job: &Job| (job.user, job.spec.array.as_ref().map(|array| array.key));
    let wanted = of(job);
    let alike = books.jobs.values().map(AsRef::as_ref).filter(move |other| of(other) == wanted);
    alike.filter(|other| other.reservation.is_some() || other.active_attempt().is_some())
}

fn could_run_free(books: &Books, job: &Job, nodes: &[Idle<'_>]) -> bool {
    let all: u64 = nodes.iter().map(|(node, _)| u64::from(node.size().0)).sum();
    let idle: usize = nodes.iter().map(|(_, idle)| idle).sum();
    let headroom = all * u64::from(books.policy.sharing.headroom) / 1_000_000;
    let idle = u64::try_from(idle).unwrap_or(0);
    job.runs_free() && u64::from(job.spec.gpus.0) + headroom <= idle && fits(books, job, nodes)
}

fn could_be_protected(
    books: &Books,
    job: &Job,
    nodes: &[Idle<'_>],
    now: Timestamp,
) -> Option<&'static str> {
    let sharing = &books.policy.sharing;
    let protect = job.carried.unwrap_or(job.spec.min_runtime);
    let small = job.carried.is_none() && sharing.is_small(job.spec.gpus, protect);
    if protect == Span::ZERO || sharing.max_reservations > 0 && !small {
        return None;
    }
    let first = first_elder(books, job).is_none_or(|elder| elder.id == job.id);
    let may = job.carried.is_some() || (funded(books, job, now) && (small || first));
    let exempt = small || job.carried.is_some() || job.elder.is_some();
    let restore = job.attempts.iter().rev().find_map(|one| Some(one.running?.since(one.granted?)));
    let twice = Span(restore.unwrap_or(Span::ZERO).0 * 2);
    let until = now.plus(books.policy.start_timeout.max(twice)).plus(protect);
    let mut firm: BTreeMap<NodeId, Timestamp> = BTreeMap::new();
    for held in books.jobs.values().filter_map(|job| job.reservation.as_ref()) {
        for (node, _) in &held.nodes {
            firm.entry(*node).and_modify(|at| *at = held.at.min(*at)).or_insert(held.at);
        }
    }
    let before = |node: &Node| firm.get(&node.id).is_none_or(|at| until <= *at);
    let nodes: Vec<_> = nodes.iter().copied().filter(|(node, _)| before(node)).collect();
    let starts = may && (exempt || within_cap(books, job)) && fits(books, job, &nodes);
    starts.then_some("Protected")
}

/// Below the limit on its whole path with what it asks; what of the reserve is left for it is not
/// counted.
fn funded(books: &Books, job: &Job, now: Timestamp) -> bool {
    let ask = Weight::REFERENCE.rate(job.spec.gpus).over(job.spec.min_runtime);
    let sheet = books.accounts.sheet(now, books.policy.sharing.small_reserve);
    let has_room = |claim: Amount, limit: Amount| claim + ask <= limit;
    let mut path = books.accounts.path(job.account);
    path.all(|account| has_room(account.claim(now), sheet.row(account.id).limit))
}

/// The first elder of the job's leaf that waits for budget, in the queue or while it runs Free.
fn first_elder<'books>(books: &'books Books, job: &Job) -> Option<&'books Job> {
    let mates = books.jobs.values().map(AsRef::as_ref).filter(|other| other.account == job.account);
    let waits = mates
        .filter(|other| other.elder.is_some() && other.reservation.is_none() && other.is_alive());
    waits.min_by_key(|other| (other.elder, other.id))
}

fn within_cap(books: &Books, job: &Job) -> bool {
    let sharing = &books.policy.sharing;
    let installed: u64 = books.nodes.values().map(|node| u64::from(node.size().0)).sum();
    let protected = books.live_attempts().filter(|one| one.standing == Standing::Protected);
    let held: u64 = protected.map(|one| u64::from(one.gpus().0)).sum();
    let gpus = u64::from(job.spec.gpus.0);
    let part = |millionths: u32| installed * u64::from(millionths) / 1_000_000;
    gpus > part(sharing.large_gang) || held + gpus <= part(sharing.protected_cap)
}

/// Whether the idle GPUs of these nodes can take the gang in one of its forms.
fn fits(books: &Books, job: &Job, nodes: &[Idle<'_>]) -> bool {
    let gpus = job.spec.gpus.0;
    let sizes: BTreeSet<u32> = books.nodes.values().map(|node| node.size().0).collect();
    let largest = sizes.last().copied().unwrap_or(0);
    let forms: Vec<u32> = match job.spec.gpus_per_node {
        Some(each) => vec![each.0],
        None if gpus <= largest => vec![gpus],
        None => sizes.into_iter().filter(|size| *size > 0 && gpus.is_multiple_of(*size)).collect(),
    };
    forms.into_iter().any(|each| {
        let mut blocks: BTreeMap<&str, u32> = BTreeMap::new();
        for (node, idle) in nodes {
            if u32::try_from(*idle).is_ok_and(|idle| idle >= each) {
                *blocks.entry(node.facts.block.as_str()).or_default() += 1;
            }
        }
        let mut blocks: Vec<u32> = blocks.into_values().collect();
        blocks.sort_unstable_by_key(|nodes| std::cmp::Reverse(*nodes));
        let most =
            job.spec.max_blocks.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(1));
        blocks.into_iter().take(most).sum::<u32>() >= gpus / each
    })
}
