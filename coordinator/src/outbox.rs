//! From books to plans: what each node is told, and whether it is news.

use std::collections::BTreeMap;

use scheduler_core::Core;
use tidegate_model::{ClusterId, Epoch, Generation, NodeId, Order, TaskId};
use tidegate_proto::link::NodePlan;

/// The newest plan of each node, in this leadership.
#[derive(Debug)]
pub struct Outbox {
    cluster: ClusterId,
    epoch: Epoch,
    plans: BTreeMap<NodeId, (Generation, BTreeMap<TaskId, Order>)>,
}

impl Outbox {
    /// An outbox in which nothing has been said yet.
    #[must_use]
    pub fn new(cluster: ClusterId, epoch: Epoch) -> Self {
        Self { cluster, epoch, plans: BTreeMap::new() }
    }

    /// The node's plan if it has changed since it was last made.
    pub fn changed(&mut self, core: &Core, node: NodeId) -> Option<NodePlan> {
        let tasks = core.wanted_of(node);
        let (generation, last) = self.plans.entry(node).or_insert((Generation(0), BTreeMap::new()));
        if *generation > Generation(0) && *last == tasks {
            return None;
        }
        *generation = generation.next();
        last.clone_from(&tasks);
        Some(self.plan(*self.plans.get(&node).map(|(generation, _)| generation)?, tasks))
    }

    /// The node's newest plan, as it stands: for an agent that has just connected.
    #[must_use]
    pub fn current(&self, node: NodeId) -> Option<NodePlan> {
        let (generation, tasks) = self.plans.get(&node)?;
        Some(self.plan(*generation, tasks.clone()))
    }

    fn plan(&self, generation: Generation, tasks: BTreeMap<TaskId, Order>) -> NodePlan {
        NodePlan { cluster: self.cluster, epoch: self.epoch, generation, tasks }
    }
}
