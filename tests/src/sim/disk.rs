//! A disk that can lose what was not synced, and tear the write that a crash interrupts.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

#[derive(Debug, Default)]
struct Content {
    /// What survives a crash for sure.
    durable: Vec<u8>,
    /// What a reader sees: the durable part with every write since.
    current: Vec<u8>,
    pending: Vec<Change>,
    drop_syncs: bool,
}

#[derive(Debug, Clone)]
enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Change {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Length(length) => image.resize(*length, 0),
            Self::Write { at, bytes } => {
                let end = at.saturating_add(bytes.len());
                if image.len() < end {
                    image.resize(end, 0);
                }
                if let Some(place) = image.get_mut(*at..end) {
                    place.copy_from_slice(bytes);
                }
            }
        }
    }
}

/// One life of the disk: from a start of the coordinator to its crash.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    /// One owner at a time: redb, or the simulation between two lives.
    content: Arc<Mutex<Content>>,
}

impl Disk {
    /// A disk that loses syncs, for the planted bug.
    pub(super) fn new(drop_syncs: bool) -> Self {
        let disk = Self::default();
        disk.lock().drop_syncs = drop_syncs;
        disk
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is found after a crash: the synced part, with a part of the rest in any order, one
    /// write of it torn. The old life's handle goes on writing into nowhere.
    pub(super) fn crash(&self, rng: &mut fastrand::Rng) -> Self {
        let content = self.lock();
        let mut image = content.durable.clone();
        let mut kept: Vec<Change> =
            content.pending.iter().filter(|_| rng.bool()).cloned().collect();
        rng.shuffle(&mut kept);
        if let Some(Change::Write { bytes, .. }) = kept.last_mut() {
            bytes.truncate(rng.usize(..=bytes.len()));
        }
        kept.iter().for_each(|change| change.apply(&mut image));
        Self::holding(image, content.drop_syncs)
    }

    /// What is found after the process alone died: the kernel kept every write.
    pub(super) fn process_died(&self) -> Self {
        let content = self.lock();
        Self::holding(content.current.clone(), content.drop_syncs)
    }

    fn holding(image: Vec<u8>, drop_syncs: bool) -> Self {
        let content =
            Content { durable: image.clone(), current: image, pending: Vec::new(), drop_syncs };
        Self { content: Arc::new(Mutex::new(content)) }
    }

    fn change(&self, change: Change) {
        let mut content = self.lock();
        change.apply(&mut content.current);
        content.pending.push(change);
    }
}

fn position(at: u64) -> io::Result<usize> {
    usize::try_from(at).map_err(io::Error::other)
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(u64::try_from(self.lock().current.len()).unwrap_or(u64::MAX))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = position(offset)?;
        let content = self.lock();
        let bytes = content.current.get(at..at.saturating_add(out.len()));
        let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        out.copy_from_slice(bytes.ok_or_else(short)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(position(len)?));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.lock();
        if !content.drop_syncs {
            let pending = std::mem::take(&mut content.pending);
            pending.iter().for_each(|change| change.apply(&mut content.durable));
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write { at: position(offset)?, bytes: data.to_vec() });
        Ok(())
    }
}
