//! Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::{GpuCount, NodeFacts, NodeId, NodeName};

use super::{Applied, Stamp, ensure};
use crate::books::{Books, Drain, Node, REMOVED_KEPT};
use crate::decision::Decision;
use crate::money::Rate;

impl Books {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    pub(super) fn evolve_node(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::NodeAdmitted { node, name } => {
                ensure(node.0 > self.last_node, "a node's number is never reused")?;
                self.last_node = node.0;
                self.restore_node(Node::admitted(*node, name.clone()))
            }
            Decision::NodeRefreshed { node, facts } => {
                self.change_node(*node, |node| node.facts = facts.clone())?;
                self.count_installed();
                Ok(())
            }
            Decision::DrainBegan { node, by, reason, wanted_by } => {
                let (reason, wanted_by) = (reason.clone(), *wanted_by);
                let drain = Drain { by: *by, reason, since: stamp.at, wanted_by };
                self.change_node(*node, |node| node.drain = Some(drain))
            }
            Decision::DrainEnded { node, by: _ } => {
                self.change_node(*node, |node| node.drain = None)
            }
            Decision::NodeRemoved { node, by: _ } => {
                let entry = self.nodes.remove(node).ok_or("no such node")?;
                ensure(entry.tasks.is_empty(), "a node with tasks is not removed")?;
                self.index.leave_node(&entry, &self.policy);
                self.count_installed();
                self.removed.insert(*node, entry.name.clone());
                if self.removed.len() > REMOVED_KEPT {
                    self.removed.pop_first();
                }
                Ok(())
            }
            _ => Err("not about a node"),
        }
    }

    /// What the root is charged when everything installed is: a node out of service counts.
    pub(super) fn count_installed(&mut self) {
        self.accounts.set_installed(self.installed_rate());
    }

    pub(crate) fn installed_rate(&self) -> Rate {
        let makes = self.index.makes.iter().map(|(make, count)| {
            let gpus = GpuCount(make.size.saturating_mul(*count));
            self.policy.sharing.weight(make.kind).rate(gpus)
        });
        makes.fold(Rate::default(), |sum, rate| sum + rate)
    }

    /// Changes what tasks a node has, on which no index depends.
    pub(super) fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, &'static str> {
        self.nodes.get_mut(&id).map(Arc::make_mut).ok_or("no such node")
    }

    /// Changes one node, and with it the indexes.
    fn change_node(&mut self, id: NodeId, by: impl FnOnce(&mut Node)) -> Applied {
        let entry = self.nodes.get_mut(&id).ok_or("no such node")?;
        self.index.leave_node(entry, &self.policy);
        let entry = Arc::make_mut(entry);
        by(entry);
        self.index.enter_node(entry, &self.policy);
        Ok(())
    }

    /// Puts a node of a snapshot back.
    ///
    /// # Errors
    /// If it does not fit the books.
    pub fn restore_node(&mut self, node: Node) -> Result<(), &'static str> {
        ensure(node.id.0 <= self.last_node, "a node's number is not beyond the last")?;
        ensure(!self.index.names.contains_key(&node.name), "a node's name is its own")?;
        ensure(!self.nodes.contains_key(&node.id), "a node stands once in a snapshot")?;
        self.index.enter_node(&node, &self.policy);
        self.nodes.insert(node.id, Arc::new(node));
        self.count_installed();
        Ok(())
    }
}

impl Node {
    /// A node of which only the name is known.
    #[must_use]
    pub fn admitted(id: NodeId, name: NodeName) -> Self {
        Self {
            id,
            name,
            facts: NodeFacts::default(),
            drain: None,
            held: BTreeMap::new(),
            heirs: BTreeMap::new(),
            tasks: BTreeSet::new(),
        }
    }
}
