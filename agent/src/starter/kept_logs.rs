//! The output of forgotten tasks: people read it after a job has ended. The oldest goes when
//! there is more than is to be kept.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_model::{Bytes, TaskId};
use tracing::warn;

use crate::durable;
use crate::logs::STREAMS;

/// Most tasks whose output is kept, however little it is: a directory stays quick to read.
const MAX_TASKS: usize = 4096;

pub(super) struct KeptLogs {
    root: PathBuf,
    most: Bytes,
    /// Oldest first.
    kept: VecDeque<(TaskId, u64)>,
    bytes: u64,
}

impl KeptLogs {
    /// Those below `root`; at most `most` bytes.
    pub(super) fn open(root: PathBuf, most: Bytes) -> io::Result<Self> {
        durable::create_private_dir(&root)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&root)? {
            let entry = entry?;
            let name = entry.file_name();
            let task = name.to_str().and_then(|name| name.parse::<TaskId>().ok());
            let Some(task) = task else { continue };
            // A crash may have left the rest of the record.
            let bytes = strip(&entry.path())?;
            found.push((entry.metadata()?.modified()?, task, bytes));
        }
        found.sort_unstable();
        let bytes = found.iter().map(|(_, _, size)| size).sum();
        let kept = found.into_iter().map(|(_, task, size)| (task, size)).collect();
        let mut logs = Self { root, most, kept, bytes };
        logs.prune();
        Ok(logs)
    }

    /// Takes a task's directory over; an error means that it is still where it was.
    ///
    /// It moves in one step, so that a crash leaves no half of a record and a reader always finds
    /// the output. Not fsynced: a record that is back after a power cut is forgotten again.
    pub(super) fn take(&mut self, task: TaskId, directory: &Path) -> io::Result<()> {
        let place = self.root.join(task.to_string());
        fs::rename(directory, &place)?;
        match strip(&place) {
            // An empty directory says that the task wrote nothing, not that it is gone.
            Ok(size) => {
                self.kept.push_back((task, size));
                self.bytes = self.bytes.saturating_add(size);
                self.prune();
            }
            Err(why) => warn!(%task, %why, "its output is looked at again at the next start"),
        }
        Ok(())
    }

    /// The newest stays, however large it is.
    fn prune(&mut self) {
        while self.kept.len() > 1 && (self.bytes > self.most.0 || self.kept.len() > MAX_TASKS) {
            let Some((task, size)) = self.kept.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(size);
            if let Err(why) = fs::remove_dir_all(self.root.join(task.to_string())) {
                warn!(%task, %why, "its output cannot be removed");
            }
        }
    }
}

/// Removes all but the output; how much that is. Empty segments are removed too.
fn strip(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let length = if STREAMS.contains(&stem) { entry.metadata()?.len() } else { 0 };
        if length == 0 {
            fs::remove_file(path)?;
        }
        bytes = bytes.saturating_add(length);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forgotten(root: &Path, id: &str, output: &str) -> (TaskId, PathBuf) {
        let directory = root.join(format!("gone-{id}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("exit.json"), "{}").unwrap();
        if !output.is_empty() {
            fs::write(directory.join("stdout.7"), output).unwrap();
        }
        (id.parse().unwrap(), directory)
    }

    fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_newest_output_is_kept_and_no_more_than_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("logs");
        let mut logs = KeptLogs::open(root.clone(), Bytes(8)).unwrap();
        for (id, output) in [("job-1.1.0", "aaa"), ("job-2.1.0", ""), ("job-3.1.0", "ccccc")] {
            let (task, directory) = forgotten(dir.path(), id, output);
            logs.take(task, &directory).unwrap();
        }
        assert_eq!(names(&root), ["job-1.1.0", "job-2.1.0", "job-3.1.0"]);
        assert!(names(&root.join("job-2.1.0")).is_empty(), "it wrote nothing");
        assert_eq!(names(&root.join("job-1.1.0")), ["stdout.7"]);
        let (task, directory) = forgotten(dir.path(), "job-4.1.0", "dddd");
        logs.take(task, &directory).unwrap();
        assert_eq!(names(&root), ["job-4.1.0"], "9 bytes were too many");
        KeptLogs::open(root.clone(), Bytes(0)).unwrap();
        assert_eq!(names(&root), ["job-4.1.0"], "the newest stays");
    }
}
