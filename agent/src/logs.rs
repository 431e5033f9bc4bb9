//! Reads of a task's kept output.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tidegate_model::TaskId;
use tidegate_proto::{MAX_LOG_READ, parsed, v1};

use crate::task_dir::TaskDir;

/// The output streams of a task.
pub(crate) const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// Answers a read of the log of a task: below one of `places`, the first that has it.
pub(crate) fn read(places: &[PathBuf], ask: &v1::ReadNodeLog) -> v1::LogChunk {
    let request = ask.request;
    match chunk(places, ask) {
        Ok(Chunk { offset, bytes, length }) => {
            v1::LogChunk { request, offset, bytes, length, error: String::new() }
        }
        Err(error) => v1::LogChunk { request, error, ..v1::LogChunk::default() },
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Chunk {
    offset: u64,
    bytes: Vec<u8>,
    length: u64,
}

#[derive(Debug)]
struct Segment {
    /// Offset of its first byte.
    start: u64,
    /// Offset behind its last byte.
    end: u64,
    path: PathBuf,
}

fn chunk(places: &[PathBuf], ask: &v1::ReadNodeLog) -> Result<Chunk, String> {
    // Parsed, so that no path of the caller's is ever opened.
    let task: TaskId = parsed(&ask.task, "ReadNodeLog.task").map_err(|error| error.to_string())?;
    let stream = match v1::LogStream::try_from(ask.stream) {
        Ok(v1::LogStream::Stdout) => "stdout",
        Ok(v1::LogStream::Stderr) => "stderr",
        Ok(v1::LogStream::Unspecified) | Err(_) => {
            return Err("ask for stdout or stderr".to_owned());
        }
    };
    let segments = found(places, task, stream)?;
    let length = segments.last().map_or(0, |last| last.end);
    // The segment that holds the asked byte, or the next one: older output may be gone, and
    // output that could not be written leaves a hole.
    let Some(first) = segments.iter().position(|segment| segment.end > ask.offset) else {
        return Ok(Chunk { offset: length, bytes: Vec::new(), length });
    };
    let limit = u64::from(ask.limit.min(MAX_LOG_READ));
    let mut chunk = Chunk { offset: ask.offset, bytes: Vec::new(), length };
    for (place, segment) in segments.iter().skip(first).enumerate() {
        let at = position(&chunk);
        if place == 0 {
            chunk.offset = at.max(segment.start);
        } else if segment.start != at {
            break;
        }
        let left = limit.saturating_sub(size(&chunk.bytes));
        let begin = position(&chunk).saturating_sub(segment.start);
        // A segment that the cap has removed since ends what can be read in one piece.
        if left == 0 || append(&segment.path, begin, left, &mut chunk.bytes).is_err() {
            break;
        }
    }
    Ok(chunk)
}

/// A task's output moves once, from the first place to the next.
fn found(places: &[PathBuf], task: TaskId, stream: &str) -> Result<Vec<Segment>, String> {
    for place in places {
        match segments(TaskDir::of(place, task).path(), stream) {
            Ok(segments) => return Ok(segments),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("the output of {task}: {error}")),
        }
    }
    Err(format!("no output of {task} is kept on this node"))
}

fn position(chunk: &Chunk) -> u64 {
    chunk.offset.saturating_add(size(&chunk.bytes))
}

fn size(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn append(path: &Path, begin: u64, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(begin))?;
    file.take(most).read_to_end(bytes)?;
    Ok(())
}

/// The kept segments of a stream, oldest first.
fn segments(dir: &Path, stream: &str) -> io::Result<Vec<Segment>> {
    let mut segments = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let start = name.to_str().and_then(|name| name.strip_prefix(stream)?.strip_prefix('.'));
        let Some(start) = start.and_then(|start| start.parse::<u64>().ok()) else { continue };
        // Gone since the directory was read: removed by the cap.
        let Ok(about) = entry.metadata() else { continue };
        let end = start.saturating_add(about.len());
        segments.push(Segment { start, end, path: entry.path() });
    }
    segments.sort_by_key(|segment| segment.start);
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> tempfile::TempDir {
        let tasks = tempfile::tempdir().unwrap();
        let dir = tasks.path().join("job-1.1.0");
        std::fs::create_dir(&dir).unwrap();
        for (name, text) in [
            ("stdout.100", "abcd"),
            ("stdout.104", "efgh"),
            // After a hole.
            ("stdout.110", "kl"),
            ("stderr.0", "oops"),
            ("exit.json", "{}"),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        tasks
    }

    fn check(offset: u64, limit: u32, expected: (u64, &str)) {
        let tasks = tasks();
        let stream = v1::LogStream::Stdout.into();
        let ask = v1::ReadNodeLog { request: 9, task: "job-1.1.0".into(), stream, offset, limit };
        let told = read(&[tasks.path().join("none"), tasks.path().to_owned()], &ask);
        let text = String::from_utf8(told.bytes).unwrap();
        assert_eq!((told.offset, text.as_str()), expected, "{offset} {limit}");
        assert_eq!((told.request, told.length, told.error.as_str()), (9, 112, ""));
    }

    #[test]
    fn a_read_begins_at_the_first_kept_byte_from_the_asked_one_on() {
        check(0, 100, (100, "abcdefgh"));
        check(0, 3, (100, "abc"));
        check(102, 4, (102, "cdef"));
        check(104, 100, (104, "efgh"));
        check(108, 100, (110, "kl"));
        check(111, 100, (111, "l"));
        check(112, 100, (112, ""));
        check(5000, 100, (112, ""));
    }

    #[test]
    fn a_read_of_what_is_not_a_task_or_not_here_says_so() {
        let tasks = tasks();
        let stream = v1::LogStream::Stderr.into();
        let told = |task: &str| {
            let task = task.to_owned();
            let ask = v1::ReadNodeLog { request: 1, task, stream, offset: 0, limit: 10 };
            read(&[tasks.path().to_owned()], &ask).error
        };
        assert_eq!(told("job-1.1.0"), "");
        assert!(told("../job-1.1.0").contains("is not an id"), "{}", told("../job-1.1.0"));
        assert_eq!(told("job-2.1.0"), "no output of job-2.1.0 is kept on this node");
    }
}
