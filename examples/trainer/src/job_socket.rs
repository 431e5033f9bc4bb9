//! Rank 0's end of `$TIDEGATE_SOCKET`: whether to save, and what was saved. See
//! docs/job-protocol.md.
//!
//! A run that cannot talk trains on: its checkpoints do not count with the scheduler, that is all.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::output;

/// How long a commit may be looked at. The other ranks wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub(crate) struct JobSocket {
    /// None once it has failed.
    stream: Option<UnixStream>,
    input: Vec<u8>,
    save_asked: bool,
}

impl JobSocket {
    /// Connects; none, with a complaint, if nobody serves it.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let opened = UnixStream::connect(path).and_then(|mut stream| {
            stream.write_all(b"{\"hello\":{}}\n")?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => Some(Self { stream: Some(stream), input: Vec::new(), save_asked: false }),
            Err(error) => {
                output::complain(&format!("no job socket at {}: {error}", path.display()));
                None
            }
        }
    }

    /// Whether a save was asked for here. Stays true. Does not wait.
    pub(crate) fn save_asked(&mut self) -> bool {
        let heard = self.hear(Duration::ZERO);
        self.take(heard);
        self.save_asked
    }

    /// Says that a checkpoint is complete, and waits for the answer.
    ///
    /// # Errors
    /// When the checkpoint itself cannot be looked at.
    pub(crate) fn commit(&mut self, step: u64, directory: &Path, name: &str) -> Result<()> {
        let words = || directory.display().to_string();
        let directory = directory.canonicalize().with_context(words)?;
        let bytes = directory.join(name).metadata().with_context(words)?.len();
        let files = json!([{"path": name, "bytes": bytes}]);
        let commit = json!({"commit": {"step": step, "path": directory, "files": files}});
        match self.answer(&format!("{commit}\n")) {
            Ok(Some(why)) => output::complain(&format!("step {step} does not count: {why}")),
            Ok(None) => output::say(&format!("committed step {step}")),
            Err(error) => self.give_up(&error),
        }
        Ok(())
    }

    /// Why a commit was refused; none = it was not.
    fn answer(&mut self, message: &str) -> Result<Option<String>> {
        let Some(stream) = &mut self.stream else { return Ok(Some("no connection".to_owned())) };
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(message.as_bytes())?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no answer to a commit");
            }
            for line in self.hear(left)? {
                if let Some(why) = line.pointer("/refused/why") {
                    return Ok(Some(why.to_string()));
                }
                if line.get("committed").is_some() {
                    return Ok(None);
                }
            }
        }
    }

    fn take(&mut self, heard: Result<Vec<Value>>) {
        if let Err(error) = heard {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &anyhow::Error) {
        output::complain(&format!("the job socket is lost: {error:#}"));
        self.stream = None;
    }

    /// The lines that have come, at most after `patience`; requests to save are noted.
    fn hear(&mut self, patience: Duration) -> Result<Vec<Value>> {
        let Some(stream) = &mut self.stream else { return Ok(Vec::new()) };
        stream.set_nonblocking(patience.is_zero())?;
        if !patience.is_zero() {
            stream.set_read_timeout(Some(patience))?;
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => bail!("closed"),
            Ok(count) => self.input.extend(chunk.iter().take(count)),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
        let mut lines = Vec::new();
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line: Value = serde_json::from_slice(&line).context("not JSON")?;
            let asked = line.get("save").or_else(|| line.pointer("/hello/request"));
            self.save_asked |= asked.is_some_and(|request| !request.is_null());
            lines.push(line);
        }
        Ok(lines)
    }
}
