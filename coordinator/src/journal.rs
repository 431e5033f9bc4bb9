//! The journal: one sequence of records over all leaders, and snapshots of the books.
//!
//! Here are bytes only; what they mean is in [`codec`] and [`snapshot`].

pub mod codec;
pub mod redb_store;
pub mod snapshot;

use std::error::Error;

use tidegate_model::{ClusterId, DecisionSeq};

/// One record: its place and its bytes.
pub type Entry = (DecisionSeq, Vec<u8>);

/// What takes records as they are read.
pub type Sink<'a> = &'a mut dyn FnMut(DecisionSeq, &[u8]) -> Result<(), JournalError>;

/// Why the journal could not do what was asked. After a failed or doubtful append the coordinator
/// stops and restores: nothing of the turn was seen by anybody.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The store could not be read or written.
    #[error("the store cannot be used")]
    Storage(#[source] Box<dyn Error + Send + Sync>),
    /// Another process has the store open.
    #[error("another coordinator has this store open; one store serves one coordinator")]
    InUse,
    /// A file without a byte in it: what was there is lost.
    #[error(
        "the store is damaged: the file is empty; restore it from a copy, or remove it to begin a new \
         cluster"
    )]
    Empty,
    /// The store was written by a newer version.
    #[error("the store has format {found}; this version reads formats up to {known}")]
    NewerFormat {
        /// As the store says.
        found: u32,
        /// The newest this version reads.
        known: u32,
    },
    /// Records are missing, repeated or unreadable.
    #[error("the store is damaged at record {at}: {why}")]
    Damaged {
        /// The first bad record.
        at: u64,
        /// What is wrong.
        why: String,
    },
}

impl JournalError {
    /// An error of the storage below.
    pub fn storage(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Storage(Box::new(error))
    }
}

/// Where decisions become durable. Back ends: [`redb_store::RedbJournal`] on a file, and on the
/// simulated disk of the test harness.
pub trait Journal {
    /// The identity of the store.
    fn cluster(&self) -> ClusterId;

    /// Makes the records durable, all or none. They must follow the last one without a gap.
    ///
    /// # Errors
    /// If it failed or may have failed.
    fn append(&mut self, batch: &[Entry]) -> Result<(), JournalError>;

    /// Hands every record from `from` on to `each`, in order.
    ///
    /// # Errors
    /// If the store cannot be read, or what `each` answers.
    fn read(&self, from: DecisionSeq, each: Sink<'_>) -> Result<(), JournalError>;

    /// Writes the books as of `at`, and drops snapshots but the last two with the records that
    /// only older ones need.
    ///
    /// # Errors
    /// If it failed. The journal before it stays whole.
    fn snapshot(&mut self, at: DecisionSeq, books: &[u8]) -> Result<(), JournalError>;

    /// The newest snapshot.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn latest_snapshot(&self) -> Result<Option<Entry>, JournalError>;

    /// The oldest record that is kept.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn oldest(&self) -> Result<Option<DecisionSeq>, JournalError>;
}
