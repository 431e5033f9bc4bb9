//! Innocent users of the same storage: each now and then creates a small file and syncs it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::joined;
use super::target::Target;

/// How many there are.
const COUNT: u32 = 16;

/// Between two files of each: all together write a fiftieth of a small disk's rate, with its journal.
const EVERY: Duration = Duration::from_secs(1);

const FILE: [u8; 4096] = [7; 4096];

/// They write until they are told to end.
#[derive(Debug)]
pub(super) struct Bystanders {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<anyhow::Result<Vec<Duration>>>>,
    directories: Vec<PathBuf>,
}

impl Bystanders {
    /// Begins.
    ///
    /// # Errors
    /// If there is no place for their files.
    pub(super) fn on(target: &Target) -> anyhow::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (mut threads, mut directories) = (Vec::new(), Vec::new());
        for number in 0..COUNT {
            let base = target.directory(usize::try_from(number)?);
            let directory = base.join(format!("bystander-{number}"));
            fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
            directories.push(directory.clone());
            let (over, first) = (Arc::clone(&over), EVERY * number / COUNT);
            threads.push(std::thread::spawn(move || write_on(&directory, first, &over)));
        }
        Ok(Self { over, threads, directories })
    }

    /// Ends; what each file took from its creation until it was synced.
    ///
    /// # Errors
    /// If one could not be written.
    pub(super) fn end(self) -> anyhow::Result<Vec<Duration>> {
        self.over.store(true, Ordering::Relaxed);
        let mut took = Vec::new();
        for thread in self.threads {
            took.extend(joined(thread)?);
        }
        for directory in self.directories {
            fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
        }
        Ok(took)
    }
}

fn write_on(directory: &Path, first: Duration, over: &AtomicBool) -> anyhow::Result<Vec<Duration>> {
    let mut took = Vec::new();
    std::thread::sleep(first);
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        let mut file = File::create(directory.join("file"))?;
        file.write_all(&FILE)?;
        file.sync_all()?;
        let passed = began.elapsed();
        took.push(passed);
        std::thread::sleep(EVERY.saturating_sub(passed));
    }
    Ok(took)
}
