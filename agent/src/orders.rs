//! What has been asked of the starter on this connection, so that nothing is asked twice.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{Save, TaskId};
use tidegate_proto::link::{Launch, Stop};
use tokio::sync::mpsc;

use crate::permits::PermitRecord;
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
    /// Asked again after [`Orders::retry`].
    Refused(TaskId, String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Start,
    /// By the request's id: two with the same are the same.
    Save(u64),
    Permit,
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
    /// The last thing asked of each task.
    asked: BTreeMap<TaskId, Asked>,
    /// The last answer handed on to each task's job.
    permits: BTreeMap<TaskId, PermitRecord>,
    /// What was asked of these cannot be done now.
    refused: BTreeSet<TaskId>,
    /// Likewise of their permits.
    permits_refused: BTreeSet<TaskId>,
}

impl Orders {
    pub(crate) fn over(outbox: mpsc::Sender<Request>) -> Self {
        Self {
            outbox,
            last_id: 0,
            open: BTreeMap::new(),
            asked: BTreeMap::new(),
            permits: BTreeMap::new(),
            refused: BTreeSet::new(),
            permits_refused: BTreeSet::new(),
        }
    }

    /// Whether the starter has been handed the start now.
    pub(crate) fn start(&mut self, task: TaskId, launch: Launch) -> bool {
        self.ask(task, Asked::Start, || Verb::Start { task, launch: Box::new(launch.into()) })
    }

    /// Whether it is news to the starter.
    pub(crate) fn save(&mut self, task: TaskId, save: Save) -> bool {
        let asked = Asked::Save(save.request.0);
        self.ask(task, asked, || Verb::Save { task, save: save.into() })
    }

    /// Whether it is news to the starter.
    pub(crate) fn stop(&mut self, task: TaskId, stop: &Stop) -> bool {
        let (decision, grace_ms) = (stop.decision.0, stop.grace.0);
        let asked = Asked::Stop(decision, grace_ms);
        self.ask(task, asked, || Verb::Stop { task, decision, grace_ms })
    }

    /// Hands an answer on. What comes of it is told by the task's next status; if it is refused it
    /// is handed on again after [`Orders::retry`].
    pub(crate) fn permit(&mut self, task: TaskId, permit: &PermitRecord) {
        if self.permits.get(&task) == Some(permit) {
            return;
        }
        if self.send(task, Asked::Permit, Verb::Permit { task, permit: permit.clone() }) {
            self.permits.insert(task, permit.clone());
        }
    }

    pub(crate) fn forget(&mut self, task: TaskId) {
        self.permits.remove(&task);
        self.ask(task, Asked::Forget, || Verb::Forget { task });
    }

    pub(crate) fn answered(&mut self, id: u64, refused: Option<String>) -> Outcome {
        let Some((task, asked)) = self.open.remove(&id) else { return Outcome::Done };
        let over = asked == Asked::Start && refused.is_some()
            || asked == Asked::Forget && refused.is_none();
        if asked == Asked::Permit && refused.is_some() {
            self.permits_refused.insert(task);
        } else if over && self.asked.get(&task) == Some(&asked) {
            self.asked.remove(&task);
        } else if refused.is_some() {
            self.refused.insert(task);
        }
        match (asked, refused) {
            (Asked::Forget, None) => Outcome::Forgotten(task),
            (Asked::Start | Asked::Save(_) | Asked::Permit | Asked::Stop(..), None) => {
                Outcome::Done
            }
            (Asked::Start, Some(why)) => Outcome::StartRefused(task, why),
            (Asked::Save(_) | Asked::Permit | Asked::Stop(..) | Asked::Forget, Some(why)) => {
                Outcome::Refused(task, why)
            }
        }
    }

    /// Lets what was refused be asked once more. At the heartbeat's pace: what the starter cannot
    /// do now it cannot do a millisecond later.
    pub(crate) fn retry(&mut self) {
        for task in std::mem::take(&mut self.refused) {
            self.asked.remove(&task);
        }
        for task in std::mem::take(&mut self.permits_refused) {
            self.permits.remove(&task);
        }
    }

    fn ask(&mut self, task: TaskId, asked: Asked, verb: impl FnOnce() -> Verb) -> bool {
        if self.asked.get(&task) == Some(&asked) {
            return false;
        }
        let is_sent = self.send(task, asked, verb());
        if is_sent {
            self.asked.insert(task, asked);
        }
        is_sent
    }

    fn send(&mut self, task: TaskId, asked: Asked, verb: Verb) -> bool {
        let Ok(place) = self.outbox.try_reserve() else { return false };
        self.last_id = self.last_id.saturating_add(1);
        place.send(Request { id: self.last_id, verb });
        self.open.insert(self.last_id, (task, asked));
        true
    }
}
