//! What has been asked of the starter on this connection, so that nothing is asked twice.

use std::collections::BTreeMap;

use tidegate_model::TaskId;
use tidegate_proto::link::{Launch, Stop};
use tokio::sync::mpsc;

use crate::starter::protocol::{Request, Verb};

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done, or a status will tell.
    Done,
    /// The starter has dropped the task's record.
    Forgotten(TaskId),
    /// Nothing of the start was recorded.
    StartRefused(TaskId, String),
    /// Asked again when it is next looked at.
    Refused(TaskId, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Start,
    Stop(u64, u64),
    Forget,
}

/// The asking side of one connection.
#[derive(Debug)]
pub(crate) struct Orders {
    outbox: mpsc::Sender<Request>,
    last_id: u64,
    /// Not answered yet.
    open: BTreeMap<u64, (TaskId, Asked)>,
    /// The last thing asked of each task, unless it was refused.
    asked: BTreeMap<TaskId, Asked>,
}

impl Orders {
    pub(crate) fn over(outbox: mpsc::Sender<Request>) -> Self {
        Self { outbox, last_id: 0, open: BTreeMap::new(), asked: BTreeMap::new() }
    }

    /// Whether the starter has been handed the start now.
    pub(crate) fn start(&mut self, task: TaskId, launch: Launch) -> bool {
        self.ask(task, Asked::Start, || Verb::Start { task, launch: Box::new(launch.into()) })
    }

    /// Whether it is news to the starter.
    pub(crate) fn stop(&mut self, task: TaskId, stop: &Stop) -> bool {
        let (decision, grace_ms) = (stop.decision.0, stop.grace.0);
        let asked = Asked::Stop(decision, grace_ms);
        self.ask(task, asked, || Verb::Stop { task, decision, grace_ms })
    }

    pub(crate) fn forget(&mut self, task: TaskId) {
        self.ask(task, Asked::Forget, || Verb::Forget { task });
    }

    pub(crate) fn answered(&mut self, id: u64, refused: Option<String>) -> Outcome {
        let Some((task, asked)) = self.open.remove(&id) else { return Outcome::Done };
        let over = refused.is_some() || asked == Asked::Forget;
        if over && self.asked.get(&task) == Some(&asked) {
            self.asked.remove(&task);
        }
        match (asked, refused) {
            (Asked::Forget, None) => Outcome::Forgotten(task),
            (Asked::Start | Asked::Stop(..), None) => Outcome::Done,
            (Asked::Start, Some(why)) => Outcome::StartRefused(task, why),
            (Asked::Stop(..) | Asked::Forget, Some(why)) => Outcome::Refused(task, why),
        }
    }

    fn ask(&mut self, task: TaskId, asked: Asked, verb: impl FnOnce() -> Verb) -> bool {
        if self.asked.get(&task) == Some(&asked) {
            return false;
        }
        let Ok(place) = self.outbox.try_reserve() else { return false };
        self.last_id = self.last_id.saturating_add(1);
        place.send(Request { id: self.last_id, verb: verb() });
        self.open.insert(self.last_id, (task, asked));
        self.asked.insert(task, asked);
        true
    }
}
