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

/// How long a permit is waited for in the queue; then the gate lets it through early.
const PERMIT_WAIT: Duration = Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub(crate) struct JobSocket {
    /// None once it has failed.
    stream: Option<UnixStream>,
    input: Vec<u8>,
    save_asked: bool,
    /// The number of the permit that is held.
    permit: Option<u64>,
    /// Bytes per second that it allows, as it was told last; none = not limited.
    rate: Option<u64>,
}

impl JobSocket {
    /// Connects; none, with a complaint, if nobody serves it.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let opened = UnixStream::connect(path).and_then(|mut stream| {
            stream.write_all(b"{\"hello\":{}}\n")?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => Some(Self {
                stream: Some(stream),
                input: Vec::new(),
                save_asked: false,
                permit: None,
                rate: None,
            }),
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
        let answer = self.answer(&commit, PATIENCE, |line| {
            let refused = line.pointer("/refused/why").map(|why| Some(why.to_string()));
            refused.or_else(|| line.get("committed").map(|_| None))
        });
        match answer {
            Ok(Some(why)) => output::complain(&format!("step {step} does not count: {why}")),
            Ok(None) => output::say(&format!("committed step {step}")),
            Err(error) => self.give_up(&error),
        }
        Ok(())
    }

    /// Waits for a permit. Without one it is written all the same: a checkpoint matters more.
    pub(crate) fn ask(&mut self, bytes: u64, class: &str) {
        let wish = json!({"bytes": bytes, "class": class, "wait_s": PERMIT_WAIT.as_secs()});
        let ask = json!({"ask": wish});
        let granted = self.answer(&ask, PERMIT_WAIT + PATIENCE, |line| {
            let no = line.pointer("/deny/why").or_else(|| line.pointer("/refused/why"));
            no.map(|why| Err(why.to_string()))
                .or_else(|| line.pointer("/grant/permit").cloned().map(Ok))
        });
        match granted {
            Ok(Ok(permit)) => self.permit = permit.as_u64(),
            Ok(Err(why)) => output::complain(&format!("writing without a permit: {why}")),
            Err(error) => self.give_up(&error),
        }
    }

    /// Bytes per second that may be written now; none = not limited. Does not wait.
    pub(crate) fn rate(&mut self) -> Option<u64> {
        self.permit?;
        let heard = self.hear(Duration::ZERO);
        self.take(heard);
        self.rate
    }

    /// Gives the permit back, if one is held.
    pub(crate) fn done(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let done = json!({"done": {"permit": permit}});
        let answered = self.answer(&done, PATIENCE, |line| {
            line.get("done").or_else(|| line.get("refused")).map(|_| ())
        });
        if let Err(error) = answered {
            self.give_up(&error);
        }
    }

    /// Says something and waits for the line that `pick` takes for the answer.
    fn answer<T>(
        &mut self,
        message: &Value,
        patience: Duration,
        pick: impl Fn(&Value) -> Option<T>,
    ) -> Result<T> {
        let stream = self.stream.as_mut().context("no connection")?;
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{message}\n").as_bytes())?;
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("no answer");
            }
            if let Some(answer) = self.hear(left)?.iter().find_map(&pick) {
                return Ok(answer);
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

    /// The lines that have come, at most after `patience`; requests to save and rates are noted.
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
            if let Some(grant) = line.get("grant") {
                self.rate = grant.get("bytes_per_s").and_then(Value::as_u64);
            }
            lines.push(line);
        }
        Ok(lines)
    }
}
