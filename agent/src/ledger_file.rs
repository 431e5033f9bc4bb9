//! The ledger's file.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::durable;
use crate::ledger::Ledger;

/// A ledger and what its file holds.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    path: PathBuf,
    written: Ledger,
}

impl LedgerFile {
    /// Reads the file; an absent one is the ledger of a new node. One that cannot be read is an
    /// error and no new ledger: a node that forgets what it has promised could promise it twice.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let words = || format!("the ledger {}", path.display());
        let written = match durable::read(path).with_context(words)? {
            Some(bytes) => serde_json::from_slice(&bytes).with_context(words)?,
            None => Ledger::default(),
        };
        Ok(Self { path: path.to_owned(), written })
    }

    pub(crate) fn written(&self) -> &Ledger {
        &self.written
    }

    /// Writes what must be durable before the next action or report; see [`Ledger::needs_write`].
    pub(crate) fn keep(&mut self, ledger: &Ledger) -> std::io::Result<()> {
        if ledger.needs_write(&self.written) { self.write(ledger) } else { Ok(()) }
    }

    /// Writes the ledger if anything in it has changed.
    pub(crate) fn write(&mut self, ledger: &Ledger) -> std::io::Result<()> {
        if *ledger != self.written { self.write_in_any_case(ledger) } else { Ok(()) }
    }

    /// Writes the ledger although nothing in it need be written: to find out whether it can be.
    pub(crate) fn write_in_any_case(&mut self, ledger: &Ledger) -> std::io::Result<()> {
        durable::replace(&self.path, &serde_json::to_vec(ledger)?)?;
        self.written = ledger.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::{ClusterId, Generation};

    #[test]
    fn a_ledger_is_as_it_was_kept_and_a_damaged_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.json");
        let mut file = LedgerFile::open(&path).unwrap();
        let mut ledger = Ledger { cluster: Some(ClusterId(7)), ..Ledger::default() };
        file.keep(&ledger).unwrap();
        assert_eq!(LedgerFile::open(&path).unwrap().written(), &ledger);
        ledger.generation = Generation(5);
        file.keep(&ledger).unwrap();
        assert_ne!(LedgerFile::open(&path).unwrap().written(), &ledger, "may wait");
        file.write(&ledger).unwrap();
        assert_eq!(LedgerFile::open(&path).unwrap().written(), &ledger);
        std::fs::write(&path, "{").unwrap();
        assert!(LedgerFile::open(&path).is_err());
    }
}
