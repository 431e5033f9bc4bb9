//! Asking the ranks to save: announced by file, and by a signal to each rank that has a handler
//! for it, at most once per rank and request.
//!
//! What is not here: the socket (`door`), and what follows if nobody saves. The coordinator keeps
//! the grace, and ends the task by a stop. If it is never heard of again, nothing happens: when
//! the grace is over no further rank is asked, and the task goes on for as long as it likes.
//! Absence never stops anything.

use std::time::{Duration, Instant};

use nix::unistd::Pid;
use rustix::process::{Signal, pidfd_send_signal};
use tidegate_model::{Save, SaveSignal, SaveTarget, TaskLayout};

use super::ranks::{Process, Rank, below, only_child, ranks};
use crate::durable;
use crate::job_protocol::Announcement;
use crate::procs::{Disposition, ProcessId, Procs};
use crate::saving::{AskedRecord, MAX_ASKED, SaveRecord, SavingRecord};
use crate::task_dir::{TaskDir, bytes_of, load};

/// Between two looks at ranks that have no handler yet: a program that has just started may take
/// minutes to its first step.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Programs that start one other and wait for it: shells, the first processes of containers. A rank
/// behind one is looked for below it.
const WRAPPERS: [&str; 9] =
    ["sh", "bash", "dash", "ash", "zsh", "ksh", "tini", "dumb-init", "unshare"];

/// No rank is behind more of them.
const WRAPPED: usize = 8;

/// The request to save that a task has been told of, if any.
pub(super) struct Asking {
    dir: TaskDir,
    procs: Procs,
    main: ProcessId,
    /// Of the task's first rank.
    rank: u32,
    layout: TaskLayout,
    asked: Option<Asked>,
}

struct Asked {
    save: Save,
    deadline: Instant,
    /// When to look at the ranks next; none when there is nothing left to do.
    next_look: Option<Instant>,
    record: SavingRecord,
    /// Whether the record's file holds it.
    is_written: bool,
}

impl Asking {
    pub(super) fn of(
        dir: &TaskDir,
        procs: Procs,
        main: ProcessId,
        (rank, layout): (u32, TaskLayout),
    ) -> Self {
        Self { dir: dir.clone(), procs, main, rank, layout, asked: None }
    }

    /// Reads what the starter has written. The announcement of a request that is news.
    pub(super) fn read(&mut self, now: Instant) -> Option<Announcement> {
        // One that cannot be read is none: the starter's next one replaces it.
        let record = load::<SaveRecord>(&self.dir.save()).ok().flatten()?;
        let save = Save::try_from(record).ok()?;
        let known = self.asked.as_ref().map(|asked| asked.save.request);
        if known.is_some_and(|known| known >= save.request) {
            return None;
        }
        let deadline = now.checked_add(Duration::from_millis(save.grace.0)).unwrap_or(now);
        // While an earlier request is under way a second signal could hit a save in progress.
        let under_way = self.asked.take().filter(|before| now < before.deadline);
        let record = SavingRecord {
            request: save.request.0,
            asked: under_way.map(|before| before.record.asked).unwrap_or_default(),
            unwilling: false,
        };
        let asked = Asked { save, deadline, next_look: Some(now), record, is_written: false };
        let announcement = asked.announcement(now);
        self.asked = Some(asked);
        // The file is one of three ways; with a full disk the others are left.
        if let Ok(bytes) = bytes_of(&announcement) {
            durable::publish(&self.dir.preempt_file(), &bytes).ok();
        }
        Some(announcement)
    }

    /// The newest request.
    pub(super) fn announcement(&self, now: Instant) -> Option<Announcement> {
        self.asked.as_ref().map(|asked| asked.announcement(now))
    }

    /// Until the next look; none if there is none.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        let due = self.asked.as_ref()?.next_look?;
        Some(due.saturating_duration_since(now))
    }

    /// The task is being stopped: from now on nobody is asked to save.
    pub(super) fn end(&mut self) {
        if let Some(asked) = &mut self.asked {
            asked.next_look = None;
        }
    }

    /// Signals the ranks that are willing by now, if it is time to look.
    pub(super) fn look(&mut self, now: Instant) {
        let Some(mut asked) = self.asked.take() else { return };
        if asked.next_look.is_some_and(|due| due <= now) {
            self.look_for(&mut asked, now);
        }
        self.asked = Some(asked);
    }

    fn look_for(&self, asked: &mut Asked, now: Instant) {
        let is_over = asked.deadline <= now;
        let signal = asked.save.signal.map(number).filter(|_| !is_over);
        let before = asked.record.clone();
        if let Some(signal) = signal {
            self.intend(&asked.save, &mut asked.record, signal);
        }
        asked.is_written &= asked.record == before;
        asked.write(&self.dir);
        if !asked.is_written {
            // Nobody is signalled without a durable intent.
            asked.record = before;
        } else if let Some(signal) = signal {
            asked.send(&self.procs, signal);
            asked.write(&self.dir);
        }
        let is_done = asked.is_written && (is_over || asked.save.signal.is_none());
        asked.next_look = if is_done { None } else { now.checked_add(LOOK_INTERVAL) };
    }

    /// Notes those that have a handler and were not signalled yet, and whether all ignore it.
    fn intend(&self, save: &Save, record: &mut SavingRecord, signal: Signal) {
        let targets = self.targets(save, signal);
        let does = |process: &ProcessId, wanted| {
            self.procs.disposition(process.pid, signal) == Some(wanted)
        };
        let ignored = targets.iter().filter(|process| does(process, Disposition::Ignored)).count();
        record.unwilling = ignored > 0 && ignored == targets.len();
        for process in targets {
            let is_known = record.asked.iter().any(|asked| asked.process == process);
            if !is_known && record.asked.len() < MAX_ASKED && does(&process, Disposition::Caught) {
                record.asked.push(AskedRecord { process, sent: false });
            }
        }
    }

    /// Who is to be signalled.
    fn targets(&self, save: &Save, signal: Signal) -> Vec<ProcessId> {
        if save.target == SaveTarget::Task {
            return vec![self.main];
        }
        // What cannot be read now is read at the next look.
        let processes = below(&self.procs, Pid::this().as_raw()).unwrap_or_default();
        let ranks = match self.layout {
            TaskLayout::PerGpu => Vec::new(),
            TaskLayout::PerNode => ranks(&processes),
        };
        let itself = || vec![Rank { rank: self.rank.to_string(), process: self.main }];
        let ranks = if ranks.is_empty() { itself() } else { ranks };
        let wanted = |rank: &Rank| save.target != SaveTarget::Rank0 || rank.rank == "0";
        let unwrapped = |rank: Rank| self.unwrapped(&processes, rank.process, signal);
        ranks.into_iter().filter(wanted).map(unwrapped).collect()
    }

    /// The process behind wrappers that have no handler of their own for the signal.
    fn unwrapped(&self, processes: &[Process], rank: ProcessId, signal: Signal) -> ProcessId {
        let inner = |outer: &ProcessId| {
            let name = self.procs.program(outer.pid)?;
            let is_wrapper = WRAPPERS.contains(&name.as_str())
                && self.procs.disposition(outer.pid, signal) != Some(Disposition::Caught);
            if is_wrapper { only_child(processes, *outer) } else { None }
        };
        std::iter::successors(Some(rank), inner).take(WRAPPED).last().unwrap_or(rank)
    }
}

impl Asked {
    fn announcement(&self, now: Instant) -> Announcement {
        Announcement {
            request: self.save.request.0,
            grace_s: self.save.grace.0.div_ceil(1000),
            left_s: self.deadline.saturating_duration_since(now).as_secs(),
            why: self.save.why.clone(),
        }
    }

    /// Makes the record durable, if it is not.
    fn write(&mut self, dir: &TaskDir) {
        if !self.is_written {
            let written =
                bytes_of(&self.record).and_then(|bytes| durable::replace(&dir.saving(), &bytes));
            // Written again at the next look.
            self.is_written = written.is_ok();
        }
    }

    /// Does what is intended. All in one loop: the ranks should hear of it in the same step.
    fn send(&mut self, procs: &Procs, signal: Signal) {
        for asked in self.record.asked.iter_mut().filter(|asked| !asked.sent) {
            asked.sent = is_signalled(procs, asked.process, signal);
            self.is_written = false;
        }
        // What was not sent, for sure, was not: it may be asked again.
        self.record.asked.retain(|asked| asked.sent);
    }
}

/// Through a pidfd, after another look at it: a handler that has gone since would mean death.
fn is_signalled(procs: &Procs, process: ProcessId, signal: Signal) -> bool {
    let Some(fd) = procs.open(process) else { return false };
    procs.disposition(process.pid, signal) == Some(Disposition::Caught)
        && pidfd_send_signal(fd, signal).is_ok()
}

fn number(signal: SaveSignal) -> Signal {
    match signal {
        SaveSignal::Term => Signal::TERM,
        SaveSignal::Usr1 => Signal::USR1,
        SaveSignal::Usr2 => Signal::USR2,
        SaveSignal::Hup => Signal::HUP,
        SaveSignal::Int => Signal::INT,
    }
}
