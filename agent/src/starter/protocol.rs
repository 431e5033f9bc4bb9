//! What agent and starter say to each other: one JSON value per line, over a Unix socket.
//!
//! The agent asks, each request with a number; the starter answers each, and says unasked what
//! has changed. A new connection replaces the old one, of which nothing unread is done any more.

use serde::{Deserialize, Serialize};
use tidegate_model::{Span, TaskId};

use crate::node::{TaskFacts, TaskStatus};
use crate::permits::{AskRecord, PermitRecord};
use crate::record::ExitRecord;
use crate::saving::{CommitRecord, SaveRecord, SeenRecord};
use crate::task_dir::LaunchRecord;

/// Longest line either side accepts: a launch is at most 128 KiB before JSON escapes it, and a
/// list of 1024 tasks with the longest reasons and paths of checkpoints stays below it.
pub const MAX_LINE_BYTES: usize = 4 << 20;

/// Asked by the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Repeated in the answer.
    pub id: u64,
    /// What.
    pub verb: Verb,
}

/// What the agent can ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Verb {
    /// Start the task, unless it is known: then nothing is done.
    Start {
        /// Which.
        #[serde(with = "crate::text")]
        task: TaskId,
        /// What.
        launch: Box<LaunchRecord>,
    },
    /// End the task. The first stop sends TERM; a later one may shorten the grace.
    Stop {
        /// Which.
        #[serde(with = "crate::text")]
        task: TaskId,
        /// The journal record that ordered it.
        decision: u64,
        /// Between TERM and KILL.
        grace_ms: u64,
    },
    /// Ask the task to save. Harmless if repeated; one older than the last is dropped.
    Save {
        /// Which.
        #[serde(with = "crate::text")]
        task: TaskId,
        /// How.
        save: SaveRecord,
    },
    /// Tell the task's job the answer to its ask. Harmless if repeated.
    Permit {
        /// Which.
        #[serde(with = "crate::text")]
        task: TaskId,
        /// What.
        permit: PermitRecord,
    },
    /// Send a signal to the task's own process.
    Signal {
        /// Which.
        #[serde(with = "crate::text")]
        task: TaskId,
        /// The signal's number.
        signal: i32,
    },
    /// List all tasks.
    Status,
    /// Drop the record of a task of which nothing is left.
    Forget {
        /// Which.
        #[serde(with = "crate::text")]
        task: TaskId,
    },
}

/// Said by the starter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromStarter {
    /// The answer to every request but `status`.
    Answer {
        /// Of the request; 0 if it could not be read.
        id: u64,
        /// Why nothing was done, if so.
        refused: Option<String>,
    },
    /// The answer to `status`.
    Tasks {
        /// Of the request.
        id: u64,
        /// All there are.
        tasks: Vec<TaskLine>,
    },
    /// A task's status is now another.
    Changed(Box<TaskLine>),
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskLine {
    /// Which.
    #[serde(with = "crate::text")]
    pub task: TaskId,
    /// How it stands.
    pub status: StatusRecord,
    /// How far the newest request to save came; none if its shim knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<SeenRecord>,
    /// Its newest checkpoint, if it has said of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitRecord>,
    /// Its job's newest ask to write, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<AskRecord>,
    /// What its shim was told last of an ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<PermitRecord>,
}

impl TaskLine {
    /// The task and what is said of it.
    #[must_use]
    pub fn facts(self) -> (TaskId, TaskFacts) {
        let Self { task, status, save, commit, ask, permit } = self;
        let (save, commit) = (save.map(Into::into), commit.map(Into::into));
        (task, TaskFacts { status: status.into(), save, commit, ask, permit })
    }
}

/// [`TaskStatus`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StatusRecord {
    /// Its start is durable.
    Intended,
    /// Its process runs.
    Running,
    /// Its process has ended.
    Ended {
        /// How.
        exit: ExitRecord,
        /// No process of it is left.
        released: bool,
        /// From exec to exit.
        ran_ms: u64,
    },
}

impl From<TaskStatus> for StatusRecord {
    fn from(status: TaskStatus) -> Self {
        match status {
            TaskStatus::Intended => Self::Intended,
            TaskStatus::Running => Self::Running,
            TaskStatus::Ended { exit, released, ran } => {
                Self::Ended { exit: exit.into(), released, ran_ms: ran.0 }
            }
        }
    }
}

impl From<StatusRecord> for TaskStatus {
    fn from(record: StatusRecord) -> Self {
        match record {
            StatusRecord::Intended => Self::Intended,
            StatusRecord::Running => Self::Running,
            StatusRecord::Ended { exit, released, ran_ms } => {
                Self::Ended { exit: exit.into(), released, ran: Span(ran_ms) }
            }
        }
    }
}

/// A value as its line, with the line's end.
///
/// # Errors
/// Never for the values of this module; kept so that nothing is unwrapped.
pub fn line_of<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
