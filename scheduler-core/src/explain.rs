//! Why a job is where it is: one reason, with its numbers.

mod held;
mod limits;
mod turn;
mod unasked;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_model::{JobId, Span, TaskId, TaskSeen, Timestamp};

use crate::books::{Attempt, AttemptState, Books, Job, JobState, Node, Task};
use crate::decide::rehearsal;
use crate::decision::{JobOutcome, ParkReason, StopReason};
use crate::observations::{IDLE_AFTER, NodeState, Observations};

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

/// The nouns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Its account cannot fund it yet.
    AwaitingBudget,
    /// Others are before it, in the order that its numbers show.
    AwaitingTurn,
    /// It has an instant from which its nodes are its own: firm, or expected.
    AwaitingReservation,
    /// It has its GPUs, and those on them still save.
    AwaitingCheckpoint,
    /// It is first, and its gang does not fit the idle GPUs, or too few nodes are in service.
    AwaitingNodes,
    /// It failed and is started again after a pause.
    AwaitingRestart,
    /// Jobs that it names must end first.
    AwaitingJobs,
    /// It is not started until it is released.
    Parked,
    /// As things are it can never start as it asks.
    Unsatisfiable,
    /// Its attempt is on its way.
    Starting,
    /// Its attempt runs.
    Running,
    /// Its attempt is asked to save and leave.
    Saving,
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
        JobState::Pending { .. } if job.parked.is_some() => parked(job),
        JobState::Pending { .. } if !job.waits_for.is_empty() => depends(job),
        JobState::Pending { not_before } if not_before > now => {
            restarting(books, job, not_before, now)
        }
        JobState::Pending { .. } => waiting::waiting(books, seen, now, job),
        JobState::Active { attempt } => match job.attempt(attempt) {
            Some(attempt) => active(books, seen, now, attempt),
            None => said(Reason::Starting, String::new(), []),
        },
        JobState::Ended { outcome, at } => ended(books, job, outcome, at),
    })
}

fn parked(job: &Job) -> Explanation {
    let line = match job.parked {
        Some(ParkReason::Asked { by }) => format!("parked by {by}"),
        Some(ParkReason::NoProgress { attempts }) => format!(
            "parked: {} in a row ended without a new commit",
            counted(usize::try_from(attempts).unwrap_or(usize::MAX), "attempt")
        ),
        Some(ParkReason::DependencyFailed { job }) => {
            format!("parked: {job}, which it waits for, did not end as it must")
        }
        None => String::new(),
    };
    let line = format!("{line}; `tidegate release {}` lets it start", job.id);
    said(Reason::Parked, line, [("stalled", job.stalled.into())])
}

fn depends(job: &Job) -> Explanation {
    let jobs: Vec<_> = job.waits_for.iter().map(ToString::to_string).collect();
    let line = format!("waits for the end of {}", jobs.join(", "));
    let count = u64::try_from(jobs.len()).unwrap_or(u64::MAX);
    said(Reason::AwaitingJobs, line, [("jobs", count)])
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
    let how_often = match job.spec.rehearsal() {
        Some(_) => {
            let (made, most) = (job.attempts.len(), rehearsal::MAX_ATTEMPTS);
            format!("as it is a rehearsal; it has had {made} of at most {most} attempts")
        }
        None => format!("failure {failures} of {limit} allowed"),
    };
    let line = format!("{last}; it is started again in {}, {how_often}", at.since(now));
    let numbers =
        [("not_before_ms", at.0), ("failures", failures.into()), ("max_restarts", limit.into())];
    said(Reason::AwaitingRestart, line, numbers)
}

fn active(books: &Books, seen: &Observations, now: Timestamp, attempt: &Attempt) -> Explanation {
    let state = attempt.state();
    if state == AttemptState::Planned && attempt.ready.is_none() {
        return waiting::for_checkpoints(books, now, attempt);
    }
    let reason = match state {
        AttemptState::Planned | AttemptState::Granted | AttemptState::Starting => Reason::Starting,
        AttemptState::Running => Reason::Running,
        AttemptState::Paced | AttemptState::Saving => Reason::Saving,
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
        AttemptState::Running => format!("{}: {}", attempt.id, waiting::standing(attempt, now)),
        AttemptState::Paced | AttemptState::Saving => {
            format!("{}: {}", attempt.id, waiting::saving(books, attempt, now))
        }
        AttemptState::Stopping | AttemptState::Verifying | AttemptState::Ended(_) => {
            why_over(books, attempt)
        }
    }];
    if state == AttemptState::Running {
        lines.extend(asked_at(books, attempt).map(|at| {
            let away = waiting::away(at, now);
            format!(
                "it is a rehearsal: it is asked to save when it has committed by itself, {away} at \
                 the latest"
            )
        }));
    }
    let idle = seen.idle_since(attempt.id).filter(|_| state == AttemptState::Running);
    lines.extend(idle.map(|since| idles(now.since(since))));
    lines.extend(held::line(books, seen, now, attempt));
    let asks = || seen.asks_of(attempt.id).any(|(_, noted)| !noted.seen.done);
    let runs = matches!(state, AttemptState::Running | AttemptState::Saving);
    let unadmitted = attempt.save.is_some_and(|save| save.admitted.is_none());
    let may_wait = unadmitted || runs && asks();
    let turn = may_wait.then(|| turn::turn(books, seen, now, attempt)).flatten();
    lines.extend(turn.iter().flat_map(|turn| turn.lines.clone()));
    if state == AttemptState::Saving {
        lines.extend(unasked::line(books, seen, now, attempt));
        lines.extend(not_asked(books, seen, attempt));
    }
    lines.extend(by_nodes(books, seen, now, attempt));
    lines.extend(older_runs(books, attempt));
    lines.extend(without_record(books, seen, attempt));
    let numbers = [
        ("attempt", u64::from(attempt.id.number)),
        ("tasks", u64::try_from(tasks).unwrap_or(u64::MAX)),
        ("tasks_running", u64::try_from(running).unwrap_or(u64::MAX)),
    ];
    let mut numbers = BTreeMap::from(numbers);
    numbers.extend(idle.map(|since| ("idle_since_ms", since.0)));
    numbers.extend(attempt.promised_until.map(|until| ("promised_until_ms", until.0)));
    numbers.extend(turn.into_iter().flat_map(|turn| turn.numbers));
    let leaves_by = waiting::leaves_by(books, attempt).filter(|_| reason == Reason::Saving);
    numbers.extend(leaves_by.map(|by| ("leaves_by_ms", by.0)));
    Explanation { reason, lines, numbers }
}

fn asked_at(books: &Books, attempt: &Attempt) -> Option<Timestamp> {
    rehearsal::asked_at(books.jobs.get(&attempt.id.job)?, attempt)
}

/// What its nodes say, or that they say nothing.
fn by_nodes(books: &Books, seen: &Observations, now: Timestamp, attempt: &Attempt) -> Vec<String> {
    let mut lines = Vec::new();
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
    if attempt.granted.is_none() {
        let closed = nodes.iter().filter_map(|id| books.nodes.get(id));
        lines.extend(closed.filter_map(takes_none));
    }
    if attempt.state() == AttemptState::Planned {
        let noted = nodes.iter().filter_map(|id| books.nodes.get(id));
        let noted = noted.filter(|node| !node.facts.gpu_note.is_empty());
        lines.extend(noted.map(|node| format!("{} says: {}", node.name, node.facts.gpu_note)));
    }
    lines
}

/// Why a node takes no new work, as its agent says.
fn takes_none(node: &Arc<Node>) -> Option<String> {
    Some(format!("{} takes no new work: {}", node.name, node.closed()?))
}

/// Agents that do not know what they are to run.
fn without_record(books: &Books, seen: &Observations, attempt: &Attempt) -> Vec<String> {
    let missing = attempt.tasks().filter(|(id, task)| {
        let node = seen.node(task.place.node);
        task.exit.is_none() && node.and_then(|node| node.tasks.get(id)) == Some(&TaskSeen::Missing)
    });
    let told = |(id, task): (TaskId, &Task)| {
        let node = books.node_name(task.place.node);
        let node = node.map_or_else(|| task.place.node.to_string(), ToString::to_string);
        format!(
            "the agent of {node} has no record of {id}, which may still run; end the agent, see to \
             it that nothing runs, then `tidegate node lost {node}`"
        )
    };
    missing.map(told).collect()
}

/// Silent nodes may still run an attempt before this one, into the same directory.
fn older_runs(books: &Books, attempt: &Attempt) -> impl Iterator<Item = String> {
    let job = books.jobs.get(&attempt.id.job);
    let older = job.into_iter().flat_map(|job| &job.attempts);
    let older = older.filter(|older| older.id.number < attempt.id.number && older.is_live());
    older.map(|older| {
        let closed = if older.commits_closed { ", and what it commits does not count" } else { "" };
        format!("{} may still run on a node that is silent{closed}", older.id)
    })
}

/// Told to whoever keeps GPUs from others and does nothing with them.
fn idles(idle: Span) -> String {
    let shown = Span::seconds(idle.0 / 1000);
    let then = if idle < IDLE_AFTER {
        format!("from {IDLE_AFTER} on it gives way before others")
    } else {
        "it gives way before others".to_owned()
    };
    format!("its GPUs have been idle for {shown} (under 5 % busy): {then}")
}

/// Tasks that are to save and whose agents have not said that they know.
fn not_asked<'a>(
    books: &'a Books,
    seen: &'a Observations,
    attempt: &'a Attempt,
) -> impl Iterator<Item = String> + 'a {
    let asked = attempt.save.map(|save| save.decision);
    let unheard = move |id| seen.save_of(id).map(|save| save.request) != asked;
    let tasks = attempt.tasks().filter(move |(id, task)| task.exit.is_none() && unheard(*id));
    tasks.map(|(id, task)| {
        let node = books.node_name(task.place.node);
        let node = node.map_or_else(|| task.place.node.to_string(), ToString::to_string);
        format!(
            "{node} has not said that {id} was asked (an agent of 0.1 knows no such requests): it \
             is stopped when its grace is over"
        )
    })
}

fn ended(books: &Books, job: &Job, outcome: JobOutcome, at: Timestamp) -> Explanation {
    let line = match outcome {
        JobOutcome::Done | JobOutcome::Failed if job.judged.is_some() => {
            let shown = job.shown(books).map(ToString::to_string);
            format!("over: the rehearsal {}", shown.unwrap_or_else(|| "was judged".to_owned()))
        }
        JobOutcome::Done => format!("done, in {}", counted(job.attempts.len(), "attempt")),
        JobOutcome::Cancelled => match job.cancelled.as_ref().map(|one| one.by) {
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
            let node = books.node_name(task.place.node).map(ToString::to_string);
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
