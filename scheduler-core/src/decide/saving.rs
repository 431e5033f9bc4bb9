//! How far saves come: for people, who want to know what took how long.

use tidegate_model::{SaveSeen, TaskId};

use crate::core::Turn;
use crate::decision::{Decision, SaveStep};
use crate::evolve::Broken;

/// A node says that the ranks of its task were asked.
pub(super) fn asked(turn: &mut Turn<'_>, task: TaskId, seen: &SaveSeen) -> Result<(), Broken> {
    let save = turn.books().attempt(task.attempt).and_then(|attempt| attempt.save);
    let news = save.is_some_and(|save| {
        save.decision == seen.request && save.said().is_some() && save.acknowledged.is_none()
    });
    note(turn, task, news, SaveStep::Acknowledged)
}

/// A node measured that the task writes.
pub(super) fn wrote(turn: &mut Turn<'_>, task: TaskId) -> Result<(), Broken> {
    let attempt = turn.books().attempt(task.attempt);
    let news = attempt.is_some_and(|attempt| attempt.awaits_first_byte());
    note(turn, task, news, SaveStep::FirstByte)
}

fn note(turn: &mut Turn<'_>, task: TaskId, news: bool, step: SaveStep) -> Result<(), Broken> {
    let attempt = task.attempt;
    if news { turn.take(Decision::SaveNoted { attempt, step }) } else { Ok(()) }
}

impl crate::books::Attempt {
    /// Whether it may save, and nobody has seen yet that it writes.
    #[must_use]
    pub fn awaits_first_byte(&self) -> bool {
        let save = self.save.filter(|save| save.said().is_some());
        self.is_live() && save.is_some_and(|save| save.first_byte.is_none())
    }
}
