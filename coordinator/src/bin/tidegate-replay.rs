//! `tidegate-replay`: what a store holds, record by record, and what the rules of this version
//! would decide on it. Reads a store and changes nothing of it.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what the person who starts it sees")]

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde::Serialize;
use serde_json::{Value, json};
use tidegate_coordinator::journal::JournalError;
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::replay::{Line, Replayed, Until, instant, newest, replay};

/// Apply the records of a store again, one line each, oldest first.
///
/// With --diff their events are decided again by the rules of this version, and the first record that
/// is decided otherwise is shown; the exit code is then 1. It is 2 if the store is open in a
/// coordinator or of a newer version, 3 if there is none, 4 if it may not be read, 6 if it is damaged. Rules may change from version to version: a
/// difference says what changed, not that the store is damaged.
#[derive(Debug, Parser)]
#[command(name = "tidegate replay", version)]
struct Args {
    /// The store's file, or a copy of it
    store: PathBuf,
    /// Only up to this instant: RFC 3339, milliseconds since 1970, or -2h before the last record
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,
    /// Decide the events again and show the first difference
    #[arg(long)]
    diff: bool,
    /// One JSON document: `log` has an object a record, the figures stand beside it
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err((code, told)) => {
            eprintln!("error: {told}");
            ExitCode::from(code)
        }
    }
}

/// As `tidegate` has them: `tidegate --help` shows the table.
mod exit {
    pub(super) const FAILED: u8 = 1;
    pub(super) const REFUSED: u8 = 2;
    pub(super) const NOT_FOUND: u8 = 3;
    pub(super) const NOT_ALLOWED: u8 = 4;
    pub(super) const BROKEN: u8 = 6;
}

/// An exit code, and why.
type Told = (u8, String);

fn run(args: &Args) -> Result<bool, Told> {
    // Opened, it would be taken for a store in which nothing happened yet.
    if fs::metadata(&args.store).is_ok_and(|file| file.len() == 0) {
        return Err((exit::BROKEN, format!("{}: it is empty", args.store.display())));
    }
    let journal = RedbJournal::read_only(&args.store).map_err(|why| told(&args.store, &why))?;
    let unread = |why: JournalError| told(&args.store, &why);
    let last = newest(&journal).map_err(unread)?;
    let until = args.until.as_deref().map(|text| instant::parse(text, last));
    let until = until.transpose().map_err(|why| (exit::REFUSED, format!("--until: {why}")))?;
    let until = until.map_or(Until::End, Until::At);
    let mut out = io::BufWriter::new(io::stdout().lock());
    let started = Instant::now();
    let mut unwritten = None;
    let mut first = true;
    let mut tell = |line: &Line| {
        let written = write_line(&mut out, line, args.json.then_some(first));
        first = false;
        written.map_err(|why| {
            unwritten = Some((why.kind(), why.to_string()));
            JournalError::storage(why)
        })
    };
    let done = match replay(&journal, until, args.diff, &mut tell) {
        Ok(done) => done,
        // It is the output that failed, not the store.
        Err(why) => return unwritten.map_or_else(|| Err(unread(why)), |why| closed(&why, true)),
    };
    let seconds = started.elapsed().as_secs_f64();
    let written = if args.json {
        let open = if first { "{\"log\":[" } else { "" };
        Figures::of(args, &done, seconds).written(&mut out, open)
    } else {
        writeln!(out, "\n{}", figures(args, &done, seconds))
    };
    let as_it_was = done.difference.is_none();
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(as_it_was),
        Err(why) => closed(&(why.kind(), why.to_string()), as_it_was),
    }
}

/// Whoever reads has seen enough, as `head` has; else what was asked for was not told.
fn closed((kind, why): &(io::ErrorKind, String), as_it_was: bool) -> Result<bool, Told> {
    if *kind == io::ErrorKind::BrokenPipe {
        return Ok(as_it_was);
    }
    Err((exit::FAILED, format!("the output cannot be written: {why}")))
}

fn told(store: &Path, why: &JournalError) -> Told {
    let store = store.display();
    if matches!(why, JournalError::InUse) {
        let told = format!(
            "{store} is open in a coordinator: stop it, or copy the file and replay the copy"
        );
        return (exit::REFUSED, told);
    }
    let below = why.source().map_or_else(String::new, |why| format!(": {why}"));
    (code(why), format!("{store}: {why}{below}"))
}

/// A store that others may have damaged is no wrong usage, and a difference is no damage: scripts
/// tell them apart.
fn code(why: &JournalError) -> u8 {
    match why {
        JournalError::InUse | JournalError::NewerFormat { .. } => exit::REFUSED,
        JournalError::Damaged { .. } | JournalError::Empty => exit::BROKEN,
        JournalError::Storage(below) => {
            let mut below: Option<&(dyn Error + 'static)> = Some(below.as_ref());
            while let Some(error) = below {
                if let Some(error) = error.downcast_ref::<io::Error>() {
                    return code_of_file(error.kind());
                }
                below = error.source();
            }
            exit::BROKEN
        }
    }
}

fn code_of_file(kind: io::ErrorKind) -> u8 {
    if kind == io::ErrorKind::NotFound {
        exit::NOT_FOUND
    } else if kind == io::ErrorKind::PermissionDenied {
        exit::NOT_ALLOWED
    } else if matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) {
        exit::BROKEN
    } else {
        exit::FAILED
    }
}

/// `first_of`: in one document of JSON, whether it is the first of its lines.
fn write_line(out: &mut impl Write, line: &Line, first_of: Option<bool>) -> io::Result<()> {
    let Line { stamp, event, decisions, count } = line;
    let (seq, at) = (stamp.seq.0, tidegate_model::rfc3339_ms(stamp.at));
    if let Some(first) = first_of {
        let line = json!({
            "record": seq, "at_ms": stamp.at.0, "at": at,
            "event": event, "decisions": decisions, "count": count,
        });
        write!(out, "{}{line}", if first { "{\"log\":[\n" } else { ",\n" })
    } else {
        writeln!(out, "{at}  {seq}  {event}: {decisions}")
    }
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(records: u64, seconds: f64) -> f64 {
    (records as f64 / seconds.max(1e-9)).round()
}

fn figures(args: &Args, done: &Replayed, seconds: f64) -> String {
    let mut text = format!(
        "{} records, {} decisions, {} events/s, up to {}\n",
        done.records,
        done.decisions,
        per_second(done.records, seconds),
        tidegate_model::rfc3339_ms(done.last)
    );
    if done.after.0 > 0 {
        let after = done.after.0;
        text += &format!("the log was cut: it begins with the books after record {after}\n");
    }
    let accounts = &done.books.accounts;
    for account in accounts.live() {
        text += &format!(
            "{}: {} GPU-h charged, {} GPU-h pledged\n",
            accounts.name(account.id),
            account.charged.value(done.last),
            account.pledge.value(done.last)
        );
    }
    text += &match (&done.difference, args.diff) {
        (Some(found), _) => format!(
            "first difference: record {} at {}\n  then: {}\n  now:  {}\n  rules differ, or it was \
             decided on what the journal does not hold: heartbeats, reports that changed nothing",
            found.stamp.seq.0,
            tidegate_model::rfc3339_ms(found.stamp.at),
            found.then,
            found.now
        ),
        (None, true) => "every event is decided as it was".to_owned(),
        (None, false) => String::new(),
    };
    text.trim_end().to_owned()
}

/// What a document ends with, after its lines.
#[derive(Serialize)]
struct Figures {
    records: u64,
    decisions: u64,
    after_record: u64,
    last_ms: u64,
    events_per_second: f64,
    accounts: Vec<AccountFigures>,
    compared: bool,
    difference: Option<Value>,
}

/// Numbers, as those of `tidegate accounts --json`.
#[derive(Serialize)]
struct AccountFigures {
    account: String,
    charged_gpu_us: i128,
    pledged_gpu_us: i128,
}

impl Figures {
    fn of(args: &Args, done: &Replayed, seconds: f64) -> Self {
        let accounts = &done.books.accounts;
        let account = |one: &scheduler_core::Account| AccountFigures {
            account: accounts.name(one.id),
            charged_gpu_us: one.charged.value(done.last).0,
            pledged_gpu_us: one.pledge.value(done.last).0,
        };
        let difference = done.difference.as_ref().map(|found| {
            json!({
                "record": found.stamp.seq.0, "at_ms": found.stamp.at.0,
                "then": found.then, "now": found.now,
            })
        });
        Self {
            records: done.records,
            decisions: done.decisions,
            after_record: done.after.0,
            last_ms: done.last.0,
            events_per_second: per_second(done.records, seconds),
            accounts: accounts.live().map(account).collect(),
            compared: args.diff,
            difference,
        }
    }

    /// The end of a document whose lines are not kept: a store has many.
    fn written(&self, out: &mut impl Write, open: &str) -> io::Result<()> {
        let figures = serde_json::to_string(self)?;
        writeln!(out, "{open}],\n{}", figures.trim_start_matches('{'))
    }
}
