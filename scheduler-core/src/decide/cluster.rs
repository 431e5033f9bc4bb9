//! What people ask about nodes and write gates.

use tidegate_model::{NodeId, NodeName, Span, StorageName, TaskExit, TaskId, Timestamp, UserId};

use crate::core::Turn;
use crate::decide::words;
use crate::decision::{Decision, Refusal};
use crate::event::GateRequest;
use crate::evolve::Broken;
use crate::observations::NodeState;

pub(super) fn drain(
    turn: &mut Turn<'_>,
    node: &NodeName,
    by: UserId,
    reason: &str,
    wanted_by: Option<Timestamp>,
) -> Result<(), Broken> {
    let Some(id) = admins_node(turn, node, by)? else { return Ok(()) };
    let reason = match words::reason(reason) {
        Ok(reason) => reason,
        Err(refusal) => return turn.take(Decision::Refused(refusal)),
    };
    let late = wanted_by.map(|at| turn.now().since(at)).filter(|late| *late > Span::ZERO);
    if let Some(late) = late {
        let why =
            format!("by: that was {late} ago; an instant to come, or a span from now, is accepted");
        return turn.take(Decision::Refused(Refusal::CannotHold { why }));
    }
    // A person's drain is never overwritten: the first owner, reason and instant stand.
    if let Some(known) = turn.books().nodes.get(&id).and_then(|node| node.drain.as_ref()) {
        let same = (known.by, known.reason.as_str(), known.wanted_by);
        if same == (by, reason, wanted_by) {
            return Ok(());
        }
        let (by, reason) = (known.by, &known.reason);
        let why = format!(
            "{node} is drained already, by {by}: {reason}; another drain is accepted after \
             `tidegate resume {node}`"
        );
        return turn.take(Decision::Refused(Refusal::CannotHold { why }));
    }
    touch_tasks(turn, id);
    turn.take(Decision::DrainBegan { node: id, by, reason: reason.to_owned(), wanted_by })
}

pub(super) fn resume(turn: &mut Turn<'_>, node: &NodeName, by: UserId) -> Result<(), Broken> {
    let Some(id) = admins_node(turn, node, by)? else { return Ok(()) };
    if turn.books().nodes.get(&id).is_some_and(|node| node.drain.is_none()) {
        return Ok(());
    }
    turn.take(Decision::DrainEnded { node: id, by })
}

/// A person vouches that nothing runs on a silent node any more: only so may its GPUs' jobs be
/// placed again without the node's word.
pub(super) fn declare_lost(turn: &mut Turn<'_>, node: &NodeName, by: UserId) -> Result<(), Broken> {
    let Some(id) = admins_node(turn, node, by)? else { return Ok(()) };
    let (books, seen, now) = (turn.books(), turn.seen(), turn.now());
    let silent = books.nodes.get(&id).is_some_and(|node| {
        seen.state(node, books.policy.silent_after, now) == NodeState::Unreachable
    });
    if !silent {
        return turn.take(Decision::Refused(Refusal::NodeNotSilent(node.clone())));
    }
    lose_tasks(turn, id, "its node was declared lost")
}

/// A node that is silent and empty leaves the cluster, and the root's budget with it.
pub(super) fn remove(turn: &mut Turn<'_>, node: &NodeName, by: UserId) -> Result<(), Broken> {
    let books = turn.books();
    let gone = || books.removed.values().any(|removed| removed == node);
    if books.policy.is_admin(by) && books.node_named(node).is_none() && gone() {
        // Who repeats it has not heard the answer.
        return Ok(());
    }
    let Some(id) = admins_node(turn, node, by)? else { return Ok(()) };
    let (books, seen, now) = (turn.books(), turn.seen(), turn.now());
    let unused = books.nodes.get(&id).is_some_and(|node| {
        let state = seen.state(node, books.policy.silent_after, now);
        state == NodeState::Unreachable && node.tasks.is_empty()
    });
    turn.take(if unused {
        Decision::NodeRemoved { node: id, by }
    } else {
        Decision::Refused(Refusal::NodeInUse(node.clone()))
    })
}

/// What is planned on a node that takes no new work, and does not run yet, is planned anew.
pub(super) fn touch_tasks(turn: &mut Turn<'_>, node: NodeId) {
    let tasks = turn.books().nodes.get(&node).map(|node| node.tasks.clone()).unwrap_or_default();
    tasks.into_iter().for_each(|task| turn.touch(task.attempt));
}

/// Ends and releases all that is placed on a node.
pub(super) fn lose_tasks(turn: &mut Turn<'_>, node: NodeId, why: &str) -> Result<(), Broken> {
    let tasks = turn.books().nodes.get(&node).map(|node| node.tasks.clone()).unwrap_or_default();
    tasks.into_iter().try_for_each(|task| lose_task(turn, task, why))
}

pub(super) fn lose_task(turn: &mut Turn<'_>, task: TaskId, why: &str) -> Result<(), Broken> {
    let Some(entry) = turn.books().task(task) else { return Ok(()) };
    let (ended, released) = (entry.exit.is_some(), entry.released);
    if !ended {
        let exit = TaskExit::Lost(why.to_owned());
        turn.take(Decision::TaskEnded { task, exit, ran: Span::ZERO })?;
    }
    if !released {
        turn.take(Decision::TaskReleased(task))?;
    }
    Ok(())
}

fn admins_node(turn: &mut Turn<'_>, node: &NodeName, by: UserId) -> Result<Option<NodeId>, Broken> {
    if !turn.books().policy.is_admin(by) {
        turn.take(Decision::Refused(Refusal::AdminOnly))?;
        return Ok(None);
    }
    let known = turn.books().node_named(node).map(|node| node.id);
    if known.is_none() {
        turn.take(Decision::Refused(Refusal::NoSuchNode(node.clone())))?;
    }
    Ok(known)
}

/// Most storage targets with limits of their own: a cluster has a handful.
const MAX_GATES: usize = 64;

pub(super) fn about_gate(
    turn: &mut Turn<'_>,
    storage: &StorageName,
    by: UserId,
    request: &GateRequest,
) -> Result<(), Broken> {
    if !turn.books().policy.is_admin(by) {
        return turn.take(Decision::Refused(Refusal::AdminOnly));
    }
    let gates = &turn.books().gates;
    let known = gates.get(storage);
    if known.is_none() && gates.len() >= MAX_GATES {
        let why =
            format!("{storage}: {MAX_GATES} storage targets have limits, the most there can be");
        return turn.take(Decision::Refused(Refusal::CannotHold { why }));
    }
    let pause = known.and_then(|gate| gate.paused.as_ref());
    let storage = storage.clone();
    match request {
        GateRequest::Set(rule) => match rule.check() {
            Err(why) => turn.take(Decision::Refused(Refusal::CannotHold { why })),
            Ok(()) if known.is_some_and(|gate| gate.rule == *rule) => Ok(()),
            Ok(()) => turn.take(Decision::GateSet { storage, rule: rule.clone(), by }),
        },
        // A person's pause is never overwritten: the first owner, reason and instant stand.
        GateRequest::Pause { reason } => match (words::reason(reason), pause) {
            (Err(refusal), _) => turn.take(Decision::Refused(refusal)),
            (Ok(reason), Some(first)) if (first.by, first.reason.as_str()) == (by, reason) => {
                Ok(())
            }
            (Ok(_), Some(first)) => {
                let (by, reason) = (first.by, &first.reason);
                let why = format!(
                    "{storage} is paused already, by {by}: {reason}; another pause is accepted \
                     after `tidegate gate resume {storage}`"
                );
                turn.take(Decision::Refused(Refusal::CannotHold { why }))
            }
            (Ok(reason), None) => {
                let reason = reason.to_owned();
                turn.take(Decision::GatePaused { storage, by, reason })
            }
        },
        GateRequest::Resume if pause.is_none() => Ok(()),
        GateRequest::Resume => turn.take(Decision::GateResumed { storage, by }),
    }
}
