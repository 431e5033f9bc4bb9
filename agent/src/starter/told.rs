//! What a task's directory says of requests to save, of checkpoints and of permits to write.

use std::path::Path;

use serde::de::DeserializeOwned;
use tidegate_model::TaskId;
use tracing::warn;

use crate::permits::{AskRecord, PermitRecord};
use crate::saving::{CommitRecord, SavingRecord, SeenRecord};
use crate::task_dir::{TaskDir, load};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    saving: Option<SavingRecord>,
    pub(super) commit: Option<CommitRecord>,
    ask: Option<AskRecord>,
    pub(super) permit: Option<PermitRecord>,
}

impl Told {
    pub(super) fn read(task: TaskId, dir: &TaskDir) -> Self {
        Self {
            saving: readable(task, &dir.saving()),
            commit: readable(task, &dir.commit()),
            ask: readable(task, &dir.ask()),
            permit: readable(task, &dir.permit()),
        }
    }

    pub(super) fn save(&self, shim_is_alive: bool) -> Option<SeenRecord> {
        self.saving.as_ref().map(|saving| saving.seen(shim_is_alive).into())
    }

    /// Of a task of which nothing is left no ask is open, whatever its shim came to write.
    pub(super) fn ask(&self, something_is_left: bool) -> Option<AskRecord> {
        self.ask.map(|ask| AskRecord { done: ask.done || !something_is_left, ..ask })
    }
}

/// One that cannot be read is none: it must not keep the task's end from being seen.
fn readable<T: DeserializeOwned>(task: TaskId, path: &Path) -> Option<T> {
    load(path).unwrap_or_else(|why| {
        warn!(%task, path = %path.display(), %why, "cannot be read");
        None
    })
}
