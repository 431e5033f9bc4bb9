//! One short history that meets every kind of decision, for suites that must see them all.

use scheduler_core::{
    AccountRequest, Amount, Author, Cut, Event, GateRequest, GateRule, JobRequest, Policy,
    PolicyChange, Role, Sharing, Size,
};
use simulator::plain_job;
use tidegate_coordinator::engine::{Engine, EngineError};
use tidegate_coordinator::journal::Journal;
use tidegate_coordinator::store;
use tidegate_model::{
    Ask, AskAfter, AskSeen, AsksWithin, AttemptId, Bandwidth, Bytes, CheckpointOffer, ClusterId,
    Commit, DecisionSeq, Gpu, GpuCount, Idle, JobId, JobSpec, NodeFacts, NodeName, SaveDelivery,
    SaveSeen, SaveTarget, Span, SubmitKey, TaskExit, TaskId, TaskLayout, TaskSeen, Timestamp,
    UserId, WriteClass,
};

use crate::offer::offer;

/// An engine over the journal, at the later of its newest instant and `now`; a new store has the
/// default policy, but that a gang may have all of a small cluster.
///
/// # Errors
/// If the journal fails.
pub fn start<J: Journal>(journal: J, now: Timestamp) -> Result<Engine<J>, EngineError> {
    let restored = store::restore(&journal)?;
    let at = restored.last.max(now);
    Engine::start(journal, restored, at, &policy())
}

fn policy() -> Policy {
    let sharing = Sharing { gang_cap: 1_000_000, ..Sharing::default() };
    Policy { sharing, ..Policy::default() }
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
        closed: String::new(),
    }
}

fn spec(gpus: u32) -> JobSpec {
    JobSpec {
        name: "j".into(),
        command: vec!["x".into(), "y".into()],
        env: vec![("K".into(), "v".into())],
        gpus_per_node: Some(GpuCount(gpus)),
        layout: TaskLayout::PerGpu,
        min_runtime: Span::hours(1),
        max_restarts: 1,
        checkpoint_dir: Some("/c".into()),
        ..plain_job("a/b".parse().expect("valid"), GpuCount(gpus))
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
    Event::NodeReported {
        node: "node-a".parse().expect("valid"),
        complete,
        facts,
        tasks,
        saves: vec![],
        commits: vec![],
        asks: vec![],
    }
}

/// The node, with nothing on it, says why it takes no new work; empty = it does.
fn closed(why: &str) -> Event {
    let facts = Some(NodeFacts { closed: why.to_owned(), ..facts() });
    let (tasks, saves, commits, asks) = (vec![], vec![], vec![], vec![]);
    Event::NodeReported { node: node(), complete: true, facts, tasks, saves, commits, asks }
}

fn task(job: u64, number: u32, index: u32) -> TaskId {
    TaskId { attempt: AttemptId { job: JobId(job), number }, index }
}

/// The account of [`submit`], with everything the cluster has.
#[must_use]
pub fn accounts() -> Vec<Event> {
    vec![
        set("default", Size::Share(0), Cut::Now),
        set("a", Size::Share(1_000_000), Cut::Now),
        set("a/b", Size::Share(600_000), Cut::Now),
    ]
}

fn set(account: &str, size: Size, cut: Cut) -> Event {
    by(0, AccountRequest::Set { account: account.parse().expect("valid"), size, cut })
}

fn by(user: u32, request: AccountRequest) -> Event {
    Event::AccountRequested { by: UserId(user), request }
}

/// Free work of 8 GPUs that can save.
fn submit_free(key: u128) -> Event {
    let checkpoint = Some(CheckpointOffer {
        target: SaveTarget::Task,
        storage: "scratch".parse().expect("valid"),
        ..offer(Span::minutes(1))
    });
    let layout = TaskLayout::PerNode;
    let spec = JobSpec { min_runtime: Span::ZERO, checkpoint, layout, ..spec(8) };
    Event::JobSubmitted { key: SubmitKey(key), user: UserId(1000), spec: Box::new(spec) }
}

/// Ordinary work of the whole node for 8 h.
fn submit_large(key: u128) -> Event {
    let spec = JobSpec { min_runtime: Span::hours(4), layout: TaskLayout::PerNode, ..spec(8) };
    Event::JobSubmitted { key: SubmitKey(key), user: UserId(1000), spec: Box::new(spec) }
}

fn asked(job: JobId, request: JobRequest) -> Event {
    Event::JobRequested { job, by: UserId(0), request }
}

/// The node says how far a save came, and what was committed.
fn saved(of: TaskId, seen: TaskSeen, request: u64, step: Option<u64>) -> Event {
    let request = DecisionSeq(request);
    let commit =
        |step| Commit { step, path: format!("/c/{step}"), bytes: Bytes(7), request: Some(request) };
    Event::NodeReported {
        node: "node-a".parse().expect("valid"),
        complete: false,
        facts: None,
        tasks: vec![(of, seen)],
        saves: vec![(of, SaveSeen { request, delivery: SaveDelivery::Signalled { ranks: 8 } })],
        commits: step.map(|step| (of, commit(step))).into_iter().collect(),
        asks: Vec::new(),
    }
}

fn gate(request: GateRequest) -> Event {
    Event::GateRequested { storage: "scratch".parse().expect("valid"), by: UserId(0), request }
}

fn cap(bytes: u64) -> GateRule {
    GateRule { cap: Some(Bandwidth(bytes)), ..GateRule::default() }
}

/// A running task asks for a permit, or has written.
fn asks(of: TaskId, number: u64, done: bool) -> Event {
    let (class, bytes) = (WriteClass::Periodic, Bytes(1 << 20));
    let ask = Ask { number, class, bytes, files: 1, patience: Some(Span::minutes(1)) };
    let seen = AskSeen { ask, waited: Span(1), written: Bytes(0), done, rated: DecisionSeq(0) };
    Event::NodeReported {
        node: node(),
        complete: false,
        facts: None,
        tasks: vec![(of, TaskSeen::Running)],
        saves: vec![],
        commits: vec![],
        asks: vec![(of, seen)],
    }
}

fn ended(exit: TaskExit) -> TaskSeen {
    let idle = Idle { idle: Span(2), of: Span(4) };
    TaskSeen::Ended { exit, released: true, ran: Span(5), idle: Some(idle) }
}

/// Two tasks of job 1 in one state.
fn both(number: u32, seen: &TaskSeen) -> Event {
    report(false, vec![(task(1, number, 0), seen.clone()), (task(1, number, 1), seen.clone())])
}

/// A history that meets nearly every kind of decision: instants and events.
#[must_use]
pub fn history() -> Vec<(u64, Event)> {
    let mut history = first_day();
    history.extend(money());
    history.extend(displacement());
    history.extend(waiting());
    let day = Span::hours(24).0;
    history.extend([
        (16 * day, Event::DeadlineReached),
        (16 * day + 1, Event::NodeDeclaredLost { node: node(), by: UserId(0) }),
        (16 * day + 2, Event::CancelRequested { job: JobId(4), by: UserId(0) }),
    ]);
    history.extend(rehearsal(17 * day));
    history.extend(turns(18 * day));
    history.extend(slow(19 * day));
    history.extend([
        (24 * day, Event::DeadlineReached),
        (24 * day + 1, Event::NodeRemovalRequested { node: node(), by: UserId(0) }),
        (24 * day + 2, by(0, AccountRequest::Delete { account: "a/c".parse().expect("valid") })),
    ]);
    history
}

fn node() -> NodeName {
    "node-a".parse().expect("valid")
}

fn by_root(policy: Policy) -> Event {
    Event::PolicyChanged(PolicyChange { policy, by: Author::User(UserId(0)), read: None })
}

fn first_day() -> Vec<(u64, Event)> {
    let root = UserId(0);
    let prepared = TaskSeen::Prepared { port: 29_500 };
    let sharing = Sharing { patience: Span::hours(2), ..policy().sharing };
    let never = || ended(TaskExit::NeverStarted("stopped".into()));
    let mut never_started: Vec<_> = (0..8).map(|index| (task(2, 1, index), never())).collect();
    never_started.push((task(3, 1, 0), never()));
    let mut history: Vec<_> = vec![
        (1, by_root(Policy { admins: [UserId(5)].into(), sharing, ..policy() })),
        (2, report(true, vec![])),
    ];
    history.extend(accounts().into_iter().map(|event| (2, event)));
    history.extend([
        (3, submit(1, 2)),
        (4, submit(2, 8)),
        (5, both(1, &prepared)),
        (6, both(1, &TaskSeen::Running)),
        (7, report(false, vec![(task(1, 1, 1), ended(TaskExit::Exited(3)))])),
        (8, report(false, vec![(task(1, 1, 0), ended(TaskExit::Signaled(15)))])),
        (2000, Event::DeadlineReached),
        (2001, both(2, &prepared)),
        (2002, both(2, &TaskSeen::Running)),
        (
            2003,
            Event::DrainRequested {
                node: node(),
                by: root,
                reason: "fans".into(),
                wanted_by: Some(Timestamp(9000)),
            },
        ),
        (2004, report(false, vec![(task(1, 2, 0), ended(TaskExit::Lost("gone".into())))])),
        (2005, report(false, vec![(task(1, 2, 1), ended(TaskExit::NeverStarted("no".into())))])),
        (2006, Event::ResumeRequested { node: node(), by: root }),
        (2007, Event::CancelRequested { job: JobId(1), by: UserId(1000) }),
        (2008, Event::CancelRequested { job: JobId(2), by: root }),
        (2009, both(2, &TaskSeen::Missing)),
        (2010, submit(3, 1)),
        (2011, Event::CancelRequested { job: JobId(3), by: root }),
        (2012, report(false, never_started)),
        (2013, closed("the disk is full")),
        (2014, closed("")),
    ]);
    history
}

/// Accounts made, cut, asked for and divided.
fn money() -> Vec<(u64, Event)> {
    let path = |path: &str| path.parse().expect("valid");
    let hours = Amount::gpu_hours;
    let events = [
        set("a/c", Size::Fixed(hours(100)), Cut::Now),
        set("a/c", Size::Fixed(hours(80)), Cut::Gradual),
        by(
            0,
            AccountRequest::Transfer {
                from: path("a/b"),
                to: path("a/c"),
                amount: hours(10),
                permanent: false,
                key: Some(SubmitKey(77)),
            },
        ),
        by(
            1000,
            AccountRequest::Ask {
                account: path("a/c"),
                size: Size::Fixed(hours(90)),
                reason: "more".into(),
            },
        ),
        by(
            5,
            AccountRequest::Answer {
                account: path("a/c"),
                asked_by: UserId(1000),
                grant: true,
                size: Some(Size::Fixed(hours(90))),
            },
        ),
        by(
            1000,
            AccountRequest::Ask { account: path("a/b"), size: Size::Share(9), reason: "x".into() },
        ),
        by(
            0,
            AccountRequest::SetRole {
                account: Some(path("a")),
                user: UserId(1000),
                role: Some(Role::Member),
            },
        ),
        by(0, AccountRequest::SetRole { account: None, user: UserId(7), role: Some(Role::Reader) }),
        by(0, AccountRequest::SetRole { account: None, user: UserId(7), role: None }),
    ];
    events.into_iter().map(|event| (3000, event)).collect()
}

/// Free work gives way to protected work, saves, and comes back.
fn displacement() -> Vec<(u64, Event)> {
    let prepared = TaskSeen::Prepared { port: 29_500 };
    let free = task(4, 1, 0);
    let heir = task(5, 1, 0);
    let one = |of, seen| report(false, vec![(of, seen)]);
    vec![
        (4000, submit_free(4)),
        (4001, one(free, prepared.clone())),
        (4002, one(free, TaskSeen::Running)),
        (4002, gate(GateRequest::Set(cap(1 << 10)))),
        (4002, asks(free, 1, false)),
        (4002, gate(GateRequest::Set(cap(1 << 30)))),
        (4002, asks(free, 1, true)),
        (4002, gate(GateRequest::Pause { reason: "disks".into() })),
        // Nothing is decided on it yet, so it is in no record.
        (4002, asks(free, 2, false)),
        (4002, gate(GateRequest::Resume)),
        (4002, asks(free, 2, true)),
        (4003, saved(free, TaskSeen::Running, 1, Some(1))),
        (5000, submit_large(5)),
        (5001, Event::WritingSeen { task: free }),
        (5001, saved(free, TaskSeen::Running, 1, Some(2))),
        (6000, saved(free, ended(TaskExit::Exited(85)), 1, None)),
        (6001, one(heir, prepared)),
        (6002, one(heir, TaskSeen::Running)),
        (6003, asked(JobId(4), JobRequest::Park)),
        (6004, asked(JobId(4), JobRequest::Release)),
    ]
}

/// Who waits long has nodes promised; protection ends, and the account comes to its limit.
fn waiting() -> Vec<(u64, Event)> {
    let hour = Span::hours(1).0;
    let prepared = TaskSeen::Prepared { port: 29_500 };
    let one = |of, seen| report(false, vec![(of, seen)]);
    let again = task(4, 2, 0);
    vec![
        (7000, submit_large(6)),
        (7001, asked(JobId(6), JobRequest::AllowElder)),
        // Heard now and then, the node stays in service.
        (3 * hour, report(false, vec![])),
        (3 * hour + 1, asked(JobId(6), JobRequest::DropReservation)),
        (5 * hour, report(false, vec![])),
        (5 * hour + 1, set("a/b", Size::Share(10_000), Cut::Now)),
        (5 * hour + 2, set("a/b", Size::Share(600_000), Cut::Now)),
        (5 * hour + 3, Event::CancelRequested { job: JobId(6), by: UserId(0) }),
        (5 * hour + 4, one(task(5, 1, 0), ended(TaskExit::Exited(0)))),
        (5 * hour + 5, one(again, prepared)),
        (5 * hour + 6, one(again, TaskSeen::Running)),
        (
            5 * hour + 7,
            Event::DrainRequested {
                node: node(),
                by: UserId(0),
                reason: "fans".into(),
                wanted_by: None,
            },
        ),
        (5 * hour + 8, Event::ResumeRequested { node: node(), by: UserId(0) }),
        (5 * hour + 9, saved(again, ended(TaskExit::Exited(85)), 1, Some(3))),
    ]
}

/// A job is asked to save, leaves, is started again and goes on.
fn rehearsal(from: u64) -> Vec<(u64, Event)> {
    let prepared = TaskSeen::Prepared { port: 29_500 };
    let (first, again) = (task(7, 1, 0), task(7, 2, 0));
    let one = |of, seen| report(false, vec![(of, seen)]);
    let mut submitted = submit_free(7);
    if let Event::JobSubmitted { spec, .. } = &mut submitted
        && let Some(offer) = &mut spec.checkpoint
    {
        offer.rehearsal = AskAfter::of(Span::seconds(10));
    }
    vec![
        // It had been declared lost; a report that changes nothing leaves no record that it is back.
        (from, closed("the disk is full")),
        (from, closed("")),
        (from + 1, submitted),
        (from + 2, one(first, prepared.clone())),
        (from + 3, one(first, TaskSeen::Running)),
        (from + 10_003, Event::DeadlineReached),
        (from + 11_000, saved(first, ended(TaskExit::Exited(85)), 1, Some(20))),
        (from + 11_001, one(again, prepared)),
        (from + 11_002, one(again, TaskSeen::Running)),
        (from + 11_003, saved(again, TaskSeen::Running, 1, Some(21))),
        (from + 11_004, one(again, ended(TaskExit::Signaled(15)))),
    ]
}

/// Two jobs are to leave one after the other; the second asks before it writes.
fn turns(from: u64) -> Vec<(u64, Event)> {
    let prepared = TaskSeen::Prepared { port: 29_500 };
    let (first, second) = (task(8, 1, 0), task(9, 1, 0));
    let half = |key: u128, within: Option<AsksWithin>| {
        let mut submitted = submit_free(key);
        if let Event::JobSubmitted { spec, .. } = &mut submitted {
            (spec.gpus, spec.gpus_per_node) = (GpuCount(4), Some(GpuCount(4)));
            spec.checkpoint.iter_mut().for_each(|offer| offer.asks_within = within);
        }
        submitted
    };
    let root = UserId(0);
    let drain =
        Event::DrainRequested { node: node(), by: root, reason: "fans".into(), wanted_by: None };
    vec![
        (from, report(false, vec![])),
        (from + 1, half(8, None)),
        (from + 2, half(9, AsksWithin::of(Span::seconds(5)))),
        (from + 3, report(false, vec![(first, prepared.clone()), (second, prepared)])),
        (from + 4, report(false, vec![(first, TaskSeen::Running), (second, TaskSeen::Running)])),
        (from + 5, drain),
        // Four GPUs' 56 GB take 52 s at 1 GiB/s.
        // Nobody on a node that is not heard is told of its turn.
        (from + 50_000, report(false, vec![(first, TaskSeen::Running)])),
        (from + 50_001, saved(first, ended(TaskExit::Exited(85)), 1, Some(1))),
        (from + 50_002, saved(second, ended(TaskExit::Exited(85)), 1, Some(1))),
        (from + 50_003, Event::CancelRequested { job: JobId(8), by: root }),
        (from + 50_004, Event::CancelRequested { job: JobId(9), by: root }),
        (from + 50_005, Event::ResumeRequested { node: node(), by: root }),
    ]
}

/// A target that carries less than its cap, by what a job makes of its second permit.
fn slow(from: u64) -> Vec<(u64, Event)> {
    let one = |of, seen| report(false, vec![(of, seen)]);
    let job = task(10, 1, 0);
    let floor = Some(Bandwidth(1 << 20));
    vec![
        (from, gate(GateRequest::Set(GateRule { floor, ..cap(1 << 30) }))),
        (from + 1, submit_free(10)),
        (from + 2, one(job, TaskSeen::Prepared { port: 29_500 })),
        (from + 3, one(job, TaskSeen::Running)),
        (from + 4, saved(job, TaskSeen::Running, 1, Some(1))),
        (from + 5, asks(job, 1, false)),
        (from + 6, asks(job, 1, true)),
        (from + 7, asks(job, 2, false)),
        (from + 30_000, asks(job, 2, true)),
        (from + 30_001, Event::CancelRequested { job: JobId(10), by: UserId(0) }),
        (from + 30_002, one(job, ended(TaskExit::Signaled(15)))),
    ]
}

/// A node, accounts, and so many jobs submitted and cancelled, each a record, that the third snapshot has
/// dropped what only the first needed.
///
/// # Errors
/// If a turn or a snapshot fails.
pub fn until_the_log_is_cut<J: Journal>(engine: &mut Engine<J>) -> Result<(), EngineError> {
    engine.turn(Timestamp(1), &[report(true, Vec::new())])?;
    engine.turn(Timestamp(1), &accounts())?;
    for turn in 0..155_u64 {
        let one = |at: u64| {
            let job = turn * 100 + at;
            let cancel = Event::CancelRequested { job: JobId(job), by: UserId(0) };
            [submit(job.into(), 8), cancel]
        };
        let events: Vec<_> = (1..=100).flat_map(one).collect();
        engine.turn(Timestamp(2), &events)?;
        engine.snapshot_if_due()?;
    }
    Ok(())
}
