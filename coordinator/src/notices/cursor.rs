//! How far notices are posted, in a small file beside the store. After a restart the journal is read
//! from there: nothing is lost, and what was posted is not posted again but for a crash between the
//! answer and the file.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_model::DecisionSeq;

/// How far they are posted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Position {
    /// All of the records up to this one, or given up.
    pub up_to: u64,
    /// Of records after it those that are: record and id.
    pub done: BTreeSet<(u64, String)>,
}

impl Position {
    /// Nothing before a record, and nothing after it yet.
    #[must_use]
    pub fn at(up_to: DecisionSeq) -> Self {
        Self { up_to: up_to.0, done: BTreeSet::new() }
    }
}

/// The file.
#[derive(Debug, Clone)]
pub struct CursorFile {
    path: PathBuf,
}

impl CursorFile {
    /// The one of a store: its name with `.notices`.
    #[must_use]
    pub fn beside(store: &Path) -> Self {
        let mut path = OsString::from(store);
        path.push(".notices");
        Self { path: path.into() }
    }

    /// What it says; none if it is not there.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn load(&self) -> io::Result<Option<Position>> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        serde_json::from_slice(&text).map(Some).map_err(io::Error::from)
    }

    /// Replaces what it says, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, position: &Position) -> io::Result<()> {
        let beside = self.path.with_extension("notices.new");
        let mut file = File::create(&beside)?;
        file.write_all(&serde_json::to_vec(position)?)?;
        file.sync_data()?;
        fs::rename(&beside, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_and_a_file_that_is_none_is_not_taken_for_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store.redb");
        let file = CursorFile::beside(&store);
        assert_eq!(file.load().unwrap(), None);
        let done = [(9, "job-7.1:running".to_owned())].into();
        let position = Position { up_to: 7, done };
        file.save(&position).unwrap();
        assert_eq!(file.load().unwrap(), Some(position));
        fs::write(dir.path().join("store.redb.notices"), "{").unwrap();
        assert!(file.load().is_err());
    }
}
