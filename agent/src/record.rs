//! How a task's end is written in files and messages of this node.

use serde::{Deserialize, Serialize};
use tidegate_model::TaskExit;

/// Most characters of a reason that are kept: the list of all tasks must fit one message.
pub const MAX_REASON_CHARS: usize = 480;

/// [`TaskExit`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitRecord {
    /// It exited with this code.
    Exited(u8),
    /// It was killed by this signal.
    Signaled(u8),
    /// It never ran.
    NeverStarted(String),
    /// Its end was not seen.
    Lost(String),
}

impl From<TaskExit> for ExitRecord {
    fn from(exit: TaskExit) -> Self {
        match exit {
            TaskExit::Exited(code) => Self::Exited(code),
            TaskExit::Signaled(signal) => Self::Signaled(signal),
            TaskExit::NeverStarted(why) => Self::NeverStarted(cut(why)),
            TaskExit::Lost(why) => Self::Lost(cut(why)),
        }
    }
}

impl From<ExitRecord> for TaskExit {
    fn from(record: ExitRecord) -> Self {
        match record {
            ExitRecord::Exited(code) => Self::Exited(code),
            ExitRecord::Signaled(signal) => Self::Signaled(signal),
            ExitRecord::NeverStarted(why) => Self::NeverStarted(why),
            ExitRecord::Lost(why) => Self::Lost(why),
        }
    }
}

/// A reason within [`MAX_REASON_CHARS`].
#[must_use]
pub fn cut(mut why: String) -> String {
    if let Some((end, _)) = why.char_indices().nth(MAX_REASON_CHARS) {
        why.truncate(end);
    }
    why
}
