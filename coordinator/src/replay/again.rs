//! Events decided again by the rules of this version, on the books of the journal.
//!
//! What is seen and not journaled is assumed: an agent whose complete report is not there has
//! reported, as soon as a record needs it; and since the record before no agent was heard, or those
//! were whose nodes the record shows at work, or all were. A record is decided otherwise only if
//! it is in each of these ways.

use scheduler_core::{Books, Core, Decision, Event, Observation, Stamp};
use tidegate_model::{NodeId, TaskSeen, Timestamp};

use super::words;
use crate::journal::codec::Record;

/// The first record that is decided otherwise now. The rules may have changed since: that is no
/// fault of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its place and instant.
    pub stamp: Stamp,
    /// What was decided then, from the first decision that differs on.
    pub then: String,
    /// What is decided now, from there on.
    pub now: String,
}

/// The core that decides again, up to the first difference.
#[derive(Debug)]
pub(super) struct Again {
    core: Core,
}

impl Again {
    pub(super) fn over(books: Books) -> Self {
        Self { core: Core::restored(books) }
    }

    /// Decides the event of a record, and says what differs. `before` is the instant of the record
    /// before it.
    pub(super) fn compare(
        &mut self,
        before: Timestamp,
        record: &Record,
        event: &Event,
    ) -> Option<Difference> {
        self.confirm(before, record, event);
        let books = self.core.books();
        let all: Vec<_> = books.nodes.keys().copied().collect();
        let ways = [Vec::new(), at_work(books, record, event), all];
        let mut now = Vec::new();
        for heard in ways {
            let mut core = self.core.clone();
            hear(&mut core, record.stamp.at, &heard);
            now = decided(&mut core, record.stamp, event);
            if now == record.decisions {
                self.core = core;
                return None;
            }
        }
        let pairs = now.iter().zip(&record.decisions);
        let alike = pairs.take_while(|(now, then)| now == then).count();
        let from = |decisions: &[Decision]| words::decisions(decisions.get(alike..).unwrap_or(&[]));
        let (then, now) = (from(&record.decisions), from(&now));
        Some(Difference { stamp: record.stamp, then, now })
    }

    /// Nodes that the record shows at work, and whose complete report is not in the journal: it
    /// decided nothing, so it is of no use if it decides something now.
    fn confirm(&mut self, at: Timestamp, record: &Record, event: &Event) {
        for node in at_work(self.core.books(), record, event) {
            if self.core.seen().node(node).is_some() {
                continue;
            }
            let Some(report) = as_it_was(self.core.books(), node) else { continue };
            let mut core = self.core.clone();
            let stamp = Stamp { at, ..record.stamp };
            if core.apply(stamp, &report).is_ok_and(|decided| decided.is_empty()) {
                self.core = core;
            }
        }
    }
}

fn hear(core: &mut Core, at: Timestamp, nodes: &[NodeId]) {
    let name = |id| core.books().nodes.get(id).map(|node| node.name.clone());
    let names: Vec<_> = nodes.iter().filter_map(name).collect();
    for node in names {
        core.observe(at, &Observation::NodeHeard { node });
    }
}

fn decided(core: &mut Core, stamp: Stamp, event: &Event) -> Vec<Decision> {
    let mut decided = core.apply(stamp, event).unwrap_or_default();
    decided.retain(Decision::is_durable);
    decided
}

/// Nodes that speak of what has changed, and those that are given work.
fn at_work(books: &Books, record: &Record, event: &Event) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    if let Event::NodeReported { node, complete: false, .. } = event {
        nodes.extend(books.node_named(node).map(|node| node.id));
    }
    for decision in &record.decisions {
        if let Decision::AttemptPlanned { places, .. } = decision {
            nodes.extend(places.iter().map(|place| place.node));
        } else if let Decision::ReservationMade { nodes: shares, .. } = decision {
            nodes.extend(shares.iter().map(|(node, _)| *node));
        }
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// A complete report that says what the books hold.
fn as_it_was(books: &Books, node: NodeId) -> Option<Event> {
    let node = books.nodes.get(&node)?;
    let seen = |id| {
        let task = books.task(id)?;
        Some(match (&task.exit, task.port) {
            (Some(exit), _) => {
                let (exit, released, ran) = (exit.clone(), task.released, task.ran);
                TaskSeen::Ended { exit, released, ran, idle: task.idle }
            }
            (None, _) if task.started => TaskSeen::Running,
            (None, Some(port)) => TaskSeen::Prepared { port },
            (None, None) => return None,
        })
    };
    Some(Event::NodeReported {
        node: node.name.clone(),
        complete: true,
        facts: None,
        tasks: node.tasks.iter().filter_map(|id| Some((*id, seen(*id)?))).collect(),
        saves: Vec::new(),
        commits: Vec::new(),
        asks: Vec::new(),
    })
}
