//! A full disk must not lose what was accepted: a reserve is set aside while there is room, new
//! work is refused before the room runs out, and ends and releases go on into the reserve.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;
use tidegate_model::Bytes;

/// What is set aside: 16 MiB hold the ends and releases of some 20,000 jobs.
pub const RESERVE: Bytes = Bytes(16 << 20);

/// Watches the room for the store.
#[derive(Debug)]
pub struct Space {
    store: PathBuf,
    reserve: PathBuf,
    low_water: Bytes,
    limit: Option<Bytes>,
}

impl Space {
    /// For the store at `store`. New work is refused when less than `low_water` is free, or when
    /// the store has grown to `limit`.
    #[must_use]
    pub fn new(store: &Path, low_water: Bytes, limit: Option<Bytes>) -> Self {
        let reserve = store.with_extension("reserve");
        Self { store: store.to_owned(), reserve, low_water, limit }
    }

    /// Sets the reserve aside.
    ///
    /// # Errors
    /// If there is no room for it; the coordinator then starts closed to new work.
    pub fn set_aside(&self) -> io::Result<()> {
        let path = &self.reserve;
        let options =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).clone();
        let length = i64::try_from(RESERVE.0).map_err(io::Error::other)?;
        let allocate = |file| fallocate(file, FallocateFlags::empty(), 0, length);
        let allocated = options.open(path).and_then(|file| Ok(allocate(file)?));
        if allocated.is_err() {
            self.release();
        }
        allocated
    }

    /// Gives the reserve to the journal.
    pub fn release(&self) {
        if let Err(error) = fs::remove_file(&self.reserve)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.reserve.display(), "the reserve stays");
        }
    }

    /// Why new work is refused, if it is.
    #[must_use]
    pub fn closed(&self) -> Option<String> {
        let size = fs::metadata(&self.store).map(|store| store.len()).unwrap_or(0);
        if let Some(limit) = self.limit.filter(|limit| size >= limit.0) {
            return Some(format!("the store has grown to its limit of {limit}"));
        }
        let dir = self.store.parent()?;
        let stat = statvfs(dir).ok()?;
        let free = Bytes(stat.blocks_available().saturating_mul(stat.fragment_size()));
        if free < self.low_water {
            let free = Bytes(free.0 >> 10 << 10);
            return Some(format!(
                "{free} are free at {}, less than the {} that new work needs",
                dir.display(),
                self.low_water
            ));
        }
        (!self.reserve.exists()).then(|| "the disk was full; the reserve is in use".to_owned())
    }
}
