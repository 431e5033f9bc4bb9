//! A store's file that is read and never written: what redb writes lies over it in memory.
//!
//! redb opens a store read-only only if it was closed in order, and a copy taken of a running
//! coordinator was not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// What is laid over the file at a time: the page of redb.
const PAGE: usize = 4096;
const PAGE_BYTES: u64 = 4096;

/// The file, and what was written over it.
#[derive(Debug)]
pub(super) struct Unchanged {
    file: File,
    /// The lock orders redb's own threads of writing and reading.
    over: Mutex<Over>,
}

#[derive(Debug)]
struct Over {
    length: u64,
    /// So much of the file counts; behind it are zeros.
    stored: u64,
    /// By number.
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Unchanged {
    pub(super) fn over(file: File) -> io::Result<Self> {
        let stored = file.metadata()?.len();
        let over = Over { length: stored, stored, pages: BTreeMap::new() };
        Ok(Self { file, over: Mutex::new(over) })
    }

    fn lock(&self) -> MutexGuard<'_, Over> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the file; zeros behind its end.
    fn stored(&self, over: &Over, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(over.stored.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (inside, behind) = out.split_at_mut(there.min(out.len()));
        behind.fill(0);
        self.file.read_exact_at(inside, offset)
    }
}

/// The pages that a range touches: number, where it begins in the page, how much of it.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, mut left) = (offset, length);
    std::iter::from_fn(move || {
        let begin = usize::try_from(at % PAGE_BYTES).unwrap_or(0);
        let size = left.min(PAGE.saturating_sub(begin));
        let piece = (at / PAGE_BYTES, begin, size);
        at = at.saturating_add(u64::try_from(size).unwrap_or(u64::MAX));
        left = left.saturating_sub(size);
        (size > 0).then_some(piece)
    })
}

impl StorageBackend for Unchanged {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.lock();
        self.stored(&over, offset, out)?;
        let mut rest = out;
        for (number, begin, size) in pieces(offset, rest.len()) {
            let (piece, tail) = rest.split_at_mut(size);
            let page = over.pages.get(&number);
            if let Some(page) = page.and_then(|page| page.get(begin..begin.saturating_add(size))) {
                piece.copy_from_slice(page);
            }
            rest = tail;
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut over = self.lock();
        // What was cut off is zero when it is part of the storage again.
        over.stored = over.stored.min(length);
        let cut = usize::try_from(length % PAGE_BYTES).unwrap_or(0);
        for (number, page) in over.pages.range_mut(length / PAGE_BYTES..) {
            let kept = if *number == length / PAGE_BYTES { cut } else { 0 };
            page.iter_mut().skip(kept).for_each(|byte| *byte = 0);
        }
        over.length = length;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut over = self.lock();
        let mut rest = bytes;
        for (number, begin, size) in pieces(offset, rest.len()) {
            let (piece, tail) = rest.split_at_checked(size).unwrap_or((rest, &[]));
            if !over.pages.contains_key(&number) {
                let mut page = vec![0; PAGE];
                self.stored(&over, number.saturating_mul(PAGE_BYTES), &mut page)?;
                over.pages.insert(number, page);
            }
            let page = over.pages.get_mut(&number);
            let place = page.and_then(|page| page.get_mut(begin..begin.saturating_add(size)));
            place.into_iter().for_each(|place| place.copy_from_slice(piece));
            rest = tail;
        }
        Ok(())
    }
}
