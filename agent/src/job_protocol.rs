//! What a job and its shim say to each other over the job's socket: one JSON value per line.
//!
//! For people: `docs/job-protocol.md`. What is not here: who may connect and what is believed
//! (`shim`).

use serde::{Deserialize, Serialize};

/// Longest line a job may send: a commit of [`MAX_FILES`] files with names of some 80 bytes.
pub const MAX_JOB_LINE: usize = 1 << 20;

/// Most files of one commit. Each costs a stat, and each rank of the largest jobs writes a few.
pub const MAX_FILES: usize = 10_000;

/// Most bytes of one ask, 1 PiB: fifty times the checkpoint of a model of a trillion parameters.
pub const MAX_ASK_BYTES: u64 = 1 << 50;

/// Most files of one ask: a thousand for each of ten thousand ranks.
pub const MAX_ASK_FILES: u32 = 10_000_000;

/// Said by the job. Keys that are not known are ignored: a job may be newer than its shim.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromJob {
    /// Who am I, and am I asked to save?
    Hello {},
    /// This checkpoint is complete.
    Commit(Claim),
    /// May I write, or read?
    Ask(Wish),
    /// So much of it is written.
    Progress(Progress),
    /// How long does my permit hold, and at which rate?
    Renew(Held),
    /// It is written, or no longer wanted.
    Done(Done),
}

/// A permit that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Wish {
    /// Of the whole gang.
    pub bytes: u64,
    /// A [`tidegate_model::WriteClass`].
    pub class: String,
    /// Of the whole gang; none = not said.
    pub files: Option<u64>,
    /// How long the job will wait, in seconds; none = as long as the policy says.
    pub wait_s: Option<u64>,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Progress {
    /// The number of its ask.
    pub permit: u64,
    /// Since the permit, all together.
    pub bytes: u64,
}

/// A permit that a job has.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Held {
    /// The number of its ask.
    pub permit: u64,
}

/// The end of a permit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Done {
    /// The number of its ask.
    pub permit: u64,
    /// All that was written with it; none = not said.
    pub bytes: Option<u64>,
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
    /// Its ask is taken; it has to wait. Comes at once, and whenever more is known.
    Wait {
        /// The number of the ask.
        ask: u64,
        /// So many are before it; none = not known yet.
        position: Option<u32>,
        /// In so many seconds its turn is expected; none = not known yet.
        expected_s: Option<u64>,
    },
    /// It may.
    Grant(Grant),
    /// Its ask is answered with no, and over.
    Deny {
        /// The number of the ask.
        ask: u64,
        /// Why.
        why: String,
        /// In so many seconds asking again is answered otherwise; none = not known, or it never is.
        retry_after_s: Option<u64>,
    },
    /// Its permit is given back.
    Done {
        /// The number of its ask.
        permit: u64,
    },
    /// Nothing was done.
    Refused {
        /// What was wrong, and what would be accepted.
        why: String,
    },
}

/// A permit, as the job is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// The number of its ask.
    pub permit: u64,
    /// The whole gang, now; none = not limited.
    pub bytes_per_s: Option<u64>,
    /// What is left of it, in seconds, rounded down. It is renewed without being asked for.
    pub until_s: u64,
    /// The whole gang, once that is over; none = not limited.
    pub after_bytes_per_s: Option<u64>,
    /// It was not renewed in time: the rate is what may be used on one's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lapsed: bool,
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
