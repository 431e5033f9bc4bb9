//! Messages over a Unix socket between agent and shim: each after its length, in four bytes.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use prost::Message;

pub(crate) use crate::lines::Closed;
use crate::lines::send;

/// Longest message: a piece of input or output with its frame around it.
const MAX_FRAME: usize = 32 << 10;

/// Most bytes of a terminal in one message.
pub(crate) const MAX_PIECE: usize = 16 << 10;

/// Read at once.
const CHUNK: usize = 16 << 10;

/// A message with its length before it.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &bytes].concat()
}

/// Takes the first message off what was read; none if it is not whole yet.
pub(crate) fn take<T: Message + Default>(bytes: &mut Vec<u8>) -> Result<Option<T>, Closed> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_large| Closed)?;
    if length > MAX_FRAME {
        return Err(Closed);
    }
    let Some(message) = rest.get(..length) else { return Ok(None) };
    let message = T::decode(message).map_err(|_malformed| Closed)?;
    bytes.drain(..length.saturating_add(4));
    Ok(Some(message))
}

/// One connection that never blocks.
pub(crate) struct Frames {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Frames {
    pub(crate) fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, input: Vec::new(), output: Vec::new() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Bytes that the other side has not taken.
    pub(crate) fn unsent(&self) -> usize {
        self.output.len()
    }

    /// The messages that have arrived, a bounded part of them; a loss is told at the next call.
    pub(crate) fn read<T: Message + Default>(&mut self) -> Result<Vec<T>, Closed> {
        let mut chunk = [0_u8; CHUNK];
        match self.stream.read(&mut chunk) {
            Ok(0) => return Err(Closed),
            Ok(count) => self.input.extend(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Closed),
        }
        let mut messages = Vec::new();
        while let Some(message) = take(&mut self.input)? {
            messages.push(message);
        }
        Ok(messages)
    }

    /// Queues a message. The caller bounds what is queued, by [`Frames::unsent`].
    pub(crate) fn say(&mut self, message: &impl Message) {
        self.output.extend(framed(message));
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Closed> {
        send(&mut self.stream, &mut self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_proto::v1::TerminalOutput;

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let said = TerminalOutput { offset: 7, bytes: b"hello".to_vec() };
        let all = [framed(&said), framed(&TerminalOutput::default())].concat();
        let mut arrived = Vec::new();
        let mut heard = Vec::new();
        for byte in all {
            arrived.push(byte);
            heard.extend(take::<TerminalOutput>(&mut arrived).unwrap());
        }
        assert_eq!(heard, [said, TerminalOutput::default()]);
        assert!(arrived.is_empty());
    }

    #[test]
    fn a_length_that_no_message_has_ends_the_connection() {
        let mut arrived = u32::MAX.to_be_bytes().to_vec();
        assert_eq!(take::<TerminalOutput>(&mut arrived), Err(Closed));
    }
}
