//! The run of one rank: join, resume, step, save, stop.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::checkpoint::{Checkpoint, Encoded, Meanwhile, RunIdentity, Store};
use crate::cli::RunArgs;
use crate::group::Group;
use crate::job_socket::JobSocket;
use crate::model::{Model, Task};
use crate::place::Place;
use crate::rendezvous::{self, Joined};
use crate::result::{self, RunResult};
use crate::wire::{self, Contribution, Hello, Wish};
use crate::{output, signals};

/// What one checkpoint has besides ballast, about.
const CHECKPOINT_BYTES: u64 = 3100;

/// How often rank 0 tells where the run is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// How a rank leaves when nothing failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished,
    /// Asked to save, and has.
    Saved,
    /// Asked to stop, after a save if anything had been trained.
    Stopped,
    FailedOnPurpose,
}

struct Trainer<'a> {
    args: &'a RunArgs,
    place: &'a Place,
    run: RunIdentity,
    task: Task,
    group: Group,
    /// On rank 0, if the run has a checkpoint directory.
    store: Option<Store>,
    /// On rank 0, if there is one.
    socket: Option<JobSocket>,
    model: Model,
    step: u64,
    last_progress: Instant,
}

/// Trains as one rank of a gang.
///
/// # Errors
/// When a peer is lost, ranks disagree, or a checkpoint cannot be written or read.
pub(crate) fn run(args: &RunArgs, place: &Place) -> Result<Outcome> {
    let run = RunIdentity { seed: args.seed, world_size: place.world };
    let store = open_store(args, place)?;
    let start = match &store {
        Some(store) => find_start(store, run, args.steps)?,
        None => Start::from_scratch(run),
    };
    let hello = Hello {
        job: place.job.clone(),
        attempt: place.attempt,
        rank: place.rank,
        world: place.world,
        seed: args.seed,
        steps: args.steps,
        save_every: args.save_every,
    };
    let timeout = Duration::from_secs(args.join_timeout);
    let mut group = match rendezvous::join(&hello, &place.master, timeout)? {
        Joined::Group(group) => group,
        Joined::Stopped => return Ok(Outcome::Stopped),
    };
    let start = Start::decode(&group.broadcast(start.encode())?)?;
    let Start::Train { step, model } = start else { return Ok(Outcome::Finished) };
    if let Some(store) = &store {
        result::note_attempt(store, place.attempt, step)?;
    }
    let task = Task::new(args.seed);
    let socket = place.socket.as_deref().filter(|_| place.rank == 0);
    let socket = socket.and_then(JobSocket::open);
    let last_progress = Instant::now();
    Trainer { args, place, run, task, group, store, socket, model, step, last_progress }.train()
}

/// How a run that was asked to end early ends, and how that is called.
fn way_out(wish: Wish) -> Option<(Outcome, &'static str)> {
    match wish {
        Wish::GoOn => None,
        Wish::SaveAndLeave => Some((Outcome::Saved, "left")),
        Wish::SaveAndStop => Some((Outcome::Stopped, "stopped")),
    }
}

fn open_store(args: &RunArgs, place: &Place) -> Result<Option<Store>> {
    let directory = args.checkpoint_dir.as_deref().or(place.checkpoint_dir.as_deref());
    match directory {
        Some(directory) if place.rank == 0 && args.begin_anew => {
            let attempt = place.attempt.unwrap_or_default();
            Store::open(&directory.join(format!("attempt-{attempt}"))).map(Some)
        }
        Some(directory) if place.rank == 0 => Store::open(directory).map(Some),
        Some(_) | None => Ok(None),
    }
}

/// What rank 0 found, and all ranks do.
#[derive(Debug)]
enum Start {
    /// A result of at least as many steps is there already.
    Done,
    Train {
        step: u64,
        model: Model,
    },
}

impl Start {
    fn from_scratch(run: RunIdentity) -> Self {
        Self::Train { step: 0, model: Model::seeded(run.seed) }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Self::Train { step, model } = self {
            bytes.extend(step.to_le_bytes());
            wire::push_floats(&mut bytes, model.weights());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::Done);
        }
        let (step, weights) = bytes.split_first_chunk::<8>().context("short start")?;
        let model = Model::from_weights(wire::floats(weights)).context("wrong start")?;
        Ok(Self::Train { step: u64::from_le_bytes(*step), model })
    }
}

fn find_start(store: &Store, run: RunIdentity, steps: u64) -> Result<Start> {
    if let Some(result) = RunResult::read(store)?
        && result.step >= steps
    {
        result.run.ensure_same(run, "result.json")?;
        output::say(&result.line());
        return Ok(Start::Done);
    }
    let found = store.newest(run)?;
    for rejected in found.rejected {
        output::say(&format!("cannot use {rejected}"));
    }
    let Some(checkpoint) = found.newest else { return Ok(Start::from_scratch(run)) };
    output::say(&format!("resumed from step {}", checkpoint.step));
    Ok(Start::Train { step: checkpoint.step, model: checkpoint.model })
}

impl Trainer<'_> {
    fn train(&mut self) -> Result<Outcome> {
        if self.step >= self.args.steps {
            // Killed between the last checkpoint and the result.
            self.save(Wish::GoOn)?;
        }
        while self.step < self.args.steps {
            let began = Instant::now();
            let step = self.step + 1;
            if self.must_fail_at(step)? {
                return Ok(Outcome::FailedOnPurpose);
            }
            let gradient = self.task.gradient(&self.model, step, self.place.rank);
            let own = Contribution { step, wish: self.wish(), gradient };
            let not_before = began + Duration::from_millis(self.args.step_ms);
            let sum = self.group.all_reduce(own, not_before)?;
            self.model.descend(&sum.gradient, self.place.world);
            self.step = step;
            self.tell_progress(sum.gradient.mean_loss(self.place.world));
            if self.is_last() || self.is_due() || sum.wish != Wish::GoOn {
                self.save(sum.wish)?;
            }
            if let Some((outcome, left)) = way_out(sum.wish).filter(|_| !self.is_last()) {
                self.say(&format!("{left} at step {step} as asked"));
                return Ok(outcome);
            }
        }
        self.say(&result::final_line(
            self.step,
            self.task.evaluate(&self.model),
            self.model.digest(),
        ));
        Ok(Outcome::Finished)
    }

    fn wish(&mut self) -> Wish {
        if signals::stop_asked() {
            return Wish::SaveAndStop;
        }
        let by_socket = self.socket.as_mut().is_some_and(JobSocket::save_asked);
        // One look per step by one rank: no load on a shared file system.
        let by_file =
            || self.place.rank == 0 && self.place.preempt_file.as_deref().is_some_and(Path::exists);
        let is_asked = signals::save_asked() || by_socket || by_file();
        if is_asked && !self.args.ignore_save { Wish::SaveAndLeave } else { Wish::GoOn }
    }

    fn is_last(&self) -> bool {
        self.step >= self.args.steps
    }

    fn is_due(&self) -> bool {
        self.args.save_every > 0 && self.step.is_multiple_of(self.args.save_every)
    }

    /// All ranks leave this together, when rank 0 has made the checkpoint durable.
    fn save(&mut self, wish: Wish) -> Result<()> {
        // On all ranks, so that none waits for a silent one.
        std::thread::sleep(Duration::from_secs(self.args.save_seconds));
        let encoded = self.encoded()?;
        self.ask(wish);
        self.group.agree(self.model.digest())?;
        if let Some((store, encoded)) = self.store.as_ref().zip(encoded) {
            let name = store.save(encoded, &mut Permitted(self.socket.as_mut()))?;
            self.say(&format!("saved {name}"));
            if let Some(socket) = &mut self.socket {
                socket.commit(self.step, store.directory(), &name)?;
            }
            if self.is_last() {
                let loss = self.task.evaluate(&self.model);
                RunResult::write(store, self.run, self.step, (loss, self.model.digest()))?;
            }
        }
        self.group.broadcast(Vec::new())?;
        Ok(())
    }

    /// What rank 0 is to write.
    fn encoded(&self) -> Result<Option<Encoded>> {
        if self.store.is_none() {
            return Ok(None);
        }
        let (model, ballast) = (self.model.clone(), self.args.ballast);
        Checkpoint { run: self.run, step: self.step, model, ballast }.encode().map(Some)
    }

    /// Asks for a permit on rank 0, before any rank waits for another in the save itself.
    fn ask(&mut self, wish: Wish) {
        let asks = self.args.permits && self.store.is_some();
        let class = match wish {
            Wish::SaveAndLeave | Wish::SaveAndStop => "preemption",
            Wish::GoOn if self.is_last() => "final",
            Wish::GoOn => "periodic",
        };
        if let Some(socket) = self.socket.as_mut().filter(|_| asks) {
            socket.ask(CHECKPOINT_BYTES.saturating_add(self.args.ballast), class);
        }
    }

    fn must_fail_at(&self, step: u64) -> Result<bool> {
        if self.args.fail_at_step != Some(step) {
            return Ok(false);
        }
        let Some(once) = &self.args.fail_once else { return Ok(true) };
        // create_new: of several ranks that share the file, one fails.
        match OpenOptions::new().write(true).create_new(true).open(once) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).with_context(|| once.display().to_string()),
        }
    }

    fn tell_progress(&mut self, loss: f64) {
        if self.last_progress.elapsed() >= PROGRESS_EVERY {
            self.last_progress = Instant::now();
            self.say(&format!("step {}/{} loss {loss:.4}", self.step, self.args.steps));
        }
    }

    fn say(&self, line: &str) {
        if self.place.rank == 0 {
            output::say(line);
        }
    }
}

/// Writes at the rate of its permit, and gives that back when all bytes are written.
struct Permitted<'a>(Option<&'a mut JobSocket>);

impl Meanwhile for Permitted<'_> {
    fn rate(&mut self) -> Option<u64> {
        self.0.as_mut().and_then(|socket| socket.rate())
    }

    fn written(&mut self) {
        if let Some(socket) = &mut self.0 {
            socket.done();
        }
    }
}
