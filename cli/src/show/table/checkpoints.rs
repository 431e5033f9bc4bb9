//! Checkpoints of a job, and requests to save.

use tidegate_model::{Span, Timestamp};

use super::{Column, LEFT, RIGHT, or_dash, table};
use crate::show::text::about;
use crate::show::time::{age, rfc3339, rounded};
use crate::view::checkpoints::{Checkpoint, Checkpoints, Request, Source};

/// The one that counts is marked so.
const COUNTS: &str = "resumes here";

/// What is known, newest first, and below it what became of each request.
pub(crate) fn checkpoints(known: &Checkpoints, now: Timestamp) -> String {
    let mut parts = vec![if known.checkpoints.is_empty() {
        format!("no checkpoint of {} is known: it would start anew", known.job)
    } else {
        commits(&known.checkpoints, now)
    }];
    if known.older > 0 {
        parts.push(format!("and {} before these, which are not kept", known.older));
    }
    if !known.requests.is_empty() {
        parts.push(requests(&known.requests));
    }
    parts.join("\n\n")
}

fn commits(known: &[Checkpoint], now: Timestamp) -> String {
    const COLUMNS: [Column; 8] = [
        ("STEP", RIGHT),
        ("ATTEMPT", LEFT),
        ("BYTES", RIGHT),
        ("AGE", RIGHT),
        ("REQUEST", LEFT),
        ("KNOWN-BY", LEFT),
        ("COUNTS", LEFT),
        ("PATH", LEFT),
    ];
    let row = |one: &Checkpoint| {
        [
            one.commit.step.to_string(),
            one.commit.attempt.clone(),
            about(one.commit.bytes),
            age(one.commit.at_ms, now),
            or_dash(one.request.clone().unwrap_or_default()),
            match one.known_by {
                Source::Job => "job".to_owned(),
                Source::Unknown => "unknown".to_owned(),
            },
            or_dash(if one.counts { COUNTS.to_owned() } else { String::new() }),
            one.commit.path.clone(),
        ]
    };
    table(&COLUMNS, known.iter().rev().map(row))
}

/// Instants after the request: TOLD since it was made, the others since its ranks were told.
fn requests(requests: &[Request]) -> String {
    const COLUMNS: [Column; 9] = [
        ("REQUEST", LEFT),
        ("ATTEMPT", LEFT),
        ("ASKED", LEFT),
        ("TOLD", RIGHT),
        ("ACKNOWLEDGED", RIGHT),
        ("FIRST-BYTE", RIGHT),
        ("COMMITTED", RIGHT),
        ("ENDED", RIGHT),
        ("BECAME", LEFT),
    ];
    let after = |ms: Option<u64>| {
        or_dash(ms.map(|ms| format!("+{}", rounded(Span(ms)))).unwrap_or_default())
    };
    let row = |one: &Request| {
        [
            one.request.clone(),
            one.attempt.clone(),
            rfc3339(Timestamp(one.at_ms)),
            after(one.told_after_ms),
            after(one.acknowledged_after_ms),
            after(one.first_byte_after_ms),
            after(one.committed_after_ms),
            after(one.ended_after_ms),
            one.became.word().to_owned(),
        ]
    };
    table(&COLUMNS, requests.iter().map(row))
}
