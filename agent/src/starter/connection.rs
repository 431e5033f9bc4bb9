//! The agent's end of the starter's socket: requests in, messages out.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use super::protocol::{FromStarter, MAX_LINE_BYTES, line_of};
pub(super) use crate::lines::Closed;
use crate::lines::{Heard, Limits, Lines, Then};

/// Most bytes that wait for an agent that does not read; then it is dropped, and asks for the
/// whole list when it returns.
const MAX_UNSENT: usize = 8 << 20;

pub(super) struct Connection {
    lines: Lines,
}

impl Connection {
    pub(super) fn over(stream: UnixStream) -> io::Result<Self> {
        let limits = Limits { line: MAX_LINE_BYTES, unsent: MAX_UNSENT };
        Ok(Self { lines: Lines::over(stream, limits)? })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.lines.fd()
    }

    pub(super) fn wants_to_write(&self) -> bool {
        self.lines.wants_to_write()
    }

    /// The lines that have arrived, without their ends. What a connection that has gone left is
    /// not done.
    pub(super) fn read(&mut self) -> Result<Vec<Vec<u8>>, Closed> {
        let Heard { lines, then } = self.lines.read();
        match then {
            Then::Open => {}
            Then::Gone => return Err(Closed),
            Then::TooLong => {
                let refused = format!("the message is longer than {MAX_LINE_BYTES} bytes");
                self.say(&FromStarter::Answer { id: 0, refused: Some(refused) })?;
            }
        }
        Ok(lines)
    }

    pub(super) fn say(&mut self, message: &FromStarter) -> Result<(), Closed> {
        self.lines.say(&line_of(message).map_err(|_broken| Closed)?)
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Closed> {
        self.lines.flush()
    }
}
