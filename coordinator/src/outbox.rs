//! From books to plans: what each node is told, and whether it is news.

use std::collections::BTreeMap;

use scheduler_core::Core;
use tidegate_model::{ClusterId, Epoch, Generation, NodeId, Order, TaskId};
use tidegate_proto::link::NodePlan;

/// The newest plan of each node, in this leadership.
#[derive(Debug)]
pub struct Outbox {
    cluster: ClusterId,
    plans: BTreeMap<NodeId, (Generation, BTreeMap<TaskId, Order>)>,
}

impl Outbox {
    /// An outbox in which nothing has been said yet.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, plans: BTreeMap::new() }
    }

    /// The node's plan if it has changed since it was last made.
    pub fn changed(&mut self, core: &Core, node: NodeId) -> Option<NodePlan> {
        let tasks = core.wanted_of(node);
        let (generation, last) = self.plans.entry(node).or_insert((Generation(0), BTreeMap::new()));
        if *generation > Generation(0) && *last == tasks {
            return None;
        }
        *generation = generation.next();
        *last = tasks;
        self.current(core, node)
    }

    /// The node's newest plan, as it stands: for an agent that has just connected.
    #[must_use]
    pub fn current(&self, core: &Core, node: NodeId) -> Option<NodePlan> {
        let (generation, tasks) = self.plans.get(&node)?;
        let epoch = core.books().epoch.unwrap_or(Epoch(0));
        let (cluster, tasks) = (self.cluster, tasks.clone());
        Some(NodePlan { cluster, epoch, generation: *generation, tasks })
    }
}
