//! One short history that meets every kind of decision, for suites that must see them all.

use scheduler_core::{Event, Policy};
use tidegate_coordinator::engine::{Engine, EngineError};
use tidegate_coordinator::journal::Journal;
use tidegate_coordinator::store;
use tidegate_model::{
    AttemptId, Bytes, ClusterId, Gpu, GpuCount, JobId, JobSpec, NodeFacts, Span, SubmitKey,
    TaskExit, TaskId, TaskLayout, TaskSeen, Timestamp, UserId,
};

/// An engine over the journal, at the later of its newest instant and `now`; a new store has the
/// default policy.
///
/// # Errors
/// If the journal fails.
pub fn start<J: Journal>(journal: J, now: Timestamp) -> Result<Engine<J>, EngineError> {
    let restored = store::restore(&journal)?;
    let at = restored.last.max(now);
    Engine::start(journal, restored, at, &Policy::default())
}

/// The cluster it happens in.
pub const CLUSTER: ClusterId = ClusterId(7);

fn facts() -> NodeFacts {
    let gpu = |index| Gpu {
        uuid: format!("GPU-a-{index}").parse().expect("valid"),
        product: "simulated".into(),
        memory: Bytes(80 << 30),
    };
    NodeFacts {
        boot_id: "boot".into(),
        gpus: (0..8).map(gpu).collect(),
        gpu_note: "note".into(),
        address: "10.0.0.1".into(),
        block: "b".into(),
        memory: Bytes(1 << 40),
        cpus: 64,
        only_user: Some(UserId(1000)),
    }
}

fn spec(gpus: u32) -> JobSpec {
    JobSpec {
        name: "j".into(),
        account: "a/b".parse().expect("valid"),
        command: vec!["x".into(), "y".into()],
        working_dir: "/w".into(),
        env: vec![("K".into(), "v".into())],
        gpus: GpuCount(gpus),
        gpus_per_node: Some(GpuCount(gpus)),
        layout: TaskLayout::PerGpu,
        min_runtime: Span::hours(1),
        grace: Span::seconds(30),
        max_restarts: 1,
        checkpoint_dir: Some("/c".into()),
        log_cap: Bytes(1 << 20),
    }
}

/// A user asks for a job on one node.
#[must_use]
pub fn submit(key: u128, gpus: u32) -> Event {
    let spec = Box::new(spec(gpus));
    Event::JobSubmitted { key: SubmitKey(key), user: UserId(1000), spec }
}

/// The node speaks; completely, or of some tasks.
#[must_use]
pub fn report(complete: bool, tasks: Vec<(TaskId, TaskSeen)>) -> Event {
    let facts = complete.then(facts);
    Event::NodeReported { node: "node-a".parse().expect("valid"), complete, facts, tasks }
}

fn task(job: u64, number: u32, index: u32) -> TaskId {
    TaskId { attempt: AttemptId { job: JobId(job), number }, index }
}

/// A history that meets every kind of decision: instants and events.
#[must_use]
pub fn history() -> Vec<(u64, Event)> {
    let node = || "node-a".parse().expect("valid");
    let root = UserId(0);
    let ended = |exit| TaskSeen::Ended { exit, released: true, ran: Span(5) };
    let running = |number| {
        vec![(task(1, number, 0), TaskSeen::Running), (task(1, number, 1), TaskSeen::Running)]
    };
    let prepared = |number| {
        let seen = TaskSeen::Prepared { port: 29_500 };
        vec![(task(1, number, 0), seen.clone()), (task(1, number, 1), seen)]
    };
    let day = Span::hours(24).0;
    vec![
        (1, Event::PolicyChanged(Policy { admins: [UserId(5)].into(), ..Policy::default() })),
        (2, report(true, vec![])),
        (3, submit(1, 2)),
        (4, submit(2, 8)),
        (5, report(false, prepared(1))),
        (6, report(false, running(1))),
        (7, report(false, vec![(task(1, 1, 1), ended(TaskExit::Exited(3)))])),
        (8, report(false, vec![(task(1, 1, 0), ended(TaskExit::Signaled(15)))])),
        (2000, Event::DeadlineReached),
        (2001, report(false, prepared(2))),
        (2002, report(false, running(2))),
        (2003, Event::DrainRequested { node: node(), by: root, reason: "fans".into() }),
        (2004, report(false, vec![(task(1, 2, 0), ended(TaskExit::Lost("gone".into())))])),
        (2005, report(false, vec![(task(1, 2, 1), ended(TaskExit::NeverStarted("no".into())))])),
        (2006, Event::ResumeRequested { node: node(), by: root }),
        (2007, Event::CancelRequested { job: JobId(1), by: UserId(1000) }),
        (2008, Event::CancelRequested { job: JobId(2), by: root }),
        (
            2009,
            report(
                false,
                vec![(task(1, 3, 0), TaskSeen::Missing), (task(1, 3, 1), TaskSeen::Missing)],
            ),
        ),
        (2010, submit(3, 1)),
        (8 * day, Event::DeadlineReached),
        (8 * day + 1, Event::NodeDeclaredLost { node: node(), by: root }),
    ]
}
