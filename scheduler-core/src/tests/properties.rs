//! Random histories: whatever happens, in whatever order, the books add up, replay to the same,
//! and a job that is served ends.

use proptest::prelude::*;
use tidegate_model::{JobId, NodeId, Order, Span, TaskExit, TaskSeen};

use super::lab::{Lab, ended};
use crate::JobState;

#[derive(Debug, Clone)]
enum Step {
    Submit(u32),
    Cancel(u8),
    /// A node does what it is told for one of its tasks, and says so.
    Obey {
        node: u8,
        task: u8,
        exit: u8,
    },
    /// A node says something of a task out of turn.
    Babble {
        node: u8,
        job: u8,
        seen: u8,
    },
    Pass {
        seconds: u32,
        heard: u8,
    },
    Drain(u8),
    Resume(u8),
    Reboot(u8),
    DeclareLost(u8),
    RestartCoordinator,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop_oneof![Just(1), Just(3), Just(8), Just(16), Just(24)].prop_map(Step::Submit),
        1 => any::<u8>().prop_map(Step::Cancel),
        30 => (any::<u8>(), any::<u8>(), any::<u8>())
            .prop_map(|(node, task, exit)| Step::Obey { node, task, exit }),
        3 => (any::<u8>(), any::<u8>(), any::<u8>())
            .prop_map(|(node, job, seen)| Step::Babble { node, job, seen }),
        3 => (0..2000_u32, any::<u8>()).prop_map(|(seconds, heard)| Step::Pass { seconds, heard }),
        1 => any::<u8>().prop_map(Step::Drain),
        2 => any::<u8>().prop_map(Step::Resume),
        1 => any::<u8>().prop_map(Step::Reboot),
        1 => any::<u8>().prop_map(Step::DeclareLost),
        1 => Just(Step::RestartCoordinator),
    ]
}

const NODES: u32 = 4;

fn pick(node: u8) -> u32 {
    u32::from(node) % NODES + 1
}

fn exit_of(exit: u8) -> TaskExit {
    match exit % 8 {
        0 => TaskExit::Exited(1),
        1 => TaskExit::Signaled(9),
        2 => TaskExit::Lost("its shim died".into()),
        _ => TaskExit::Exited(0),
    }
}

fn take(lab: &mut Lab, step: &Step) {
    match *step {
        Step::Submit(gpus) => drop(lab.submit(gpus)),
        Step::Cancel(job) => lab.cancel(JobId(u64::from(job % 16) + 1)),
        Step::Obey { node, task, exit } => obey(lab, pick(node), task, exit),
        Step::Babble { node, job, seen } => {
            let seen = match seen % 6 {
                0 => TaskSeen::Prepared { port: 1 },
                1 => TaskSeen::Starting,
                2 => TaskSeen::Running,
                3 => ended(TaskExit::Exited(0)),
                4 => TaskSeen::Missing,
                _ => TaskSeen::Gone,
            };
            lab.report(pick(node), &[(JobId(u64::from(job % 16) + 1), 1, 0, seen)]);
        }
        Step::Pass { seconds, heard } => {
            let heard: Vec<_> = (1..=NODES).filter(|node| heard >> node & 1 == 1).collect();
            lab.pass_with(Span::seconds(seconds.into()), &heard);
        }
        Step::Drain(node) => lab.drain(pick(node)),
        Step::Resume(node) => lab.resume(pick(node)),
        Step::Reboot(node) => lab.reboot(pick(node)),
        Step::DeclareLost(node) => lab.declare_lost(pick(node)),
        Step::RestartCoordinator => {
            lab.restart();
            (1..=NODES).for_each(|node| lab.introduce(node));
        }
    }
}

fn obey(lab: &mut Lab, node: u32, task: u8, exit: u8) {
    let wanted = lab.core.wanted_of(NodeId(node));
    let chosen = usize::from(task) % wanted.len().max(1);
    let Some((id, wanted)) = wanted.iter().nth(chosen) else { return };
    let seen = match wanted {
        Order::Prepare(_) => TaskSeen::Prepared { port: 29_500 },
        Order::Run(_) => match lab.core.books().task(*id) {
            Some(task) if task.started => ended(exit_of(exit)),
            _ => TaskSeen::Running,
        },
        Order::Stop(_) => ended(TaskExit::Signaled(15)),
        Order::Forget => TaskSeen::Gone,
    };
    lab.report(node, &[(id.attempt.job, id.attempt.number, id.index, seen)]);
}

/// With all nodes in service and obeying, everything that is alive comes to its end.
fn serve_to_the_end(lab: &mut Lab) {
    for node in 1..=NODES {
        lab.introduce(node);
        lab.resume(node);
    }
    let heard: Vec<_> = (1..=NODES).collect();
    for round in 0..5000 {
        let alive = lab.core.books().live_jobs();
        if alive == 0 {
            return;
        }
        for node in 1..=NODES {
            for task in 0..lab.core.wanted_of(NodeId(node)).len() {
                obey(lab, node, u8::try_from(task).unwrap_or(0), 7);
            }
        }
        if round % 4 == 3 {
            lab.pass_with(Span::seconds(301), &heard);
        }
    }
    let left: Vec<_> = lab
        .core
        .books()
        .jobs
        .values()
        .filter(|job| !matches!(job.state, JobState::Ended { .. }))
        .map(|job| lab.core.explain(lab.now(), job.id))
        .collect();
    panic!("still alive: {left:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_add_up_after_every_event_and_every_job_ends(
        steps in proptest::collection::vec(step(), 0..150)
    ) {
        let mut lab = Lab::with_blocks(&[(8, "a"), (8, "a"), (8, "b"), (4, "b")]);
        lab.change_policy(|policy| policy.sharing.no_progress_limit = 1000);
        for step in &steps {
            take(&mut lab, step);
        }
        serve_to_the_end(&mut lab);
    }
}
