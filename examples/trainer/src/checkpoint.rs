//! Checkpoints: one file per save, `step-00000125.ckpt`, complete or not there.
//!
//! A file is a line of JSON, the weights as little-endian `f64`, ballast if there is any, and the
//! FNV-1a of all that by words of eight bytes, eight bytes. It is written under another name,
//! synced, renamed, and the directory is synced.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde::{Deserialize, Serialize};

use crate::model::{Fnv, Model, WEIGHTS};
use crate::wire;

const FORMAT: &str = "tidegate-trainer-checkpoint";
/// Version 1 had the FNV-1a by bytes.
const VERSION: u32 = 2;
/// Checkpoints kept: the newest may be torn by a failing disk, and the one before it unread.
const KEEP: usize = 3;
const SUFFIX: &str = ".ckpt";
const TEMPORARY: &str = ".tmp";

/// The state of a run after a step.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) run: RunIdentity,
    pub(crate) step: u64,
    pub(crate) model: Model,
    /// So many bytes more, of no meaning.
    pub(crate) ballast: u64,
}

/// What the weights depend on besides the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunIdentity {
    pub(crate) seed: u64,
    pub(crate) world_size: u32,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    step: u64,
    weights: usize,
    #[serde(default)]
    ballast: u64,
    #[serde(flatten)]
    run: RunIdentity,
}

/// A paced write is done in pieces that take so long at its rate.
const PIECE: Duration = Duration::from_millis(10);
/// In a second.
const PIECES: u64 = 100;

/// What is written at once where nothing limits it: a limit that comes is noticed after it.
const UNLIMITED_PIECE: usize = 1 << 20;

/// What a directory holds.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) newest: Option<Checkpoint>,
    /// Newer files that cannot be used, and why.
    pub(crate) rejected: Vec<String>,
}

/// A checkpoint as it is to be written. It is made before a permit is asked for: whoever has one and
/// does not write keeps others waiting.
#[derive(Debug)]
pub(crate) struct Encoded {
    name: String,
    bytes: Vec<u8>,
}

/// What is done while a checkpoint is written.
pub(crate) trait Meanwhile {
    /// At how many bytes a second may be written now; none = not limited.
    fn rate(&mut self) -> Option<u64>;
    /// All bytes are on the storage; names are left.
    fn written(&mut self);
}

/// As fast as it goes, and nobody waits for the end.
pub(crate) struct Unhindered;

impl Meanwhile for Unhindered {
    fn rate(&mut self) -> Option<u64> {
        None
    }

    fn written(&mut self) {}
}

/// A directory of checkpoints, used by rank 0 alone.
#[derive(Debug)]
pub(crate) struct Store {
    directory: PathBuf,
}

impl Store {
    /// Creates the directory, and removes what a killed save left half-written.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let store = Self { directory: directory.to_owned() };
        fs::create_dir_all(directory).with_context(|| store.name())?;
        for name in store.list()?.iter().filter(|name| name.ends_with(TEMPORARY)) {
            fs::remove_file(directory.join(name)).with_context(|| name.clone())?;
        }
        Ok(store)
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Saves durably, no faster than it may, then drops the oldest beyond those kept. Returns the
    /// file's name.
    ///
    /// # Errors
    /// When the file system fails; the checkpoints before are untouched then.
    pub(crate) fn save(&self, encoded: Encoded, meanwhile: &mut dyn Meanwhile) -> Result<String> {
        let Encoded { name, bytes } = encoded;
        write_durably(&self.directory, &name, &bytes, meanwhile)?;
        for (_, old) in self.steps()?.iter().rev().skip(KEEP) {
            fs::remove_file(self.directory.join(old)).with_context(|| old.clone())?;
        }
        Ok(name)
    }

    /// The newest checkpoint that is whole.
    ///
    /// # Errors
    /// When the directory or a file cannot be read at all (that is not the same as no checkpoint),
    /// or a whole checkpoint is of another run.
    pub(crate) fn newest(&self, run: RunIdentity) -> Result<Found> {
        let mut rejected = Vec::new();
        for (step, name) in self.steps()?.iter().rev() {
            let path = self.directory.join(name);
            let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
            match Checkpoint::decode(&bytes) {
                Ok(found) if found.step != *step => {
                    rejected.push(format!("{name}: holds step {}", found.step));
                }
                Ok(found) => {
                    found.run.ensure_same(run, name)?;
                    return Ok(Found { newest: Some(found), rejected });
                }
                Err(error) => rejected.push(format!("{name}: {error:#}")),
            }
        }
        Ok(Found { newest: None, rejected })
    }

    /// Steps and names of the checkpoints, in ascending order.
    fn steps(&self) -> Result<Vec<(u64, String)>> {
        let mut steps: Vec<_> = self
            .list()?
            .into_iter()
            .filter_map(|name| {
                let step = name.strip_prefix("step-")?.strip_suffix(SUFFIX)?.parse().ok()?;
                Some((step, name))
            })
            .collect();
        steps.sort();
        Ok(steps)
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).with_context(|| self.name())? {
            let entry = entry.with_context(|| self.name())?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }

    fn name(&self) -> String {
        format!("checkpoint directory {}", self.directory.display())
    }
}

impl RunIdentity {
    /// # Errors
    /// When `file` is of a run with another seed or world size: its weights would be others.
    pub(crate) fn ensure_same(self, wanted: Self, file: &str) -> Result<()> {
        ensure!(
            self == wanted,
            "{file} is of a run with seed {} and world size {}, this one has {} and {}: use \
             another --checkpoint-dir",
            self.seed,
            self.world_size,
            wanted.seed,
            wanted.world_size
        );
        Ok(())
    }
}

impl Checkpoint {
    pub(crate) fn encode(&self) -> Result<Encoded> {
        let name = format!("step-{:08}{SUFFIX}", self.step);
        Ok(Encoded { name, bytes: self.bytes()? })
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let header = Header {
            format: FORMAT.to_owned(),
            version: VERSION,
            step: self.step,
            weights: WEIGHTS,
            ballast: self.ballast,
            run: self.run,
        };
        let mut bytes = serde_json::to_vec(&header)?;
        bytes.push(b'\n');
        wire::push_floats(&mut bytes, self.model.weights());
        let end = bytes.len().saturating_add(usize::try_from(self.ballast)?);
        bytes.reserve(end.saturating_sub(bytes.len()).saturating_add(size_of::<u64>()));
        let mut word = self.step;
        while bytes.len() < end {
            // Other bytes in each word and each step, so that no storage below stores them smaller.
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(end);
        let checksum = checksum(&bytes);
        bytes.extend(checksum.to_le_bytes());
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let (content, stored) = bytes.split_last_chunk::<8>().context("too short")?;
        if checksum(content) != u64::from_le_bytes(*stored) {
            bail!("checksum mismatch, torn or damaged ({} bytes)", bytes.len());
        }
        let end = content.iter().position(|byte| *byte == b'\n').context("no header line")?;
        let (header, weights) = content.split_at(end);
        let header: Header = serde_json::from_slice(header).context("header")?;
        ensure!(
            header.format == FORMAT && header.version == VERSION,
            "{} version {}, expected {FORMAT} version {VERSION}",
            header.format,
            header.version
        );
        let end =
            weights.len().checked_sub(usize::try_from(header.ballast)?).context("too short")?;
        let weights = wire::floats(weights.get(1..end).unwrap_or_default());
        let model = Model::from_weights(weights).context("wrong number of weights")?;
        Ok(Self { run: header.run, step: header.step, model, ballast: header.ballast })
    }
}

/// Writes a file that is there completely, or not at all, whatever happens meanwhile.
///
/// # Errors
/// When the file system fails.
pub(crate) fn write_durably(
    directory: &Path,
    name: &str,
    bytes: &[u8],
    meanwhile: &mut dyn Meanwhile,
) -> Result<()> {
    let temporary = directory.join(format!("{name}{TEMPORARY}"));
    let mut write = || {
        let mut file = File::create(&temporary)?;
        write_paced(&mut file, bytes, meanwhile)?;
        file.sync_all()?;
        meanwhile.written();
        fs::rename(&temporary, directory.join(name))?;
        // Without this the rename itself may be lost with the power.
        File::open(directory)?.sync_all()
    };
    write().with_context(|| format!("cannot write {name} in {}", directory.display()))
}

/// In pieces of [`PIECE`], each waited for before it is written.
fn write_paced(
    file: &mut File,
    mut bytes: &[u8],
    meanwhile: &mut dyn Meanwhile,
) -> std::io::Result<()> {
    let (mut paid, mut at) = (Instant::now(), 0_i64);
    while !bytes.is_empty() {
        let rate = meanwhile.rate();
        let most = rate.map_or(UNLIMITED_PIECE, |rate| {
            usize::try_from(rate / PIECES).unwrap_or(usize::MAX).max(1)
        });
        let (piece, rest) = bytes.split_at(most.min(bytes.len()));
        let count = i64::try_from(piece.len()).unwrap_or(i64::MAX);
        if let Some(rate) = rate {
            let takes = count.unsigned_abs().saturating_mul(1_000_000) / rate.max(1);
            // A sleep that was too long is made up for, but no more than one.
            let since = Instant::now().checked_sub(PIECE).unwrap_or(paid);
            paid = paid.max(since) + Duration::from_micros(takes);
            std::thread::sleep(paid.saturating_duration_since(Instant::now()));
        }
        file.write_all(piece)?;
        if rate.is_some() {
            // On its way to the storage now: a page cache would hand all of it on at once, at the end.
            posix_fadvise(&*file, at, count, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
        at = at.saturating_add(count);
        bytes = rest;
    }
    Ok(())
}

/// The content of a file, or `None` when it does not exist.
///
/// # Errors
/// When it exists and cannot be read.
pub(crate) fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Fnv::new();
    hash.write_words(bytes);
    hash.finish()
}
