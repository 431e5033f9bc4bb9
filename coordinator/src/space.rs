//! A full disk must not lose what was accepted: a reserve is set aside while there is room, new
//! work is refused before the room runs out, and ends and releases go on into the reserve.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
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

    /// Sets the reserve aside, once the store is led: a start on a full disk needs the very room that
    /// the run before it gave up. What new work needs is left beside it.
    ///
    /// # Errors
    /// If there is no room for it; the coordinator is then closed to new work.
    pub fn set_aside(&self) -> io::Result<()> {
        // A shorter one was not finished.
        if fs::metadata(&self.reserve).is_ok_and(|reserve| reserve.len() >= RESERVE.0) {
            return Ok(());
        }
        let needed = Bytes(self.low_water.0.saturating_add(RESERVE.0));
        if self.free().is_some_and(|free| free < needed) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        let allocated = options.open(&self.reserve).and_then(|file| allocate(&file));
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
        let free = self.free()?;
        if free < self.low_water {
            let free = Bytes(free.0 >> 10 << 10);
            return Some(format!(
                "{free} are free at {}, less than the {} that new work needs",
                dir.display(),
                self.low_water
            ));
        }
        if self.set_aside().is_ok() {
            return None;
        }
        Some(format!("there is no room at {} for the reserve of {RESERVE}", dir.display()))
    }

    /// None where the file system does not say.
    fn free(&self) -> Option<Bytes> {
        let stat = statvfs(self.store.parent()?).ok()?;
        Some(Bytes(stat.blocks_available().saturating_mul(stat.fragment_size())))
    }
}

fn allocate(mut file: &File) -> io::Result<()> {
    let length = i64::try_from(RESERVE.0).map_err(io::Error::other)?;
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        // Not every file system can; zeros take the room as well.
        Err(Errno::EOPNOTSUPP) => {
            io::copy(&mut io::repeat(0).take(RESERVE.0), &mut file)?;
            file.sync_all()
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_set_aside_again_when_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store.redb");
        let space = Space::new(&store, Bytes(1), None);
        space.set_aside().unwrap();
        assert_eq!(space.closed(), None);
        space.release();
        assert_eq!(space.closed(), None);
        assert_eq!(fs::metadata(dir.path().join("store.reserve")).unwrap().len(), RESERVE.0);
    }

    #[test]
    fn too_little_room_and_a_store_at_its_limit_close_it_with_words() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store.redb");
        let told = Space::new(&store, Bytes(u64::MAX), None).closed().unwrap();
        assert!(told.contains("less than the"), "{told}");
        fs::write(&store, [0; 2048]).unwrap();
        let told = Space::new(&store, Bytes(1), Some(Bytes(2048))).closed();
        assert_eq!(told.as_deref(), Some("the store has grown to its limit of 2KiB"));
    }
}
