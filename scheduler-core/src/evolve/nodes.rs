//! Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::{NodeFacts, NodeId, NodeName};

use super::{Applied, Stamp, ensure};
use crate::books::{Books, Drain, Node};
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
                self.node_mut(*node)?.facts = facts.clone();
                self.accounts.installed = self.recount_installed();
                Ok(())
            }
            Decision::DrainBegan { node, by, reason, wanted_by } => {
                let (reason, wanted_by) = (reason.clone(), *wanted_by);
                let drain = Drain { by: *by, reason, since: stamp.at, wanted_by };
                self.node_mut(*node)?.drain = Some(drain);
                Ok(())
            }
            Decision::DrainEnded { node, by: _ } => {
                self.node_mut(*node)?.drain = None;
                Ok(())
            }
            Decision::NodeRemoved { node, by: _ } => {
                let entry = self.nodes.remove(node).ok_or("no such node")?;
                ensure(entry.tasks.is_empty(), "a node with tasks is not removed")?;
                self.index.names.remove(&entry.name);
                self.accounts.installed = self.recount_installed();
                Ok(())
            }
            _ => Err("not about a node"),
        }
    }

    /// What the root is charged when everything installed is: a node out of service counts.
    pub(crate) fn recount_installed(&self) -> Rate {
        let sharing = &self.policy.sharing;
        let rates = self
            .nodes
            .values()
            .map(|node| sharing.weight(node.kind(&self.policy)).rate(node.size()));
        rates.fold(Rate::default(), |sum, rate| sum + rate)
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, &'static str> {
        self.nodes.get_mut(&id).map(Arc::make_mut).ok_or("no such node")
    }

    /// Puts a node of a snapshot back.
    ///
    /// # Errors
    /// If it does not fit the books.
    pub fn restore_node(&mut self, node: Node) -> Result<(), &'static str> {
        ensure(node.id.0 <= self.last_node, "a node's number is not beyond the last")?;
        let known = self.index.names.insert(node.name.clone(), node.id);
        ensure(known.is_none(), "a node's name is its own")?;
        let known = self.nodes.insert(node.id, Arc::new(node));
        ensure(known.is_none(), "a node stands once in a snapshot")?;
        self.accounts.installed = self.recount_installed();
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
