//! What is true, whatever anybody believes: which processes live on which GPUs, what was promised
//! to whom. After every step beliefs are held against it.

use std::collections::{BTreeMap, BTreeSet};

use scheduler_core::{Core, JobOutcome, JobState, Recipe};
use tidegate_agent::ledger::Ledger;
use tidegate_model::{
    AttemptId, DecisionSeq, GpuUuid, JobId, NodeName, SubmitKey, TaskId, TaskSeen, Timestamp,
};
use tidegate_proto::link::TaskReport;

#[derive(Debug, Clone)]
struct Process {
    node: NodeName,
    gpus: Vec<GpuUuid>,
}

/// The truth, and what has been promised.
#[derive(Debug, Default)]
pub struct Truth {
    processes: BTreeMap<TaskId, Process>,
    /// Those of them that are alive: a run has thousands that are not.
    alive: BTreeSet<TaskId>,
    ended: BTreeMap<JobId, JobOutcome>,
    /// Jobs whose existence anybody may have heard of.
    published: BTreeSet<JobId>,
    /// Requests to save that reached a task's processes.
    asked: BTreeSet<(TaskId, DecisionSeq)>,
    /// The last step of each job.
    steps: BTreeMap<JobId, u64>,
    /// The last step of an attempt whose job begins again each time.
    own_steps: BTreeMap<AttemptId, u64>,
    /// What rehearsals have shown and anybody may have heard of.
    shown: BTreeMap<Recipe, (JobId, Timestamp)>,
    /// Tasks that a node has said are prepared, and not yet said anything else of.
    said_prepared: BTreeMap<NodeName, BTreeSet<TaskId>>,
}

impl Truth {
    pub(super) fn jobs_ended(&self) -> u64 {
        u64::try_from(self.ended.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn alive(&self) -> Vec<TaskId> {
        self.alive.iter().copied().collect()
    }

    pub(super) fn is_alive(&self, task: TaskId) -> bool {
        self.alive.contains(&task)
    }

    fn living(&self) -> impl Iterator<Item = (&TaskId, &Process)> {
        self.alive.iter().filter_map(|task| Some((task, self.processes.get(task)?)))
    }

    pub(super) fn has_begun(&self, task: TaskId) -> bool {
        self.processes.contains_key(&task)
    }

    pub(super) fn node_of(&self, task: TaskId) -> Option<NodeName> {
        self.processes.get(&task).map(|process| process.node.clone())
    }

    pub(super) fn alive_peers(&self, task: TaskId) -> Vec<(TaskId, NodeName)> {
        let peers =
            self.living().filter(|(peer, _)| peer.attempt == task.attempt && **peer != task);
        peers.map(|(peer, process)| (*peer, process.node.clone())).collect()
    }

    /// A request to save reaches the processes of a task: once.
    pub(super) fn asked_to_save(
        &mut self,
        task: TaskId,
        request: DecisionSeq,
    ) -> Result<(), String> {
        let first = self.asked.insert((task, request));
        if first { Ok(()) } else { Err(format!("{task} is asked twice by {request}")) }
    }

    pub(super) fn next_step(&mut self, job: JobId, more: u64) -> u64 {
        let step = self.steps.entry(job).or_insert(0);
        *step = step.saturating_add(more);
        *step
    }

    /// Of an attempt that knows nothing of those before it.
    pub(super) fn next_step_of(&mut self, attempt: AttemptId) -> u64 {
        let step = self.own_steps.entry(attempt).or_insert(0);
        *step = step.saturating_add(1);
        *step
    }

    pub(super) fn has_saved(&self, job: JobId) -> bool {
        self.steps.contains_key(&job)
    }

    pub(super) fn died(&mut self, task: TaskId) {
        self.alive.remove(&task);
    }

    pub(super) fn node_rebooted(&mut self, node: &NodeName) {
        let Self { processes, alive, .. } = self;
        alive.retain(|task| processes.get(task).is_some_and(|process| process.node != *node));
    }

    /// A process of a task comes to life: once, and on GPUs that no other uses.
    pub(super) fn spawned(
        &mut self,
        task: TaskId,
        node: &NodeName,
        gpus: Vec<GpuUuid>,
    ) -> Result<(), String> {
        if self.processes.contains_key(&task) {
            return Err(format!("{task} is started twice"));
        }
        for (other, process) in self.living() {
            if let Some(gpu) = gpus.iter().find(|gpu| process.gpus.contains(gpu)) {
                return Err(format!("{task} starts on {gpu}, which {other} still uses"));
            }
        }
        self.processes.insert(task, Process { node: node.clone(), gpus });
        self.alive.insert(task);
        Ok(())
    }

    /// A turn was durable and has been seen.
    pub(super) fn published(&mut self, core: &Core) {
        self.published.extend(core.books().jobs.keys());
        let shown = core.books().rehearsals.iter();
        self.shown.extend(shown.map(|(recipe, shown)| (recipe, (shown.job, shown.at))));
    }

    pub(super) fn said(&mut self, node: &NodeName, tasks: &BTreeMap<TaskId, TaskReport>) {
        let prepared = self.said_prepared.entry(node.clone()).or_default();
        for (task, report) in tasks {
            if matches!(report.seen, TaskSeen::Prepared { .. }) {
                prepared.insert(*task);
            } else {
                prepared.remove(task);
            }
        }
    }

    /// What a node has said it has prepared is in its ledger, as prepared, ended or on its way.
    pub(super) fn agent_restarted(
        &mut self,
        node: &NodeName,
        ledger: &Ledger,
    ) -> Result<(), String> {
        let said = self.said_prepared.entry(node.clone()).or_default();
        let known = |task: &TaskId| {
            ledger.prepared.contains_key(task)
                || ledger.ended.contains_key(task)
                || self.processes.contains_key(task)
        };
        match said.iter().find(|task| !known(task)) {
            Some(task) => Err(format!("{node} said that {task} is prepared; its ledger is silent")),
            None => Ok(()),
        }
    }

    /// A restored coordinator knows every job it has answered for.
    pub(super) fn restored(
        &self,
        core: &Core,
        answered: &BTreeMap<SubmitKey, JobId>,
    ) -> Result<(), String> {
        let books = core.books();
        let forgotten = |(recipe, shown): &(&Recipe, &(JobId, Timestamp))| {
            let known = books.rehearsals.of(**recipe);
            known.is_none_or(|known| known.at < shown.1)
        };
        if let Some((_, (job, _))) = self.shown.iter().find(forgotten) {
            return Err(format!("what {job} has shown as a rehearsal was seen and is lost"));
        }
        let lost = |job: &&JobId| !books.jobs.contains_key(*job) && !self.ended.contains_key(job);
        if let Some(job) = answered.values().find(lost) {
            return Err(format!("{job} was accepted and is lost"));
        }
        match self.published.iter().find(lost) {
            Some(job) => Err(format!("{job} was seen and is lost")),
            None => Ok(()),
        }
    }

    /// Holds the books against the processes that live.
    pub(super) fn check_processes(&self, core: &Core) -> Result<(), String> {
        let books = core.books();
        for (task, process) in self.living() {
            let Some(known) = books.task(*task) else {
                return Err(format!("{task} runs and no book knows it"));
            };
            if known.released {
                return Err(format!("the books call {task} released, and it runs"));
            }
            let granted = books.attempt(task.attempt).is_some_and(|a| a.granted.is_some());
            if !granted {
                return Err(format!("{task} runs on {} before its gang was granted", process.node));
            }
        }
        Ok(())
    }

    /// A job ends once, and in one way.
    pub(super) fn check_jobs(&mut self, core: &Core) -> Result<(), String> {
        for job in core.books().jobs.values() {
            let JobState::Ended { outcome, .. } = job.state else { continue };
            if *self.ended.entry(job.id).or_insert(outcome) != outcome {
                return Err(format!("{} has ended in two ways", job.id));
            }
        }
        Ok(())
    }
}
