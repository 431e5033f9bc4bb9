//! A starter and its shims in the simulation. Its records are files: they survive it. What it
//! started lives on without it, and dies with its node.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_agent::node::{TaskFacts, TaskStatus};
use tidegate_model::{DecisionSeq, GpuUuid, Span, TaskExit, TaskId};

use super::Planted;
use super::permits::close;
use super::saving::SAVED;
use super::world::{GRACE, Happening, Place, World, short};

/// A node's starter.
#[derive(Debug, Default)]
pub(super) struct SimStarter {
    up: bool,
    /// Intents and ends, on disk.
    records: BTreeMap<TaskId, TaskFacts>,
    /// What the intents say of GPUs.
    launches: BTreeMap<TaskId, Vec<GpuUuid>>,
    stopping: BTreeSet<TaskId>,
    to_stop: Vec<TaskId>,
    /// It dies between the next intent and its spawn.
    pub(super) dies_before_spawn: bool,
}

impl SimStarter {
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// What it says of its tasks; nothing while it is down.
    pub(super) fn statuses(&self) -> Option<BTreeMap<TaskId, TaskFacts>> {
        self.up.then(|| self.records.clone())
    }

    /// The newest request to save that the task's shim knows of.
    pub(super) fn save_of(&self, task: TaskId) -> Option<DecisionSeq> {
        Some(self.records.get(&task)?.save.as_ref()?.request)
    }

    /// What its task's shim has written down, and what it was told.
    pub(super) fn facts(&self, task: TaskId) -> Option<&TaskFacts> {
        self.records.get(&task)
    }

    /// Whether the task runs, and was not told to end.
    pub(super) fn runs(&self, task: TaskId) -> bool {
        let runs = self.facts(task).is_some_and(|facts| facts.status == TaskStatus::Running);
        runs && !self.stopping.contains(&task)
    }

    pub(super) fn stop(&mut self, task: TaskId) {
        if self.up && self.stopping.insert(task) {
            self.to_stop.push(task);
        }
    }

    pub(super) fn forget(&mut self, task: TaskId) {
        self.records.remove(&task);
        self.launches.remove(&task);
        self.stopping.remove(&task);
    }
}

fn lost(why: &str) -> TaskStatus {
    TaskStatus::Ended { exit: TaskExit::Lost(why.to_owned()), released: true, ran: Span::ZERO }
}

impl World {
    pub(super) fn start_starter(&mut self, index: usize) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(index).filter(|node| !node.starter.up) else {
            return Ok(());
        };
        node.starter.up = true;
        // An intent that no shim has begun: the start goes on.
        let intended =
            node.starter.records.iter().filter(|(_, facts)| facts.status == TaskStatus::Intended);
        let unbegun: Vec<_> = intended
            .filter(|(task, _)| !self.truth.has_begun(**task))
            .filter_map(|(task, _)| Some((*task, node.starter.launches.get(task)?.clone())))
            .collect();
        for (task, gpus) in unbegun {
            self.spawn(index, task, gpus)?;
        }
        self.adopt(index)
    }

    pub(super) fn crash_starter(&mut self, index: usize) {
        if let Some(node) = self.nodes.get_mut(index) {
            node.starter.up = false;
            node.starter.dies_before_spawn = false;
        }
        let back = self.rng.u64(20..2000);
        self.after(back, Happening::StarterStarts { node: index });
    }

    /// The agent, if it is there, hears the whole list.
    fn adopt(&mut self, index: usize) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        if let Some((agent, known)) = node.agent.as_mut().zip(node.starter.statuses()) {
            agent.brain.starter_knows(known);
        }
        self.round(index)
    }

    /// Power lost or kernel crashed: everything that ran is gone, files stay.
    pub(super) fn reboot(&mut self, index: usize) {
        let Some(node) = self.nodes.get_mut(index) else { return };
        node.boot = node.boot.saturating_add(1);
        node.clock.reboot(self.now);
        node.agent = None;
        node.starter.up = false;
        for (task, facts) in &mut node.starter.records {
            if !matches!(facts.status, TaskStatus::Ended { released: true, .. }) {
                facts.status = lost("its node rebooted");
            }
            close(&mut facts.ask);
            self.asked.remove(task);
            self.truth.died(*task);
        }
        self.truth.node_rebooted(&node.name);
        let back = self.rng.u64(1000..30_000);
        self.after(back, Happening::StarterStarts { node: index });
        self.after(back.saturating_add(5), Happening::AgentStarts { node: index });
    }

    pub(super) fn start_task(
        &mut self,
        index: usize,
        task: TaskId,
        gpus: Vec<GpuUuid>,
    ) -> Result<(), String> {
        let forgets = self.options.planted == Some(Planted::IntentAfterSpawn);
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        // A start while it is down is never read; a start of what it knows is not repeated.
        if !node.starter.up || node.starter.records.contains_key(&task) {
            return Ok(());
        }
        if !forgets {
            node.starter.records.insert(task, TaskStatus::Intended.into());
            node.starter.launches.insert(task, gpus.clone());
        }
        let dies = std::mem::replace(&mut node.starter.dies_before_spawn, false);
        if dies && !forgets {
            self.crash_starter(index);
            return Ok(());
        }
        self.spawn(index, task, gpus)?;
        if dies {
            self.crash_starter(index);
        } else if let Some(node) = self.nodes.get_mut(index) {
            node.starter.records.entry(task).or_insert_with(|| TaskStatus::Intended.into());
        }
        Ok(())
    }

    /// A shim begins a task.
    fn spawn(&mut self, index: usize, task: TaskId, gpus: Vec<GpuUuid>) -> Result<(), String> {
        let Some(node) = self.nodes.get(index) else { return Ok(()) };
        let (name, boot) = (node.name.clone(), node.boot);
        self.truth.spawned(task, &name, gpus)?;
        let delay = short(&mut self.rng);
        self.after(delay, Happening::Executed { node: index, task, boot });
        let runs = match self.rng.u8(..) {
            // One that ends before it is asked to save shows nothing.
            _ if self.rehearsed(task).is_some() => self.rng.u64(20_000..60_000),
            _ if self.calm.is_over() => self.rng.u64(50..3000),
            0..=60 => self.rng.u64(20_000..60_000),
            61..=80 => self.rng.u64(60_000..180_000),
            _ => self.rng.u64(50..20_000),
        };
        if task.index == 0 && self.rng.u8(..) < 90 {
            let at = delay.saturating_add(self.rng.u64(0..runs));
            self.after(at, Happening::Commits { node: index, task, boot, request: None });
        }
        let fails = if self.calm.is_over() { 1 } else { 20 };
        let exit = TaskExit::Exited((self.rng.u8(..) < fails).into());
        let end = delay.saturating_add(runs);
        self.plan_asks(Place { node: index, task, boot }, end, exit);
        Ok(())
    }

    /// Shims act on stops: TERM, and KILL after the grace.
    pub(super) fn stop_tasks(&mut self, index: usize) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(index) else { return Ok(()) };
        let boot = node.boot;
        for task in std::mem::take(&mut node.starter.to_stop) {
            let ignores = self.rng.u8(..) < 30;
            let delay = if ignores { GRACE.0 } else { self.rng.u64(1..GRACE.0) };
            let exit = TaskExit::Signaled(if ignores { 9 } else { 15 });
            self.after(delay, Happening::Exits { node: index, task, boot, exit });
            self.stop_asking(Place { node: index, task, boot })?;
        }
        Ok(())
    }

    /// A shim notes that its task runs before it notes its end: one that has ended already, while a
    /// child of it lingers, does not run again.
    pub(super) fn executed(&mut self, index: usize, task: TaskId, boot: u64) -> Result<(), String> {
        let record = self.nodes.get(index).and_then(|node| node.starter.records.get(&task));
        let begins = record.is_some_and(|facts| facts.status == TaskStatus::Intended);
        if begins && self.truth.is_alive(task) {
            self.set_status(index, task, boot, TaskStatus::Running)?;
        }
        Ok(())
    }

    pub(super) fn exits(
        &mut self,
        index: usize,
        task: TaskId,
        boot: u64,
        exit: TaskExit,
    ) -> Result<(), String> {
        let ended = self.nodes.get(index).is_some_and(|node| {
            let facts = node.starter.records.get(&task);
            facts.is_none_or(|facts| matches!(facts.status, TaskStatus::Ended { .. }))
        });
        if ended || !self.truth.is_alive(task) {
            return Ok(());
        }
        let too_early = self.options.planted == Some(Planted::ReleasedTooEarly);
        // Now and then a child holds on to the GPU for a while.
        let lingers = self.rng.u8(..) < 40;
        let abnormal = !matches!(exit, TaskExit::Exited(0 | SAVED));
        if !lingers {
            self.truth.died(task);
        }
        let released = !lingers || too_early;
        let status = TaskStatus::Ended { exit, released, ran: Span(1) };
        self.set_status(index, task, boot, status)?;
        if lingers {
            let delay = self.rng.u64(100..20_000);
            self.after(delay, Happening::Vanishes { node: index, task, boot });
        }
        if abnormal {
            self.peers_notice(task);
        }
        Ok(())
    }

    pub(super) fn vanishes(&mut self, index: usize, task: TaskId, boot: u64) -> Result<(), String> {
        self.truth.died(task);
        let facts = self.nodes.get(index).and_then(|node| node.starter.records.get(&task));
        if let Some(TaskStatus::Ended { exit, released: false, ran }) = facts.map(|f| &f.status) {
            let (exit, ran) = (exit.clone(), *ran);
            let status = TaskStatus::Ended { exit, released: true, ran };
            self.set_status(index, task, boot, status)?;
        }
        Ok(())
    }

    /// Most ranks fail soon when one of their gang does; some hang until they are stopped.
    fn peers_notice(&mut self, task: TaskId) {
        for (peer, name) in self.truth.alive_peers(task) {
            if self.rng.u8(..) < 180
                && let Some(index) = self.nodes.iter().position(|node| node.name == name)
            {
                let boot = self.nodes.get(index).map_or(0, |node| node.boot);
                let delay = self.rng.u64(10..1000);
                let exit = TaskExit::Exited(1);
                self.after(delay, Happening::Exits { node: index, task: peer, boot, exit });
            }
        }
    }

    /// A shim dies: its task dies with it, and nobody saw how.
    pub(super) fn kill_shim(&mut self, task: TaskId) -> Result<(), String> {
        let Some(index) = self.node_of(task) else { return Ok(()) };
        let boot = self.nodes.get(index).map_or(0, |node| node.boot);
        self.truth.died(task);
        self.set_status(index, task, boot, lost("its shim died"))?;
        self.peers_notice(task);
        Ok(())
    }

    pub(super) fn node_of(&self, task: TaskId) -> Option<usize> {
        let name = self.truth.node_of(task)?;
        self.nodes.iter().position(|node| node.name == name)
    }

    fn set_status(
        &mut self,
        index: usize,
        task: TaskId,
        boot: u64,
        status: TaskStatus,
    ) -> Result<(), String> {
        let ends = matches!(status, TaskStatus::Ended { .. });
        if ends && self.nodes.get(index).is_some_and(|node| node.boot == boot) {
            // Its connection ends with it.
            self.asked.remove(&task);
        }
        self.note(index, task, boot, |facts| {
            facts.status = status;
            if ends {
                close(&mut facts.ask);
            }
        })
    }

    /// A shim notes a fact; whoever is up hears of it.
    pub(super) fn note(
        &mut self,
        index: usize,
        task: TaskId,
        boot: u64,
        fact: impl FnOnce(&mut TaskFacts),
    ) -> Result<(), String> {
        let Some(node) = self.nodes.get_mut(index).filter(|node| node.boot == boot) else {
            return Ok(());
        };
        // The shim writes its record whether or not its starter lives; one without an intent
        // belongs to a start that was never begun.
        let Some(record) = node.starter.records.get_mut(&task) else { return Ok(()) };
        fact(record);
        let facts = record.clone();
        if !node.starter.up {
            return Ok(());
        }
        if let Some(agent) = node.agent.as_mut() {
            agent.brain.status_changed(task, facts);
        }
        self.round(index)
    }
}
