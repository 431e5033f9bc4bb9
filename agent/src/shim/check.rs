//! Whether a checkpoint is as a job says: every file there, beneath its directory, of its size.
//!
//! In a thread of its own: a file system that hangs must not keep the shim from a stop. Contents
//! are not read; a checkpoint of terabytes would be read twice for it.

use std::collections::BTreeSet;
use std::io::{self, PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use tidegate_proto::link::path_refusal;

use crate::job_protocol::{Claim, ClaimedFile, MAX_FILES};

/// A check under way.
pub(super) struct Check {
    /// Ends when the check has ended, however it did.
    ended: PipeReader,
    verdict: Receiver<Result<u64, String>>,
}

impl Check {
    /// Starts one.
    pub(super) fn of(claim: Claim) -> io::Result<Self> {
        let (ended, ends) = pipe()?;
        let (told, verdict) = sync_channel(1);
        thread::Builder::new().name("check".to_owned()).spawn(move || tell(&claim, &told, ends))?;
        Ok(Self { ended, verdict })
    }

    /// Becomes readable when there is a verdict.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// The bytes of the checkpoint, or what is wrong with it; none while it is being looked at.
    pub(super) fn verdict(&self) -> Option<Result<u64, String>> {
        match self.verdict.try_recv() {
            Ok(verdict) => Some(verdict),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("it could not be checked".to_owned())),
        }
    }
}

fn tell(claim: &Claim, told: &SyncSender<Result<u64, String>>, ends: PipeWriter) {
    // Fails only if nobody waits for it any more.
    told.send(checked(claim)).ok();
    drop(ends);
}

/// What can be said of a claim without a look at its files; none = nothing is wrong.
pub(super) fn refusal(claim: &Claim) -> Option<String> {
    if let Some(why) = path_refusal(&claim.path) {
        return Some(format!("path: {why}"));
    }
    match claim.files.len() {
        0 => Some("files: none is named; name every file of the checkpoint".to_owned()),
        count if count > MAX_FILES => {
            Some(format!("files: {count} are named; at most {MAX_FILES} are accepted"))
        }
        _ => None,
    }
}

fn checked(claim: &Claim) -> Result<u64, String> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(&claim.path, flags, Mode::empty())
        .map_err(|why| format!("path: {} is no directory: {why}", claim.path))?;
    let mut names = BTreeSet::new();
    let mut bytes = 0_u64;
    for file in &claim.files {
        if !names.insert(plain(&file.path)) {
            return Err(format!("files: {} is named twice", file.path));
        }
        bytes = bytes.saturating_add(size(directory.as_fd(), file)?);
    }
    Ok(bytes)
}

/// A name in its shortest form: `f`, `./f` and `a/../f` are the same file. Links are not looked at: what
/// they lead to may well be of two names.
fn plain(name: &str) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if plain.file_name().is_some() => {
                plain.pop();
            }
            Component::ParentDir
            | Component::Prefix(_)
            | Component::RootDir
            | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

/// The shim runs as the job's user, so that a file that the user cannot reach is no file here.
fn size(directory: BorrowedFd<'_>, file: &ClaimedFile) -> Result<u64, String> {
    let ClaimedFile { path, bytes } = file;
    let wrong = |why: String| format!("files: {path} {why}");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(directory, path.as_str(), flags, Mode::empty(), beneath);
    let opened = opened.map_err(|why| match why {
        Errno::XDEV => wrong("leads out of the checkpoint's directory".to_owned()),
        Errno::NOENT => wrong("is not there".to_owned()),
        other => wrong(format!("cannot be opened: {other}")),
    })?;
    let stat = fstat(&opened).map_err(|why| wrong(format!("cannot be looked at: {why}")))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(wrong("is no file".to_owned()));
    }
    match u64::try_from(stat.st_size) {
        Ok(size) if size == *bytes => Ok(size),
        Ok(size) => Err(wrong(format!("has {size} bytes, not {bytes}"))),
        Err(_) => Err(wrong("has no size".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn claim(path: &str, files: &[(&str, u64)]) -> Claim {
        let file =
            |(path, bytes): &(&str, u64)| ClaimedFile { path: (*path).into(), bytes: *bytes };
        Claim { step: 1, path: path.into(), files: files.iter().map(file).collect() }
    }

    #[test]
    fn a_checkpoint_is_what_it_is_said_to_be_or_is_refused_with_the_file_that_is_not() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("step-7");
        fs::create_dir_all(dir.join("shard")).unwrap();
        fs::write(dir.join("a"), "aaa").unwrap();
        fs::write(dir.join("shard/b"), "bbbb").unwrap();
        fs::write(root.path().join("outside"), "c").unwrap();
        symlink("../outside", dir.join("escape")).unwrap();
        symlink("a", dir.join("same")).unwrap();
        let path = dir.display().to_string();
        let check = |files: &[(&str, u64)], expected: Result<u64, &str>| {
            let told = checked(&claim(&path, files));
            assert_eq!(told, expected.map_err(ToOwned::to_owned), "{files:?}");
        };
        check(&[("a", 3), ("shard/b", 4)], Ok(7));
        check(&[("same", 3)], Ok(3));
        check(&[("a", 4)], Err("files: a has 3 bytes, not 4"));
        check(&[("a", 3), ("a", 3)], Err("files: a is named twice"));
        for again in ["./a", "shard/../a", ".//./a"] {
            check(&[("a", 3), (again, 3)], Err(&format!("files: {again} is named twice")));
        }
        check(&[("shard/b", 4), ("shard//b", 4)], Err("files: shard//b is named twice"));
        check(&[("none", 3)], Err("files: none is not there"));
        check(&[("shard", 0)], Err("files: shard is no file"));
        for leads_out in ["../outside", "escape", "/etc/passwd"] {
            let why = format!("files: {leads_out} leads out of the checkpoint's directory");
            check(&[(leads_out, 1)], Err(&why));
        }
        let nowhere = checked(&claim("/no/such", &[("a", 1)])).unwrap_err();
        assert!(nowhere.starts_with("path: /no/such is no directory: "), "{nowhere}");
    }

    #[test]
    fn a_claim_that_cannot_be_right_is_refused_without_a_look() {
        let check = |claim: &Claim, expected: Option<&str>| {
            assert_eq!(refusal(claim).as_deref(), expected);
        };
        check(&claim("/c", &[("a", 1)]), None);
        check(&claim("c", &[("a", 1)]), Some("path: give an absolute path"));
        let none = "files: none is named; name every file of the checkpoint";
        check(&claim("/c", &[]), Some(none));
        let many = vec![("a", 1); MAX_FILES + 1];
        let why = "files: 10001 are named; at most 10000 are accepted";
        check(&claim("/c", &many), Some(why));
    }
}
