//! Files that must be whole, and files that must also survive a power cut.
//!
//! Three strengths, because an fsync costs about as much as starting a process: [`publish`] is
//! whole to every reader of this boot, [`replace`] survives a power cut, [`create_once`] does and
//! is never repeated.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fcntl_lock};

/// Largest state file that is read back: far above the largest launch.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Makes `bytes` the content of `path`, whole to every reader, but not fsynced: for what has no
/// meaning after a reboot.
///
/// # Errors
/// What the file system says.
pub fn publish(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    private(&temporary, OpenOptions::new().write(true).create(true).truncate(true))?
        .write_all(bytes)?;
    std::fs::rename(&temporary, path)
}

/// Makes `bytes` the content of `path`, whole and durable when this returns.
///
/// # Errors
/// What the file system says; the old content is then still there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    let mut file = private(&temporary, OpenOptions::new().write(true).create(true).truncate(true))?;
    file.write_all(bytes)?;
    file.sync_data()?;
    std::fs::rename(&temporary, path)?;
    sync_directory(path)
}

/// Creates `path`, which must not exist, durably with its directory entry.
///
/// # Errors
/// `AlreadyExists` if it does; else what the file system says. A file cut short by a power cut
/// does not parse, and whoever waited for this call has not gone on.
pub fn create_once(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = private(path, OpenOptions::new().write(true).create_new(true))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    sync_directory(path)
}

/// Takes the lock of a directory's only owner, to be held for life.
///
/// # Errors
/// Another process holds it, or the file system says otherwise.
pub fn lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = private(path, options.read(true).write(true).create(true).truncate(false))?;
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_held| io::Error::other(format!("another one holds {}", path.display())))?;
    Ok(file)
}

/// Makes the directory entry of `path` durable.
///
/// # Errors
/// What the file system says.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates a directory and its parents, for the owner only.
///
/// # Errors
/// What the file system says.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a directory and its parents that others may pass through: what lies in it has modes of
/// its own. The default run directory is the coordinator's too, whose API is for everybody.
///
/// # Errors
/// What the file system says.
pub fn create_shared_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Reads a state file; none if there is no such file.
///
/// # Errors
/// What the file system says, or that the file is larger than any that is written here.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    read_bounded(&file).map(Some)
}

/// Reads an open state file from where it stands.
///
/// # Errors
/// As [`read`].
pub fn read_bounded(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length >= MAX_FILE_BYTES) {
        return Err(io::Error::other(format!("a state file of {MAX_FILE_BYTES} bytes or more")));
    }
    Ok(bytes)
}

fn private(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.mode(0o600).open(path)
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}
