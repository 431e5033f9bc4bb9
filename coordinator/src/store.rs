//! From a journal to books: the newest snapshot, then every record after it.

use scheduler_core::{Books, Core};
use tidegate_model::{DecisionSeq, Timestamp};

use crate::journal::{Journal, JournalError, codec, snapshot};

/// What a journal restores to.
#[derive(Debug)]
pub struct Restored {
    /// The core with its books; nothing seen yet.
    pub core: Core,
    /// The number of the next record.
    pub next: DecisionSeq,
    /// The newest journaled instant.
    pub last: Timestamp,
    /// Records since the newest snapshot.
    pub since_snapshot: u64,
}

/// Reads the store.
///
/// # Errors
/// [`JournalError`] if it cannot be read, has gaps, or holds what does not fit.
pub fn restore(journal: &impl Journal) -> Result<Restored, JournalError> {
    let (mut last_seq, mut last, mut books) = match journal.latest_snapshot()? {
        Some((seq, bytes)) => {
            let (stamp, books) = snapshot::decode(seq, &bytes)?;
            (stamp.seq, stamp.at, books)
        }
        None => (DecisionSeq(0), Timestamp(0), Books::default()),
    };
    let from = DecisionSeq(last_seq.0.saturating_add(1));
    let mut since_snapshot = 0_u64;
    journal.read(from, &mut |seq, bytes| {
        let damaged = |why: String| JournalError::Damaged { at: seq.0, why };
        if last_seq.0.checked_add(1) != Some(seq.0) {
            return Err(damaged(format!("it follows record {}", last_seq.0)));
        }
        let record = codec::decode(seq, bytes)?;
        for decision in &record.decisions {
            let applied = books.evolve(record.stamp, decision);
            applied.map_err(|broken| damaged(broken.to_string()))?;
        }
        last_seq = seq;
        last = last.max(record.stamp.at);
        since_snapshot = since_snapshot.saturating_add(1);
        Ok(())
    })?;
    let next = DecisionSeq(last_seq.0.saturating_add(1));
    Ok(Restored { core: Core::restored(books), next, last, since_snapshot })
}
