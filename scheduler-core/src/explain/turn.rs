//! Whose turn it is at a gate, and why not the asker's: for an attempt that is to leave and is not told to
//! save yet, and for one that has asked to write or to restore.

use tidegate_model::{AttemptId, Bandwidth, Bytes, Span, Timestamp, WriteClass};

use super::waiting::{at_latest, away, listed};
use crate::books::{Attempt, Books};
use crate::decide::gate::{GateId, own_rate};
use crate::gate::Flow;
use crate::gate_status::{self, GateStatus, WriterStatus};
use crate::observations::Observations;

/// What is told of a turn.
pub(super) struct Turn {
    pub(super) lines: Vec<String>,
    pub(super) numbers: Vec<(&'static str, u64)>,
}

/// None of one that waits at no gate.
pub(super) fn turn(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    attempt: &Attempt,
) -> Option<Turn> {
    let storage = books.jobs.get(&attempt.id.job)?.storage()?;
    let waits_at = |flow| {
        let status = gate_status::of(books, seen, now, GateId { storage, flow });
        let place = status.queue.iter().position(|one| one.attempt == attempt.id)?;
        Some((status, place))
    };
    let (status, place) = waits_at(Flow::Writes).or_else(|| waits_at(Flow::Reads))?;
    let own = status.queue.get(place)?;
    let (to, does) = match status.flow {
        Flow::Writes => ("", "write"),
        Flow::Reads => (" to restore", "restore"),
    };
    let others = |one: &&WriterStatus| one.turn.is_some() && one.attempt != attempt.id;
    let writing = status.writers.iter().filter(others).map(|one| one.attempt);
    let writing: Vec<AttemptId> = writing.collect();
    let waiting = status.queue.iter().take(place).map(|one| one.attempt);
    let before: Vec<AttemptId> = writing.iter().copied().chain(waiting).collect();
    // Without a cap nobody reckons how long anybody writes.
    let slot = own.slot.filter(|_| status.cap.is_some());
    let rate = slot.and_then(|(from, until)| Bandwidth::of(own.bytes, until.since(from)));
    let expected = match slot {
        // It would have begun, had they ended when they were expected to.
        Some((from, _)) if from <= now && !before.is_empty() => {
            "it is expected when one of them is done".to_owned()
        }
        Some((from, _)) => {
            let at_rate = rate.map(|rate| format!(" at {}", speed(rate))).unwrap_or_default();
            format!("it is expected {}{at_rate}", away(from, now))
        }
        None => "when it comes is not known".to_owned(),
    };
    let names: Vec<_> = before.iter().map(ToString::to_string).collect();
    let ahead = if names.is_empty() {
        "nobody is before it".to_owned()
    } else {
        let are = if names.len() == 1 { "is" } else { "are" };
        format!("{} {are} before it ({} of {} {does})", listed(&names), writing.len(), names.len())
    };
    let bytes = rounded(own.bytes.0);
    let line = format!("its turn{to} at {storage}, with {bytes}: {ahead}; {expected}");
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let mut numbers = vec![
        ("before", count(before.len())),
        ("writing", count(writing.len())),
        ("bytes", own.bytes.0),
    ];
    numbers.extend(slot.map(|(from, _)| ("turn_at_ms", from.0)));
    numbers.extend(rate.map(|rate| ("bytes_per_s", rate.0)));
    let (why, more) = match &own.unheard {
        Some(node) => (
            format!("{node}, where it runs, is not heard: nobody is let through there"),
            Vec::new(),
        ),
        None => reason(books, &status, attempt, writing.len()),
    };
    numbers.extend(more);
    let still = own.class.map(|class| {
        format!("it has asked for a permit to {}, and stands still until it has it", what(class))
    });
    let late = late(&status, now);
    let lines = still.into_iter().chain([line]).chain(late).chain([why]);
    Some(Turn { lines: lines.collect(), numbers })
}

/// Who should have written by now: as long as it has not, nobody knows when the next turn comes.
fn late(status: &GateStatus, now: Timestamp) -> Option<String> {
    let mut writers = status.writers.iter();
    writers.find_map(|one| {
        let turn = one.turn.as_ref()?;
        let late = Span::seconds(turn.overdue(now)?.0 / 1000);
        let ends = turn.stopped.map_or_else(
            || ", and holds its permit until it gives it back".to_owned(),
            |at| format!(", and is stopped {} at the latest", at_latest(at, now)),
        );
        Some(format!("{} should be done: it is overdue by {late}{ends}", one.attempt))
    })
}

/// What a permit of a class is for.
pub(super) fn what(class: WriteClass) -> &'static str {
    match class {
        WriteClass::Preemption => "save before it leaves",
        WriteClass::Final => "save for the last time",
        WriteClass::Periodic => "save, by itself, and train on",
        WriteClass::Restore => "restore",
    }
}

/// What keeps it from writing now.
fn reason(
    books: &Books,
    status: &GateStatus,
    attempt: &Attempt,
    writing: usize,
) -> (String, Vec<(&'static str, u64)>) {
    if let Some(pause) = &status.gate.paused {
        let why = format!("the gate is paused by {}: {}", pause.by, pause.reason);
        return (why, vec![("paused_since_ms", pause.since.0)]);
    }
    let most = status.gate.rule.writers.unwrap_or(books.policy.sharing.gate_width);
    let full = u32::try_from(writing).is_ok_and(|writing| writing >= most);
    if full && status.flow == Flow::Writes {
        let why = format!("as many write there as may at a time, {most}");
        return (why, vec![("most_writers", most.into())]);
    }
    let Some((cap, job)) = status.cap.zip(books.jobs.get(&attempt.id.job)) else {
        return ("those before it go first".to_owned(), Vec::new());
    };
    let left = Bandwidth(cap.0.saturating_sub(status.admitted.0));
    let own = own_rate(books, job, attempt, status.flow).min(cap);
    let (done, does) = match status.flow {
        Flow::Writes => ("written", "writes"),
        Flow::Reads => ("read", "reads"),
    };
    let why = format!(
        "of the {cap} that may be {done} there, {} is left, and it {does} up to {}",
        speed(left),
        speed(own)
    );
    (why, vec![("cap_bytes_per_s", cap.0), ("left_bytes_per_s", left.0)])
}

/// To two digits and more of its largest unit: nobody reads the last bytes.
pub(super) fn rounded(bytes: u64) -> Bytes {
    let sizes = [40, 30, 20, 10].map(|power| 1_u64 << power);
    let size = sizes.into_iter().find(|size| bytes / size >= 10).unwrap_or(1);
    Bytes(bytes.saturating_add(size / 2) / size * size)
}

pub(super) fn speed(rate: Bandwidth) -> Bandwidth {
    Bandwidth(rounded(rate.0).0)
}
