//! Write gates: all of them in a row each, or one with who writes and who waits.

use std::collections::BTreeMap;

use tidegate_model::Timestamp;

use super::{Column, LEFT, RIGHT, below, or_dash, pairs, table};
use crate::show::text::{about, plain};
use crate::show::time::{ago, until};
use crate::view::gate::{Gate, Hours, Turn, Writer};

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
            or_dash(note(gate, now)),
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
        facts.extend(rule.hours.iter().map(|hours| ("hours", hours_text(*hours))));
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
    let columns: [Column; 8] = [
        (if gate.reads { "READS" } else { "WRITES" }, LEFT),
        ("USER", LEFT),
        ("GPUS", RIGHT),
        ("CLASS", LEFT),
        ("BYTES", RIGHT),
        ("RATE", RIGHT),
        ("MEASURED", RIGHT),
        ("DONE", RIGHT),
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
            turn.map_or_else(dash, |turn| until(Timestamp(turn.until_ms), now)),
        ]
    };
    below(text, &columns, gate.writers.iter().map(row).collect());
}

fn queue(text: &mut String, gate: &Gate, now: Timestamp) {
    const COLUMNS: [Column; 8] = [
        ("WAITS", LEFT),
        ("USER", LEFT),
        ("GPUS", RIGHT),
        ("CLASS", LEFT),
        ("BYTES", RIGHT),
        ("SINCE", RIGHT),
        ("TURN", RIGHT),
        ("FOR", LEFT),
    ];
    let rows = gate.queue.iter().map(|waiter| {
        [
            waiter.attempt.clone(),
            waiter.user.clone(),
            waiter.gpus.to_string(),
            waiter.class.as_deref().unwrap_or("to leave").to_owned(),
            about(waiter.bytes),
            ago(Timestamp(waiter.since_ms), now),
            waiter.from_ms.map_or_else(|| "-".to_owned(), |from| until(Timestamp(from), now)),
            or_dash(waiter.waited_for_by.clone().unwrap_or_default()),
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
