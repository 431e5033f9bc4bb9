//! Events decided again by the rules of this version, on the books of the journal.
//!
//! What is seen and not journaled is assumed: an agent whose complete report is not there has
//! reported, as soon as a record needs it; and since the record before no agent was heard, or those
//! were whose nodes the record shows at work, or all were. A record is decided otherwise only if
//! it is in each of these ways.
//!
//! An ask is in the journal only if something was decided on it at once. Of one that waited it is
//! assumed what its permit says: its bytes, and that it had waited longer than those that were let
//! through after it. Who waited on and was let through by no record is not known. What was measured is
//! assumed likewise, where something was decided on it.

use scheduler_core::{Books, Core, Decision, Event, Observation, PermitOf, Stamp};
use tidegate_model::{
    Ask, AskSeen, Bandwidth, Bytes, DecisionSeq, NodeId, SaveDelivery, SaveSeen, Span, TaskId,
    TaskSeen, Timestamp,
};

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
            ask(&mut core, record, event);
            measure(&mut core, record);
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
        let unasked = unasked(self.core.books(), record);
        for node in at_work(self.core.books(), record, event) {
            let is_new = self.core.seen().node(node).is_none();
            if !is_new && !unasked.contains(&node) {
                continue;
            }
            let Some(report) = as_it_was(self.core.books(), node, is_new) else { continue };
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

/// Asks that the record answers and that no record before has.
fn ask(core: &mut Core, record: &Record, event: &Event) {
    let told: &[(TaskId, AskSeen)] =
        if let Event::NodeReported { asks, .. } = event { asks } else { &[] };
    let mut after = 0_u64;
    for decision in record.decisions.iter().rev() {
        let Decision::PermitGranted { permit, bytes, pooled, .. } = decision else { continue };
        if told.iter().any(|(task, seen)| (*task, seen.ask.number) == (permit.task, permit.ask)) {
            continue;
        }
        after = after.saturating_add(1);
        // Only who has waited as long as it may has it from the pool.
        let patience = pooled.then_some(Span::ZERO);
        let seen = AskSeen { waited: Span(after), ..asked(*permit, *bytes, patience) };
        core.observe(record.stamp.at, &Observation::TaskAsked { task: permit.task, seen });
    }
}

/// That those write nothing who are to keep to their share though they are heard, and those write that
/// have more than that again.
fn measure(core: &mut Core, record: &Record) {
    for decision in &record.decisions {
        let Decision::WriteRated { attempt, pooled, still, .. } = *decision else { continue };
        let Some(of) = core.books().attempt(attempt) else { continue };
        let was_pooled = of.writing.is_some_and(|writing| writing.pooled);
        let rate = match (was_pooled, pooled, still) {
            (_, true, Some(_)) => Bandwidth(0),
            (true, false, _) => Bandwidth(1),
            _ => continue,
        };
        let tasks: Vec<TaskId> = of.tasks().map(|(task, _)| task).collect();
        for task in tasks {
            core.observe(record.stamp.at, &Observation::TaskWrites { task, rate });
        }
    }
}

/// What a task must have asked that has such a permit.
fn asked(permit: PermitOf, bytes: Bytes, patience: Option<Span>) -> AskSeen {
    let ask = Ask { number: permit.ask, class: permit.class, bytes, files: 0, patience };
    let (waited, written, rated) = (Span::ZERO, Bytes(0), DecisionSeq(0));
    AskSeen { ask, waited, written, done: false, rated }
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
        } else if let Decision::PermitGranted { permit, .. } = decision {
            nodes.extend(books.task(permit.task).map(|task| task.place.node));
        }
    }
    nodes.extend(unasked(books, record));
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Nodes of those that gave their turn back, as they did not ask: their agents had told them.
fn unasked(books: &Books, record: &Record) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    for decision in &record.decisions {
        let Decision::WriteEnded(id) = decision else { continue };
        let attempt =
            books.attempt(*id).filter(|one| one.writing.is_some_and(|of| of.permit.is_none()));
        nodes.extend(attempt.into_iter().flat_map(|one| &one.tasks).map(|task| task.place.node));
    }
    nodes
}

/// A report that says what the books hold.
fn as_it_was(books: &Books, node: NodeId, complete: bool) -> Option<Event> {
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
    let save = |id: &TaskId| {
        let save = books.attempt(id.attempt)?.save.filter(|save| save.acknowledged.is_some())?;
        let (request, delivery) = (save.decision, SaveDelivery::Signalled { ranks: 1 });
        Some((*id, SaveSeen { request, delivery }))
    };
    // Its job was told the rate that it has.
    let ask = |id: &TaskId| {
        let of = books.attempt(id.attempt)?.writing?;
        let permit = of.permit.filter(|permit| permit.task == *id)?;
        Some((*id, AskSeen { rated: of.rated, ..asked(permit, of.bytes, None) }))
    };
    Some(Event::NodeReported {
        node: node.name.clone(),
        complete,
        facts: None,
        tasks: node.tasks.iter().filter_map(|id| Some((*id, seen(*id)?))).collect(),
        saves: node.tasks.iter().filter_map(save).collect(),
        commits: Vec::new(),
        asks: node.tasks.iter().filter_map(ask).collect(),
    })
}
