//! Notices: what becomes of a job, told to its owner when it runs, is asked to save, and ends.
//!
//! They are a projection of the journal: whoever tells them keeps the number of the record up to which
//! they are told, and nothing else. Two do: `sender`, which posts them to the address that a job
//! names, and the command line, which asks for those of its user.

pub mod allow;
pub mod cursor;
pub mod post;
pub mod queue;
pub mod sender;

use scheduler_core::{Books, Decision, JobOutcome, Outcome, SaveReason, Stamp, Standing};
use serde_json::{Value, json};
use tidegate_model::{AttemptId, ClusterId, DecisionSeq, JobId, UserId};

use crate::journal::redb_store::Reader;
use crate::journal::{JournalError, codec};
use crate::past::words;
use tidegate_model::rfc3339_ms;

/// Records read at a time: some milliseconds of work, some hundred notices at most.
const MAX_RECORDS: u64 = 1000;

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All tasks of an attempt run.
    Running,
    /// An attempt is asked to save and leave.
    AskedToSave(SaveReason),
    /// An attempt holds nothing any more.
    AttemptEnded(Outcome),
    /// The job is over.
    Ended(JobOutcome),
}

impl Kind {
    /// As documents and ids have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::AskedToSave(_) => "asked_to_save",
            Self::AttemptEnded(_) => "attempt_ended",
            Self::Ended(_) => "ended",
        }
    }
}

/// What a record says of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// The record.
    pub stamp: Stamp,
    /// Which job.
    pub job: JobId,
    /// Which attempt of it, if it is about one.
    pub attempt: Option<AttemptId>,
    /// What.
    pub kind: Kind,
}

/// A fact as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// What.
    pub fact: Fact,
    /// Whose job it is.
    pub user: UserId,
    /// The job's name.
    pub name: String,
    /// The account it is charged to.
    pub account: String,
    /// In one sentence.
    pub text: String,
    /// Where its owner wants it posted.
    pub url: Option<String>,
}

/// Facts of some records.
#[derive(Debug)]
pub struct Page {
    /// In order.
    pub facts: Vec<Fact>,
    /// They are those of the records up to this one.
    pub up_to: DecisionSeq,
    /// Records that were asked for are not kept any more.
    pub gone: bool,
}

/// Reads facts of the records after one.
///
/// # Errors
/// If the store cannot be read.
pub fn read(reader: &Reader, after: DecisionSeq) -> Result<Page, JournalError> {
    let reading = reader.reading()?;
    let oldest = reading.oldest()?.map_or(0, |oldest| oldest.0);
    let from = after.0.saturating_add(1).max(oldest);
    let mut page = Page {
        facts: Vec::new(),
        // Of a store that was put back the end is nearer than what was asked for.
        up_to: after.min(reading.newest()?.unwrap_or(DecisionSeq(0))),
        gone: from > after.0.saturating_add(1),
    };
    reading.read_some(DecisionSeq(from), MAX_RECORDS, &mut |seq, bytes| {
        let record = codec::decode(seq, bytes)?;
        page.facts.extend(record.decisions.iter().filter_map(|one| fact(record.stamp, one)));
        page.up_to = seq;
        Ok(())
    })?;
    Ok(page)
}

#[allow(clippy::wildcard_enum_match_arm, reason = "four of many are told")]
fn fact(stamp: Stamp, decision: &Decision) -> Option<Fact> {
    let (job, kind) = match decision {
        Decision::AttemptRunning(attempt) => (attempt.job, Kind::Running),
        Decision::SaveOrdered { attempt, why } => (attempt.job, Kind::AskedToSave(*why)),
        Decision::AttemptEnded { attempt, outcome, .. } => {
            (attempt.job, Kind::AttemptEnded(*outcome))
        }
        Decision::JobEnded { job, outcome } => (*job, Kind::Ended(*outcome)),
        _ => return None,
    };
    Some(Fact { stamp, job, attempt: decision.attempt(), kind })
}

impl Fact {
    /// One of each kind for an attempt or job: who gets a notice twice knows it by this. A request to
    /// save that was taken back may be made again; then it is told again under the same id.
    #[must_use]
    pub fn id(&self) -> String {
        let word = self.kind.word();
        match self.attempt {
            Some(attempt) => format!("{attempt}:{word}"),
            None => format!("{}:{word}", self.job),
        }
    }

    /// As it is told. None of a job that is forgotten.
    #[must_use]
    pub fn told(&self, books: &Books) -> Option<Notice> {
        let job = books.jobs.get(&self.job)?;
        let about = self.attempt.map_or_else(|| self.job.to_string(), |one| one.to_string());
        let attempt = self.attempt.and_then(|id| books.attempt(id));
        let what = match self.kind {
            Kind::Running => match attempt.map(|attempt| attempt.terms) {
                Some(terms) if terms.standing == Standing::Protected => {
                    format!("all its tasks run; nothing displaces it for {}", terms.protect)
                }
                _ => "all its tasks run; who is entitled may displace it".to_owned(),
            },
            Kind::AskedToSave(why) => {
                format!("asked to save and leave: {}", words::save_reason(books, why))
            }
            Kind::AttemptEnded(outcome) => {
                let why = attempt.and_then(|attempt| attempt.why_over(books));
                let why = why.map(|why| format!("; {why}")).unwrap_or_default();
                format!("ended: {}{why}", words::outcome(outcome))
            }
            Kind::Ended(JobOutcome::Done | JobOutcome::Failed) if job.judged.is_some() => {
                match job.shown(books) {
                    Some(shown) => format!("over: the rehearsal {shown}"),
                    None => "over: the rehearsal was judged".to_owned(),
                }
            }
            Kind::Ended(JobOutcome::Done) => "over: done".to_owned(),
            Kind::Ended(JobOutcome::Failed) => "over: failed".to_owned(),
            Kind::Ended(JobOutcome::Cancelled) => match job.cancelled.as_ref().map(|one| one.by) {
                Some(by) => format!("over: cancelled by {by}"),
                None => "over: cancelled".to_owned(),
            },
        };
        Some(Notice {
            fact: *self,
            user: job.user,
            name: job.spec.name.clone(),
            account: books.accounts.name(job.account),
            text: format!("{about} ({}): {what}", job.spec.name),
            url: job.spec.notify_url.as_deref().map(str::to_owned),
        })
    }
}

impl Notice {
    /// As programs get it. `text` is what chat services show.
    #[must_use]
    pub fn document(&self, cluster: ClusterId) -> Value {
        let Self { fact, user, name, account, text, url: _ } = self;
        let outcome = match fact.kind {
            Kind::Running | Kind::AskedToSave(_) => None,
            Kind::AttemptEnded(outcome) => Some(format!("{outcome:?}").to_lowercase()),
            Kind::Ended(outcome) => Some(format!("{outcome:?}").to_lowercase()),
        };
        json!({
            "id": fact.id(),
            "kind": fact.kind.word(),
            "text": text,
            "cluster": cluster.to_string(),
            "job": fact.job.to_string(),
            "attempt": fact.attempt.map(|attempt| attempt.number),
            "name": name,
            "account": account,
            "uid": user.0,
            "outcome": outcome,
            "at": rfc3339_ms(fact.stamp.at),
            "at_ms": fact.stamp.at.0,
            "record": fact.stamp.seq.0,
        })
    }
}
