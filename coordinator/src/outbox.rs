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
    /// That of the newest plan of any node, in this leadership.
    newest: Generation,
}

impl Outbox {
    /// An outbox in which nothing has been said yet.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, plans: BTreeMap::new(), newest: Generation(0) }
    }

    /// The node's plan if it has changed since it was last made.
    pub fn changed(&mut self, core: &Core, node: NodeId) -> Option<NodePlan> {
        let tasks = core.wanted_of(node);
        if self.plans.get(&node).is_some_and(|(_, last)| *last == tasks) {
            return None;
        }
        // One count for all nodes: an agent whose node was removed and made anew has accepted plans
        // of this epoch before, and refuses whatever is not newer.
        self.newest = self.newest.next();
        self.plans.insert(node, (self.newest, tasks));
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

#[cfg(test)]
mod tests {
    use scheduler_core::{Event, Stamp};
    use tidegate_model::{DecisionSeq, Gpu, NodeFacts, NodeName, Span, Timestamp, UserId};

    use super::*;

    #[test]
    fn a_node_that_was_removed_and_is_back_gets_plans_that_are_newer_than_any_before() {
        let (mut core, mut now) = (Core::default(), Timestamp(1_700_000_000_000));
        let mut apply = |event: &Event, later: Span| {
            now = now.plus(later);
            core.apply(Stamp { at: now, seq: DecisionSeq(1) }, event).unwrap();
            core.clone()
        };
        let name: NodeName = "n1".parse().unwrap();
        let gpu = Gpu {
            uuid: "GPU-1".parse().unwrap(),
            product: "simulated".into(),
            memory: tidegate_model::Bytes(1),
        };
        let facts = NodeFacts { boot_id: "b".into(), gpus: vec![gpu], ..NodeFacts::default() };
        let came = Event::NodeReported {
            node: name.clone(),
            complete: true,
            facts: Some(facts),
            tasks: vec![],
            saves: vec![],
            commits: vec![],
            asks: vec![],
        };
        apply(&Event::LeaderStarted, Span::ZERO);
        let first = apply(&came, Span::ZERO);
        let mut outbox = Outbox::new(ClusterId(1));
        let before = outbox.changed(&first, NodeId(1)).unwrap().generation;
        let gone = Event::NodeRemovalRequested { node: name, by: UserId(0) };
        apply(&gone, Span::hours(1));
        let back = apply(&came, Span::ZERO);
        assert!(back.books().nodes.contains_key(&NodeId(2)), "it is another node now");
        assert!(outbox.changed(&back, NodeId(2)).unwrap().generation > before);
    }
}
