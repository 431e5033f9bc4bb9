//! Why a job is where it is: one reason, with its numbers.

use std::collections::BTreeMap;

use tidegate_model::{GpuCount, JobId, TaskSeen, Timestamp};

use crate::books::{Attempt, AttemptState, Books, Job, JobState};
use crate::decide::place::{idle_offers, waits_for_ends};
use crate::decision::{JobOutcome, StopReason};
use crate::observations::{NodeState, Observations};

/// One reason, in one line with its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The reason's noun.
    pub reason: Reason,
    /// Sentences for people.
    pub lines: Vec<String>,
    /// For programs.
    pub numbers: BTreeMap<&'static str, u64>,
}

/// The nouns. Later rules add those of budgets, reservations, checkpoints and uploads, and
/// parked jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Earlier jobs that could be served are before it.
    AwaitingTurn,
    /// It is first, and its gang does not fit the idle GPUs.
    AwaitingNodes,
    /// It failed and is started again after a pause.
    AwaitingRestart,
    /// No gang of the nodes in service could serve it.
    Unsatisfiable,
    /// Its attempt is on its way.
    Starting,
    /// Its attempt runs.
    Running,
    /// Its attempt is being stopped.
    Stopping,
    /// It has ended.
    Ended,
}

pub(crate) fn explain(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    id: JobId,
) -> Option<Explanation> {
    let job = books.jobs.get(&id)?;
    Some(match job.state {
        JobState::Pending { not_before } if not_before > now => {
            restarting(books, job, not_before, now)
        }
        JobState::Pending { .. } => waiting(books, seen, now, job),
        JobState::Active { attempt } => match job.attempt(attempt) {
            Some(attempt) => active(books, seen, now, attempt),
            None => said(Reason::Starting, String::new(), []),
        },
        JobState::Ended { outcome, at } => ended(books, job, outcome, at),
    })
}

fn said<const N: usize>(
    reason: Reason,
    line: String,
    numbers: [(&'static str, u64); N],
) -> Explanation {
    Explanation { reason, lines: vec![line], numbers: BTreeMap::from(numbers) }
}

fn restarting(books: &Books, job: &Job, at: Timestamp, now: Timestamp) -> Explanation {
    let (failures, limit) = (job.failures, job.spec.max_restarts);
    let last = job.attempts.last().map(|last| why_over(books, last)).unwrap_or_default();
    let line = format!(
        "{last}; it is started again in {}, failure {failures} of {limit} allowed",
        at.since(now)
    );
    let numbers =
        [("not_before_ms", at.0), ("failures", failures.into()), ("max_restarts", limit.into())];
    said(Reason::AwaitingRestart, line, numbers)
}

fn waiting(books: &Books, seen: &Observations, now: Timestamp, job: &Job) -> Explanation {
    let offers = idle_offers(books, seen, now);
    let idle: GpuCount = offers.iter().map(|offer| GpuCount(offer.gpus)).sum();
    let needed = job.spec.gpus;
    let before = books.queue().take_while(|earlier| earlier.id != job.id);
    let count = before.filter(|earlier| waits_for_ends(books, earlier, &offers)).count();
    let ahead = u64::try_from(count).unwrap_or(u64::MAX);
    let numbers = [("ahead", ahead), ("needed", needed.0.into()), ("idle", idle.0.into())];
    if !waits_for_ends(books, job, &offers) {
        let line = format!(
            "its gang of {needed} GPUs fits no nodes in service now ({} are); it waits for drained \
             or silent nodes to return",
            offers.len()
        );
        return said(Reason::Unsatisfiable, line, numbers);
    }
    if ahead > 0 {
        let line = format!("{} before it in the queue", counted(count, "job"));
        return said(Reason::AwaitingTurn, line, numbers);
    }
    let line = format!(
        "it is first, and its gang of {needed} GPUs does not fit the {idle} idle ones together"
    );
    said(Reason::AwaitingNodes, line, numbers)
}

fn active(books: &Books, seen: &Observations, now: Timestamp, attempt: &Attempt) -> Explanation {
    let state = attempt.state();
    let reason = match state {
        AttemptState::Planned | AttemptState::Granted | AttemptState::Starting => Reason::Starting,
        AttemptState::Running => Reason::Running,
        AttemptState::Stopping | AttemptState::Verifying | AttemptState::Ended(_) => {
            Reason::Stopping
        }
    };
    let tasks = attempt.tasks.len();
    let running = attempt.tasks.iter().filter(|task| task.started && task.exit.is_none()).count();
    let mut lines = vec![match state {
        AttemptState::Planned => {
            format!("{}: its {tasks} tasks' GPUs are being verified", attempt.id)
        }
        AttemptState::Granted | AttemptState::Starting => {
            format!("{}: {running} of {tasks} tasks run", attempt.id)
        }
        AttemptState::Running => format!("{}: all its tasks run", attempt.id),
        AttemptState::Stopping | AttemptState::Verifying | AttemptState::Ended(_) => {
            why_over(books, attempt)
        }
    }];
    let silent_after = books.policy.silent_after;
    let mut nodes: Vec<_> = attempt.tasks.iter().map(|task| task.place.node).collect();
    nodes.dedup();
    for node in nodes.iter().filter_map(|id| books.nodes.get(id)) {
        if seen.state(node, silent_after, now) == NodeState::Unreachable {
            lines.push(format!(
                "{} is silent; what runs there is kept until it returns or `tidegate node lost {}`",
                node.name, node.name
            ));
        }
    }
    let missing = attempt.tasks().filter(|(id, task)| {
        let node = seen.node(task.place.node);
        task.exit.is_none() && node.and_then(|node| node.tasks.get(id)) == Some(&TaskSeen::Missing)
    });
    for (id, task) in missing {
        let node = books.nodes.get(&task.place.node).map(|node| &node.name);
        let node = node.map_or_else(|| task.place.node.to_string(), ToString::to_string);
        lines.push(format!(
            "the agent of {node} has no record of {id}, which may still run; end the agent, see to \
             it that nothing runs, then `tidegate node lost {node}`"
        ));
    }
    let numbers = [
        ("attempt", u64::from(attempt.id.number)),
        ("tasks", u64::try_from(tasks).unwrap_or(u64::MAX)),
        ("tasks_running", u64::try_from(running).unwrap_or(u64::MAX)),
    ];
    Explanation { reason, lines, numbers: BTreeMap::from(numbers) }
}

fn ended(books: &Books, job: &Job, outcome: JobOutcome, at: Timestamp) -> Explanation {
    let line = match outcome {
        JobOutcome::Done => format!("done, in {}", counted(job.attempts.len(), "attempt")),
        JobOutcome::Cancelled => match job.cancelled_by {
            Some(by) => format!("cancelled by {by}"),
            None => "cancelled".to_owned(),
        },
        JobOutcome::Failed => {
            let last = job.attempts.last().map(|last| why_over(books, last)).unwrap_or_default();
            let allowed = usize::try_from(job.spec.max_restarts).unwrap_or(usize::MAX);
            format!("failed: {last}; {} allowed", counted(allowed, "restart"))
        }
    };
    said(Reason::Ended, line, [("ended_ms", at.0), ("failures", job.failures.into())])
}

impl Attempt {
    /// Why it is over or ending, in one line; none while nothing speaks against it.
    #[must_use]
    pub fn why_over(&self, books: &Books) -> Option<String> {
        let over = self.stop.is_some() || self.is_broken();
        over.then(|| why_over(books, self))
    }
}

/// Why an attempt is over or ending, naming the task, its node and the record.
fn why_over(books: &Books, attempt: &Attempt) -> String {
    let decided = |seq: tidegate_model::DecisionSeq| format!(" ({seq})");
    match (attempt.stop, attempt.breaker()) {
        (Some(stop), breaker) if breaker.is_none() || stop.why != StopReason::GangBroken => {
            format!("{} is stopped because {}{}", attempt.id, stop.why, decided(stop.decision))
        }
        (_, Some((id, task))) => {
            let node = books.nodes.get(&task.place.node).map(|node| node.name.to_string());
            let node = node.unwrap_or_else(|| task.place.node.to_string());
            let exit = task.exit.as_ref().map(ToString::to_string).unwrap_or_default();
            let record = task.ended_by.map(decided).unwrap_or_default();
            format!("{id} on {node} ended with {exit}{record}")
        }
        (Some(_) | None, None) => format!("{} has ended", attempt.id),
    }
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
