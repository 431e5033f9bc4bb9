//! Recounts the books from scratch. Counters are not trusted because increments look right.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tidegate_model::{GpuUuid, TaskId};

use crate::books::{Attempt, Books, Index, Job, JobState};

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

pub(crate) fn audit(books: &Books) -> Vec<Violation> {
    let mut found = Vec::new();
    for job in books.jobs.values() {
        audit_job(job, &mut found);
        for attempt in &job.attempts {
            audit_attempt(attempt, &mut found);
        }
    }
    audit_holdings(books, &mut found);
    if books.index != recounted(books) {
        found.push(Violation("an index differs from its recount".to_owned()));
    }
    found
}

fn audit_job(job: &Job, found: &mut Vec<Violation>) {
    let id = job.id;
    let numbers = job.attempts.iter().map(|attempt| attempt.id.number);
    let newest = u32::try_from(job.attempts.len()).unwrap_or(u32::MAX);
    let active = match job.state {
        JobState::Active { attempt } => Some(attempt),
        JobState::Pending { .. } | JobState::Ended { .. } => None,
    };
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(Violation(format!("{id}: {rule}")));
        }
    };
    check(numbers.eq(1..=newest), "attempts are numbered from 1 without gaps");
    check(active.is_none_or(|number| number == newest), "only the newest attempt is active");
    check(job.failures <= newest, "failures are attempts");
}

fn audit_attempt(attempt: &Attempt, found: &mut Vec<Violation>) {
    let id = attempt.id;
    let tasks = &attempt.tasks;
    let released = tasks.iter().all(|task| task.released);
    let mut check = |holds: bool, rule: &str| {
        if !holds {
            found.push(Violation(format!("{id}: {rule}")));
        }
    };
    check(!tasks.is_empty(), "a gang has a task");
    check(attempt.ended.is_none() || released, "an ended attempt holds nothing");
    check(tasks.iter().all(|t| !t.released || t.exit.is_some()), "what is released has ended");
    let started = tasks.iter().any(|task| task.started);
    check(!started || attempt.granted.is_some(), "nothing starts before the whole gang is granted");
    let prepared = tasks.iter().all(|task| task.port.is_some());
    check(attempt.granted.is_none() || prepared, "a granted gang is prepared as a whole");
    check(attempt.running.is_none() || attempt.granted.is_some(), "what runs was granted");
}

/// No GPU in two live attempts; what nodes say is held is what attempts hold.
fn audit_holdings(books: &Books, found: &mut Vec<Violation>) {
    let mut held: BTreeMap<&GpuUuid, TaskId> = BTreeMap::new();
    let mut tasks: BTreeSet<TaskId> = BTreeSet::new();
    let live = books.jobs.values().flat_map(|job| &job.attempts);
    for (id, task) in live.flat_map(Attempt::tasks).filter(|(_, task)| !task.released) {
        tasks.insert(id);
        for gpu in &task.place.gpus {
            if let Some(other) = held.insert(gpu, id) {
                found.push(Violation(format!("{gpu} is held by {other} and by {id}")));
            }
        }
    }
    let by_nodes = books.nodes.values().flat_map(|node| &node.held);
    if !held.into_iter().eq(by_nodes.map(|(gpu, task)| (gpu, *task)).collect::<BTreeMap<_, _>>()) {
        found.push(Violation("what nodes say is held differs from what tasks hold".to_owned()));
    }
    let on_nodes: BTreeSet<_> =
        books.nodes.values().flat_map(|node| &node.tasks).copied().collect();
    if tasks != on_nodes {
        found.push(Violation("the tasks on nodes differ from those not released".to_owned()));
    }
}

fn recounted(books: &Books) -> Index {
    let mut index = Index::default();
    for node in books.nodes.values() {
        index.names.insert(node.name.clone(), node.id);
    }
    for job in books.jobs.values() {
        index.keys.insert((job.user, job.key), job.id);
        match job.state {
            JobState::Pending { not_before } => {
                index.queue.insert((job.submitted, job.id));
                if !job.attempts.is_empty() {
                    index.backoffs.insert((not_before, job.id));
                }
            }
            JobState::Active { .. } => {}
            JobState::Ended { at, .. } => {
                index.ended.insert((at, job.id));
            }
        }
        for attempt in job.attempts.iter().filter(|attempt| attempt.is_live()) {
            index.live.insert(attempt.id);
            if attempt.running.is_none() && attempt.stop.is_none() {
                index.starting.insert((attempt.planned, attempt.id));
            }
        }
    }
    index
}
