//! The starter's one loop: it waits for the agent, for shims and for signals, and does one thing
//! after the other.

use std::fs::Permissions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::getuid;
use tidegate_model::TaskId;
use tracing::{info, warn};

use super::connection::{Closed, Connection};
use super::kept_logs::KeptLogs;
use super::protocol::{FromStarter, Request, Verb};
use super::spawn::Spawner;
use super::tasks::Tasks;
use crate::config::Config;
use crate::procs::Procs;
use crate::task_dir::StopRecord;
use crate::{durable, signals};

/// Serves the agent until TERM or INT. Tasks go on.
///
/// # Errors
/// What keeps it from serving: another starter, a directory that cannot be written.
pub fn run(config: &Config) -> anyhow::Result<()> {
    // Before anything is spawned: shims inherit the blocked signals.
    let signals = signals::blocked().context("block signals")?;
    durable::create_private_dir(&config.state_dir).context("make the state directory")?;
    durable::create_shared_dir(&config.run_dir).context("make the run directory")?;
    let lock = durable::lock(&config.state_dir.join("starter.lock"));
    let _lock = lock.context("a starter serves this state directory already")?;
    let procs = Procs::default();
    let spawner = Spawner::new(procs.boot_id().context("read the boot id")?)?;
    let logs = KeptLogs::open(config.logs_dir(), config.keep_logs).context("look at old logs")?;
    let tasks = Tasks::adopt(config.tasks_dir(), procs, spawner, logs).context("adopt tasks")?;
    let socket = config.starter_socket();
    let listener = listen(&socket).with_context(|| format!("listen on {}", socket.display()))?;
    info!(socket = %socket.display(), "serving");
    Server { signals, listener, tasks, agent: None }.serve()
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        let path = path.display();
        let why = format!("another starter serves {path}; set another run_dir");
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    // Left by a starter that was killed.
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    // Who connects before the mode is set is refused by the uid that the kernel gives for it.
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

struct Server {
    signals: SignalFd,
    listener: UnixListener,
    tasks: Tasks,
    agent: Option<Connection>,
}

/// What a wait ended with.
struct Ready {
    signals: bool,
    newcomer: bool,
    records: bool,
    shims: Vec<TaskId>,
}

impl Server {
    fn serve(mut self) -> anyhow::Result<()> {
        loop {
            let ready = self.wait().context("wait")?;
            if ready.signals && self.take_signals()? {
                info!("asked to end; tasks go on");
                return Ok(());
            }
            if ready.newcomer {
                self.accept();
            }
            self.hear();
            if ready.records {
                self.tasks.records_changed().context("read what shims have written")?;
            }
            for task in ready.shims {
                self.tasks.shim_ended(task)?;
            }
            self.tasks.sweep(Instant::now());
            self.tell();
        }
    }

    fn wait(&self) -> io::Result<Ready> {
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.tasks.watch_fd(), PollFlags::POLLIN),
        ];
        let shims: Vec<_> = self.tasks.shims().collect();
        fds.extend(shims.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)));
        if let Some(agent) = &self.agent {
            let mut wanted = PollFlags::POLLIN;
            wanted.set(PollFlags::POLLOUT, agent.wants_to_write());
            fds.push(PollFd::new(agent.fd(), wanted));
        }
        match poll(&mut fds, self.timeout()) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(true));
        let mut next = || ready.next().unwrap_or(false);
        let (signals, newcomer, records) = (next(), next(), next());
        let shims = shims.iter().filter(|_| next()).map(|(task, _)| *task).collect();
        Ok(Ready { signals, newcomer, records, shims })
    }

    fn timeout(&self) -> PollTimeout {
        let Some(due) = self.tasks.next_sweep() else { return PollTimeout::NONE };
        let left = due.saturating_duration_since(Instant::now());
        // A millisecond more: a timeout that rounds down would spin until the instant.
        let left = left.saturating_add(Duration::from_millis(1));
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    /// Whether to end.
    fn take_signals(&self) -> io::Result<bool> {
        let arrived = signals::arrived(&self.signals)?;
        if arrived.contains(&Signal::SIGCHLD) {
            // Dead shims; what they left is told by their directories and handles.
            while waitpid(None, Some(WaitPidFlag::WNOHANG))
                .is_ok_and(|status| status.pid().is_some())
            {}
        }
        Ok(arrived.iter().any(|signal| matches!(signal, Signal::SIGTERM | Signal::SIGINT)))
    }

    fn accept(&mut self) {
        // The last to connect is the agent; what an older connection left unread is not done.
        while let Ok((stream, _)) = self.listener.accept() {
            match self.admitted(stream) {
                Ok(agent) => {
                    info!("the agent has connected");
                    self.agent = Some(agent);
                }
                Err(why) => warn!(%why, "a connection was refused"),
            }
        }
    }

    fn admitted(&self, stream: UnixStream) -> io::Result<Connection> {
        let peer = getsockopt(&stream, PeerCredentials)?;
        if peer.uid() != getuid().as_raw() {
            let why = format!("uid {} (pid {}) is not the agent's", peer.uid(), peer.pid());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Connection::over(stream)
    }

    fn hear(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let Ok(lines) = agent.read() else { return self.drop_agent() };
        for line in lines {
            let answer = match serde_json::from_slice::<Request>(&line) {
                Ok(Request { id, verb }) => self.answer(id, verb),
                Err(why) => {
                    FromStarter::Answer { id: 0, refused: Some(format!("not a request: {why}")) }
                }
            };
            self.say(&answer);
        }
    }

    fn answer(&mut self, id: u64, verb: Verb) -> FromStarter {
        let done = match verb {
            Verb::Status => return FromStarter::Tasks { id, tasks: self.tasks.list() },
            Verb::Start { task, launch } => self.tasks.start(task, *launch),
            Verb::Stop { task, decision, grace_ms } => {
                self.tasks.stop(task, &StopRecord { decision, grace_ms })
            }
            Verb::Save { task, save } => self.tasks.save(task, &save),
            Verb::Permit { task, permit } => self.tasks.permit(task, &permit),
            Verb::Signal { task, signal } => self.tasks.signal(task, signal),
            Verb::Forget { task } => self.tasks.forget(task),
        };
        FromStarter::Answer { id, refused: done.err() }
    }

    fn tell(&mut self) {
        for line in self.tasks.take_changed() {
            self.say(&FromStarter::Changed(Box::new(line)));
        }
        if let Some(agent) = &mut self.agent
            && agent.flush().is_err()
        {
            self.drop_agent();
        }
    }

    fn say(&mut self, message: &FromStarter) {
        if let Some(agent) = &mut self.agent
            && let Err(Closed) = agent.say(message)
        {
            warn!("the agent does not read");
            self.drop_agent();
        }
    }

    fn drop_agent(&mut self) {
        info!("the agent has disconnected");
        self.agent = None;
    }
}
