//! A job's side of `$TIDEGATE_SOCKET`, with the standard library alone: copy [`Job`] into a program
//! of yours. Run in a task, it writes a file of so many zeros at the rate that it is granted:
//!
//! ```text
//! client model.bin 1000000000
//! ```
//!
//! It ends with 0 if it has written, 2 if it was called in a way that cannot work (outside a task, too), 1 if
//! something else failed: a permit that was denied, a disk that is full.
//!
//! One rank asks for its whole gang, before the collective that saves. See docs/job-protocol.md.

use std::env;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A paced write is done in pieces that take so long at its rate.
const PIECE: Duration = Duration::from_millis(10);
/// In a second.
const PIECES: u64 = 100;
/// What has been written is on the storage after so many of them: a page cache would hand all of it on
/// at once, at the end.
const SYNCED: u32 = 25;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let bytes = |given: &String| given.parse::<u64>().ok();
    let [path, given] = arguments.as_slice() else {
        return ended(2, "expected: client FILE BYTES");
    };
    let Some(bytes) = bytes(given).filter(|bytes| *bytes > 0) else {
        return ended(2, &format!("BYTES: {given:?} given; a whole number from 1 is accepted"));
    };
    let Ok(socket) = env::var("TIDEGATE_SOCKET") else {
        return ended(2, "TIDEGATE_SOCKET is not set: run it in a task of Tidegate");
    };
    match write(&socket, path, bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => ended(1, &why.to_string()),
    }
}

fn ended(code: u8, why: &str) -> ExitCode {
    writeln!(io::stderr(), "client: {why}").ok();
    code.into()
}

/// Writes so many zeros with a permit.
fn write(socket: &str, path: &str, bytes: u64) -> io::Result<()> {
    let mut job = Job::connect(socket)?;
    job.ask(bytes, "periodic")?;
    let mut file = File::create(path)?;
    let zeros = [0_u8; 1 << 16];
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
        job.write(&mut file, zeros.get(..count).unwrap_or_default())?;
        left = left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
    }
    file.sync_all()?;
    job.done()
}

/// A connection, and the permit that it holds.
#[derive(Debug)]
struct Job {
    stream: BufReader<UnixStream>,
    permit: u64,
    /// Bytes in a second; none = not limited.
    rate: Option<u64>,
    /// When what is written so far is paid for.
    paid: Instant,
    /// Pieces since the last sync.
    unsynced: u32,
}

impl Job {
    fn connect(socket: &str) -> io::Result<Self> {
        let words = |why: io::Error| io::Error::new(why.kind(), format!("{socket}: {why}"));
        let stream = BufReader::new(UnixStream::connect(socket).map_err(words)?);
        Ok(Self { stream, permit: 0, rate: None, paid: Instant::now(), unsynced: 0 })
    }

    /// Waits for a permit.
    fn ask(&mut self, bytes: u64, class: &str) -> io::Result<()> {
        self.say(&format!("{{\"ask\":{{\"bytes\":{bytes},\"class\":\"{class}\"}}}}"))?;
        self.permit = 0;
        while self.permit == 0 {
            let told = self.hear()?;
            self.take(&told)?;
        }
        self.paid = Instant::now();
        Ok(())
    }

    /// Writes at the granted rate, in pieces of 10 ms of it.
    fn write(&mut self, file: &mut File, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        while !rest.is_empty() {
            self.listen()?;
            let is_limited = self.rate.is_some();
            let piece = self.rate.map_or(u64::MAX, |rate| (rate / PIECES).max(1));
            let count = usize::try_from(piece).unwrap_or(usize::MAX).min(rest.len());
            let (piece, later) = rest.split_at(count);
            self.pay(u64::try_from(count).unwrap_or(u64::MAX));
            file.write_all(piece)?;
            self.unsynced = self.unsynced.saturating_add(1);
            if is_limited && self.unsynced >= SYNCED {
                file.sync_data()?;
                self.unsynced = 0;
            }
            rest = later;
        }
        Ok(())
    }

    /// Before the bytes are written.
    fn pay(&mut self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let nanoseconds = u128::from(bytes).saturating_mul(1_000_000_000) / u128::from(rate.max(1));
        let takes = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let now = Instant::now();
        // A sleep that was too long is made up for, but no more than one.
        let since = now.checked_sub(PIECE).unwrap_or(now);
        self.paid = self.paid.max(since).checked_add(takes).unwrap_or(now);
        sleep(self.paid.saturating_duration_since(now));
    }

    /// Gives the permit back.
    fn done(&mut self) -> io::Result<()> {
        self.say(&format!("{{\"done\":{{\"permit\":{}}}}}", self.permit))?;
        while !self.hear()?.starts_with("{\"done\":") {}
        Ok(())
    }

    /// Takes what has come, without waiting.
    fn listen(&mut self) -> io::Result<()> {
        self.stream.get_ref().set_nonblocking(true)?;
        let filled = self.stream.fill_buf().map(|_| ());
        self.stream.get_ref().set_nonblocking(false)?;
        match filled {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            other => other?,
        }
        loop {
            let told = self.hear()?;
            self.take(&told)?;
            if self.stream.buffer().is_empty() {
                return Ok(());
            }
        }
    }

    fn take(&mut self, told: &str) -> io::Result<()> {
        if told.starts_with("{\"deny\":") || told.starts_with("{\"refused\":") {
            return Err(io::Error::other(told.to_owned()));
        }
        if told.starts_with("{\"grant\":") {
            self.permit = number(told, "permit").unwrap_or(0);
            self.rate = number(told, "bytes_per_s");
        }
        Ok(())
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stream.get_mut(), "{line}")
    }

    fn hear(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(line),
        }
    }
}

/// A number of an answer; none if it is null. Answers have no blanks.
fn number(line: &str, key: &str) -> Option<u64> {
    let (_, value) = line.split_once(&format!("\"{key}\":"))?;
    let end = value.find(|c: char| !c.is_ascii_digit())?;
    value.get(..end)?.parse().ok()
}
