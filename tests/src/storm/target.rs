//! What a storm writes to, and how much of it arrived there.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::stat::{major, minor};
use serde::Deserialize;

use super::joined;

/// Between two looks at a meter.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Of the kernel's statistics of a block device, whatever the device's own blocks are.
const SECTOR: u64 = 512;

/// Storage with a limit.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// For people.
    pub name: String,
    /// Where it is mounted; jobs and bystanders take turns.
    pub directories: Vec<PathBuf>,
    /// The network namespaces of the hosts that have it mounted, in the same turns: agents are in them.
    #[serde(default)]
    pub networks: Vec<PathBuf>,
    /// What counts the bytes that arrive.
    pub meter: Meter,
}

/// A counter of bytes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Meter {
    /// The `stat` file of a block device.
    Disk(PathBuf),
    /// What an interface has received, as a file like `/proc/PID/net/dev` has it.
    Link {
        /// The file.
        file: PathBuf,
        /// The interface.
        interface: String,
    },
}

impl Target {
    /// A directory, or a description as `tests/targets` write it.
    ///
    /// # Errors
    /// If it is neither, or nothing counts what is written there.
    pub fn of(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let metadata = fs::metadata(path).with_context(|| format!("{shown}"))?;
        if !metadata.is_dir() {
            let text = fs::read_to_string(path).with_context(|| format!("{shown}"))?;
            return serde_json::from_str(&text)
                .with_context(|| format!("{shown} describes no target"));
        }
        let device = (major(metadata.dev()), minor(metadata.dev()));
        let disk = PathBuf::from(format!("/sys/dev/block/{}:{}/stat", device.0, device.1));
        if !disk.exists() {
            bail!("no block device is below {shown}: name a description with a `meter`");
        }
        let (name, meter) = (shown.to_string(), Meter::Disk(disk));
        Ok(Self { name, directories: vec![path.to_owned()], networks: Vec::new(), meter })
    }

    /// One of its directories, in turns.
    #[must_use]
    pub(super) fn directory(&self, turn: usize) -> &Path {
        let count = self.directories.len().max(1);
        self.directories.get(turn % count).map_or_else(|| Path::new("."), PathBuf::as_path)
    }
}

impl Meter {
    /// Bytes since the beginning.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn read(&self) -> anyhow::Result<u64> {
        match self {
            Self::Disk(file) => {
                let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
                let sectors = text.split_whitespace().nth(6).context("no count of sectors")?;
                Ok(sectors.parse::<u64>()?.saturating_mul(SECTOR))
            }
            Self::Link { file, interface } => {
                let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
                let line = text.lines().find_map(|line| {
                    let (name, counts) = line.split_once(':')?;
                    (name.trim() == interface).then_some(counts)
                });
                let received = line.and_then(|counts| counts.split_whitespace().next());
                Ok(received.with_context(|| format!("no interface {interface}"))?.parse()?)
            }
        }
    }
}

/// Reads a meter until it is told to end.
#[derive(Debug)]
pub(super) struct Recorder {
    over: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Recorded>>,
}

/// What arrived when.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorded(Vec<(Instant, u64)>);

impl Recorder {
    /// Begins.
    #[must_use]
    pub(super) fn of(meter: Meter) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let mut recorded = Recorded::default();
                while !over.load(Ordering::Relaxed) {
                    recorded.0.push((Instant::now(), meter.read()?));
                    std::thread::sleep(LOOK_EVERY);
                }
                Ok(recorded)
            }
        });
        Self { over, thread }
    }

    /// Ends.
    ///
    /// # Errors
    /// If the meter could not be read.
    pub(super) fn end(self) -> anyhow::Result<Recorded> {
        self.over.store(true, Ordering::Relaxed);
        joined(self.thread)
    }
}

impl Recorded {
    /// Bytes per second over each second that begins at a look, where one is whole.
    pub(super) fn seconds(&self) -> impl Iterator<Item = u64> {
        self.0.iter().enumerate().filter_map(|(first, (from, before))| {
            let later = self.0.get(first..)?;
            let (until, after) =
                later.iter().find(|(at, _)| at.duration_since(*from) >= Duration::from_secs(1))?;
            let millis = u64::try_from(until.duration_since(*from).as_millis()).ok()?.max(1);
            after.saturating_sub(*before).saturating_mul(1000).checked_div(millis)
        })
    }

    /// How many seconds there were, of those above `rate`.
    #[must_use]
    pub(super) fn seconds_over(&self, rate: u64) -> u64 {
        // Each second is looked at as often as the meter in it.
        let looks = self.seconds().filter(|second| *second > rate).count();
        let each = usize::try_from(LOOK_EVERY.as_millis()).unwrap_or(1);
        u64::try_from(looks.saturating_mul(each) / 1000).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_read_by_its_interface_and_a_disk_in_sectors() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dev");
        fs::write(&file, "Inter-| Receive\n    lo: 7 1 0\n  srv0: 4096 3 0 0\n").unwrap();
        let link = Meter::Link { file, interface: "srv0".to_owned() };
        assert_eq!(link.read().unwrap(), 4096);
        let file = dir.path().join("stat");
        fs::write(&file, "  53 0 2122 4 1 0 8 5 0 8 15\n").unwrap();
        assert_eq!(Meter::Disk(file).read().unwrap(), 8 * 512);
    }

    #[test]
    fn the_most_in_a_second_is_found_wherever_it_begins() {
        let began = Instant::now();
        let at = |tenths: u64, bytes| (began + Duration::from_millis(tenths * 100), bytes);
        // 1,000 bytes within the second from 0.5 s on, and nothing else.
        let looks = (0..=30).map(|tenth: u64| at(tenth, tenth.saturating_sub(5).min(10) * 100));
        let recorded = Recorded(looks.collect());
        assert_eq!(recorded.seconds().max(), Some(1000));
        assert_eq!(recorded.seconds_over(1000), 0);
        assert_eq!(recorded.seconds_over(500), 0, "not for a whole second");
        assert_eq!(recorded.seconds_over(0), 1);
    }
}
