//! A person at a terminal: the command line with a pseudo-terminal of its own, read as a person
//! would.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use rustix::termios::{LocalModes, tcgetattr, tcgetwinsize, tcsetwinsize};

use crate::processes::signal;
use crate::wait::until;

/// A program that runs in a terminal. Dropping it kills the program.
#[derive(Debug)]
pub struct Screen {
    master: File,
    child: Child,
    /// All that was printed.
    shown: String,
    /// How much of it was awaited already.
    read: usize,
}

impl Screen {
    /// Starts a program in a window of 30 rows and 100 columns.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None)?;
        fcntl(&pair.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        fcntl(&pair.master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        // It becomes the program itself, in a session whose terminal this is: only then is it
        // told of the window's size.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(program).args(arguments).env("TERM", "vt100");
        command.stdin(pair.slave.try_clone()?).stdout(pair.slave.try_clone()?).stderr(pair.slave);
        let child = command.spawn().context("setsid of util-linux")?;
        Ok(Self { master: pair.master.into(), child, shown: String::new(), read: 0 })
    }

    /// The program's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types something.
    ///
    /// # Errors
    /// If the terminal takes no more.
    pub fn send(&mut self, text: &str) -> anyhow::Result<()> {
        self.master.write_all(text.as_bytes()).context("type")
    }

    /// Gives the window another size.
    ///
    /// # Errors
    /// If there is no terminal any more.
    pub fn resize(&self, rows: u16, columns: u16) -> anyhow::Result<()> {
        let mut size = tcgetwinsize(&self.master)?;
        (size.ws_row, size.ws_col) = (rows, columns);
        Ok(tcsetwinsize(&self.master, size)?)
    }

    /// Whether keys go to the program one by one, or are edited and echoed by the terminal.
    ///
    /// # Errors
    /// If there is no terminal any more.
    pub fn is_raw(&self) -> anyhow::Result<bool> {
        Ok(!tcgetattr(self.master.as_fd())?.local_modes.contains(LocalModes::ICANON))
    }

    /// Waits until `text` is shown after what was awaited before; what was shown up to its end.
    ///
    /// # Errors
    /// If it does not come in time.
    pub async fn shows(&mut self, text: &str, within: Duration) -> anyhow::Result<String> {
        let what = format!("{text:?} on the screen");
        until(within, &what, async || {
            self.take();
            let news = self.shown.get(self.read..).unwrap_or_default();
            let found = news.find(text).map(|at| at.saturating_add(text.len()));
            let Some(end) = found else { return Err(news.to_owned()) };
            let seen = news.get(..end).unwrap_or_default().to_owned();
            self.read = self.read.saturating_add(end);
            Ok(seen)
        })
        .await
    }

    /// All that was shown so far.
    pub fn all(&mut self) -> &str {
        self.take();
        &self.shown
    }

    /// Waits until the program has ended; what it printed meanwhile is read.
    ///
    /// # Errors
    /// If it does not in time.
    pub async fn ended(&mut self, within: Duration) -> anyhow::Result<ExitStatus> {
        until(within, "the program to end", async || {
            self.take();
            match self.child.try_wait() {
                Ok(Some(status)) => Ok(status),
                Ok(None) => Err(self.shown.clone()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }

    /// Kills the program at once.
    ///
    /// # Errors
    /// If it has ended already.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        signal(self.pid(), Signal::SIGKILL)?;
        self.child.wait().context("wait")?;
        Ok(())
    }

    fn take(&mut self) {
        let mut chunk = [0_u8; 4096];
        // Ends with an error when nothing is there, and when the program has closed its end.
        while let Ok(count @ 1..) = self.master.read(&mut chunk) {
            self.shown += &String::from_utf8_lossy(chunk.get(..count).unwrap_or_default());
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
