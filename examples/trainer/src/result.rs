//! The end of a run: its final line, `result.json`, and the attempts it took.

use std::fs::OpenOptions;
use std::io::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, RunIdentity, Store};

const RESULT: &str = "result.json";
const ATTEMPTS: &str = "attempts.jsonl";
/// A job that restarts for ever must not grow its result for ever.
const MAX_ATTEMPTS: usize = 1_000;

/// `result.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunResult {
    pub(crate) step: u64,
    loss: f64,
    digest: String,
    #[serde(flatten)]
    pub(crate) run: RunIdentity,
    attempts: Vec<Attempt>,
}

/// One start of the gang, a line of `attempts.jsonl`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Attempt {
    attempt: u64,
    resumed_from: u64,
}

impl RunResult {
    /// Writes the result of a finished run, durably.
    ///
    /// # Errors
    /// When the file system fails.
    pub(crate) fn write(
        store: &Store,
        run: RunIdentity,
        step: u64,
        (loss, digest): (f64, u64),
    ) -> Result<()> {
        let result = Self { step, loss, digest: hex(digest), run, attempts: attempts(store)? };
        let mut bytes = serde_json::to_vec_pretty(&result)?;
        bytes.push(b'\n');
        checkpoint::write_durably(store.directory(), RESULT, &bytes, &mut checkpoint::Unhindered)
    }

    /// # Errors
    /// When there is one that cannot be read.
    pub(crate) fn read(store: &Store) -> Result<Option<Self>> {
        checkpoint::read_if_exists(&store.directory().join(RESULT))?
            .map(|bytes| serde_json::from_slice(&bytes).context(RESULT))
            .transpose()
    }

    pub(crate) fn line(&self) -> String {
        line(self.step, self.loss, &self.digest)
    }
}

/// The one line a run ends with.
pub(crate) fn final_line(step: u64, loss: f64, digest: u64) -> String {
    line(step, loss, &hex(digest))
}

/// Notes a start of the gang; the number is counted where the scheduler gives none.
///
/// # Errors
/// When the file system fails.
pub(crate) fn note_attempt(store: &Store, number: Option<u64>, resumed_from: u64) -> Result<()> {
    let counted = attempts(store)?.last().map_or(1, |last| last.attempt.saturating_add(1));
    let attempt = Attempt { attempt: number.unwrap_or(counted), resumed_from };
    // The newline comes first too: a line torn by a kill must not swallow this one.
    let line = format!("\n{}\n", serde_json::to_string(&attempt)?);
    let path = store.directory().join(ATTEMPTS);
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .with_context(|| path.display().to_string())
}

/// The newest attempts. A torn line is left out: it is history, nothing depends on it.
fn attempts(store: &Store) -> Result<Vec<Attempt>> {
    let bytes = checkpoint::read_if_exists(&store.directory().join(ATTEMPTS))?.unwrap_or_default();
    let mut attempts: Vec<Attempt> = bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let excess = attempts.len().saturating_sub(MAX_ATTEMPTS);
    attempts.drain(..excess);
    Ok(attempts)
}

fn line(step: u64, loss: f64, digest: &str) -> String {
    format!("final step={step} loss={loss:.9} digest={digest}")
}

fn hex(digest: u64) -> String {
    format!("{digest:016x}")
}
