//! What the kernel says of processes. The root of /proc is a parameter, so that tests can give
//! their own.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde::{Deserialize, Serialize};

/// Clock ticks per second in /proc: `USER_HZ`, 100 on every Linux that has GPUs.
const TICKS_PER_SECOND: u64 = 100;

/// A process for as long as this boot lasts: a pid alone is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start: u64,
}

/// The fields of /proc/PID/stat that are used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Whether it has ended and waits to be reaped.
    pub is_dead: bool,
    /// Its parent.
    pub parent: i32,
    /// Its session.
    pub session: i32,
    /// When it started, in clock ticks since boot.
    pub start: u64,
}

/// What a process does with a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// It has a handler.
    Caught,
    /// The signal is lost on it.
    Ignored,
    /// The kernel's default, which for most signals ends the process.
    Default,
}

/// A proc file system.
#[derive(Debug, Clone)]
pub struct Procs {
    root: PathBuf,
}

impl Default for Procs {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl Procs {
    /// The one mounted at `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The id of this boot.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn boot_id(&self) -> io::Result<String> {
        let text = fs::read_to_string(self.root.join("sys/kernel/random/boot_id"))?;
        Ok(text.trim().to_owned())
    }

    /// A process's state; none if there is no such process.
    #[must_use]
    pub fn stat(&self, pid: i32) -> Option<Stat> {
        parse_stat(&fs::read_to_string(self.of(pid).join("stat")).ok()?)
    }

    /// The process that has this pid now.
    #[must_use]
    pub fn identify(&self, pid: i32) -> Option<ProcessId> {
        self.stat(pid).map(|stat| ProcessId { pid, start: stat.start })
    }

    /// Whether this very process, not a later one with its pid, is alive.
    #[must_use]
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.stat(process.pid).is_some_and(|stat| stat.start == process.start && !stat.is_dead)
    }

    /// Every pid there is.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn pids(&self) -> io::Result<Vec<i32>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        Ok(pids)
    }

    /// The direct children of a process that has one thread.
    ///
    /// # Errors
    /// Neither the kernel's list of children nor all processes can be read.
    pub fn children(&self, pid: i32) -> io::Result<Vec<i32>> {
        let list = self.of(pid).join("task").join(pid.to_string()).join("children");
        if let Ok(text) = fs::read_to_string(list) {
            return Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect());
        }
        // Kernels without CONFIG_PROC_CHILDREN.
        let is_child = |other: &i32| self.stat(*other).is_some_and(|stat| stat.parent == pid);
        Ok(self.pids()?.into_iter().filter(is_child).collect())
    }

    /// Whether the process was started with all of these variables, each as `NAME=value`.
    #[must_use]
    pub fn has_environment(&self, pid: i32, variables: &[String]) -> bool {
        let Ok(environ) = fs::read(self.of(pid).join("environ")) else { return false };
        let has = |variable: &String| environ.split(|b| *b == 0).any(|v| v == variable.as_bytes());
        variables.iter().all(has)
    }

    /// The value a variable had when the process was started; none without it.
    #[must_use]
    pub fn variable(&self, pid: i32, name: &str) -> Option<String> {
        let environ = fs::read(self.of(pid).join("environ")).ok()?;
        let value = |entry: &[u8]| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            String::from_utf8(value.to_vec()).ok()
        };
        environ.split(|byte| *byte == 0).find_map(value)
    }

    /// What a process does with a signal now; none if there is no such process.
    #[must_use]
    pub fn disposition(&self, pid: i32, signal: Signal) -> Option<Disposition> {
        let status = fs::read_to_string(self.of(pid).join("status")).ok()?;
        parse_disposition(&status, signal.as_raw())
    }

    /// The name of the program that a process runs, cut to 15 bytes; none if there is no such
    /// process.
    #[must_use]
    pub fn program(&self, pid: i32) -> Option<String> {
        let name = fs::read_to_string(self.of(pid).join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    }

    /// Bytes that a process and its children that have ended gave to writes of any kind; none if
    /// there is no such process, or it is another user's.
    #[must_use]
    pub fn written(&self, pid: i32) -> Option<u64> {
        let io = fs::read_to_string(self.of(pid).join("io")).ok()?;
        io.lines().find_map(|line| line.strip_prefix("wchar: "))?.trim().parse().ok()
    }

    /// A handle on this very process; none if it is gone. Opened first, compared then.
    #[must_use]
    pub fn open(&self, process: ProcessId) -> Option<OwnedFd> {
        let fd = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
        self.is_alive(process).then_some(fd)
    }

    /// How long ago a process of this start time started, in milliseconds.
    #[must_use]
    pub fn age_ms(&self, start: u64) -> Option<u64> {
        let uptime = fs::read_to_string(self.root.join("uptime")).ok()?;
        let (seconds, rest) = uptime.split_once('.')?;
        let hundredths: u64 = rest.get(..2)?.parse().ok()?;
        let now = seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(hundredths * 10)?;
        Some(now.saturating_sub(start.saturating_mul(1000 / TICKS_PER_SECOND)))
    }

    fn of(&self, pid: i32) -> PathBuf {
        self.root.join(pid.to_string())
    }
}

/// The masks are of the whole process, in hexadecimal; signal 1 is the lowest bit.
fn parse_disposition(status: &str, signal: i32) -> Option<Disposition> {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let bit = 1_u64.checked_shl(u32::try_from(signal).ok()?.checked_sub(1)?)?;
    let (caught, ignored) = (mask("SigCgt:")?, mask("SigIgn:")?);
    Some(if caught & bit != 0 {
        Disposition::Caught
    } else if ignored & bit != 0 {
        Disposition::Ignored
    } else {
        Disposition::Default
    })
}

/// The command's name, in parentheses, may hold spaces and parentheses: fields count from the
/// last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // Of a process whose first thread has ended while others run, the kernel says Z too.
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(Stat {
        is_dead: matches!(*fields.first()?, "Z" | "X") && threads <= 1,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let line = "42 (a) b) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99\n";
        let stat = Stat { is_dead: false, parent: 7, session: 41, start: 12_345 };
        assert_eq!(parse_stat(line), Some(stat));
        assert_eq!(parse_stat("42 (a) Z 7"), None);
        // A first thread that has ended while eight others run is no end of the process.
        let dead = |threads: &str| {
            let line = format!("42 (a) Z 7 42 41 0 -1 4 1 2 3 4 5 6 7 8 20 0 {threads} 0 9 99");
            parse_stat(&line).map(|stat| stat.is_dead)
        };
        assert_eq!([dead("9"), dead("1"), dead("0")], [Some(false), Some(true), Some(true)]);
    }

    #[test]
    fn what_a_process_does_with_a_signal_is_read_from_its_masks() {
        let check = |signal, expected| {
            let status =
                "Name:\ta\nSigBlk:\t0\nSigIgn:\t0000000000001000\nSigCgt:\t0000000000004200\n";
            assert_eq!(parse_disposition(status, signal), expected, "{signal}");
        };
        check(10, Some(Disposition::Caught));
        check(15, Some(Disposition::Caught));
        check(13, Some(Disposition::Ignored));
        check(12, Some(Disposition::Default));
        check(0, None);
        assert_eq!(parse_disposition("Name:\ta\n", 10), None);
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_process() {
        let root = tempfile::tempdir().unwrap();
        let process = root.path().join("42");
        fs::create_dir(&process).unwrap();
        let line = "42 (a) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99\n";
        fs::write(process.join("stat"), line).unwrap();
        fs::write(process.join("environ"), "A=1\0B=2\0").unwrap();
        fs::write(root.path().join("uptime"), "200.50 1.00\n").unwrap();
        let procs = Procs::at(root.path());
        assert!(procs.is_alive(ProcessId { pid: 42, start: 12_345 }));
        assert!(!procs.is_alive(ProcessId { pid: 42, start: 12_344 }));
        assert_eq!(procs.children(7).unwrap(), [42], "without the kernel's list");
        assert!(procs.has_environment(42, &["B=2".into()]));
        assert!(!procs.has_environment(42, &["B=2".into(), "B=".into()]));
        assert_eq!(procs.variable(42, "B").as_deref(), Some("2"));
        assert_eq!(procs.variable(42, "C"), None);
        assert_eq!(procs.age_ms(12_345), Some(77_050));
    }
}
