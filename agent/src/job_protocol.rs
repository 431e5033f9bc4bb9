//! What a job and its shim say to each other over the job's socket: one JSON value per line.
//!
//! For people: `docs/job-protocol.md`. What is not here: who may connect and what is believed
//! (`shim`).

use serde::{Deserialize, Serialize};

/// Longest line a job may send: a commit of [`MAX_FILES`] files with names of some 80 bytes.
pub const MAX_JOB_LINE: usize = 1 << 20;

/// Most files of one commit. Each costs a stat, and each rank of the largest jobs writes a few.
pub const MAX_FILES: usize = 10_000;

/// Said by the job. Keys that are not known are ignored: a job may be newer than its shim.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromJob {
    /// Who am I, and am I asked to save?
    Hello {},
    /// This checkpoint is complete.
    Commit(Claim),
    /// May I write? Not served yet.
    Ask(serde_json::Value),
}

/// A checkpoint that a job says is complete.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Claim {
    /// The training step.
    pub step: u64,
    /// Absolute path of its directory.
    pub path: String,
    /// Every file of it.
    pub files: Vec<ClaimedFile>,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ClaimedFile {
    /// Below the checkpoint's directory.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// Said to the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToJob {
    /// The answer to `hello`.
    Hello {
        /// Such as `job-7`.
        job: String,
        /// Its attempt.
        attempt: u32,
        /// Such as `job-7.2.0`.
        task: String,
        /// The newest request to save, if there is one.
        request: Option<Announcement>,
    },
    /// It is asked to save. Unasked, to every connection.
    Save(Announcement),
    /// The checkpoint counts, as far as this node can tell.
    Committed {
        /// Of the commit.
        step: u64,
    },
    /// Nothing was done.
    Refused {
        /// What was wrong, and what would be accepted.
        why: String,
    },
}

/// A request to save, as the job's file and socket have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Announcement {
    /// Grows from request to request.
    pub request: u64,
    /// From the request to its end, rounded up.
    pub grace_s: u64,
    /// What is left of it when this is said or written, rounded down.
    pub left_s: u64,
    /// For people.
    pub why: String,
}
