//! The rules: which actions follow from a plan and from what a node knows. Pure.
//!
//! Nothing is ever stopped because a plan is silent, and a task is started only while it is
//! prepared in the ledger and unknown to the starter: at most once.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{GpuUuid, Save, Span, TaskId, TaskSeen};
use tidegate_proto::link::{Launch, MAX_TASKS_PER_NODE, Order, Stop, TaskReport};

use crate::ledger::Ledger;
use crate::node::{TaskFacts, TaskStatus};
use crate::permits::PermitRecord;
use crate::since_boot::SinceBoot;

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Verify that the GPUs are free, find a port; then `Node::prepared` or
    /// `Node::prepare_refused`.
    Prepare {
        /// For whom.
        task: TaskId,
        /// Set aside by nobody else.
        gpus: Vec<GpuUuid>,
    },
    /// Hand the launch to the starter and say `Intended` at once.
    Start {
        /// Prepared, and unknown to the starter.
        task: TaskId,
        /// Boxed: most actions are small.
        launch: Box<Launch>,
    },
    /// Tell the starter to ask the task to save. Harmless if repeated: at most one signal per
    /// rank and request is its shim's promise.
    Save {
        /// A task that runs, and whose shim does not know of this request yet.
        task: TaskId,
        /// What is asked.
        save: Save,
    },
    /// Tell the starter the answer to an ask of the task's job. Harmless if repeated.
    Permit {
        /// A task that runs, and whose shim was told otherwise, or nothing.
        task: TaskId,
        /// The answer.
        permit: PermitRecord,
    },
    /// Tell the starter to end the task. Harmless if repeated.
    Stop {
        /// A task that the starter knows to be live.
        task: TaskId,
        /// How.
        stop: Stop,
    },
    /// Tell the starter to drop its record; then `Node::forgotten`.
    Forget {
        /// Ended and released.
        task: TaskId,
    },
}

/// What a node knows of its tasks.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// What it has promised.
    pub ledger: &'a Ledger,
    /// What the starter says.
    pub starter: &'a BTreeMap<TaskId, TaskFacts>,
}

/// What should be done now. `heard` is the last moment of which the coordinator has surely heard.
#[must_use]
pub fn reconcile(
    plan: &BTreeMap<TaskId, Order>,
    known: &Known<'_>,
    heard: Option<SinceBoot>,
) -> Vec<Action> {
    let mut held = known.held_gpus();
    let mut room = MAX_TASKS_PER_NODE.saturating_sub(known.tasks().len());
    let mut actions = Vec::new();
    for (&task, order) in plan {
        let facts = known.starter.get(&task);
        let status = facts.map(|facts| &facts.status);
        match order {
            Order::Prepare(gpus) => {
                let free = gpus.iter().all(|gpu| !held.contains(gpu));
                if known.is_unknown(task) && free && room > 0 {
                    held.extend(gpus);
                    room = room.saturating_sub(1);
                    actions.push(Action::Prepare { task, gpus: gpus.clone() });
                }
            }
            Order::Run(launch) => {
                if let Some(facts) = facts {
                    actions.extend(due_save(launch, facts).map(|save| Action::Save { task, save }));
                    let permit = due_permit(launch, facts, heard);
                    actions.extend(permit.map(|permit| Action::Permit { task, permit }));
                } else if known.ledger.prepared.contains_key(&task) {
                    actions.push(Action::Start { task, launch: launch.clone() });
                }
            }
            Order::Stop(stop) => {
                if matches!(status, Some(TaskStatus::Intended | TaskStatus::Running)) {
                    actions.push(Action::Stop { task, stop: stop.clone() });
                }
            }
            Order::Forget => {
                if status.is_some_and(TaskStatus::is_released) {
                    actions.push(Action::Forget { task });
                }
            }
        }
    }
    actions
}

/// The request to save that a running task's shim does not know of. One that is older than what it
/// knows is void: plans come in order, reports of the shim do not wait for them.
fn due_save(launch: &Launch, facts: &TaskFacts) -> Option<Save> {
    let knows = |save: &&Save| facts.save.as_ref().is_some_and(|seen| seen.request >= save.request);
    let save = launch.save.as_ref().filter(|save| !knows(save))?;
    (facts.status == TaskStatus::Running).then(|| save.clone())
}

/// The answer to a running task's open ask that its shim does not know.
fn due_permit(
    launch: &Launch,
    facts: &TaskFacts,
    heard: Option<SinceBoot>,
) -> Option<PermitRecord> {
    let ask = facts.ask.filter(|ask| !ask.done && facts.status == TaskStatus::Running)?;
    let answer = launch.permit.clone().filter(|answer| answer.ask() == ask.number)?;
    let permit = PermitRecord::of(answer, heard)?;
    facts.permit.as_ref().is_none_or(|told| permit.is_news_after(told)).then_some(permit)
}

impl<'a> Known<'a> {
    /// Every task that ledger or starter knows.
    #[must_use]
    pub fn tasks(&self) -> BTreeSet<TaskId> {
        let ledger = self.ledger.prepared.keys().chain(self.ledger.ended.keys());
        ledger.chain(self.starter.keys()).copied().collect()
    }

    /// All that is said of a task; none if nobody here knows it.
    #[must_use]
    pub fn report(&self, task: TaskId) -> Option<TaskReport> {
        let seen = self.seen(task)?;
        let facts = self.starter.get(&task);
        let save = facts.and_then(|facts| facts.save.clone());
        Some(TaskReport {
            seen,
            save,
            commit: facts.and_then(|facts| facts.commit.clone()),
            ask: facts.and_then(|facts| facts.ask).map(|ask| ask.seen()),
        })
    }

    /// How a task stands; none if nobody here knows it.
    #[must_use]
    pub fn seen(&self, task: TaskId) -> Option<TaskSeen> {
        if let Some(facts) = self.starter.get(&task) {
            return Some(match facts.status.clone() {
                TaskStatus::Intended => TaskSeen::Starting,
                TaskStatus::Running => TaskSeen::Running,
                TaskStatus::Ended { exit, released, ran } => {
                    let idle = self.ledger.idle.get(&task).copied();
                    let idle = idle.filter(|idle| idle.of > Span::ZERO);
                    TaskSeen::Ended { exit, released, ran, idle }
                }
            });
        }
        if let Some(ended) = self.ledger.ended.get(&task) {
            let ran: Span = ended.ran;
            let exit = ended.exit.clone();
            return Some(TaskSeen::Ended { exit, released: true, ran, idle: None });
        }
        self.ledger.prepared.get(&task).map(|prepared| TaskSeen::Prepared { port: prepared.port })
    }

    fn is_unknown(&self, task: TaskId) -> bool {
        self.seen(task).is_none()
    }

    /// GPUs set aside for tasks that are not yet released.
    fn held_gpus(&self) -> BTreeSet<&'a GpuUuid> {
        let released =
            |task| self.starter.get(task).is_some_and(|facts| facts.status.is_released());
        let held = self.ledger.prepared.iter().filter(|(task, _)| !released(task));
        held.flat_map(|(_, prepared)| &prepared.gpus).collect()
    }
}
