//! Write gates: all of them in a row each, or one with who writes and who waits.

use std::collections::BTreeMap;

use tidegate_model::{Span, Timestamp};

use super::{Column, LEFT, RIGHT, below, or_dash, pairs, table};
use crate::show::text::{about, plain};
use crate::show::time::{ago, coarse, latest, until};
use crate::view::gate::{Gate, Hours, Turn, Waiter, Writer};

/// Most users that are named as writing most.
const TOP_WRITERS: usize = 5;

/// One row each.
pub(crate) fn gates(gates: &[Gate], now: Timestamp) -> String {
    const COLUMNS: [Column; 7] = [
        ("STORAGE", LEFT),
        ("CAP", RIGHT),
        ("ADMITTED", RIGHT),
        ("MEASURED", RIGHT),
        ("WRITERS", RIGHT),
        ("WAITING", RIGHT),
        ("NOTE", LEFT),
    ];
    let rows = gates.iter().map(|gate| {
        [
            name(gate),
            gate.cap_bytes_per_s.map_or_else(|| "none".to_owned(), rate),
            rate(gate.admitted_bytes_per_s),
            gate.measured_bytes_per_s.map_or_else(|| "-".to_owned(), rate),
            gate.writers.len().to_string(),
            gate.queue.len().to_string(),
            or_dash(row_note(gate, now)),
        ]
    });
    table(&COLUMNS, rows)
}

/// The target, and that it is what is read there.
fn name(gate: &Gate) -> String {
    let reads = if gate.reads { " (restores)" } else { "" };
    format!("{}{reads}", gate.storage)
}

fn rate(bytes_per_s: u64) -> String {
    format!("{}/s", about(bytes_per_s))
}

fn note(gate: &Gate, now: Timestamp) -> String {
    let paused = gate.paused.as_ref().map(|pause| {
        let since = ago(Timestamp(pause.since_ms), now);
        format!("paused {since} by {}: {}", pause.by, pause.reason)
    });
    let adapted = gate.adapted_since_ms.map(|since| {
        let whole = gate.rule.cap_bytes_per_s.map_or_else(|| "none".to_owned(), rate);
        let since = ago(Timestamp(since), now);
        format!("slower than its cap of {whole}: lowered {since}")
    });
    paused.or(adapted).unwrap_or_default()
}

/// With what a gate's own page has lines for.
fn row_note(gate: &Gate, now: Timestamp) -> String {
    let own = Some(note(gate, now)).filter(|note| !note.is_empty());
    let hours = (!gate.reads && !gate.rule.hours.is_empty()).then(|| schedule(gate));
    let told: Vec<_> = [own, hours, unheard(gate)].into_iter().flatten().collect();
    told.join("; ")
}

/// The caps of all hours.
fn schedule(gate: &Gate) -> String {
    let hours = gate.rule.hours.iter().map(|hours| hours_text(*hours));
    let else_ = gate.rule.cap_bytes_per_s.map_or_else(|| "none".to_owned(), rate);
    let all: Vec<_> = hours.chain([format!("else {else_}")]).collect();
    all.join(", ")
}

/// Who is on a node that is not heard.
fn unheard(gate: &Gate) -> Option<String> {
    let writers = gate.writers.iter().filter(|one| one.unheard_node.is_some());
    let waiters = gate.queue.iter().filter(|one| one.unheard_node.is_some());
    let count = writers.count().saturating_add(waiters.count());
    (count > 0).then(|| format!("{count} on a node that is not heard"))
}

/// One gate.
pub(crate) fn gate(gate: &Gate, now: Timestamp) -> String {
    let limit = |rate_of: Option<u64>| rate_of.map_or_else(|| "none".to_owned(), rate);
    let rule = &gate.rule;
    let mut facts = vec![
        ("storage", name(gate)),
        ("cap", limit(gate.cap_bytes_per_s)),
        ("kept of it", rate(gate.pool_bytes_per_s)),
        ("admitted", rate(gate.admitted_bytes_per_s)),
        ("node", limit(rule.node_bytes_per_s)),
    ];
    if !gate.reads {
        let measured = gate.measured_bytes_per_s.map_or_else(|| "not yet".to_owned(), rate);
        let writers = rule.writers.map_or_else(|| "the policy's".to_owned(), |n| n.to_string());
        let files = rule.files_per_s.map_or_else(|| "none".to_owned(), |n| format!("{n}/s"));
        facts.extend([("measured", measured), ("writers", writers), ("files", files)]);
        facts.extend(rule.floor_bytes_per_s.map(|floor| ("floor", rate(floor))));
        facts.extend((!rule.hours.is_empty()).then(|| ("hours", schedule(gate))));
    }
    let note = note(gate, now);
    facts.extend((!note.is_empty()).then_some(("note", note)));
    let mut text = pairs(facts);
    writers(&mut text, gate, now);
    queue(&mut text, gate, now);
    if let Some(most) = top_writers(gate) {
        text.push_str(&format!("\n\nwriting most: {}", plain(&most)));
    }
    text
}

fn hours_text(hours: Hours) -> String {
    let at = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
    let (from, until) = (at(hours.from_minute), at(hours.until_minute));
    format!("{from} to {until} UTC: {}", rate(hours.cap_bytes_per_s))
}

fn writers(text: &mut String, gate: &Gate, now: Timestamp) {
    let columns: [Column; 9] = [
        (if gate.reads { "READS" } else { "WRITES" }, LEFT),
        ("USER", LEFT),
        ("GPUS", RIGHT),
        ("CLASS", LEFT),
        ("BYTES", RIGHT),
        ("RATE", RIGHT),
        ("MEASURED", RIGHT),
        ("DONE", RIGHT),
        ("NOTE", LEFT),
    ];
    let dash = || "-".to_owned();
    let row = |writer: &Writer| {
        let turn = writer.turn.as_ref();
        let rate_of = |turn: &Turn| {
            let pooled = if turn.pooled { " kept" } else { "" };
            turn.bytes_per_s.map_or_else(|| "any".to_owned(), |one| rate(one) + pooled)
        };
        [
            writer.attempt.clone(),
            writer.user.clone(),
            writer.gpus.to_string(),
            turn.map_or("no permit", |turn| turn.class.as_deref().unwrap_or("told to save"))
                .to_owned(),
            turn.map_or_else(dash, |turn| about(turn.bytes)),
            turn.map_or_else(dash, rate_of),
            writer.measured_bytes_per_s.map_or_else(dash, rate),
            turn.map_or_else(dash, |turn| done(turn, now)),
            or_dash(writer_note(writer, now)),
        ]
    };
    below(text, &columns, gate.writers.iter().map(row).collect());
}

/// By how much later than it should it writes; none = it is in time.
fn overdue(turn: &Turn, now: Timestamp) -> Option<Span> {
    let late = now.since(Timestamp(turn.due_ms?));
    (late >= Span::seconds(1)).then_some(late)
}

/// When it will be done.
fn done(turn: &Turn, now: Timestamp) -> String {
    let late = overdue(turn, now).map(|late| format!("overdue by {}", coarse(late)));
    late.unwrap_or_else(|| until(Timestamp(turn.until_ms), now))
}

/// What else is to be known of who writes: where it is not heard, and when it ends though it is overdue.
fn writer_note(writer: &Writer, now: Timestamp) -> String {
    let unheard = writer.unheard_node.as_deref().map(not_heard);
    let late = writer.turn.as_ref().filter(|turn| overdue(turn, now).is_some()).map(|turn| {
        turn.stopped_ms.map_or_else(
            || "holds its permit until it gives it back".to_owned(),
            |at| format!("stopped {} at the latest", latest(Timestamp(at), now)),
        )
    });
    let told: Vec<_> = unheard.into_iter().chain(late).collect();
    told.join("; ")
}

fn not_heard(node: &str) -> String {
    format!("{node} is not heard")
}

/// Who should have written by now, if one is: as long as it has not, nobody's turn comes as expected.
fn late_writer(gate: &Gate, now: Timestamp) -> Option<&Writer> {
    let is_late =
        |one: &&Writer| one.turn.as_ref().is_some_and(|turn| overdue(turn, now).is_some());
    gate.writers.iter().find(is_late)
}

/// When its turn comes.
fn turn(waiter: &Waiter, late: Option<&Writer>, now: Timestamp) -> String {
    let Some(from) = waiter.from_ms.map(Timestamp) else { return "-".to_owned() };
    match late.filter(|_| from.since(now) < Span::seconds(1)) {
        Some(late) => format!("after {}", late.attempt),
        None => until(from, now),
    }
}

fn queue(text: &mut String, gate: &Gate, now: Timestamp) {
    const COLUMNS: [Column; 9] = [
        ("WAITS", LEFT),
        ("USER", LEFT),
        ("GPUS", RIGHT),
        ("CLASS", LEFT),
        ("BYTES", RIGHT),
        ("SINCE", RIGHT),
        ("TURN", RIGHT),
        ("FOR", LEFT),
        ("NOTE", LEFT),
    ];
    let late = late_writer(gate, now);
    let rows = gate.queue.iter().map(|waiter| {
        [
            waiter.attempt.clone(),
            waiter.user.clone(),
            waiter.gpus.to_string(),
            waiter.class.as_deref().unwrap_or("to leave").to_owned(),
            about(waiter.bytes),
            ago(Timestamp(waiter.since_ms), now),
            turn(waiter, late, now),
            or_dash(waiter.waited_for_by.clone().unwrap_or_default()),
            or_dash(waiter.unheard_node.as_deref().map(not_heard).unwrap_or_default()),
        ]
    });
    below(text, &COLUMNS, rows.collect());
}

/// Users by what they write, those without a permit too; none where nobody has measured.
fn top_writers(gate: &Gate) -> Option<String> {
    let mut users: BTreeMap<&str, (u64, bool)> = BTreeMap::new();
    for writer in &gate.writers {
        let entry = users.entry(&writer.user).or_default();
        entry.0 = entry.0.saturating_add(writer.measured_bytes_per_s?);
        entry.1 |= writer.turn.is_none();
    }
    let mut users: Vec<_> = users.into_iter().collect();
    users.sort_by_key(|(user, (bytes, _))| (std::cmp::Reverse(*bytes), *user));
    let told = users.into_iter().take(TOP_WRITERS).map(|(user, (bytes, without))| {
        let without = if without { ", partly without a permit" } else { "" };
        format!("{user} {}{without}", rate(bytes))
    });
    let told: Vec<_> = told.collect();
    (!told.is_empty()).then(|| told.join("; "))
}
