//! The first two steps of a start: the durable intent, and the shim.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::unistd::{User, getuid};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tidegate_model::{TaskId, UserId};
use tidegate_proto::link::Launch;

use crate::durable;
use crate::task_dir::{Intent, LaunchRecord, TaskDir, bytes_of};

pub(super) struct Spawner {
    /// The shim's program, beside the starter's own.
    program: PathBuf,
    boot_id: String,
    /// The only user whose tasks this starter can start: its own.
    user: UserId,
    home: String,
    user_name: String,
}

impl Spawner {
    pub(super) fn new(boot_id: String) -> io::Result<Self> {
        let uid = getuid();
        let entry = User::from_uid(uid).ok().flatten();
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let home = || Some(entry.as_ref()?.dir.display().to_string());
        let user_name = || Some(entry.as_ref()?.name.clone());
        Ok(Self {
            program: std::env::current_exe()?.with_file_name("tidegate-shim"),
            boot_id,
            user: UserId(uid.as_raw()),
            home: variable("HOME").or_else(home).unwrap_or_else(|| "/".to_owned()),
            user_name: user_name().or_else(|| variable("USER")).unwrap_or_else(|| uid.to_string()),
        })
    }

    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Makes the intent to start a task durable. After this its start is never repeated, so all
    /// of it must be on the disk before the spawn: the file, its entry, its directory's entry.
    pub(super) fn record(
        &self,
        dir: &TaskDir,
        task: TaskId,
        launch: LaunchRecord,
    ) -> Result<(), String> {
        let launch = LaunchRecord::from(self.checked(launch)?);
        let intent = Intent {
            task,
            boot_id: self.boot_id.clone(),
            home: self.home.clone(),
            user: self.user_name.clone(),
            launch,
        };
        self.write(dir, &intent).map_err(|why| {
            // Nothing was begun: without the directory it may be tried again.
            std::fs::remove_dir_all(dir.path()).ok();
            format!("its start cannot be recorded: {why}")
        })
    }

    /// Starts the shim, which goes on if this process ends: it makes a session of its own, and
    /// init adopts it.
    pub(super) fn spawn(&self, dir: &TaskDir) -> io::Result<OwnedFd> {
        let log = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.shim_log())?;
        let mut command = Command::new(&self.program);
        command.arg(dir.path()).env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn()?;
        // It cannot be another process's pid: the child is reaped by this thread, later.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a child without a pid"))?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    fn checked(&self, launch: LaunchRecord) -> Result<Launch, String> {
        let launch = Launch::try_from(launch)?;
        if launch.user != self.user {
            let (ours, theirs) = (self.user, launch.user);
            return Err(format!("this starter runs as {ours} and starts no task of {theirs}"));
        }
        Ok(launch)
    }

    fn write(&self, dir: &TaskDir, intent: &Intent) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(dir.path())?;
        durable::create_once(&dir.intent(), &bytes_of(intent)?)?;
        durable::sync_directory(dir.path())
    }
}
