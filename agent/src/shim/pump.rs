//! From a task's output pipe into capped segment files.
//!
//! A stream is kept in segments named by the offset of their first byte. The oldest go when the
//! cap is reached, so that the newest bytes stay. If the disk is full, output is dropped and
//! counted and the job goes on: losing a log line must not stop a training run.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tidegate_model::Bytes;

/// Segments per cap: how much goes at once when the cap is reached is cap / 4.
const SEGMENTS: u64 = 4;

/// Read at once; a pipe holds as much.
const CHUNK: usize = 64 << 10;

/// Chunks taken per turn, so that a task that writes without pause does not keep its supervisor
/// from a TERM.
pub(super) const CHUNKS_PER_TURN: usize = 16;

/// One output stream.
pub(super) struct Pump {
    /// None after the end of the stream.
    source: Option<File>,
    segments: Segments,
    buffer: Vec<u8>,
}

impl Pump {
    /// Of a stream into `directory`; keeps at most `cap`.
    pub(super) fn new(source: OwnedFd, directory: &Path, stream: &str, cap: Bytes) -> Self {
        let segments = Segments {
            directory: directory.to_owned(),
            stream: stream.to_owned(),
            size: (cap.0 / SEGMENTS).max(1),
            kept: VecDeque::new(),
            current: None,
            offset: 0,
            dropped: 0,
        };
        Self { source: Some(source.into()), segments, buffer: Vec::new() }
    }

    /// What to wait on; none after the end of the stream.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(AsFd::as_fd)
    }

    /// Output that could not be written, in bytes.
    pub(super) fn dropped(&self) -> u64 {
        self.segments.dropped
    }

    /// Takes what is there, up to a bound.
    pub(super) fn turn(&mut self) {
        for _ in 0..CHUNKS_PER_TURN {
            if self.chunk().is_none() {
                return;
            }
        }
    }

    /// Takes all that is left; the task's processes are gone, so the pipe holds no more than its
    /// capacity, unless somebody outside the task has been given its end: hence the bound.
    pub(super) fn drain(&mut self) {
        self.turn();
    }

    /// The next piece of the stream, which is in the files by then; none if there is none now.
    pub(super) fn chunk(&mut self) -> Option<&[u8]> {
        self.buffer.resize(CHUNK, 0);
        let count = loop {
            match self.source.as_mut()?.read(&mut self.buffer) {
                Ok(count) if count > 0 => break count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Ok(_) | Err(_) => {
                    self.source = None;
                    return None;
                }
            }
        };
        let bytes = self.buffer.get(..count).unwrap_or_default();
        self.segments.write(bytes);
        Some(bytes)
    }
}

struct Segments {
    directory: PathBuf,
    stream: String,
    size: u64,
    /// Oldest first; the last is the current one.
    kept: VecDeque<Segment>,
    current: Option<File>,
    /// Bytes of the stream so far, dropped ones included.
    offset: u64,
    dropped: u64,
}

struct Segment {
    start: u64,
    length: u64,
}

impl Segments {
    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.write_some(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(_) => {
                    self.give_up(bytes.len());
                    return;
                }
            }
        }
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room();
        if room == 0 {
            self.open_next()?;
            return Ok(0);
        }
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        let (Some(file), Some(segment)) = (&mut self.current, self.kept.back_mut()) else {
            return Ok(0);
        };
        let written = file.write(bytes.get(..fits).unwrap_or_default())?;
        let count = u64::try_from(written).unwrap_or(0);
        segment.length = segment.length.saturating_add(count);
        self.offset = self.offset.saturating_add(count);
        if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
    }

    fn room(&self) -> u64 {
        match (&self.current, self.kept.back()) {
            (Some(_), Some(segment)) => self.size.saturating_sub(segment.length),
            _ => 0,
        }
    }

    fn open_next(&mut self) -> io::Result<()> {
        self.current = None;
        while u64::try_from(self.kept.len()).is_ok_and(|kept| kept >= SEGMENTS) {
            if let Some(oldest) = self.kept.pop_front() {
                std::fs::remove_file(self.path(oldest.start)).ok();
            }
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        self.current = Some(options.open(self.path(self.offset))?);
        self.kept.push_back(Segment { start: self.offset, length: 0 });
        Ok(())
    }

    /// What cannot be written leaves a hole: the next segment begins behind it.
    fn give_up(&mut self, lost: usize) {
        self.current = None;
        // An empty segment would push out an old one that has content.
        if let Some(empty) = self.kept.pop_back_if(|segment| segment.length == 0) {
            std::fs::remove_file(self.path(empty.start)).ok();
        }
        let lost = u64::try_from(lost).unwrap_or(u64::MAX);
        self.dropped = self.dropped.saturating_add(lost);
        self.offset = self.offset.saturating_add(lost);
    }

    fn path(&self, start: u64) -> PathBuf {
        self.directory.join(format!("{}.{start}", self.stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(directory: &Path, cap: u64) -> Segments {
        let (source, _) = nix::unistd::pipe().unwrap();
        Pump::new(source, directory, "stdout", Bytes(cap)).segments
    }

    fn kept(directory: &Path) -> Vec<(u64, String)> {
        let mut kept: Vec<(u64, String)> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let start = path.extension().unwrap().to_str().unwrap().parse().unwrap();
                (start, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        kept.sort();
        kept
    }

    #[test]
    fn the_newest_bytes_stay_within_the_cap() {
        let directory = tempfile::tempdir().unwrap();
        let mut segments = segments(directory.path(), 16);
        for letter in b'a'..=b'z' {
            segments.write(&[letter; 3]);
        }
        let expected = [(64, "vvww"), (68, "wxxx"), (72, "yyyz"), (76, "zz")];
        assert_eq!(kept(directory.path()), expected.map(|(at, text)| (at, text.to_owned())));
        assert_eq!((segments.offset, segments.dropped), (78, 0));
    }

    #[test]
    fn output_that_cannot_be_written_is_counted_and_leaves_a_hole() {
        let directory = tempfile::tempdir().unwrap();
        let mut segments = segments(directory.path(), 16);
        segments.write(b"aa");
        let elsewhere = directory.path().join("gone");
        let real = std::mem::replace(&mut segments.directory, elsewhere);
        segments.write(b"bbccc");
        segments.directory = real;
        segments.write(b"dd");
        let expected = [(0, "aabb".to_owned()), (7, "dd".to_owned())];
        assert_eq!(kept(directory.path()), expected);
        assert_eq!((segments.offset, segments.dropped), (9, 3));
    }
}
