//! What a node is wanted to do: its whole plan, from the books. Nothing here is decided.

use std::collections::BTreeMap;

use tidegate_model::{DecisionSeq, Launch, NodeId, Order, Save, Span, Stop, TaskId, TaskSeen};

use crate::books::{Attempt, Books, Job, Task};
use crate::decide::gate;
use crate::decide::spots::save_grace;
use crate::decision::SaveReason;
use crate::observations::Observations;

pub(crate) fn wanted_of(
    books: &Books,
    seen: &Observations,
    node: NodeId,
) -> BTreeMap<TaskId, Order> {
    let mut wanted = BTreeMap::new();
    let placed = books.nodes.get(&node).map(|node| &node.tasks).into_iter().flatten();
    wanted.extend(placed.filter_map(|id| Some((*id, of_placed(books, seen, *id)?))));
    let held = seen.node(node).map(|node| &node.tasks).into_iter().flatten();
    for (id, state) in held {
        if !wanted.contains_key(id) {
            wanted.extend(of_not_placed(books, *id, state).map(|order| (*id, order)));
        }
    }
    wanted
}

/// Of a task that its agent has a record of and the books do not have on the node.
fn of_not_placed(books: &Books, id: TaskId, state: &TaskSeen) -> Option<Order> {
    if let Some(task) = books.task(id) {
        let decision = task.ended_by.unwrap_or(DecisionSeq(0));
        return Some(of_released(decision, "its attempt is over", state));
    }
    // Jobs leave the books only when they are over. What these books have never known (a later
    // job or attempt, where they were put back from a backup) is left alone: nothing says that it
    // is over. Agents of other clusters are refused before, and refuse other clusters' plans.
    let job = id.attempt.job;
    let was_forgotten = job.0 <= books.last_job && !books.jobs.contains_key(&job);
    was_forgotten.then(|| of_released(DecisionSeq(0), "its job ended long ago", state))
}

/// Of a task that the books have on the node.
fn of_placed(books: &Books, seen: &Observations, id: TaskId) -> Option<Order> {
    let job = books.jobs.get(&id.attempt.job)?;
    let attempt = job.attempt(id.attempt.number)?;
    let task = books.task(id)?;
    let ended = task.ended_by.zip(task.exit.as_ref());
    if let Some(stop) = attempt.stop {
        let (decision, why) = (stop.decision, stop.why.to_string());
        let free = !attempt.was_protected();
        let grace = job.spec.grace;
        let grace = if free { grace.min(books.policy.sharing.free_grace) } else { grace };
        return Some(Order::Stop(Stop { decision, grace, why }));
    }
    if let Some((decision, exit)) = ended {
        let why = exit.to_string();
        return Some(Order::Stop(Stop { decision, grace: Span::ZERO, why }));
    }
    if attempt.granted.is_some() {
        let mut launch = launch(books, job, attempt, id)?;
        launch.permit = gate::permit(books, seen, id);
        return Some(Order::Run(Box::new(launch)));
    }
    // A node is told of a task once the task has all its GPUs there: others may still save on
    // them.
    let node = books.nodes.get(&task.place.node)?;
    let own = task.place.gpus.iter().all(|gpu| node.held.get(gpu) == Some(&id));
    own.then(|| Order::Prepare(task.place.gpus.clone()))
}

/// The request to save, once the attempt is told of it.
fn save(books: &Books, job: &Job, attempt: &Attempt) -> Option<Save> {
    let order = attempt.save.filter(|order| order.said().is_some())?;
    let offer = job.spec.checkpoint.as_ref()?;
    let why = match order.why {
        SaveReason::Displaced { by, grounds } => format!("{by} has its GPUs: {grounds}"),
        SaveReason::Drained { node } => {
            let name = books.nodes.get(&node).map(|node| node.name.to_string());
            format!("{} takes no work", name.unwrap_or_else(|| node.to_string()))
        }
        SaveReason::Rehearsed => "it is a rehearsal: save and leave".to_owned(),
    };
    Some(Save {
        request: order.decision,
        signal: offer.signal,
        target: offer.target,
        grace: save_grace(books, job, attempt),
        why,
    })
}

/// Of a task that the books have let go while its agent still has a record of it.
fn of_released(decision: DecisionSeq, why: &str, state: &TaskSeen) -> Order {
    let over = match state {
        TaskSeen::Ended { released, .. } => *released,
        TaskSeen::Missing | TaskSeen::Gone => true,
        // The node was declared lost, or rebooted in the books' eyes, and yet here it runs.
        TaskSeen::Prepared { .. } | TaskSeen::Starting | TaskSeen::Running => false,
    };
    if over {
        return Order::Forget;
    }
    Order::Stop(Stop { decision, grace: Span::ZERO, why: why.to_owned() })
}

fn launch(books: &Books, job: &Job, attempt: &Attempt, id: TaskId) -> Option<Launch> {
    let task = books.task(id)?;
    let first = attempt.tasks.first()?;
    let mut nodes: Vec<NodeId> = attempt.tasks.iter().map(|task| task.place.node).collect();
    nodes.dedup();
    let node_rank = nodes.iter().position(|node| *node == task.place.node)?;
    let gpus_of = |tasks: &mut dyn Iterator<Item = &Task>| {
        u32::try_from(tasks.map(|task| task.place.gpus.len()).sum::<usize>()).ok()
    };
    let here = |other: &&Task| other.place.node == task.place.node;
    let before = usize::try_from(id.index).ok()?;
    let spec = &job.spec;
    let default_dir =
        || format!("{}/checkpoints/{}", spec.working_dir.trim_end_matches('/'), job.id);
    // What is only rehearsed must not resume from, nor write into, what the real job keeps.
    let given_dir = |dir: &str| match spec.rehearsal() {
        Some(_) => format!("{}/rehearsals/{}", dir.trim_end_matches('/'), job.id),
        None => dir.to_owned(),
    };
    Some(Launch {
        user: job.user,
        command: spec.command.clone(),
        working_dir: spec.working_dir.clone(),
        env: spec.env.clone(),
        gpus: task.place.gpus.clone(),
        layout: spec.layout,
        rank: gpus_of(&mut attempt.tasks.iter().take(before))?,
        local_rank: gpus_of(&mut attempt.tasks.iter().take(before).filter(here))?,
        world_size: gpus_of(&mut attempt.tasks.iter())?,
        local_world_size: gpus_of(&mut attempt.tasks.iter().filter(here))?,
        node_rank: u32::try_from(node_rank).ok()?,
        nodes: u32::try_from(nodes.len()).ok()?,
        master_addr: books.nodes.get(&first.place.node)?.facts.address.clone(),
        master_port: first.port?,
        checkpoint_dir: spec.checkpoint_dir.as_deref().map_or_else(default_dir, given_dir),
        log_cap: spec.log_cap,
        save: save(books, job, attempt),
        permit: None,
        pty: spec.pty,
    })
}

#[cfg(test)]
mod tests {
    use tidegate_model::{AttemptId, JobId, NodeName, TaskExit, Timestamp};

    use super::*;
    use crate::decision::Decision;
    use crate::event::Event;
    use crate::evolve::Stamp;

    const NODE: NodeId = NodeId(1);

    /// What a node is told of a task, by books that have accepted two jobs and keep none of them.
    fn wanted_of_unknown(job: u64, seen: TaskSeen) -> Option<Order> {
        let (mut books, mut observed) = (Books::default(), Observations::default());
        let (at, seq) = (Timestamp(1000), DecisionSeq(1));
        let name: NodeName = "n1".parse().unwrap();
        let admitted = Decision::NodeAdmitted { node: NODE, name: name.clone() };
        books.evolve(Stamp { at, seq }, &admitted).unwrap();
        books.last_job = 2;
        let task = TaskId { attempt: AttemptId { job: JobId(job), number: 1 }, index: 0 };
        let report = Event::NodeReported {
            node: name,
            complete: true,
            facts: None,
            tasks: vec![(task, seen)],
            saves: vec![],
            commits: vec![],
            asks: vec![],
        };
        observed.note_report(&books, at, &report);
        wanted_of(&books, &observed, NODE).remove(&task)
    }

    fn check_is_stopped(seen: &TaskSeen) {
        let order = wanted_of_unknown(2, seen.clone());
        let is_stop = matches!(&order, Some(Order::Stop(stop)) if stop.grace == Span::ZERO);
        assert!(is_stop, "{seen:?}: {order:?}");
    }

    #[test]
    fn what_runs_of_a_job_that_ended_long_ago_is_stopped() {
        check_is_stopped(&TaskSeen::Running);
        check_is_stopped(&TaskSeen::Starting);
        check_is_stopped(&TaskSeen::Prepared { port: 29_500 });
    }

    #[test]
    fn the_record_of_what_ended_of_a_job_that_ended_long_ago_is_forgotten() {
        let exit = TaskExit::Exited(0);
        let ended = TaskSeen::Ended { exit, released: true, ran: Span(1), idle: None };
        assert_eq!(wanted_of_unknown(1, ended), Some(Order::Forget));
    }

    #[test]
    fn a_task_of_a_job_that_these_books_have_never_known_is_left_alone() {
        assert_eq!(wanted_of_unknown(3, TaskSeen::Running), None);
    }
}
