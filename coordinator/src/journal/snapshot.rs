//! The books at one instant, as bytes. Indexes and pledges are not stored: they follow from the
//! jobs.

mod accounts;
mod jobs;

use std::sync::Arc;

use prost::Message;
use scheduler_core::{
    Accounts, Adapted, Books, Drain, Evidence, Gate, Node, Pause, PolicyEdit, Rate, Recipe,
    Rehearsal, Stamp,
};
use tidegate_model::{
    Bandwidth, DecisionSeq, Epoch, GpuUuid, NodeId, NodeName, Span, StorageName, TaskId, Timestamp,
    UserId,
};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::{WireError, parsed, required};

use super::JournalError;
use super::codec::{parts, rehearsal};
use crate::translate;

/// The books as of `stamp`.
#[must_use]
pub fn encode(stamp: Stamp, books: &Books) -> Vec<u8> {
    let snapshot = wire::Snapshot {
        seq: stamp.seq.0,
        at_ms: stamp.at.0,
        epoch: books.epoch.map_or(0, |epoch| epoch.0),
        policy: Some(translate::policy_message(&books.policy)),
        last_job: books.last_job,
        last_node: books.last_node,
        gates: books.gates.iter().map(|(storage, gate)| gate_message(storage, gate)).collect(),
        rehearsals: books.rehearsals.iter().map(|(of, one)| rehearsal::message(of, one)).collect(),
        rehearsed_jobs: rehearsed_jobs(books),
        removed: books.removed.iter().map(|(id, name)| removed_message(*id, name)).collect(),
        nodes: books.nodes.values().map(|node| node_message(node)).collect(),
        jobs: books.jobs.values().map(|job| jobs::message(job)).collect(),
        accounts: books.accounts.all().map(accounts::message).collect(),
        asked: books.asked.iter().map(accounts::ask_message).collect(),
        answered: books.answered.iter().map(accounts::answer_message).collect(),
        policy_edit: books.policy_edit.map(|edit| wire::PolicyEdit {
            record: edit.record.0,
            at_ms: edit.at.0,
            by: parts::author_message(edit.by),
        }),
    };
    snapshot.encode_to_vec()
}

fn rehearsed_jobs(books: &Books) -> Vec<wire::Rehearsal> {
    let message = |shown: &Rehearsal| {
        let job = books.jobs.get(&shown.job)?;
        Some(rehearsal::message(Recipe::of(&job.spec), shown))
    };
    books.rehearsals.of_jobs().filter_map(message).collect()
}

/// Reads a snapshot.
///
/// # Errors
/// [`JournalError::Damaged`] if it does not hold together.
pub fn decode(seq: DecisionSeq, bytes: &[u8]) -> Result<(Stamp, Books), JournalError> {
    let damaged = |why: String| JournalError::Damaged { at: seq.0, why };
    let snapshot = wire::Snapshot::decode(bytes).map_err(|error| damaged(error.to_string()))?;
    let stamp = Stamp { at: Timestamp(snapshot.at_ms), seq: DecisionSeq(snapshot.seq) };
    let books = books(snapshot).map_err(damaged)?;
    Ok((stamp, books))
}

fn books(snapshot: wire::Snapshot) -> Result<Books, String> {
    let told = |error: WireError| error.to_string();
    let policy = required(snapshot.policy, "Snapshot.policy").map_err(told)?;
    let mut books = Books::default();
    books.epoch = (snapshot.epoch > 0).then_some(Epoch(snapshot.epoch));
    books.policy = translate::policy(policy).map_err(told)?;
    books.policy_edit = snapshot.policy_edit.map(|edit| PolicyEdit {
        record: DecisionSeq(edit.record),
        at: Timestamp(edit.at_ms),
        by: parts::author(edit.by),
    });
    books.last_job = snapshot.last_job;
    books.last_node = snapshot.last_node;
    let stored: Result<Vec<_>, _> = snapshot.accounts.into_iter().map(accounts::account).collect();
    let accounts = Accounts::restored(stored.map_err(told)?, Rate::default());
    books.accounts = accounts.map_err(|error| error.to_string())?;
    for message in snapshot.asked {
        let (key, ask) = accounts::ask(message).map_err(told)?;
        books.asked.insert(key, ask);
    }
    for message in snapshot.answered {
        let (key, answer) = accounts::answer(message).map_err(told)?;
        books.answered.insert(key, answer);
    }
    for message in snapshot.gates {
        let (storage, gate) = gate(message).map_err(told)?;
        books.gates.insert(storage, gate);
    }
    for message in snapshot.rehearsals {
        let (recipe, shown) = rehearsal::rehearsal(message).map_err(told)?;
        books.rehearsals.keep(recipe, shown);
    }
    for message in snapshot.rehearsed_jobs {
        let (_, shown) = rehearsal::rehearsal(message).map_err(told)?;
        books.rehearsals.keep_of_job(shown);
    }
    for message in snapshot.removed {
        let id = parsed(&message.node, "RemovedNode.node").map_err(told)?;
        books.removed.insert(id, parsed(&message.name, "RemovedNode.name").map_err(told)?);
    }
    let mut heirs = Vec::new();
    for mut message in snapshot.nodes {
        let stored = std::mem::take(&mut message.heirs);
        let node = node(message).map_err(told)?;
        heirs.push((node.id, stored));
        books.restore_node(node)?;
    }
    for message in snapshot.jobs {
        let stored = message.account;
        let mut job = jobs::job(message).map_err(told)?;
        if stored.is_none() {
            job.account = books.adopt_account(&job.spec.account)?;
        }
        books.restore_job(job)?;
    }
    for (node, stored) in heirs {
        let node = books.nodes.get_mut(&node).map(Arc::make_mut).ok_or("no such node")?;
        for heir in stored {
            let gpu: GpuUuid = parsed(&heir.gpu, "Heir.gpu").map_err(told)?;
            let task: TaskId = parsed(&heir.task, "Heir.task").map_err(told)?;
            inherit(node, gpu, task)?;
        }
    }
    books.restore_pledges();
    Ok(books)
}

/// Jobs are put back in the order of their ids, and the first to name a GPU is taken for its
/// holder: here heir and holder change places where that was the heir.
fn inherit(node: &mut Node, gpu: GpuUuid, heir: TaskId) -> Result<(), &'static str> {
    if node.heirs.get(&gpu) == Some(&heir) {
        return Ok(());
    }
    let holder = node.heirs.remove(&gpu).ok_or("what is inherited has a holder")?;
    let other = node.held.insert(gpu.clone(), holder);
    node.heirs.insert(gpu, heir);
    if other == Some(heir) { Ok(()) } else { Err("an heir is a task of its node") }
}

fn gate_message(storage: &StorageName, gate: &Gate) -> wire::Gate {
    wire::Gate {
        storage: storage.to_string(),
        rule: Some(translate::gate_rule_message(&gate.rule)),
        paused: gate.paused.as_ref().map(|pause| wire::gate::Pause {
            since_ms: pause.since.0,
            by: pause.by.0,
            reason: pause.reason.clone(),
        }),
        adapted: gate.adapted.map(|adapted| wire::gate::Adapted {
            cap_bytes_per_s: adapted.cap.0,
            good_bytes_per_s: adapted.good.0,
            began_ms: adapted.began.0,
            since_ms: adapted.since.0,
        }),
        evidence: Some(wire::gate::Evidence {
            window: gate.evidence.window,
            expected_ms: gate.evidence.expected.0,
            taken_ms: gate.evidence.taken.0,
        }),
    }
}

fn gate(message: wire::Gate) -> Result<(StorageName, Gate), WireError> {
    let rule = translate::gate_rule(required(message.rule, "Gate.rule")?)?;
    let paused = message.paused.map(|pause| Pause {
        since: Timestamp(pause.since_ms),
        by: UserId(pause.by),
        reason: pause.reason,
    });
    let adapted = message.adapted.map(|adapted| Adapted {
        cap: Bandwidth(adapted.cap_bytes_per_s),
        good: Bandwidth(adapted.good_bytes_per_s),
        began: Timestamp(adapted.began_ms),
        since: Timestamp(adapted.since_ms),
    });
    let evidence = message.evidence.map(|evidence| Evidence {
        window: evidence.window,
        expected: Span(evidence.expected_ms),
        taken: Span(evidence.taken_ms),
    });
    let evidence = evidence.unwrap_or_default();
    Ok((parsed(&message.storage, "Gate.storage")?, Gate { rule, paused, adapted, evidence }))
}

fn removed_message(id: NodeId, name: &NodeName) -> wire::RemovedNode {
    wire::RemovedNode { node: id.to_string(), name: name.to_string() }
}

fn node_message(node: &Node) -> wire::Node {
    let drain = node.drain.as_ref().map(|drain| wire::Drain {
        by: drain.by.0,
        reason: drain.reason.clone(),
        since_ms: drain.since.0,
        wanted_by_ms: drain.wanted_by.map(|at| at.0),
    });
    let facts = Some(node.facts.clone().into());
    let heir = |(gpu, task): (&GpuUuid, &TaskId)| wire::Heir {
        gpu: gpu.to_string(),
        task: task.to_string(),
    };
    let heirs = node.heirs.iter().map(heir).collect();
    wire::Node { node: node.id.to_string(), name: node.name.to_string(), facts, drain, heirs }
}

fn node(message: wire::Node) -> Result<Node, WireError> {
    let id = parsed(&message.node, "Node.node")?;
    let mut node = Node::admitted(id, parsed(&message.name, "Node.name")?);
    node.facts = required(message.facts, "Node.facts")?.try_into()?;
    node.drain = message.drain.map(|drain| Drain {
        by: UserId(drain.by),
        reason: drain.reason,
        since: Timestamp(drain.since_ms),
        wanted_by: drain.wanted_by_ms.map(Timestamp),
    });
    Ok(node)
}
