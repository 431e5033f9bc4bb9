//! One task's supervisor. It outlives agent and starter, holds the task's output, asks its ranks to
//! save, hears what they commit and ask to write, learns its exit and leaves nothing of it behind. One thread and,
//! while a commit is checked, one more; no async runtime.
//!
//! What is not here: who decides that a task starts, saves or ends (the starter tells it, through
//! the task's directory and TERM).

mod ask;
mod check;
mod door;
mod launch;
mod permit;
mod pump;
mod ranks;
mod reap;
mod scrollback;
mod stop;
mod terminal;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, setsid};
use rustix::fs::{FlockOperation, fcntl_lock};
use tidegate_model::{Span, TaskExit};

use self::ask::Asking;
use self::door::Door;
use self::launch::{Output, Started, start};
use self::reap::{Family, Left};
use self::stop::Ladder;
use crate::procs::Procs;
use crate::task_dir::{Exit, Intent, State, StopRecord, TaskDir, bytes_of, load};
use crate::{durable, signals};

/// How long the end of a task may wait for the last of its processes to vanish before it is
/// recorded as not yet released. A killed process is gone in milliseconds unless it hangs in a
/// driver.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait before the end of the task is written again, if it could not be.
const RECORD_RETRY: Duration = Duration::from_secs(1);

/// How often processes that outlive their KILL are looked at again.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

/// Supervises the task of `dir` from its start to its end.
///
/// # Errors
/// What kept it from doing so before the task was started. Afterwards the end of the task is
/// recorded in its directory.
pub fn run(dir: &TaskDir) -> anyhow::Result<()> {
    let signals = signals::blocked().context("block signals")?;
    // Fails only if it leads a session already, which is as good.
    setsid().ok();
    prctl::set_child_subreaper(true).context("become the reaper of the task's orphans")?;
    let path = dir.intent();
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let intent_file = file.with_context(|| format!("open {}", path.display()))?;
    // Held for life: see task_dir.
    fcntl_lock(&intent_file, FlockOperation::NonBlockingLockExclusive)
        .context("another shim, or the starter, holds this task")?;
    if dir.exit().exists() {
        return Err(anyhow!("the task has ended already"));
    }
    // Without this file a starter may spawn a shim again; with it, never.
    let begun = OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.begun());
    begun.context("an earlier shim has begun this task")?;
    let intent: Intent = serde_json::from_slice(&durable::read_bounded(&intent_file)?)
        .with_context(|| format!("read {}", path.display()))?;
    let boot_id = intent.boot_id.clone();
    // Without a socket, which a path that is too long has, the job can still be asked and run.
    let door = Door::open(dir, intent.task, Procs::default()).ok();
    match started(dir, intent, door.is_some()) {
        Ok(started) => Supervisor::new(dir, started, door, boot_id)?.supervise(&signals),
        Err(why) => record(dir, &Exit::released(TaskExit::NeverStarted(why), Span::ZERO)),
    }
}

fn started(dir: &TaskDir, intent: Intent, is_served: bool) -> Result<Started, String> {
    if dir.stop().exists() {
        return Err("stopped before it was started".to_owned());
    }
    let socket = dir.socket();
    start(dir, intent, is_served.then_some(&socket))
}

/// Its bytes are durable before it is seen: an end that was reported is never half there after a
/// power cut. Its directory entry may be lost with the last moment before the cut; then the task
/// is one of an earlier boot, and whoever journaled its end keeps it.
fn record(dir: &TaskDir, exit: &Exit) -> anyhow::Result<()> {
    durable::replace(&dir.exit(), &bytes_of(exit)?).context("record the task's end")
}

struct Supervisor<'a> {
    dir: &'a TaskDir,
    family: Family,
    ladder: Ladder,
    asking: Asking,
    door: Option<Door>,
    output: Output,
    since: Instant,
    ended: Option<Ended>,
}

struct Ended {
    exit: TaskExit,
    ran: Span,
    at: Instant,
    recorded: bool,
}

impl<'a> Supervisor<'a> {
    fn new(
        dir: &'a TaskDir,
        started: Started,
        door: Option<Door>,
        boot_id: String,
    ) -> anyhow::Result<Self> {
        let Started { main, since, output, ranks } = started;
        let procs = Procs::default();
        let identify = |pid: Pid| procs.identify(pid.as_raw()).context("read a process's state");
        let state = State { boot_id, shim: identify(Pid::this())?, main: identify(main)? };
        durable::publish(&dir.state(), &bytes_of(&state)?).context("record that the task runs")?;
        let asking = Asking::of(dir, procs.clone(), state.main, ranks);
        let family = Family::of(main, procs);
        let ladder = Ladder::default();
        Ok(Self { dir, family, ladder, asking, door, output, since, ended: None })
    }

    fn supervise(mut self, signals: &SignalFd) -> anyhow::Result<()> {
        // It may have been asked before this shim, or any, had begun.
        self.save_asked();
        loop {
            self.wait(signals)?;
            for signal in signals::arrived(signals)? {
                if signal == Signal::SIGTERM {
                    self.stop_asked()?;
                    self.save_asked();
                    self.permit_answered();
                }
            }
            self.output.turn();
            if self.ended.is_none() {
                self.asking.look(Instant::now());
            }
            if let Some(door) = &mut self.door {
                door.turn(self.asking.announcement(Instant::now()).as_ref());
            }
            let left = self.reap();
            if self.ended.is_some() {
                if left == Left::Nothing {
                    return self.finish();
                }
                self.family.kill_all()?;
                self.record_if_slow()?;
            } else if self.ladder.is_over(Instant::now()) {
                self.family.kill_all()?;
            }
        }
    }

    /// Until a signal, output or a word of the job arrives, or a next step is due.
    fn wait(&self, signals: &SignalFd) -> io::Result<()> {
        let sweeping = self.ended.is_some() || self.ladder.is_over(Instant::now());
        let now = Instant::now();
        let timeout = if sweeping {
            Some(SWEEP_INTERVAL)
        } else {
            let door = self.door.as_ref().and_then(|door| door.left(now));
            [self.ladder.left(now), self.asking.left(now), door].into_iter().flatten().min()
        };
        let timeout = timeout.map_or(PollTimeout::NONE, |left| {
            // A millisecond more: a timeout that rounds down would spin until the deadline.
            let left = left.saturating_add(Duration::from_millis(1));
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.output.fds());
        fds.extend(self.door.iter().flat_map(Door::fds));
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn stop_asked(&mut self) -> io::Result<()> {
        let Some(StopRecord { decision: _, grace_ms }) = load(&self.dir.stop())? else {
            // Not from the starter: a task ends by an order only.
            return Ok(());
        };
        let grace = Duration::from_millis(grace_ms);
        if self.ladder.ask(Instant::now(), grace) && self.ended.is_none() {
            self.family.terminate_main()?;
            if matches!(self.output, Output::Terminal(_)) {
                // A shell that somebody types into ignores TERM, and heeds this.
                self.family.hang_up_main()?;
            }
            if let Some(door) = &mut self.door {
                door.stop();
            }
        }
        Ok(())
    }

    fn save_asked(&mut self) {
        let now = Instant::now();
        if self.ladder.left(now).is_some() {
            self.asking.end();
        } else if let Some(news) = self.asking.read(now)
            && let Some(door) = &mut self.door
        {
            door.tell(&news);
        }
    }

    fn permit_answered(&mut self) {
        if let Some(door) = &mut self.door {
            door.answered();
        }
    }

    fn reap(&mut self) -> Left {
        let left = self.family.reap();
        if self.ended.is_none()
            && let Some(exit) = self.family.main_exit()
        {
            let at = Instant::now();
            let ran = at.duration_since(self.since).as_millis();
            let ran = Span(u64::try_from(ran).unwrap_or(u64::MAX));
            self.ended = Some(Ended { exit, ran, at, recorded: false });
        }
        left
    }

    fn record_if_slow(&mut self) -> anyhow::Result<()> {
        let dropped = self.dropped();
        if let Some(ended) = &mut self.ended
            && !ended.recorded
            && ended.at.elapsed() > RELEASE_PATIENCE
        {
            record(self.dir, &ended.record(false, dropped))?;
            ended.recorded = true;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        if let Some(ended) = &self.ended {
            self.output.drain(&ended.exit);
        }
        if let Some(door) = self.door.take() {
            door.close(self.asking.announcement(Instant::now()).as_ref());
        }
        let dropped = self.dropped();
        let Some(ended) = &self.ended else { return Ok(()) };
        // A disk that is full for a while must not turn an end that was seen into a loss.
        // The starter may see the end, and move the directory away, before this call returns.
        while record(self.dir, &ended.record(true, dropped)).is_err() && self.dir.path().exists() {
            std::thread::sleep(RECORD_RETRY);
        }
        Ok(())
    }

    fn dropped(&self) -> u64 {
        self.output.dropped()
    }
}

impl Ended {
    fn record(&self, released: bool, dropped_output: u64) -> Exit {
        let exit = self.exit.clone().into();
        Exit { exit, released, ran_ms: self.ran.0, dropped_output }
    }
}
