//! What an agent's report proves.

use tidegate_model::{Commit, NodeFacts, NodeId, TaskExit, TaskId, TaskSeen};

use crate::core::Turn;
use crate::decide::{cluster, rehearsal, saving};
use crate::decision::Decision;
use crate::event::Event;
use crate::evolve::Broken;

pub(super) fn respond(turn: &mut Turn<'_>, event: &Event) -> Result<(), Broken> {
    let Event::NodeReported { node: name, facts, tasks, saves, commits, .. } = event else {
        return Ok(());
    };
    let node = match (turn.books().node_named(name), facts) {
        (Some(node), _) => node.id,
        (None, Some(_)) => {
            let node = NodeId(turn.books().last_node.saturating_add(1));
            turn.take(Decision::NodeAdmitted { node, name: name.clone() })?;
            node
        }
        // Changes of a node that never introduced itself.
        (None, None) => return Ok(()),
    };
    for (task, said) in commits {
        if turn.books().task(*task).is_some_and(|known| known.place.node == node) {
            commit(turn, *task, said)?;
        }
    }
    // How far requests to save came bears on how what has ended is judged.
    turn.note_saves(event);
    for (task, seen) in saves {
        if turn.books().task(*task).is_some_and(|known| known.place.node == node) {
            saving::asked(turn, *task, seen)?;
        }
    }
    for (task, seen) in tasks {
        // A node speaks only for itself.
        if turn.books().task(*task).is_some_and(|known| known.place.node == node) {
            prove(turn, *task, seen)?;
        }
    }
    if let Some(facts) = facts {
        refresh(turn, node, facts)?;
    }
    turn.note_report(node, event);
    Ok(())
}

/// A checkpoint counts if it goes beyond the last of the job and its attempt may still commit.
fn commit(turn: &mut Turn<'_>, id: TaskId, said: &Commit) -> Result<(), Broken> {
    let books = turn.books();
    let Some(job) = books.jobs.get(&id.attempt.job) else { return Ok(()) };
    let newer = job.commit().is_none_or(|last| last.step < said.step);
    let open = job.attempt(id.attempt.number).is_some_and(|attempt| !attempt.commits_closed);
    // What does not count tells of a rehearsal that it began again.
    let judged = rehearsal::resumed(job, id.attempt, said.step, turn.now());
    if newer && open {
        let commit = Box::new(said.clone());
        turn.take(Decision::CheckpointCommitted { attempt: id.attempt, commit })?;
    }
    if let Some(judged) = judged {
        turn.take(judged)?;
        turn.touch(id.attempt);
    }
    Ok(())
}

/// After the node's own words about its tasks: a record of an end that outlived a reboot counts.
fn refresh(turn: &mut Turn<'_>, node: NodeId, facts: &NodeFacts) -> Result<(), Broken> {
    let Some(known) = turn.books().nodes.get(&node) else { return Ok(()) };
    if known.facts == *facts {
        return Ok(());
    }
    let rebooted = !known.facts.boot_id.is_empty() && known.facts.boot_id != facts.boot_id;
    if rebooted {
        cluster::lose_tasks(turn, node, "its node rebooted")?;
    }
    let closes = !facts.closed.is_empty();
    turn.take(Decision::NodeRefreshed { node, facts: facts.clone() })?;
    if closes {
        cluster::touch_tasks(turn, node);
    }
    Ok(())
}

fn prove(turn: &mut Turn<'_>, id: TaskId, seen: &TaskSeen) -> Result<(), Broken> {
    let Some(task) = turn.books().task(id) else { return Ok(()) };
    let (prepared, ended) = (task.port.is_some(), task.exit.is_some());
    let (started, released) = (task.started, task.released);
    let granted = turn.books().attempt(id.attempt).is_some_and(|known| known.granted.is_some());
    match seen {
        TaskSeen::Prepared { port } if !prepared && !ended => {
            turn.take(Decision::TaskPrepared { task: id, port: *port })
        }
        TaskSeen::Running if granted && !started && !ended => turn.take(Decision::TaskStarted(id)),
        TaskSeen::Ended { exit, released: gone, ran, idle } => {
            if !ended {
                turn.take(Decision::TaskEnded { task: id, exit: exit.clone(), ran: *ran })?;
                if let Some(idle) = *idle {
                    turn.take(Decision::TaskIdled { task: id, idle })?;
                }
            }
            if *gone && !released {
                turn.take(Decision::TaskReleased(id))?;
            }
            Ok(())
        }
        TaskSeen::Missing if !prepared && !ended => {
            // It was told to stop before it had heard of the task: nothing ever ran.
            let exit = TaskExit::NeverStarted("stopped before it was prepared".to_owned());
            let ran = tidegate_model::Span::ZERO;
            turn.take(Decision::TaskEnded { task: id, exit, ran })?;
            turn.take(Decision::TaskReleased(id))
        }
        // An agent that came without its records cannot know what still runs: it is kept, and
        // explained, until the node reboots or a person says that it is lost.
        TaskSeen::Missing if started && !ended => Ok(()),
        TaskSeen::Missing => cluster::lose_task(turn, id, "its agent has no record of it"),
        TaskSeen::Prepared { .. } | TaskSeen::Running | TaskSeen::Starting | TaskSeen::Gone => {
            Ok(())
        }
    }
}
