//! Lines over a Unix socket: in and out, both bounded, never blocking.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Read at once.
const CHUNK: usize = 16 << 10;

/// Chunks taken per turn, so that a peer that writes without pause keeps nobody else waiting.
const CHUNKS_PER_TURN: usize = 64;

/// The most a peer may send in one line, and leave unread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) line: usize,
    pub(crate) unsent: usize,
}

/// One connection.
pub(crate) struct Lines {
    stream: UnixStream,
    limits: Limits,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Nothing more is read: what is queued is sent, then the connection ends.
    closing: bool,
}

/// The connection is over: the other side has gone, or does not keep to what was agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

/// Sends of the output what the socket takes now.
pub(crate) fn send(stream: &mut UnixStream, output: &mut Vec<u8>) -> Result<(), Closed> {
    while !output.is_empty() {
        match stream.write(output) {
            Ok(count) => drop(output.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(Closed),
        }
    }
    Ok(())
}

/// What a peer has said, without the lines' ends.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) lines: Vec<Vec<u8>>,
    pub(crate) then: Then,
}

/// How a connection stands after a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// More may come.
    Open,
    /// A line was too long: where the next begins is not known any more. What is said now is the
    /// last; the connection ends when it is sent.
    TooLong,
    /// The peer has gone.
    Gone,
}

impl Lines {
    pub(crate) fn over(stream: UnixStream, limits: Limits) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, limits, input: Vec::new(), output: Vec::new(), closing: false })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// The lines that have arrived, up to a bound.
    pub(crate) fn read(&mut self) -> Heard {
        let mut chunk = [0_u8; CHUNK];
        let mut heard = Heard { lines: Vec::new(), then: Then::Open };
        for _ in 0..CHUNKS_PER_TURN {
            if self.closing {
                break;
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => heard.then = Then::Gone,
                Ok(count) => self.take(chunk.get(..count).unwrap_or_default(), &mut heard),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => heard.then = Then::Gone,
            }
            if heard.then != Then::Open {
                break;
            }
        }
        // One large line must not stay in memory for good.
        self.input.shrink_to(CHUNK);
        heard
    }

    /// Queues a line, its end included.
    pub(crate) fn say(&mut self, line: &[u8]) -> Result<(), Closed> {
        if self.output.len().saturating_add(line.len()) > self.limits.unsent {
            return Err(Closed);
        }
        self.output.extend(line);
        Ok(())
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Closed> {
        send(&mut self.stream, &mut self.output)?;
        if !self.output.is_empty() {
            return Ok(());
        }
        self.output.shrink_to(CHUNK);
        if self.closing { Err(Closed) } else { Ok(()) }
    }

    fn take(&mut self, mut bytes: &[u8], heard: &mut Heard) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.input.extend(bytes.get(..end).unwrap_or_default());
            bytes = bytes.get(end.saturating_add(1)..).unwrap_or_default();
            if self.input.len() > self.limits.line {
                return self.end_too_long(heard);
            }
            heard.lines.push(std::mem::take(&mut self.input));
        }
        self.input.extend(bytes);
        if self.input.len() > self.limits.line {
            self.end_too_long(heard);
        }
    }

    fn end_too_long(&mut self, heard: &mut Heard) {
        self.input = Vec::new();
        self.closing = true;
        heard.then = Then::TooLong;
    }
}
