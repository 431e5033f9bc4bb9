//! The journal over redb: one file, an OS lock, one transaction and one fsync an append.

mod reading;
mod unchanged;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageBackend,
    TableDefinition, WriteTransaction,
};
use tidegate_model::{ClusterId, DecisionSeq};

use self::unchanged::Unchanged;
use super::{Entry, Journal, JournalError, Sink};

pub use self::reading::{Reader, Reading};

/// What this version writes, and the newest it reads.
pub const FORMAT: u32 = 1;

/// Bytes redb may cache. The books are in memory; the store is read once, at start.
const CACHE_BYTES: usize = 4 << 20;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const SNAPSHOTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("snapshots");

/// A journal in a redb database.
#[derive(Debug)]
pub struct RedbJournal {
    database: Arc<Database>,
    cluster: ClusterId,
}

impl RedbJournal {
    /// Opens the store at `path`, or makes it where there is no file, readable by its owner only.
    /// `new_cluster` is the identity of a store that is made.
    ///
    /// # Errors
    /// If it is in use, empty, of a newer format, or cannot be read.
    pub fn open(path: &Path, new_cluster: ClusterId) -> Result<Self, JournalError> {
        let mut options = OpenOptions::new();
        let made = match options.write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => return Err(JournalError::storage(error)),
        };
        // Taken for a new store it would be a new cluster, and what runs would be nobody's.
        if !made && fs::metadata(path).map_err(JournalError::storage)?.len() == 0 {
            return Err(JournalError::Empty);
        }
        let opened = Self::over(builder().create(path), new_cluster);
        if made && opened.is_err() {
            // Nothing is in it. Left behind it would be refused as empty.
            fs::remove_file(path).map_err(JournalError::storage)?;
        }
        opened
    }

    /// Opens the store at `path` to be read. Nothing is written: what opening a store changes stays
    /// in memory, also the repair of one that was not closed.
    ///
    /// # Errors
    /// If it is in use, of a newer format, or cannot be read.
    pub fn read_only(path: &Path) -> Result<Self, JournalError> {
        let file = File::open(path).map_err(JournalError::storage)?;
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(JournalError::InUse),
            Err(TryLockError::Error(error)) => return Err(JournalError::storage(error)),
        }
        let unchanged = Unchanged::over(file).map_err(JournalError::storage)?;
        Self::on_backend(unchanged, ClusterId(0))
    }

    /// The same over any storage, such as a simulated disk.
    ///
    /// # Errors
    /// As [`RedbJournal::open`].
    pub fn on_backend(
        backend: impl StorageBackend,
        new_cluster: ClusterId,
    ) -> Result<Self, JournalError> {
        Self::over(builder().create_with_backend(backend), new_cluster)
    }

    fn over(
        opened: Result<Database, DatabaseError>,
        new_cluster: ClusterId,
    ) -> Result<Self, JournalError> {
        let database = opened.map_err(|error| {
            if matches!(error, DatabaseError::DatabaseAlreadyOpen) {
                JournalError::InUse
            } else {
                JournalError::storage(error)
            }
        })?;
        let cluster = identify(&database, new_cluster)?;
        Ok(Self { database: Arc::new(database), cluster })
    }

    /// The way to the store for those who read beside the one who writes.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::of(Arc::clone(&self.database))
    }

    /// The store as it is now.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn reading(&self) -> Result<Reading, JournalError> {
        self.reader().reading()
    }

    fn write(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), JournalError> {
        write(&self.database, change)
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn write(
    database: &Database,
    change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
) -> Result<(), JournalError> {
    let mut transaction = database.begin_write().map_err(JournalError::storage)?;
    transaction.set_durability(Durability::Immediate).map_err(JournalError::storage)?;
    change(&transaction).map_err(JournalError::storage)?;
    transaction.commit().map_err(JournalError::storage)
}

/// Reads the store's identity, or gives it one; refuses a format this version does not know.
fn identify(database: &Database, new_cluster: ClusterId) -> Result<ClusterId, JournalError> {
    write(database, |transaction| {
        let mut meta = transaction.open_table(META)?;
        if meta.get("format")?.is_none() {
            meta.insert("format", FORMAT.to_be_bytes().as_slice())?;
            meta.insert("cluster", new_cluster.0.to_be_bytes().as_slice())?;
        }
        transaction.open_table(LOG)?;
        transaction.open_table(SNAPSHOTS)?;
        Ok(())
    })?;
    let reading = database.begin_read().map_err(JournalError::storage)?;
    let meta = reading.open_table(META).map_err(JournalError::storage)?;
    let value = |key: &str| -> Result<Vec<u8>, JournalError> {
        let value = meta.get(key).map_err(JournalError::storage)?;
        Ok(value.map(|value| value.value().to_vec()).unwrap_or_default())
    };
    let damaged = |what: &str| JournalError::Damaged { at: 0, why: format!("no {what} in it") };
    let format = value("format")?.try_into().map(u32::from_be_bytes);
    let found = format.map_err(|_wrong_length| damaged("format"))?;
    if found > FORMAT {
        return Err(JournalError::NewerFormat { found, known: FORMAT });
    }
    let cluster = value("cluster")?.try_into().map(u128::from_be_bytes);
    cluster.map(ClusterId).map_err(|_wrong_length| damaged("cluster id"))
}

impl Journal for RedbJournal {
    fn cluster(&self) -> ClusterId {
        self.cluster
    }

    fn append(&mut self, batch: &[Entry]) -> Result<(), JournalError> {
        let mut expected = None;
        self.write(|transaction| {
            let mut log = transaction.open_table(LOG)?;
            let mut last = log.last()?.map(|(seq, _)| seq.value());
            for (seq, bytes) in batch {
                if last.is_some_and(|last| last.checked_add(1) != Some(seq.0)) {
                    expected = last;
                    return Err(redb::Error::Corrupted("a gap in the sequence".to_owned()));
                }
                log.insert(seq.0, bytes.as_slice())?;
                last = Some(seq.0);
            }
            Ok(())
        })
        .map_err(|error| match expected {
            Some(at) => JournalError::Damaged { at, why: "the next record is not the next".into() },
            None => error,
        })
    }

    fn read(&self, from: DecisionSeq, each: Sink<'_>) -> Result<(), JournalError> {
        self.reading()?.read(from, each)
    }

    fn snapshot(&mut self, at: DecisionSeq, books: &[u8]) -> Result<(), JournalError> {
        self.write(|transaction| {
            let mut snapshots = transaction.open_table(SNAPSHOTS)?;
            snapshots.insert(at.0, books)?;
            // Two are kept: the one before is the way back should the newest prove unreadable.
            let kept = snapshots.iter()?.rev().nth(1).transpose()?.map(|(seq, _)| seq.value());
            if let Some(kept) = kept {
                snapshots.retain(|seq, _| seq >= kept)?;
                transaction.open_table(LOG)?.retain(|seq, _| seq > kept)?;
            }
            Ok(())
        })
    }

    fn latest_snapshot(&self) -> Result<Option<Entry>, JournalError> {
        self.reading()?.newest_snapshot()
    }

    fn oldest(&self) -> Result<Option<DecisionSeq>, JournalError> {
        self.reading()?.oldest()
    }
}
