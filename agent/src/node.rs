//! What one node knows and what follows from it: its ledger, the coordinator's plan and the
//! starter's list of tasks. Pure: no IO, no clock.
//!
//! What is not here: how a plan arrives (`link`), how an action is done (`shell`), and the rules
//! that lead from plan and knowledge to actions ([`crate::reconcile`]).

use std::collections::BTreeMap;
use std::time::Instant;

use thiserror::Error;
use tidegate_model::{
    ClusterId, Commit, Epoch, Generation, GpuUuid, SaveSeen, Span, TaskExit, TaskId, TaskSeen,
};
use tidegate_proto::link::{MAX_TASKS_PER_NODE, NodePlan, Order, TaskReport};

use crate::idle::Idleness;
use crate::ledger::{EndedHere, Ledger, Prepared};
use crate::permits::{AskRecord, PermitRecord};
pub use crate::reconcile::Action;
use crate::reconcile::{Known, reconcile};
use crate::record::cut;
use crate::since_boot::SinceBoot;

/// What the starter says of a task it knows. Absent = the starter knows nothing of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskStatus {
    /// Its start is durable; its process is not yet seen.
    Intended,
    /// Its process runs.
    Running,
    /// Its process has ended.
    Ended {
        /// How.
        exit: TaskExit,
        /// No process of it is left.
        released: bool,
        /// How long it ran, by the node's monotonic clock.
        ran: Span,
    },
}

impl TaskStatus {
    /// Whether nothing of the task is left.
    #[must_use]
    pub fn is_released(&self) -> bool {
        matches!(self, Self::Ended { released: true, .. })
    }
}

/// All that the starter says of a task it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskFacts {
    /// How it stands.
    pub status: TaskStatus,
    /// How far the newest request to save came; none if its shim knows of none.
    pub save: Option<SaveSeen>,
    /// Its newest checkpoint.
    pub commit: Option<Commit>,
    /// Its job's newest ask for a permit to write.
    pub ask: Option<AskRecord>,
    /// What its shim was told last of an ask.
    pub permit: Option<PermitRecord>,
}

impl From<TaskStatus> for TaskFacts {
    /// Of a task that was not asked to save, has committed nothing and asks nothing.
    fn from(status: TaskStatus) -> Self {
        Self { status, save: None, commit: None, ask: None, permit: None }
    }
}

/// Why a coordinator is not obeyed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("this node obeys cluster {obeyed}; cluster {offered} answered")]
pub struct LinkRefused {
    /// The cluster of the ledger.
    pub obeyed: ClusterId,
    /// The cluster that spoke.
    pub offered: ClusterId,
}

/// Why a plan changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanRefused {
    /// It speaks for a cluster that this node has not enrolled with.
    #[error("the plan is of cluster {offered}, which this node does not obey")]
    OtherCluster {
        /// The plan's cluster.
        offered: ClusterId,
    },
    /// A newer leadership has been accepted.
    #[error("the plan is of leadership {offered}; {accepted} has been accepted")]
    OlderEpoch {
        /// The plan's.
        offered: Epoch,
        /// The ledger's.
        accepted: Epoch,
    },
    /// A newer plan of the same leadership has been accepted.
    #[error("the plan is generation {offered}; {accepted} has been accepted")]
    OlderGeneration {
        /// The plan's.
        offered: Generation,
        /// The ledger's.
        accepted: Generation,
    },
}

/// One node: ledger, current plan and the starter's list.
///
/// After every change, [`Node::ledger`] must be durable before an action is done or a report is
/// sent, unless [`Ledger::needs_write`] says that it can wait.
#[derive(Debug, Clone)]
pub struct Node {
    ledger: Ledger,
    /// Empty until a plan arrives: after a restart nothing is done before that.
    plan: BTreeMap<TaskId, Order>,
    /// None until the starter has been heard: "it has no record" is a fact only then.
    starter: Option<BTreeMap<TaskId, TaskFacts>>,
    /// The last moment of which the coordinator has surely heard; permits hold from then on.
    heard: Option<SinceBoot>,
}

impl Node {
    /// The node as it is when the agent starts, under the kernel's boot `boot_id`.
    ///
    /// What was prepared under another boot is void: the coordinator calls it lost when it hears
    /// of the new boot, and a plan that it had sent before that must not start it.
    #[must_use]
    pub fn restore(ledger: Ledger, boot_id: &str) -> Self {
        let mut node = Self { ledger, plan: BTreeMap::new(), starter: None, heard: None };
        if node.ledger.boot_id != boot_id {
            let void: Vec<_> = node.ledger.prepared.keys().copied().collect();
            for task in void {
                node.end_unstarted(task, "its node rebooted before it was started".to_owned());
            }
            boot_id.clone_into(&mut node.ledger.boot_id);
        }
        node
    }

    /// What must be durable.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether the starter's list is known. Before that nothing is started, stopped or reported.
    #[must_use]
    pub fn starter_heard(&self) -> bool {
        self.starter.is_some()
    }

    /// A coordinator has welcomed us: the first one enrols this node.
    ///
    /// # Errors
    /// It is not of the cluster that this node obeys. Nothing has changed.
    pub fn welcomed(&mut self, cluster: ClusterId) -> Result<(), LinkRefused> {
        match self.ledger.cluster {
            Some(obeyed) if obeyed != cluster => Err(LinkRefused { obeyed, offered: cluster }),
            _ => {
                self.ledger.cluster = Some(cluster);
                Ok(())
            }
        }
    }

    /// Takes the coordinator's plan. One with an equal epoch and generation is harmless.
    ///
    /// # Errors
    /// It is of another cluster or older than one that was accepted. Nothing has changed.
    pub fn accept_plan(&mut self, plan: NodePlan) -> Result<(), PlanRefused> {
        let NodePlan { cluster, epoch, generation, tasks } = plan;
        if self.ledger.cluster != Some(cluster) {
            return Err(PlanRefused::OtherCluster { offered: cluster });
        }
        if epoch < self.ledger.epoch {
            let accepted = self.ledger.epoch;
            return Err(PlanRefused::OlderEpoch { offered: epoch, accepted });
        }
        if epoch == self.ledger.epoch && generation < self.ledger.generation {
            let accepted = self.ledger.generation;
            return Err(PlanRefused::OlderGeneration { offered: generation, accepted });
        }
        self.ledger.epoch = epoch;
        self.ledger.generation = generation;
        self.plan = tasks;
        self.settle();
        Ok(())
    }

    /// The starter's whole list, after (re)connecting to it.
    pub fn starter_knows(&mut self, all: BTreeMap<TaskId, TaskFacts>) {
        for (task, before) in self.starter.take().unwrap_or_default() {
            if !all.contains_key(&task) {
                self.record_vanished(task, before.status);
            }
        }
        self.starter = Some(all);
        self.settle();
    }

    /// What the starter says of one task now.
    ///
    /// Say `Intended` at the moment an [`Action::Start`] is handed to the starter: from then on
    /// the task may be starting, whatever the next plan says.
    pub fn status_changed(&mut self, task: TaskId, facts: TaskFacts) {
        // Before the whole list is known one task's status would read as "it knows only this".
        if let Some(starter) = &mut self.starter {
            starter.insert(task, facts);
        }
        self.settle();
    }

    /// What should be done now. Pure; the same until its results are fed back.
    #[must_use]
    pub fn actions(&self) -> Vec<Action> {
        let Some(starter) = &self.starter else { return Vec::new() };
        reconcile(&self.plan, &Known { ledger: &self.ledger, starter }, self.heard)
    }

    /// The coordinator has heard what this node said at that moment.
    pub fn was_heard(&mut self, at: SinceBoot) {
        self.heard = self.heard.max(Some(at));
    }

    /// Asks that are not over, and since when: a report's other words do not change with time.
    #[must_use]
    pub fn open_asks(&self) -> BTreeMap<TaskId, SinceBoot> {
        let asks = self.starter.iter().flatten().filter_map(|(task, facts)| {
            let ask = facts.ask.filter(|ask| !ask.done)?;
            Some((*task, ask.asked_ms))
        });
        asks.collect()
    }

    /// Whether the plan still wants the task prepared: finding out takes a while.
    #[must_use]
    pub fn is_to_prepare(&self, task: TaskId) -> bool {
        matches!(self.plan.get(&task), Some(Order::Prepare(_)))
    }

    /// The task's GPUs are verified free and set aside, and it has a port.
    pub fn prepared(&mut self, task: TaskId, gpus: Vec<GpuUuid>, port: u16) {
        if !self.ledger.ended.contains_key(&task) {
            self.ledger.prepared.insert(task, Prepared { gpus, port });
        }
        self.settle();
    }

    /// The task cannot be prepared: it ends without having started.
    pub fn prepare_refused(&mut self, task: TaskId, why: String) {
        self.end_unstarted(task, why);
        self.settle();
    }

    /// The starter cannot even record the task's start: it ends without having started.
    pub fn start_refused(&mut self, task: TaskId, why: String) {
        if let Some(starter) = &mut self.starter {
            starter.remove(&task);
        }
        self.prepare_refused(task, why);
    }

    /// The starter has dropped its record. Reported Gone until the plan no longer names it.
    pub fn forgotten(&mut self, task: TaskId) {
        if let Some(starter) = &mut self.starter {
            starter.remove(&task);
        }
        self.ledger.prepared.remove(&task);
        self.ledger.ended.remove(&task);
        self.ledger.idle.remove(&task);
    }

    /// Takes a sample of how busy GPUs are, in percent.
    pub fn sample(&mut self, idleness: &mut Idleness, now: Instant, busy: &BTreeMap<GpuUuid, u32>) {
        let Some(starter) = &self.starter else { return };
        let Ledger { prepared, idle, .. } = &mut self.ledger;
        let running = starter.iter().filter(|(_, facts)| facts.status == TaskStatus::Running);
        let running = running.filter_map(|(task, _)| Some((*task, &*prepared.get(task)?.gpus)));
        idleness.sample(now, busy, running, idle);
        idle.retain(|task, _| prepared.contains_key(task));
    }

    /// Tasks that run.
    #[must_use]
    pub fn running(&self) -> Vec<TaskId> {
        let starter = self.starter.iter().flatten();
        let running = starter.filter(|(_, facts)| facts.status == TaskStatus::Running);
        running.map(|(task, _)| *task).collect()
    }

    /// GPUs of tasks that run: those a sample is of.
    #[must_use]
    pub fn used_gpus(&self) -> Vec<GpuUuid> {
        let starter = self.starter.iter().flatten();
        let running = starter.filter(|(_, facts)| facts.status == TaskStatus::Running);
        let prepared = running.filter_map(|(task, _)| self.ledger.prepared.get(task));
        prepared.flat_map(|prepared| prepared.gpus.iter().cloned()).collect()
    }

    /// All tasks this node knows or is asked about, as a report says them; at most
    /// [`MAX_TASKS_PER_NODE`]. Empty until the starter has been heard: no complete report can be
    /// made before that.
    #[must_use]
    pub fn report(&self) -> BTreeMap<TaskId, TaskReport> {
        let Some(starter) = &self.starter else { return BTreeMap::new() };
        let known = Known { ledger: &self.ledger, starter };
        let line = |task| Some((task, known.report(task)?));
        let mut report: BTreeMap<_, _> = known.tasks().into_iter().filter_map(line).collect();
        for (task, order) in &self.plan {
            if report.len() >= MAX_TASKS_PER_NODE {
                break;
            }
            if let Some(absent) = absent(order) {
                report.entry(*task).or_insert_with(|| absent.into());
            }
        }
        report
    }

    /// What plan and knowledge imply for the ledger itself.
    fn settle(&mut self) {
        let Some(starter) = &self.starter else { return };
        let mut unstarted = Vec::new();
        let mut dropped = Vec::new();
        for (task, order) in &self.plan {
            let Some(prepared) = self.ledger.prepared.get(task) else {
                if matches!(order, Order::Forget) {
                    dropped.push(*task);
                }
                continue;
            };
            let status = starter.get(task).map(|facts| &facts.status);
            match order {
                Order::Stop(_) if status.is_none() => {
                    unstarted.push((*task, "stopped before it was started"));
                }
                // Only the GPUs that were verified are the task's.
                Order::Run(launch)
                    if status.is_none()
                        && !launch.gpus.iter().all(|g| prepared.gpus.contains(g)) =>
                {
                    unstarted
                        .push((*task, "ordered to run on GPUs that were not set aside for it"));
                }
                // The entry goes before the starter's record does: in between, and after a crash
                // there, the task is one that cannot be started.
                Order::Forget if status.is_none_or(TaskStatus::is_released) => dropped.push(*task),
                Order::Prepare(_) | Order::Run(_) | Order::Stop(_) | Order::Forget => {}
            }
        }
        for (task, why) in unstarted {
            self.end_unstarted(task, why.to_owned());
        }
        for task in dropped {
            self.ledger.prepared.remove(&task);
            self.ledger.ended.remove(&task);
            self.ledger.idle.remove(&task);
        }
    }

    fn end_unstarted(&mut self, task: TaskId, why: String) {
        self.ledger.prepared.remove(&task);
        let exit = TaskExit::NeverStarted(cut(why));
        self.ledger.ended.insert(task, EndedHere { exit, ran: Span::ZERO });
    }

    /// A record that the starter had is not in its list any more.
    fn record_vanished(&mut self, task: TaskId, before: TaskStatus) {
        if matches!(self.plan.get(&task), Some(Order::Forget)) {
            return;
        }
        let ended = match before {
            // Handed over, but the starter died before it was durable: it was not started, and
            // the starter drops what an older connection left unread.
            TaskStatus::Intended => return,
            TaskStatus::Running => {
                let exit = TaskExit::Lost("the starter has no record of it any more".to_owned());
                EndedHere { exit, ran: Span::ZERO }
            }
            TaskStatus::Ended { exit, released: _, ran } => EndedHere { exit, ran },
        };
        self.ledger.prepared.remove(&task);
        self.ledger.ended.insert(task, ended);
    }
}

/// What is said of a task that an order names and nobody here knows.
fn absent(order: &Order) -> Option<TaskSeen> {
    match order {
        Order::Prepare(_) => None,
        Order::Run(_) | Order::Stop(_) => Some(TaskSeen::Missing),
        Order::Forget => Some(TaskSeen::Gone),
    }
}
