//! How simulated training processes save: some well, some late, some not at all, some only say so.

use tidegate_model::{
    Bytes, Commit, DecisionSeq, Save, SaveDelivery, SaveSeen, TaskExit, TaskId, WriteClass,
};

use super::world::{Happening, Place, World, short};

/// The exit code by which a job says that it saved.
pub(super) const SAVED: u8 = 85;

/// What the processes of an attempt do when they are asked to save. A gang does it as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// It commits and leaves with the code it declared.
    Saves,
    /// It commits and trains on until it is stopped.
    Stays,
    /// It leaves as if it had saved.
    SaysSo,
    /// It leaves with 0 and has committed nothing.
    Quits,
    /// It does not listen.
    Ignores,
}

/// Recipes: the jobs of those that are not named here pass a rehearsal, if nothing befalls it.
pub(super) const RECIPES: u64 = 7;

/// It stays when it has saved, unless it dies of something else.
const STAYS: u64 = 4;

/// It begins again from its first step, whatever it has saved.
pub(super) const BEGINS_AGAIN: u64 = 5;

/// It saves nothing, ever.
pub(super) const SAVES_NOTHING: u64 = 6;

fn habit(task: TaskId, rehearsed: Option<u64>) -> Habit {
    match rehearsed {
        Some(STAYS) => return Habit::Stays,
        Some(SAVES_NOTHING) => return Habit::Quits,
        Some(_) => return Habit::Saves,
        None => {}
    }
    let mark = task.attempt.job.0.wrapping_mul(31).wrapping_add(task.attempt.number.into()) % 10;
    match mark {
        0..=5 => Habit::Saves,
        6 => Habit::Stays,
        7 => Habit::SaysSo,
        8 => Habit::Quits,
        _ => Habit::Ignores,
    }
}

impl World {
    /// Shims pass requests to save on: once, for the intent is durable before the signal.
    pub(super) fn ask_to_save(
        &mut self,
        index: usize,
        task: TaskId,
        save: &Save,
    ) -> Result<(), String> {
        let request = save.request;
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        let boot = node.boot;
        let known = node.starter.save_of(task).is_some_and(|known| known >= request);
        if known || !node.starter.is_up() || !self.truth.is_alive(task) {
            return Ok(());
        }
        let interrupted = self.rng.u8(..) < 8;
        let delivery = if interrupted {
            SaveDelivery::MaybeSent
        } else {
            SaveDelivery::Signalled { ranks: 1 }
        };
        if !interrupted {
            self.truth.asked_to_save(task, request)?;
            self.answer_save(index, task, boot, request);
        }
        self.note(index, task, boot, |facts| facts.save = Some(SaveSeen { request, delivery }))
    }

    fn answer_save(&mut self, index: usize, task: TaskId, boot: u64, request: DecisionSeq) {
        let delay = self.rng.u64(50..3000);
        let job = self.coordinator.watch().job(task.attempt);
        let habit = self.habit(task);
        // One rank speaks for the gang.
        if task.index == 0 && matches!(habit, Habit::Saves | Habit::Stays) {
            let request = Some(request);
            if let Some(job) = job.filter(|job| job.asks) {
                let delay = job.asks_within.map_or(delay, |within| within.0.min(delay));
                let (place, class) = (Place { node: index, task, boot }, WriteClass::Preemption);
                return self.after(delay, Happening::Asks { place, class, request });
            }
            self.after(delay, Happening::Commits { node: index, task, boot, request });
        }
        let code = match habit {
            Habit::Saves | Habit::SaysSo => SAVED,
            Habit::Quits => 0,
            Habit::Stays | Habit::Ignores => return,
        };
        let leaves = delay.saturating_add(1).saturating_add(short(&mut self.rng));
        let exit = TaskExit::Exited(code);
        self.after(leaves, Happening::Exits { node: index, task, boot, exit });
    }

    /// Which recipe a task's rehearsal is of; none if it is no rehearsal.
    pub(super) fn rehearsed(&self, task: TaskId) -> Option<u64> {
        self.coordinator.watch().job(task.attempt)?.rehearses
    }

    fn habit(&self, task: TaskId) -> Habit {
        habit(task, self.rehearsed(task))
    }

    /// Whether it ends by itself once it has saved as asked.
    pub(super) fn leaves_when_saved(&self, task: TaskId) -> bool {
        self.habit(task) == Habit::Saves
    }

    /// A checkpoint is complete.
    pub(super) fn commits(
        &mut self,
        index: usize,
        task: TaskId,
        boot: u64,
        request: Option<DecisionSeq>,
    ) -> Result<(), String> {
        if !self.truth.is_alive(task) {
            return Ok(());
        }
        let rehearsed = self.rehearsed(task);
        if rehearsed == Some(SAVES_NOTHING) {
            return Ok(());
        }
        let step = if rehearsed == Some(BEGINS_AGAIN) {
            self.truth.next_step_of(task.attempt)
        } else {
            let more = self.rng.u64(2..=5);
            self.truth.next_step(task.attempt.job, more)
        };
        let path = format!("/checkpoints/{}/{step}", task.attempt.job);
        let commit = Commit { step, path, bytes: Bytes(1 << 30), request };
        self.note(index, task, boot, |facts| facts.commit = Some(commit))
    }
}
