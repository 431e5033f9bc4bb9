//! A store applied again, record by record, to see what happened and when; and its events decided
//! again, to see what the rules of this version would have done.
//!
//! The journal holds what changed the books, no more. Reports that changed nothing and heartbeats
//! are not in it: `again` says what is assumed instead.

mod again;
pub(crate) mod events;
pub mod instant;
mod words;

use scheduler_core::{Books, Decision, Stamp};
use tidegate_model::{DecisionSeq, Timestamp};

use self::again::Again;
use crate::journal::redb_store::{Reading, RedbJournal};
use crate::journal::{JournalError, codec, snapshot};

pub use self::again::Difference;

/// One record, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its place and instant.
    pub stamp: Stamp,
    /// The event in a few words.
    pub event: String,
    /// The decisions in a few words.
    pub decisions: String,
    /// How many they are.
    pub count: u64,
}

/// What a replay came to.
#[derive(Debug)]
pub struct Replayed {
    /// Records applied.
    pub records: u64,
    /// Decisions in them.
    pub decisions: u64,
    /// The record before the first one: 0, or that of a snapshot if the log was cut.
    pub after: DecisionSeq,
    /// The instant of the last record applied.
    pub last: Timestamp,
    /// The books then.
    pub books: Books,
    /// The first record whose event is decided otherwise now, if that was asked.
    pub difference: Option<Difference>,
}

/// Up to which record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The last.
    End,
    /// Those not after an instant.
    At(Timestamp),
}

/// The instant of the newest record, or of the snapshot that it all begins with.
///
/// # Errors
/// If the store cannot be read.
pub fn newest(journal: &RedbJournal) -> Result<Timestamp, JournalError> {
    let reading = journal.reading()?;
    let (mut newest, _) = base(&reading)?;
    reading.read(next(newest.seq), &mut |seq, bytes| {
        newest = codec::decode(seq, bytes)?.stamp;
        Ok(())
    })?;
    Ok(newest.at)
}

/// Applies the records that are kept, oldest first, and hands each to `tell`. With `diff` their
/// events are decided again until the first that is decided otherwise.
///
/// # Errors
/// [`JournalError`] if the store cannot be read, has gaps, or holds what does not fit; or what
/// `tell` answers.
pub fn replay(
    journal: &RedbJournal,
    until: Until,
    diff: bool,
    tell: &mut dyn FnMut(&Line) -> Result<(), JournalError>,
) -> Result<Replayed, JournalError> {
    let reading = journal.reading()?;
    let (start, books) = base(&reading)?;
    let mut again = diff.then(|| Again::over(books.clone()));
    let mut done = Replayed {
        records: 0,
        decisions: 0,
        after: start.seq,
        last: start.at,
        books,
        difference: None,
    };
    let mut previous = start;
    reading.read(next(start.seq), &mut |seq, bytes| {
        let damaged = |why: String| JournalError::Damaged { at: seq.0, why };
        if next(previous.seq) != seq {
            return Err(damaged(format!("it follows record {}", previous.seq.0)));
        }
        let record = codec::decode(seq, bytes)?;
        previous.seq = seq;
        if matches!(until, Until::At(until) if until < record.stamp.at) {
            return Ok(());
        }
        let told = events::told(bytes).map_err(|error| damaged(error.to_string()))?;
        if done.difference.is_none()
            && let Some(again) = &mut again
        {
            let event = events::event(&done.books, &told, &record.decisions);
            let event = event.map_err(|error| damaged(error.to_string()))?;
            done.difference = again.compare(previous.at, &record, &event);
        }
        for decision in &record.decisions {
            let applied = done.books.evolve(record.stamp, decision);
            applied.map_err(|broken| damaged(broken.to_string()))?;
        }
        let count = counted(&record.decisions);
        done.records = done.records.saturating_add(1);
        done.decisions = done.decisions.saturating_add(count);
        (done.last, previous) = (record.stamp.at, record.stamp);
        let (event, decisions) = (words::event(&told), words::decisions(&record.decisions));
        tell(&Line { stamp: record.stamp, event, decisions, count })
    })?;
    Ok(done)
}

/// The books that the oldest kept record continues: none, or those of the snapshot before it.
pub(crate) fn base(reading: &Reading) -> Result<(Stamp, Books), JournalError> {
    let empty = Stamp { at: Timestamp(0), seq: DecisionSeq(0) };
    if reading.oldest()? == Some(DecisionSeq(1)) {
        return Ok((empty, Books::default()));
    }
    match reading.oldest_snapshot()? {
        Some((seq, bytes)) => snapshot::decode(seq, &bytes),
        None => Ok((empty, Books::default())),
    }
}

pub(crate) fn next(seq: DecisionSeq) -> DecisionSeq {
    DecisionSeq(seq.0.saturating_add(1))
}

fn counted(decisions: &[Decision]) -> u64 {
    u64::try_from(decisions.len()).unwrap_or(u64::MAX)
}
