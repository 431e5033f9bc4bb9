//! One connection to a job's socket, read and written one line after the other.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

pub(super) struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    pub(super) fn open(socket: &Path) -> anyhow::Result<Self> {
        let stream = UnixStream::connect(socket);
        let stream = stream.with_context(|| format!("no job socket at {}", socket.display()))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub(super) fn say(&mut self, message: &Value) -> anyhow::Result<()> {
        writeln!(self.stream.get_mut(), "{message}").context("the job socket")
    }

    /// The next answer that has one of these names, with its name; others, which come unasked, are
    /// left out.
    ///
    /// # Errors
    /// The connection has ended, or the answer is a refusal: why.
    pub(super) fn hear(&mut self, wanted: &[&str]) -> anyhow::Result<(String, Value)> {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).context("the job socket")? == 0 {
                bail!("the job socket was closed");
            }
            let said: Value = serde_json::from_str(&line).context("not an answer")?;
            if let Some(why) = said.pointer("/refused/why").and_then(Value::as_str) {
                bail!("refused: {why}");
            }
            let named = wanted.iter().find_map(|name| Some((*name, said.get(name)?)));
            if let Some((name, value)) = named {
                return Ok((name.to_owned(), value.clone()));
            }
        }
    }
}
