//! What a checkpoint consists of: every file in its directory.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::job_protocol::MAX_FILES;

/// The message that commits a directory.
pub(super) fn message(step: u64, directory: &Path) -> anyhow::Result<Value> {
    let words = || directory.display().to_string();
    let directory = directory.canonicalize().with_context(words)?;
    let mut files = Vec::new();
    let mut open = vec![directory.clone()];
    while let Some(next) = open.pop() {
        let words = || next.display().to_string();
        for entry in std::fs::read_dir(&next).with_context(words)? {
            let entry = entry.with_context(words)?;
            if entry.file_type().with_context(words)?.is_dir() {
                open.push(entry.path());
            } else {
                files.push(file(&directory, &entry.path())?);
            }
            if files.len() > MAX_FILES {
                bail!("{}: more than {MAX_FILES} files", directory.display());
            }
        }
    }
    Ok(json!({"commit": {"step": step, "path": directory, "files": files}}))
}

fn file(directory: &Path, path: &Path) -> anyhow::Result<Value> {
    let bytes = path.metadata().with_context(|| path.display().to_string())?.len();
    let name = path.strip_prefix(directory)?;
    let name = name.to_str().with_context(|| format!("{}: not UTF-8", path.display()))?;
    Ok(json!({"path": name, "bytes": bytes}))
}
