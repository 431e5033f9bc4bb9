//! Jobs.

use std::collections::BTreeMap;

use tidegate_model::{Span, Timestamp};

use super::{Column, LEFT, RIGHT, below, pairs, table};
use crate::amount::GpuTime;
use crate::show::text::{about, counted, plain};
use crate::show::time::{age, ago, latest as at_latest, relative, rounded, until};
use crate::view::job::{Attempt, Commit, Job, Reservation, Save};
use crate::view::spec::{After, Checkpoint, Spec};
use crate::view::state::Standing;

/// The list of jobs.
pub(crate) fn jobs(jobs: &[Job], now: Timestamp) -> String {
    const COLUMNS: [Column; 11] = [
        ("JOB", LEFT),
        ("NAME", LEFT),
        ("USER", LEFT),
        ("ACCOUNT", LEFT),
        ("GPUS", RIGHT),
        ("MIN-RUNTIME", RIGHT),
        ("STATE", LEFT),
        ("ATTEMPT", LEFT),
        ("STANDING", LEFT),
        ("AGE", RIGHT),
        ("WHY", LEFT),
    ];
    let row = |job: &Job| {
        [
            job.job.to_string(),
            job.spec.name.clone(),
            job.user.clone(),
            job.spec.account.clone(),
            job.spec.gpus.to_string(),
            job.spec.min_runtime.to_string(),
            job.state.word().to_owned(),
            newest_attempt(job),
            stands(job.standing, job.promised_until_ms, now),
            age(job.submitted_ms, now),
            why(job, now),
        ]
    };
    table(&COLUMNS, jobs.iter().map(row))
}

/// Whoever keeps GPUs from others and does nothing with them should see it at a glance.
fn why(job: &Job, now: Timestamp) -> String {
    match job.idle_since_ms {
        Some(since) => format!("idle for {}; {}", age(since, now), job.reason),
        None => job.reason.clone(),
    }
}

fn newest_attempt(job: &Job) -> String {
    let told = |attempt: &Attempt| format!("{} {}", attempt.attempt.number, attempt.state.word());
    job.newest().map_or_else(|| "-".to_owned(), told)
}

/// How an attempt stands: `Protected until +1h20m`, `Funded`, `Free`, or a dash of none.
fn stands(standing: Option<Standing>, promised: Option<Timestamp>, now: Timestamp) -> String {
    let Some(standing) = standing else { return "-".to_owned() };
    match promised.filter(|_| standing == Standing::Protected) {
        Some(at) => format!("{} until {}", standing.word(), until(at, now)),
        None => standing.word().to_owned(),
    }
}

/// One job with its attempts and tasks.
pub(crate) fn job(job: &Job, now: Timestamp) -> String {
    let mut facts = vec![
        ("job", job.job.to_string()),
        ("name", job.spec.name.clone()),
        ("state", job.state.word().to_owned()),
        ("why", job.reason.clone()),
        ("user", job.user.clone()),
        ("account", job.spec.account.clone()),
    ];
    facts.extend(asked(&job.spec));
    facts.push(("submitted", ago(job.submitted_ms, now)));
    facts.extend(job.ended_ms.map(|at| ("ended", ago(at, now))));
    if job.cancel_requested && !job.state.is_ended() {
        facts.push(("cancel", "requested".to_owned()));
    }
    facts.extend(happens(job, now));
    let mut text = pairs(facts);
    if !job.attempts.is_empty() {
        text.push_str("\n\n");
        text.push_str(&attempts(&job.attempts, now));
    }
    if let Some(newest) = job.newest() {
        tasks(&mut text, newest);
    }
    text
}

/// What its submitter asked; what was left to Tidegate is not named.
fn asked(spec: &Spec) -> Vec<(&'static str, String)> {
    let gpus = match spec.gpus_per_node {
        Some(per_node) => format!("{}, {per_node} on each node", spec.gpus),
        None => spec.gpus.to_string(),
    };
    let mut facts = vec![("GPUs", gpus)];
    facts.extend(spec.gpu_type.clone().map(|kind| ("GPU type", kind)));
    facts.extend(spec.max_blocks.map(|most| ("blocks", format!("at most {most}"))));
    facts.push(("tasks", spec.tasks.to_owned()));
    facts.push(("min runtime", spec.min_runtime.to_string()));
    if spec.while_waiting == "wait" {
        facts.push(("until funded", "waits".to_owned()));
    }
    if spec.order != 0 {
        facts.push(("order", spec.order.to_string()));
    }
    if spec.whole_cluster {
        facts.push(("may hold", "all GPUs of its kind".to_owned()));
    }
    if let Some(array) = &spec.array {
        facts
            .push(("array", format!("{} at a time, under the key {}", array.at_a_time, array.key)));
    }
    if !spec.after.is_empty() {
        facts.push(("after", spec.after.iter().map(after).collect::<Vec<_>>().join(", ")));
    }
    if spec.pty {
        facts.push(("terminal", "yes: tidegate attach".to_owned()));
    }
    facts.push(("grace", spec.grace.to_string()));
    facts.extend(spec.checkpoint.as_ref().map(|offer| ("saves", saves(offer))));
    let ask_after = spec.checkpoint.as_ref().and_then(|offer| offer.ask_after_ms);
    facts.extend(ask_after.map(|ms| ("rehearsal", format!("asked to save after {}", Span(ms)))));
    facts.push(("restarts", format!("at most {}", spec.max_restarts)));
    facts.push(("command", argv(&spec.command)));
    facts.push(("directory", spec.working_dir.clone()));
    facts.extend(spec.checkpoint_dir.clone().map(|dir| ("checkpoints", dir)));
    facts
}

fn after(one: &After) -> String {
    let success = if one.success { " is done" } else { "" };
    format!("{}{success}", one.job)
}

fn saves(offer: &Checkpoint) -> String {
    let asked = match &offer.signal {
        Some(signal) => format!("asked by {signal} to {}", offer.target),
        None => "asked by file and socket".to_owned(),
    };
    let bytes = offer.bytes.map(|bytes| format!("{} ", about(bytes))).unwrap_or_default();
    format!("{asked}, {bytes}to {} within {}", offer.storage, offer.grace)
}

/// What is so now, of what is not always so.
fn happens(job: &Job, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(standing) = job.standing {
        facts.push(("standing", stands(Some(standing), job.promised_until_ms, now)));
    }
    facts.extend(job.parked.clone().map(|why| ("parked", why)));
    if !job.waits_for.is_empty() && !job.state.is_ended() {
        facts.push(("waits for", job.waits_for.join(", ")));
    }
    facts.extend(job.reservation.as_ref().map(|held| ("reservation", reserved(held, now))));
    match job.elder_since_ms {
        Some(since) => facts.push(("elder", format!("for {}", age(since, now)))),
        None if job.elder_allowed => facts.push(("elder", "allowed".to_owned())),
        None => {}
    }
    facts.extend(job.rehearsal.as_ref().map(|shown| ("has shown", shown.told.clone())));
    facts.extend(job.idle_since_ms.map(|since| ("idle", format!("for {}", age(since, now)))));
    facts.extend(job.commit.as_ref().map(|newest| ("saved", committed(newest, now))));
    let running = job.newest().filter(|attempt| !attempt.state.is_ended());
    let save = running.and_then(|attempt| attempt.save.as_ref());
    facts.extend(save.map(|save| ("saving", saving(save, now))));
    if job.stalled > 0 {
        let attempts = counted(job.stalled, "attempt");
        facts.push(("stalled", format!("{attempts} in a row without a new commit")));
    }
    facts
}

fn reserved(held: &Reservation, now: Timestamp) -> String {
    let nodes = held.nodes.iter().map(|one| format!("{} on {}", one.gpus, one.node));
    let nodes = nodes.collect::<Vec<_>>().join(", ");
    let at = relative(held.at_ms, now);
    let latest = held.latest_ms.filter(|latest| *latest != held.at_ms);
    let latest = latest.map(|at| format!(" and empty at the latest {}", at_latest(at, now)));
    let latest = latest.unwrap_or_default();
    format!(
        "{nodes}; its own from {at}{latest}, made {}, {} GPU-h pledged",
        ago(held.made_ms, now),
        held.pledge_gpu_us
    )
}

fn committed(newest: &Commit, now: Timestamp) -> String {
    let (step, size, age) = (newest.step, about(newest.bytes), ago(newest.at_ms, now));
    format!("step {step}, {age}, {size}, by {} in {}", newest.attempt, newest.path)
}

fn saving(save: &Save, now: Timestamp) -> String {
    let turn = match save.admitted_ms {
        Some(at) => format!("admitted {}", ago(at, now)),
        None => "waits for its turn to write".to_owned(),
    };
    format!("{}, asked {}, {turn}: {}", save.request, ago(save.at_ms, now), save.why)
}

/// Why a job is where it is, and the numbers: instants as seen from now, GPU-time in GPU-hours.
pub(crate) fn explanation(
    head: &str,
    lines: &[String],
    numbers: &BTreeMap<String, u64>,
    now: Timestamp,
) -> String {
    let lines = lines.iter().map(|line| format!("  {}", plain(line)));
    let mut text = std::iter::once(plain(head)).chain(lines).collect::<Vec<_>>().join("\n");
    let number = |(name, value): (&String, &u64)| {
        let (name, value) = measured(name, *value, now);
        [format!("  {name}"), value]
    };
    let rows: Vec<_> = numbers.iter().map(number).collect();
    if !rows.is_empty() {
        text.push_str("\n\n");
        let rows = rows.iter().map(|[name, value]| (name.as_str(), value.clone()));
        text.push_str(&pairs(rows));
    }
    text
}

/// A number in people's units. Its name says what it is.
fn measured(name: &str, value: u64, now: Timestamp) -> (&str, String) {
    if let Some(name) = name.strip_suffix("_gpu_ms") {
        let amount = GpuTime(i128::from(value).saturating_mul(1000));
        return (name, format!("{amount} GPU-h"));
    }
    match name.strip_suffix("_ms") {
        Some(name) => (name, relative(Timestamp(value), now)),
        None => (name, value.to_string()),
    }
}

fn attempts(attempts: &[Attempt], now: Timestamp) -> String {
    const COLUMNS: [Column; 8] = [
        ("ATTEMPT", LEFT),
        ("STATE", LEFT),
        ("STANDING", LEFT),
        ("PLANNED", RIGHT),
        ("RAN", RIGHT),
        ("CHARGED", RIGHT),
        ("FREE", RIGHT),
        ("WHY", LEFT),
    ];
    let row = |attempt: &Attempt| {
        let ran = |start: Timestamp| rounded(attempt.ended_ms.unwrap_or(now).since(start));
        let live = attempt.standing.filter(|_| !attempt.state.is_ended());
        [
            attempt.attempt.to_string(),
            attempt.state.word().to_owned(),
            stands(live, attempt.promised_until_ms, now),
            ago(attempt.planned_ms, now),
            attempt.running_ms.map_or_else(|| "-".to_owned(), ran),
            attempt.charged().to_string(),
            attempt.free_gpu_us.to_string(),
            attempt.why.clone(),
        ]
    };
    table(&COLUMNS, attempts.iter().map(row))
}

fn tasks(text: &mut String, attempt: &Attempt) {
    const COLUMNS: [Column; 4] = [("TASK", LEFT), ("NODE", LEFT), ("GPUS", RIGHT), ("STATE", LEFT)];
    let rows = attempt.tasks.iter().map(|task| {
        [task.task.clone(), task.node.clone(), task.gpus.len().to_string(), task.state.clone()]
    });
    below(text, &COLUMNS, rows.collect());
}

/// Arguments with quotes where their ends would not be seen. To be read, not to be run.
fn argv(command: &[String]) -> String {
    let clear = |word: &&String| {
        !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '"' || c == '\'')
    };
    let quoted = |word: &String| match Some(word).filter(clear) {
        Some(word) => word.clone(),
        None => format!("{word:?}"),
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
