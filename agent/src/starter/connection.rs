//! The agent's end of the starter's socket: lines in, lines out, both bounded, never blocking.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use super::protocol::{FromStarter, MAX_LINE_BYTES, line_of};

/// Most bytes that wait for an agent that does not read; then it is dropped, and asks for the
/// whole list when it returns.
const MAX_UNSENT: usize = 4 << 20;

/// Read at once.
const CHUNK: usize = 16 << 10;

pub(super) struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Nothing more is read: what is queued is sent, then the connection ends.
    closing: bool,
}

/// The connection is over.
pub(super) struct Closed;

impl Connection {
    pub(super) fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, input: Vec::new(), output: Vec::new(), closing: false })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// The lines that have arrived, without their ends.
    pub(super) fn read(&mut self) -> Result<Vec<Vec<u8>>, Closed> {
        let mut chunk = [0_u8; CHUNK];
        let mut lines = Vec::new();
        while !self.closing {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Closed),
                Ok(count) => self.take(chunk.get(..count).unwrap_or_default(), &mut lines)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Closed),
            }
        }
        // One large launch must not stay in memory for good.
        self.input.shrink_to(CHUNK);
        Ok(lines)
    }

    pub(super) fn say(&mut self, message: &FromStarter) -> Result<(), Closed> {
        let line = line_of(message).map_err(|_broken| Closed)?;
        if self.output.len().saturating_add(line.len()) > MAX_UNSENT {
            return Err(Closed);
        }
        self.output.extend(line);
        Ok(())
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Closed> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Closed),
            }
        }
        self.output.shrink_to(CHUNK);
        if self.closing { Err(Closed) } else { Ok(()) }
    }

    fn take(&mut self, mut bytes: &[u8], lines: &mut Vec<Vec<u8>>) -> Result<(), Closed> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.input.extend(bytes.get(..end).unwrap_or_default());
            bytes = bytes.get(end.saturating_add(1)..).unwrap_or_default();
            if self.input.len() > MAX_LINE_BYTES {
                return self.refuse_length();
            }
            lines.push(std::mem::take(&mut self.input));
        }
        self.input.extend(bytes);
        if self.input.len() > MAX_LINE_BYTES { self.refuse_length() } else { Ok(()) }
    }

    /// Where the next message begins is not known any more: the connection ends after the answer.
    fn refuse_length(&mut self) -> Result<(), Closed> {
        self.input = Vec::new();
        self.closing = true;
        let refused = format!("the message is longer than {MAX_LINE_BYTES} bytes");
        self.say(&FromStarter::Answer { id: 0, refused: Some(refused) })
    }
}
