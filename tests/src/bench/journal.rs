//! Appends to the store, beside the same bytes appended to a plain file, turn and turn about on
//! the same disk.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Entry, Journal};
use tidegate_model::{ClusterId, Timestamp};

use super::history::{History, MIXED, ONE_GPU, Tape};
use super::report::{Figure, Goal, length, number, percentiles};
use super::usage::written_bytes;
use crate::figures::percentile;

/// Appends of one record.
const SINGLES: usize = 10_000;
/// Appends of a batch.
const BATCHES: usize = 2_000;
/// Records of a batch.
const BATCH: usize = 16;
/// Appends in a row to the one, then to the other: both see the same disk.
const STRETCH: usize = 250;
/// Jobs whose records are counted.
const COUNTED_JOBS: usize = 1_000;

/// Measures.
///
/// # Errors
/// If the store fails.
pub async fn measure() -> anyhow::Result<Vec<Figure>> {
    let dir = tempfile::Builder::new().prefix("tg-").tempdir()?;
    let records = records(SINGLES.max(BATCHES.saturating_mul(BATCH)))?;
    let singles: Vec<&[Entry]> = records.chunks(1).take(SINGLES).collect();
    let batches: Vec<&[Entry]> = records.chunks_exact(BATCH).take(BATCHES).collect();
    let mut figures = beside("one record", &singles, &dir.path().join("one")).await?;
    figures.extend(beside("16 records", &batches, &dir.path().join("sixteen")).await?);
    figures.extend(per_job()?);
    Ok(figures)
}

fn records(count: usize) -> anyhow::Result<Vec<Entry>> {
    let (sender, receiver) = channel();
    let mut history = History::begin(Tape(sender), Timestamp(1_700_000_000_000), MIXED)?;
    while usize::try_from(history.records())? < count {
        history.turn()?;
    }
    drop(history);
    Ok(receiver.iter().take(count).collect())
}

/// Appends each batch to a store and to a plain file beside it.
async fn beside(what: &str, batches: &[&[Entry]], at: &Path) -> anyhow::Result<Vec<Figure>> {
    let store = at.with_extension("redb");
    let mut journal = RedbJournal::open(&store, ClusterId(1))?;
    let empty = std::fs::metadata(&store)?.len();
    let mut file = File::create(at.with_extension("plain"))?;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    let mut written = 0_u64;
    let me = std::process::id();
    for stretch in batches.chunks(STRETCH) {
        let before = written_bytes(me).context("/proc/self/io")?;
        for batch in stretch {
            ours.push(timed(|| Ok(journal.append(batch)?))?);
        }
        let after = written_bytes(me).context("/proc/self/io")?;
        written = written.saturating_add(after.saturating_sub(before));
        for batch in stretch {
            let bytes: Vec<u8> = batch.iter().flat_map(|(_, bytes)| bytes).copied().collect();
            plain.push(timed(|| {
                file.write_all(&bytes)?;
                Ok(file.sync_data()?)
            })?);
        }
        // An interrupt is looked for.
        tokio::task::yield_now().await;
    }
    let n = batches.len();
    let records: usize = batches.iter().map(|batch| batch.len()).sum();
    let bytes: usize = batches.iter().copied().flatten().map(|(_, bytes)| bytes.len()).sum();
    let grown = std::fs::metadata(&store)?.len().saturating_sub(empty);
    let ratio = |percent| -> Option<f64> {
        let (ours, plain) = (percentile(&ours, percent)?, percentile(&plain, percent)?);
        Some(ours.as_secs_f64() / plain.as_secs_f64())
    };
    let figure = |what: String, value, unit| Figure { what, value, unit, n, goal: Goal::None };
    let mut figures = percentiles(&format!("append, {what}"), &ours, Goal::None, Goal::None);
    let name = format!("plain append and fdatasync, {what}");
    figures.extend(percentiles(&name, &plain, Goal::None, Goal::None));
    let times = |percent: u8| format!("append / plain, {what}, p{percent}");
    figures.push(figure(times(50), ratio(50).context("no samples")?, "x"));
    figures.push(figure(times(99), ratio(99).context("no samples")?, "x"));
    let per_append = number(written) / length(n) / 1024.0;
    figures.push(figure(format!("written to disk per append, {what}"), per_append, "KiB"));
    let per_record = length(bytes) / length(records);
    figures.push(figure(format!("bytes of a record, {what}"), per_record, "B"));
    let growth = number(grown) / length(bytes);
    figures.push(figure(format!("growth of the store / bytes, {what}"), growth, "x"));
    Ok(figures)
}

fn timed(act: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let began = Instant::now();
    act()?;
    Ok(began.elapsed())
}

/// What one-GPU jobs leave, from submit to forgotten.
fn per_job() -> anyhow::Result<Vec<Figure>> {
    let (sender, receiver) = channel();
    let mut history = History::begin(Tape(sender), Timestamp(1_700_000_000_000), ONE_GPU)?;
    let before = usize::try_from(history.records())?;
    while history.jobs() < COUNTED_JOBS {
        history.turn()?;
    }
    history.wind_up()?;
    let n = history.jobs();
    drop(history);
    let records: Vec<Entry> = receiver.iter().skip(before).collect();
    let bytes: usize = records.iter().map(|(_, bytes)| bytes.len()).sum();
    let figure = |what: &str, value, unit| {
        let what = what.to_owned();
        Figure { what, value, unit, n, goal: Goal::None }
    };
    Ok(vec![
        figure("records per one-GPU job", length(records.len()) / length(n), ""),
        figure("bytes of records per one-GPU job", length(bytes) / length(n), "B"),
    ])
}
