//! What befalls the cluster, from outside of it.

use tidegate_model::{JobId, NodeId, NodeName, TaskExit, TaskId};

use scheduler_core::{Core, Event, Observation};

use super::{Observer, World, Wrong};

impl<O: Observer> World<O> {
    /// The job commits now, if it trains.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn commit(&mut self, job: JobId) -> Result<(), Wrong> {
        if let Some(attempt) = self.newest(job) {
            self.commit_now(attempt);
        }
        self.settle()
    }

    /// The first process of the job exits with 1.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn fail(&mut self, job: JobId) -> Result<(), Wrong> {
        if let Some(attempt) = self.newest(job) {
            let (task, now) = (TaskId { attempt, index: 0 }, self.now);
            self.on_node_of(task, |agent| agent.end(task, TaskExit::Exited(1), now));
        }
        self.settle()
    }

    /// The job's GPUs are idle from now on, or busy again.
    pub fn idle(&mut self, job: JobId, idle: bool) {
        if let Some(attempt) = self.newest(job) {
            let task = TaskId { attempt, index: 0 };
            let since = idle.then_some(self.now);
            self.core.observe(self.now, &Observation::TaskIdle { task, since });
        }
    }

    /// Nobody hears the node from now on; what runs there runs on.
    pub fn silence(&mut self, node: &NodeName) {
        let now = self.now;
        if let Some((_, agent)) = self.agent_named(node) {
            agent.silent = Some(now);
        }
    }

    /// The node is heard again.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn hear_again(&mut self, node: &NodeName) -> Result<(), Wrong> {
        let Some((id, agent)) = self.agent_named(node) else { return Ok(()) };
        agent.silent = None;
        self.introduce(id)
    }

    /// The node boots again, and is heard.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn reboot(&mut self, node: &NodeName) -> Result<(), Wrong> {
        if let Some((_, agent)) = self.agent_named(node) {
            agent.reboot();
        }
        self.hear_again(node)
    }

    /// The node takes no new work from now on, for that reason; empty: it does again.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn close(&mut self, node: &NodeName, why: &str) -> Result<(), Wrong> {
        let Some((id, agent)) = self.agent_named(node) else { return Ok(()) };
        why.clone_into(&mut agent.facts.closed);
        self.introduce(id)
    }

    fn introduce(&mut self, id: NodeId) -> Result<(), Wrong> {
        let Some(agent) = self.agents.get_mut(&id).filter(|agent| agent.silent.is_none()) else {
            return Ok(());
        };
        let everything = agent.everything();
        self.stale.insert(id);
        self.tell(&everything)?;
        Ok(())
    }

    /// The coordinator is away: nodes and jobs go on without it.
    pub fn take_down(&mut self) {
        self.down = true;
        self.away = Some(self.now);
    }

    /// A new coordinator takes over the journal, and all nodes report to it.
    ///
    /// # Errors
    /// If an invariant does not hold.
    pub fn restart(&mut self) -> Result<(), Wrong> {
        self.down = false;
        self.away = None;
        self.core = Core::restored(self.replay.clone());
        self.overdue = true;
        self.apply(&Event::LeaderStarted)?;
        let nodes: Vec<_> = self.agents.keys().copied().collect();
        nodes.into_iter().try_for_each(|node| self.introduce(node))?;
        self.overdue = false;
        self.tell(&Event::DeadlineReached).map(|_decided| ())
    }
}
