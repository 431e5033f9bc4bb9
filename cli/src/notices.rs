//! `notices`: what became of the user's own jobs, from where the user was last told on.
//!
//! The coordinator keeps no list of who was told what: the number of the last record is kept here, in
//! the user's own directory, one file for each cluster.

use std::env;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tidegate_model::{Bytes, Timestamp};
use tidegate_proto::{text_up_to, v1};

use crate::args::NoticesArgs;
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::retry::Patience;
use crate::show::out::{remark, say};
use crate::show::text::plain;
use crate::show::time::rfc3339;

/// How long the coordinator waits for a notice before it answers that there is none: shorter than
/// what an answer may take.
const WAIT_MS: u32 = 4000;

/// Tells notices, or runs a command for each.
///
/// # Errors
/// If the coordinator does not answer, another command of the user tells them already, what is kept
/// cannot be read or written, or the command cannot be started or failed.
pub(crate) async fn notices(api: &Api, args: &NoticesArgs, as_json: bool) -> Result<(), Failure> {
    let patience = if args.follow { Patience::endless() } else { Patience::of_reads() };
    let now = ask(api, &patience, None, 0).await?;
    let cluster = now.cluster;
    let cursor = Cursor::open(&state_dir()?, &cluster)?;
    let mut after = match cursor.load()? {
        Some(after) if after <= now.up_to_record => after,
        kept => {
            let lost = if kept.is_some() {
                "the coordinator's store was put back to before what you were told: "
            } else {
                ""
            };
            remark(&format!("{lost}notices are told from now on"));
            cursor.save(now.up_to_record)?;
            now.up_to_record
        }
    };
    let mut failed = 0_u32;
    loop {
        let wait_ms = if args.follow { WAIT_MS } else { 0 };
        let reply = ask(api, &patience, Some(after), wait_ms).await?;
        if reply.cluster != cluster {
            let words = format!("another cluster answers: {} was here", plain(&cluster));
            return Err(Failure::new(Exit::Unavailable, words));
        }
        if reply.gone {
            remark("records are not kept for ever: notices since you were last told are missing");
        }
        let (none, up_to) = (reply.notices.is_empty(), reply.up_to_record);
        for notice in reply.notices {
            let before = notice.record.saturating_sub(1);
            if before > after {
                after = before;
                cursor.save(after)?;
            }
            failed = failed.saturating_add(u32::from(!tell(args, &notice, as_json)?));
        }
        if up_to != after {
            after = up_to;
            cursor.save(after)?;
        }
        if none && !args.follow {
            break;
        }
    }
    let words = format!("the command failed for {failed} of the notices");
    if failed == 0 { Ok(()) } else { Err(Failure::new(Exit::Failed, words)) }
}

async fn ask(
    api: &Api,
    patience: &Patience,
    after_record: Option<u64>,
    wait_ms: u32,
) -> Result<v1::ListNoticesReply, Failure> {
    let request = v1::ListNoticesRequest { after_record, wait_ms };
    let answer = api.ask(patience, async |mut client| client.list_notices(request).await);
    Ok(answer.await?.value)
}

/// Whether it is told, or the command for it did well.
fn tell(args: &NoticesArgs, notice: &v1::NoticeView, as_json: bool) -> Result<bool, Failure> {
    let document = one_line(&notice.document)?;
    let Some((program, arguments)) = args.exec.split_first() else {
        let at = rfc3339(Timestamp(notice.at_ms));
        say(&if as_json { document } else { format!("{at}  {}", plain(&notice.text)) })?;
        return Ok(true);
    };
    let shown = program.to_string_lossy().into_owned();
    let started = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| {
        Failure::new(Exit::Failed, format!("--exec: {shown} cannot be started: {error}"))
    })?;
    if let Some(mut input) = child.stdin.take() {
        // A command that does not read it has all the same been run.
        drop(writeln!(input, "{document}"));
    }
    let ended = child.wait();
    let ended = ended.map_err(|error| Failure::new(Exit::Failed, format!("{shown}: {error}")))?;
    if !ended.success() {
        remark(&format!("{shown} ended with {ended} for: {}", plain(&notice.text)));
    }
    Ok(ended.success())
}

fn one_line(document: &str) -> Result<String, Failure> {
    let read: Result<Value, _> = serde_json::from_str(document);
    let broken = |error| Failure::new(Exit::Broken, format!("a notice cannot be read: {error}"));
    read.map(|value| json!(value).to_string()).map_err(broken)
}

/// Room for the number of any record.
const MAX_CURSOR_BYTES: Bytes = Bytes(64);

fn state_dir() -> Result<PathBuf, Failure> {
    let given = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = given.or_else(home).ok_or_else(|| {
        Failure::refused(
            "neither HOME nor XDG_STATE_HOME is set, and how far you are told is kept there",
        )
    })?;
    Ok(base.join("tidegate/notices"))
}

/// How far the user is told.
#[derive(Debug)]
struct Cursor {
    path: PathBuf,
    /// Held by one command at a time: two would each tell half.
    _lock: File,
}

impl Cursor {
    fn open(dir: &Path, cluster: &str) -> Result<Self, Failure> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if cluster.is_empty() || !cluster.chars().all(is_name) {
            let words = "the coordinator tells of no notices, or has no name: it is older than this \
                         command";
            return Err(Failure::refused(words));
        }
        let path = dir.join(cluster);
        let told = |error| kept(&path, &error);
        fs::create_dir_all(dir).map_err(told)?;
        let lock = File::create(path.with_extension("lock")).map_err(told)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(Failure::refused(
                "another `tidegate notices` of yours is telling them; end it first",
            )),
            Err(TryLockError::Error(error)) => Err(kept(&path, &error)),
        }
    }

    fn load(&self) -> Result<Option<u64>, Failure> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(kept(&self.path, &error)),
        };
        let text = text_up_to(MAX_CURSOR_BYTES, file).map_err(|error| self.damaged(&error))?;
        let number = text.trim();
        number.parse().map(Some).map_err(|_other| {
            self.damaged(&format_args!("{number:?} stands there and is no number of a record"))
        })
    }

    /// To begin anew is for the user to decide: what lies before would never be told.
    fn damaged(&self, why: &dyn fmt::Display) -> Failure {
        let path = self.path.display();
        Failure::refused(format!(
            "how far you are told is kept in {path}, which is damaged: {why}; remove the file, and \
             notices are told from then on"
        ))
    }

    fn save(&self, record: u64) -> Result<(), Failure> {
        let new = self.path.with_extension("new");
        let saved = fs::write(&new, record.to_string()).and_then(|()| fs::rename(&new, &self.path));
        saved.map_err(|error| kept(&self.path, &error))
    }
}

fn kept(path: &Path, error: &io::Error) -> Failure {
    let path = path.display();
    Failure::new(Exit::Failed, format!("how far you are told is kept in {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_at_a_time_keeps_how_far_the_user_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let cursor = Cursor::open(dir.path(), "01JQ").unwrap();
        assert_eq!(cursor.load(), Ok(None));
        cursor.save(7).unwrap();
        assert_eq!(cursor.load(), Ok(Some(7)));
        let second = Cursor::open(dir.path(), "01JQ").unwrap_err().to_string();
        assert!(second.starts_with("another `tidegate notices` of yours"), "{second}");
        drop(cursor);
        assert_eq!(Cursor::open(dir.path(), "01JQ").unwrap().load(), Ok(Some(7)));
        assert!(Cursor::open(dir.path(), "../x").is_err());
    }

    #[test]
    fn a_damaged_position_is_refused_with_its_path_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let cursor = Cursor::open(dir.path(), "01JQ").unwrap();
        let path = dir.path().join("01JQ");
        let check = |text: &str, why: &str| {
            fs::write(&path, text).unwrap();
            let damaged = cursor.load().unwrap_err();
            assert_eq!(damaged.exit(), Exit::Refused);
            let expected = format!(
                "how far you are told is kept in {}, which is damaged: {why}; remove the file, and \
                 notices are told from then on",
                path.display()
            );
            assert_eq!(damaged.to_string(), expected);
        };
        check("", "\"\" stands there and is no number of a record");
        check("-1\n", "\"-1\" stands there and is no number of a record");
        check(&"7".repeat(65), "over 64 bytes; at most that are accepted");
    }
}
