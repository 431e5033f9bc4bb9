//! The task's terminal. This process holds it for life, so that nobody who goes away hangs it up,
//! and one at a time may look at it and type into it, through a socket.
//!
//! Somebody who looks and reads slowly makes the task wait, as a terminal does; who does not read
//! at all is dropped by the agent. While nobody looks the output goes to the log and the scrollback
//! alone and nothing waits.
//! What is not here: who may look (the coordinator and the agent say that; here it is only that
//! the user is the task's), and how it gets to a person's screen.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, killpg};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{getuid, tcgetpgrp};
use rustix::termios::{tcgetwinsize, tcsetwinsize};
use tidegate_model::{Bytes, TaskExit};
use tidegate_proto::v1;
use v1::from_terminal::Message as From;
use v1::to_terminal::Message as To;

use super::pump::{CHUNKS_PER_TURN, Pump};
use super::scrollback::Scrollback;
use crate::frames::{Closed, Frames, MAX_PIECE};
use crate::task_dir::TaskDir;

/// Until somebody has said how large the window is.
const WINDOW: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };

/// Connections that have not said what they want. The agent says it at once.
const MAX_NEWCOMERS: usize = 4;

/// Output that who looks has not taken yet: above it the task waits. Some screens.
const MAX_UNSENT: usize = 64 << 10;

/// Input that the task has not taken yet: above it no more is read. The kernel's own buffer of a
/// terminal is as large.
const MAX_UNREAD: usize = 4 << 10;

/// How long the end of the task waits for who looks to take the last of the output.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct Terminal {
    master: File,
    /// Open for life: without it a task that closes its terminal for a moment would be at its end.
    _slave: OwnedFd,
    pump: Pump,
    scrollback: Scrollback,
    listener: UnixListener,
    newcomers: Vec<Frames>,
    looking: Option<Frames>,
    input: Vec<u8>,
}

impl Terminal {
    /// A new terminal and what the task gets of it: its standard input, output and error.
    pub(super) fn open(dir: &TaskDir, cap: Bytes) -> io::Result<(Self, [OwnedFd; 3])> {
        let path = dir.terminal();
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let pair = openpty(Some(&WINDOW), None)?;
        for end in [&pair.master, &pair.slave] {
            fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        fcntl(&pair.master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        let copy = || pair.slave.try_clone();
        let ends = [copy()?, copy()?, copy()?];
        let pump = Pump::new(pair.master.try_clone()?, dir.path(), "stdout", cap);
        let terminal = Self {
            master: pair.master.into(),
            _slave: pair.slave,
            pump,
            scrollback: Scrollback::default(),
            listener,
            newcomers: Vec::new(),
            looking: None,
            input: Vec::new(),
        };
        Ok((terminal, ends))
    }

    /// What to wait on.
    pub(super) fn fds(&self) -> Vec<PollFd<'_>> {
        let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.newcomers.iter().map(|one| PollFd::new(one.fd(), PollFlags::POLLIN)));
        if let Some(looking) = &self.looking {
            let mut wanted = PollFlags::empty();
            wanted.set(PollFlags::POLLIN, self.input.len() < MAX_UNREAD);
            wanted.set(PollFlags::POLLOUT, looking.unsent() > 0);
            // Without either even its end is no news: it is noticed at the next word to it.
            if !wanted.is_empty() {
                fds.push(PollFd::new(looking.fd(), wanted));
            }
        }
        if !self.input.is_empty() {
            fds.push(PollFd::new(self.master.as_fd(), PollFlags::POLLOUT));
        }
        let source = self.pump.source().filter(|_| self.has_room());
        fds.extend(source.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        fds
    }

    /// Does what has come up.
    pub(super) fn turn(&mut self) {
        self.accept();
        self.hear_newcomers();
        self.hear();
        self.pass_input_on();
        for _ in 0..CHUNKS_PER_TURN {
            if !self.has_room() || !self.chunk() {
                break;
            }
        }
        self.looking.take_if(|looking| looking.flush().is_err());
    }

    /// Output that could not be written, in bytes.
    pub(super) fn dropped(&self) -> u64 {
        self.pump.dropped()
    }

    /// The task has ended, and nothing of it is left that could print.
    pub(super) fn close(&mut self, exit: &TaskExit) {
        for _ in 0..CHUNKS_PER_TURN {
            if !self.chunk() {
                break;
            }
        }
        self.say(From::Exit(exit.clone().into()));
        let deadline = Instant::now().checked_add(LAST_PATIENCE);
        while let (Some(looking), Some(deadline)) = (&mut self.looking, deadline) {
            let left = deadline.saturating_duration_since(Instant::now());
            if looking.flush().is_err() || looking.unsent() == 0 || left.is_zero() {
                return;
            }
            let mut fds = [PollFd::new(looking.fd(), PollFlags::POLLOUT)];
            poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)).ok();
        }
    }

    /// Whether output may be taken from the task.
    fn has_room(&self) -> bool {
        self.looking.as_ref().is_none_or(|looking| looking.unsent() < MAX_UNSENT)
    }

    fn accept(&mut self) {
        for _ in 0..MAX_NEWCOMERS {
            let Ok((stream, _)) = self.listener.accept() else { return };
            let peer = getsockopt(&stream, PeerCredentials);
            let is_ours = peer.is_ok_and(|peer| peer.uid() == getuid().as_raw());
            if is_ours && self.newcomers.len() < MAX_NEWCOMERS {
                self.newcomers.extend(Frames::over(stream));
            }
        }
    }

    /// Who says how it wants to look takes the terminal over: a person comes back from elsewhere,
    /// or before the loss of an earlier connection was noticed.
    fn hear_newcomers(&mut self) {
        for mut newcomer in std::mem::take(&mut self.newcomers) {
            match newcomer.read::<v1::ToTerminal>() {
                Ok(said) if said.is_empty() => self.newcomers.push(newcomer),
                Ok(said) => {
                    self.say(From::Taken(v1::TerminalTaken {}));
                    if let Some(mut before) = self.looking.replace(newcomer) {
                        before.flush().ok();
                    }
                    self.input.clear();
                    self.obey(said);
                }
                Err(Closed) => {}
            }
        }
    }

    fn hear(&mut self) {
        if self.input.len() >= MAX_UNREAD {
            return;
        }
        let Some(looking) = &mut self.looking else { return };
        match looking.read::<v1::ToTerminal>() {
            Ok(said) => self.obey(said),
            Err(Closed) => self.looking = None,
        }
    }

    fn obey(&mut self, said: Vec<v1::ToTerminal>) {
        for message in said.into_iter().filter_map(|said| said.message) {
            match message {
                To::View(view) => {
                    self.show(view.after);
                    self.resize(view.size);
                }
                To::Input(bytes) => self.input.extend(bytes),
                To::Size(size) => self.resize(Some(size)),
            }
        }
    }

    /// What was printed before. At least an empty piece of it: it says that the terminal is there.
    fn show(&mut self, after: Option<u64>) {
        let (mut offset, bytes) = self.scrollback.since(after);
        let bytes = bytes.to_vec();
        let pieces = bytes.chunks(MAX_PIECE).map(<[u8]>::to_vec);
        let empty = bytes.is_empty().then(Vec::new);
        for bytes in pieces.chain(empty) {
            let length = u64::try_from(bytes.len()).unwrap_or(0);
            self.say(From::Output(v1::TerminalOutput { offset, bytes }));
            offset = offset.saturating_add(length);
        }
    }

    /// A program that draws its own screen draws it anew when it is told of a new size; who comes
    /// back to the same size needs it all the same.
    fn resize(&mut self, size: Option<v1::WindowSize>) {
        let Some(v1::WindowSize { rows, columns }) = size else { return };
        let narrow = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        let Ok(mut window) = tcgetwinsize(&self.master) else { return };
        let before = (window.ws_row, window.ws_col);
        (window.ws_row, window.ws_col) = (narrow(rows), narrow(columns));
        // The kernel tells the programs of the terminal, if it changes.
        tcsetwinsize(&self.master, window).ok();
        if before == (window.ws_row, window.ws_col)
            && let Ok(group) = tcgetpgrp(&self.master)
        {
            killpg(group, Signal::SIGWINCH).ok();
        }
    }

    fn pass_input_on(&mut self) {
        while !self.input.is_empty() {
            match self.master.write(&self.input) {
                Ok(count) => drop(self.input.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.input.clear(),
            }
        }
    }

    /// Takes a piece of output. Whether there may be more.
    fn chunk(&mut self) -> bool {
        let offset = self.scrollback.length();
        let Some(bytes) = self.pump.chunk() else { return false };
        self.scrollback.push(bytes);
        let mut offset = offset;
        for piece in bytes.chunks(MAX_PIECE) {
            let output = v1::TerminalOutput { offset, bytes: piece.to_vec() };
            if let Some(looking) = &mut self.looking {
                looking.say(&v1::FromTerminal { message: Some(From::Output(output)) });
            }
            offset = offset.saturating_add(u64::try_from(piece.len()).unwrap_or(0));
        }
        true
    }

    fn say(&mut self, message: From) {
        if let Some(looking) = &mut self.looking {
            looking.say(&v1::FromTerminal { message: Some(message) });
        }
    }
}
