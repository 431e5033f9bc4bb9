//! Every task the starter knows, and what becomes of it. What its shim is told is in `tell`.

mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use rustix::process::Signal;
use tidegate_model::{Span, TaskExit, TaskId};
use tidegate_proto::link::MAX_TASKS_PER_NODE;
use tracing::{error, info, warn};

use self::tell::signal;
use super::adopt::{Found, abandoned, bar_shims, exit_of, look};
use super::kept_logs::KeptLogs;
use super::protocol::{StatusRecord, TaskLine};
use super::spawn::Spawner;
use super::sweep::Sweep;
use super::told::Told;
use super::watch::Watch;
use crate::durable;
use crate::procs::{ProcessId, Procs};
use crate::task_dir::{Exit, LaunchRecord, State, TaskDir, bytes_of, load};

pub(super) struct Tasks {
    root: PathBuf,
    procs: Procs,
    spawner: Spawner,
    watch: Watch,
    logs: KeptLogs,
    known: BTreeMap<TaskId, Task>,
    /// Whose status has not been told yet.
    changed: BTreeSet<TaskId>,
}

struct Task {
    dir: TaskDir,
    phase: Phase,
    told: Told,
}

enum Phase {
    /// Its shim is alive.
    Live(Live),
    /// Its shim is dead; what is left of it is being cleared away.
    Swept(Sweep),
    /// It has ended and nothing of it is left.
    Ended(Exit),
}

struct Live {
    shim: OwnedFd,
    /// None until the task's program has been executed.
    main: Option<ProcessId>,
    /// Its end, while something of it is left.
    exit: Option<Exit>,
}

impl Tasks {
    /// Takes over every task that an earlier starter has left.
    pub(super) fn adopt(
        root: PathBuf,
        procs: Procs,
        spawner: Spawner,
        logs: KeptLogs,
    ) -> io::Result<Self> {
        durable::create_private_dir(&root)?;
        let (known, changed) = (BTreeMap::new(), BTreeSet::new());
        let watch = Watch::new()?;
        let mut tasks = Self { root, procs, spawner, watch, logs, known, changed };
        for entry in std::fs::read_dir(&tasks.root)? {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            match name.parse::<TaskId>() {
                Ok(task) => tasks.adopt_one(task)?,
                Err(why) => warn!(%why, "not a task's directory; left alone"),
            }
        }
        Ok(tasks)
    }

    pub(super) fn list(&mut self) -> Vec<TaskLine> {
        self.changed.clear();
        self.known.iter().map(|(task, known)| line(*task, known)).collect()
    }

    /// What has changed since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<TaskLine> {
        let changed = std::mem::take(&mut self.changed);
        let lines = changed.iter().filter_map(|task| Some(line(*task, self.known.get(task)?)));
        lines.collect()
    }

    /// Starts a task unless it is known. An error is why nothing of it was recorded.
    pub(super) fn start(&mut self, task: TaskId, launch: LaunchRecord) -> Result<(), String> {
        if self.known.contains_key(&task) {
            return Ok(());
        }
        if self.known.len() >= MAX_TASKS_PER_NODE {
            return Err(format!("{MAX_TASKS_PER_NODE} tasks are known, the most there can be"));
        }
        let dir = TaskDir::of(&self.root, task);
        self.spawner.record(&dir, task, launch)?;
        let phase = self.spawn(task, &dir);
        let told = Told::read(task, &dir);
        self.known.insert(task, Task { dir, phase, told });
        self.changed.insert(task);
        Ok(())
    }

    /// Spawns a shim for a recorded intent.
    fn spawn(&mut self, task: TaskId, dir: &TaskDir) -> Phase {
        let watched = self.watch.add(task, dir.path()).map_err(io::Error::from);
        match watched.and_then(|()| self.spawner.spawn(dir)) {
            Ok(shim) => {
                info!(%task, "started its shim");
                Phase::Live(Live { shim, main: None, exit: None })
            }
            Err(why) => {
                warn!(%task, %why, "its shim cannot be started");
                self.watch.remove(task);
                let exit = TaskExit::NeverStarted(format!("its shim cannot be started: {why}"));
                Phase::Swept(Sweep::new(exit, Span::ZERO, None))
            }
        }
    }

    /// Drops the record of a task of which nothing is left, but for its output. Unknown ones are forgotten already.
    pub(super) fn forget(&mut self, task: TaskId) -> Result<(), String> {
        let Some(known) = self.known.get(&task) else { return Ok(()) };
        let Phase::Ended(_) = known.phase else {
            return Err(format!("something of {task} is left; stop it first"));
        };
        let taken = self.logs.take(task, known.dir.path());
        taken.map_err(|why| format!("its directory cannot be moved: {why}"))?;
        self.known.remove(&task);
        self.changed.remove(&task);
        info!(%task, "forgotten");
        Ok(())
    }

    pub(super) fn watch_fd(&self) -> BorrowedFd<'_> {
        self.watch.fd()
    }

    /// Each becomes readable when that task's shim has ended.
    pub(super) fn shims(&self) -> impl Iterator<Item = (TaskId, BorrowedFd<'_>)> {
        self.known.iter().filter_map(|(task, known)| match &known.phase {
            Phase::Live(live) => Some((*task, live.shim.as_fd())),
            Phase::Swept(_) | Phase::Ended(_) => None,
        })
    }

    /// Shims have written into their tasks' directories.
    pub(super) fn records_changed(&mut self) -> io::Result<()> {
        for task in self.watch.changed()? {
            self.refresh(task);
        }
        Ok(())
    }

    /// A task's shim has ended: either it has finished its work, or what is left is ours.
    pub(super) fn shim_ended(&mut self, task: TaskId) -> io::Result<()> {
        self.refresh(task);
        let Some(known) = self.known.get_mut(&task) else { return Ok(()) };
        let Phase::Live(live) = &mut known.phase else { return Ok(()) };
        if let Found::Alive { shim } = look(&known.dir, &self.procs, self.spawner.boot_id())? {
            // One that an earlier starter had spawned was first; this one gave way to it.
            live.shim = shim;
            return Ok(());
        }
        warn!(%task, "its shim died");
        let sweep = abandoned(&known.dir, &self.procs, live.exit.clone())?;
        known.phase = Phase::Swept(sweep);
        self.watch.remove(task);
        self.changed.insert(task);
        Ok(())
    }

    /// When something is to be cleared away next.
    pub(super) fn next_sweep(&self) -> Option<Instant> {
        let due = self.known.values().filter_map(|known| match &known.phase {
            Phase::Swept(sweep) => Some(sweep.due),
            Phase::Live(_) | Phase::Ended(_) => None,
        });
        due.min()
    }

    /// Clears away what is due.
    pub(super) fn sweep(&mut self, now: Instant) {
        let mut alive = Vec::new();
        for (task, known) in &mut self.known {
            let Phase::Swept(sweep) = &mut known.phase else { continue };
            if sweep.due > now {
                continue;
            }
            match step(&self.procs, *task, &known.dir, sweep) {
                Ok(Step::Clear(exit)) => {
                    info!(%task, end = %TaskExit::from(exit.exit.clone()), "cleared away");
                    known.phase = Phase::Ended(exit);
                    self.changed.insert(*task);
                }
                Ok(Step::NotYet) => {}
                Ok(Step::ShimIsAlive) => alive.push(*task),
                Err(why) => {
                    sweep.postpone();
                    error!(%task, %why, "cannot be cleared away yet");
                }
            }
        }
        for task in alive {
            if let Err(why) = self.adopt_one(task) {
                error!(%task, %why, "cannot be adopted");
            }
        }
    }

    fn adopt_one(&mut self, task: TaskId) -> io::Result<()> {
        let dir = TaskDir::of(&self.root, task);
        let phase = match look(&dir, &self.procs, self.spawner.boot_id())? {
            Found::Alive { shim } => {
                self.watch.add(task, dir.path())?;
                // The order may have been written just before the last starter died.
                if dir.stop().exists() || dir.save().exists() || dir.permit().exists() {
                    signal(&shim, Signal::TERM)
                        .unwrap_or_else(|why| warn!(%task, %why, "its shim"));
                }
                info!(%task, "adopted");
                Phase::Live(Live { shim, main: None, exit: None })
            }
            Found::Abandoned(sweep) => Phase::Swept(sweep),
            Found::Rebooted => {
                let exit = TaskExit::Lost("its node rebooted".to_owned());
                let exit = Exit::released(exit, Span::ZERO);
                durable::replace(&dir.exit(), &bytes_of(&exit)?)?;
                Phase::Ended(exit)
            }
            Found::Blank => return std::fs::remove_dir_all(dir.path()),
            Found::Unbegun => {
                info!(%task, "its start was interrupted; goes on");
                self.spawn(task, &dir)
            }
            Found::Ended(exit) => Phase::Ended(exit),
        };
        let told = Told::read(task, &dir);
        self.known.insert(task, Task { dir, phase, told });
        self.refresh(task);
        Ok(())
    }

    /// Reads what a task's shim has written.
    fn refresh(&mut self, task: TaskId) {
        let Some(known) = self.known.get_mut(&task) else { return };
        let Phase::Live(live) = &mut known.phase else { return };
        let told = Told::read(task, &known.dir);
        if told != known.told {
            known.told = told;
            self.changed.insert(task);
        }
        let exit = load::<Exit>(&known.dir.exit()).unwrap_or_else(|why| {
            warn!(%task, %why, "its end cannot be read");
            None
        });
        match exit {
            Some(exit) if exit.released => {
                info!(%task, end = %TaskExit::from(exit.exit.clone()), ran_ms = exit.ran_ms, "ended");
                known.phase = Phase::Ended(exit);
                self.watch.remove(task);
            }
            Some(exit) if live.exit.is_none() => {
                warn!(%task, "ended, but something of it is left");
                live.exit = Some(exit);
            }
            None if live.main.is_none() => {
                let state = load::<State>(&known.dir.state()).unwrap_or_else(|why| {
                    warn!(%task, %why, "its state cannot be read");
                    None
                });
                let Some(state) = state else { return };
                live.main = Some(state.main);
            }
            Some(_) | None => return,
        }
        self.changed.insert(task);
    }
}

/// What one look at an abandoned task has led to.
enum Step {
    /// Nothing of it is left, and its end is recorded.
    Clear(Exit),
    /// Something was found and killed.
    NotYet,
    /// An earlier starter had spawned a shim that began only now.
    ShimIsAlive,
}

/// Kills what is left of a task; if nothing is, records its end.
fn step(procs: &Procs, task: TaskId, dir: &TaskDir, sweep: &mut Sweep) -> io::Result<Step> {
    durable::create_private_dir(dir.path())?;
    let Some(_barred) = bar_shims(dir)? else { return Ok(Step::ShimIsAlive) };
    if let Some(exit) = exit_of(dir)?.filter(|exit| exit.released) {
        return Ok(Step::Clear(exit));
    }
    if !sweep.pass(procs, task, dir)? {
        return Ok(Step::NotYet);
    }
    let exit = Exit::released(sweep.exit.clone(), sweep.ran);
    durable::replace(&dir.exit(), &bytes_of(&exit)?)?;
    Ok(Step::Clear(exit))
}

fn line(task: TaskId, known: &Task) -> TaskLine {
    let ended = |exit: &Exit| StatusRecord::Ended {
        exit: exit.exit.clone(),
        released: exit.released,
        ran_ms: exit.ran_ms,
    };
    let status = match &known.phase {
        Phase::Live(Live { exit: Some(exit), .. }) | Phase::Ended(exit) => ended(exit),
        Phase::Live(Live { main: Some(_), .. }) => StatusRecord::Running,
        Phase::Live(_) => StatusRecord::Intended,
        Phase::Swept(sweep) => StatusRecord::Ended {
            exit: sweep.exit.clone().into(),
            released: false,
            ran_ms: sweep.ran.0,
        },
    };
    let is_alive = matches!(known.phase, Phase::Live(_));
    let something_is_left = !matches!(known.phase, Phase::Ended(_));
    TaskLine {
        task,
        status,
        save: known.told.save(is_alive),
        commit: known.told.commit.clone(),
        ask: known.told.ask(something_is_left),
        permit: known.told.permit.clone(),
    }
}
