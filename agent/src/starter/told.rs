//! What a task's shim has written of requests to save and of checkpoints.

use std::path::Path;

use serde::de::DeserializeOwned;
use tidegate_model::TaskId;
use tracing::warn;

use crate::saving::{CommitRecord, SavingRecord, SeenRecord};
use crate::task_dir::{TaskDir, load};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Told {
    saving: Option<SavingRecord>,
    pub(super) commit: Option<CommitRecord>,
}

impl Told {
    pub(super) fn read(task: TaskId, dir: &TaskDir) -> Self {
        Self { saving: readable(task, &dir.saving()), commit: readable(task, &dir.commit()) }
    }

    pub(super) fn save(&self, shim_is_alive: bool) -> Option<SeenRecord> {
        self.saving.as_ref().map(|saving| saving.seen(shim_is_alive).into())
    }
}

/// One that cannot be read is none: it must not keep the task's end from being seen.
fn readable<T: DeserializeOwned>(task: TaskId, path: &Path) -> Option<T> {
    load(path).unwrap_or_else(|why| {
        warn!(%task, path = %path.display(), %why, "cannot be read");
        None
    })
}
