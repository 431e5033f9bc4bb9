//! `logs` without `--follow`: what a task has written so far, page by page.
//!
//! What is not here: waiting for more ([`crate::follow`]).

use serde::Serialize;
use tidegate_model::{AttemptId, JobId};
use tidegate_proto::{MAX_LOG_READ, v1};

use crate::args::LogsArgs;
use crate::connect::Api;
use crate::exit::Failure;
use crate::follow::{self, Start};
use crate::retry::Patience;
use crate::show::out::{json, pass_on, pass_on_aside, remark};
use crate::show::text::counted;

/// Most of a log that one JSON document holds: it is made in memory.
const MAX_JSON_LOG: u64 = 16 << 20;

/// Which output of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn wire(self) -> v1::LogStream {
        match self {
            Self::Stdout => v1::LogStream::Stdout,
            Self::Stderr => v1::LogStream::Stderr,
        }
    }
}

/// Prints a log, and follows it if asked to.
///
/// # Errors
/// If there is no such log, it cannot be read, or the job that was followed did not end well.
pub(crate) async fn logs(api: &Api, args: &LogsArgs, as_json: bool) -> Result<(), Failure> {
    let stream = if args.stderr { Stream::Stderr } else { Stream::Stdout };
    if args.follow {
        let start = args.attempt.map_or(Start::Newest, Start::Only);
        let outputs = vec![(stream, Sink::Stdout)];
        return follow::follow(api, args.job, args.task, start, outputs).await;
    }
    let mut tail = Tail::new(args.job, args.attempt, args.task, stream);
    if as_json {
        return document(api, tail).await;
    }
    loop {
        let page = tail.read(api, &Patience::of_reads()).await?;
        page.tell(Sink::Stdout)?;
        if page.is_last {
            return Ok(());
        }
    }
}

async fn document(api: &Api, mut tail: Tail) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Log {
        #[serde(serialize_with = "crate::view::as_text")]
        attempt: AttemptId,
        task: u32,
        stream: Stream,
        /// Bytes written so far, the dropped ones included.
        length: u64,
        dropped_bytes: u64,
        /// The task has ended: nothing will follow.
        complete: bool,
        /// Bytes that are not UTF-8 are replaced.
        text: String,
    }
    let (mut bytes, mut dropped_bytes) = (Vec::new(), 0_u64);
    loop {
        let page = tail.read(api, &Patience::of_reads()).await?;
        dropped_bytes = dropped_bytes.saturating_add(page.dropped);
        if page.length.saturating_sub(dropped_bytes) > MAX_JSON_LOG {
            let most = MAX_JSON_LOG >> 20;
            return Err(Failure::refused(format!(
                "the log is over {most} MiB, too large for one document; read it without --json"
            )));
        }
        bytes.extend_from_slice(&page.bytes);
        if page.is_last {
            return json(&Log {
                attempt: AttemptId { job: tail.job, number: page.attempt },
                task: tail.task,
                stream: tail.stream,
                length: page.length,
                dropped_bytes,
                complete: page.is_complete,
                text: String::from_utf8_lossy(&bytes).into_owned(),
            });
        }
    }
}

/// Where bytes of a log go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    Stdout,
    Stderr,
}

/// A reader of one output of one task, and how far it has come.
#[derive(Debug)]
pub(crate) struct Tail {
    job: JobId,
    /// None until the coordinator has said which the newest is.
    attempt: Option<u32>,
    task: u32,
    stream: Stream,
    offset: u64,
}

/// What one read gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) attempt: u32,
    /// Bytes before these that the log cap has dropped.
    pub(crate) dropped: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) length: u64,
    /// All that is there has been read.
    pub(crate) is_last: bool,
    /// All that will ever be there has been read.
    pub(crate) is_complete: bool,
}

impl Tail {
    pub(crate) fn new(job: JobId, attempt: Option<u32>, task: u32, stream: Stream) -> Self {
        Self { job, attempt, task, stream, offset: 0 }
    }

    /// Reads on.
    ///
    /// # Errors
    /// If the log cannot be read now; the reader stays where it was.
    pub(crate) async fn read(&mut self, api: &Api, patience: &Patience) -> Result<Page, Failure> {
        let request = v1::ReadLogRequest {
            job: self.job.to_string(),
            attempt: self.attempt.unwrap_or(0),
            task: self.task,
            stream: self.stream.wire().into(),
            offset: self.offset,
            limit: MAX_LOG_READ,
        };
        let reply =
            api.ask(patience, async |mut client| client.read_log(request.clone()).await).await?;
        Ok(self.advance(reply.value))
    }

    fn advance(&mut self, reply: v1::ReadLogReply) -> Page {
        let v1::ReadLogReply { offset, mut bytes, length, complete, attempt } = reply;
        // Never twice the same byte, even if more is answered than was asked for.
        let known = usize::try_from(self.offset.saturating_sub(offset)).unwrap_or(usize::MAX);
        bytes.drain(..known.min(bytes.len()));
        let dropped = offset.saturating_sub(self.offset);
        let read = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.offset = self.offset.saturating_add(dropped).saturating_add(read);
        self.attempt = Some(attempt);
        let is_last = self.offset >= length || (bytes.is_empty() && dropped == 0);
        let is_complete = complete && self.offset >= length;
        Page { attempt, dropped, bytes, length, is_last, is_complete }
    }
}

impl Page {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.dropped == 0
    }

    /// Passes the bytes on, and says aside what is missing before them.
    ///
    /// # Errors
    /// If the output is closed.
    pub(crate) fn tell(&self, sink: Sink) -> Result<(), Failure> {
        if self.dropped > 0 {
            remark(&format!("[{} dropped by the log cap]", counted(self.dropped, "byte")));
        }
        match sink {
            Sink::Stdout => pass_on(&self.bytes),
            Sink::Stderr => {
                pass_on_aside(&self.bytes);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(from: u64, reply: (u64, &str, u64, bool), expected: (u64, &str, bool, bool, u64)) {
        let mut tail = Tail::new(JobId(7), None, 0, Stream::Stdout);
        tail.offset = from;
        let (offset, bytes, length, complete) = reply;
        let bytes = bytes.as_bytes().to_vec();
        let reply = v1::ReadLogReply { offset, bytes, length, complete, attempt: 2 };
        let page = tail.advance(reply);
        let (dropped, bytes, is_last, is_complete, offset) = expected;
        assert_eq!((page.dropped, page.bytes.as_slice()), (dropped, bytes.as_bytes()));
        assert_eq!((page.is_last, page.is_complete), (is_last, is_complete));
        assert_eq!((tail.offset, tail.attempt), (offset, Some(2)));
    }

    #[test]
    fn a_reader_advances_by_what_it_was_given_and_knows_the_end() {
        check(0, (0, "abc", 9, false), (0, "abc", false, false, 3));
        check(3, (3, "defghi", 9, false), (0, "defghi", true, false, 9));
        check(9, (9, "", 9, true), (0, "", true, true, 9));
        check(3, (3, "def", 9, true), (0, "def", false, false, 6));
    }

    #[test]
    fn a_gap_is_counted_and_a_byte_is_never_told_twice() {
        check(3, (7, "hi", 9, true), (4, "hi", true, true, 9));
        check(3, (0, "abcdef", 9, false), (0, "def", false, false, 6));
        check(3, (0, "a", 9, false), (0, "", true, false, 3));
    }
}
