//! The store as of one instant, read while somebody else writes it.
//!
//! What is read stays as it was until the reading is dropped, also where the log is cut meanwhile:
//! the pages are kept, and the file grows by as much. So a reading is short.

use std::sync::Arc;

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable};
use tidegate_model::DecisionSeq;

use super::{LOG, SNAPSHOTS};
use crate::journal::{Entry, JournalError, Sink};

/// The way to a store for readers; it keeps the store open.
#[derive(Debug, Clone)]
pub struct Reader {
    database: Arc<Database>,
}

impl Reader {
    pub(super) fn of(database: Arc<Database>) -> Self {
        Self { database }
    }

    /// The store as it is now.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn reading(&self) -> Result<Reading, JournalError> {
        let transaction = self.database.begin_read().map_err(JournalError::storage)?;
        Ok(Reading { transaction, _open: Arc::clone(&self.database) })
    }
}

/// A store that does not change.
#[derive(Debug)]
pub struct Reading {
    transaction: ReadTransaction,
    /// A database that is dropped closes its transactions.
    _open: Arc<Database>,
}

impl Reading {
    /// Hands every record from `from` on to `each`, in order.
    ///
    /// # Errors
    /// If the store cannot be read, or what `each` answers.
    pub fn read(&self, from: DecisionSeq, each: Sink<'_>) -> Result<(), JournalError> {
        let log = self.transaction.open_table(LOG).map_err(JournalError::storage)?;
        for entry in log.range(from.0..).map_err(JournalError::storage)? {
            let (seq, bytes) = entry.map_err(JournalError::storage)?;
            each(DecisionSeq(seq.value()), bytes.value())?;
        }
        Ok(())
    }

    /// Hands at most `most` records from `from` on to `each`, in order.
    ///
    /// # Errors
    /// As [`Reading::read`].
    pub fn read_some(
        &self,
        from: DecisionSeq,
        most: u64,
        each: Sink<'_>,
    ) -> Result<(), JournalError> {
        let log = self.transaction.open_table(LOG).map_err(JournalError::storage)?;
        let until = from.0.saturating_add(most);
        for entry in log.range(from.0..until).map_err(JournalError::storage)? {
            let (seq, bytes) = entry.map_err(JournalError::storage)?;
            each(DecisionSeq(seq.value()), bytes.value())?;
        }
        Ok(())
    }

    /// The oldest record that is kept.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn oldest(&self) -> Result<Option<DecisionSeq>, JournalError> {
        let log = self.transaction.open_table(LOG).map_err(JournalError::storage)?;
        let first = log.first().map_err(JournalError::storage)?;
        Ok(first.map(|(seq, _)| DecisionSeq(seq.value())))
    }

    /// The newest record.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn newest(&self) -> Result<Option<DecisionSeq>, JournalError> {
        let log = self.transaction.open_table(LOG).map_err(JournalError::storage)?;
        let last = log.last().map_err(JournalError::storage)?;
        Ok(last.map(|(seq, _)| DecisionSeq(seq.value())))
    }

    /// The newest snapshot.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn newest_snapshot(&self) -> Result<Option<Entry>, JournalError> {
        let snapshots = self.transaction.open_table(SNAPSHOTS).map_err(JournalError::storage)?;
        let newest = snapshots.last().map_err(JournalError::storage)?;
        Ok(newest.map(|(seq, books)| (DecisionSeq(seq.value()), books.value().to_vec())))
    }

    /// The oldest snapshot that is kept: where the log that is kept begins, if it was cut.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn oldest_snapshot(&self) -> Result<Option<Entry>, JournalError> {
        let snapshots = self.transaction.open_table(SNAPSHOTS).map_err(JournalError::storage)?;
        let oldest = snapshots.first().map_err(JournalError::storage)?;
        Ok(oldest.map(|(seq, books)| (DecisionSeq(seq.value()), books.value().to_vec())))
    }
}
