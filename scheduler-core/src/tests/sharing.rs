//! Random histories with budgets, protection, displacement, saves and drains.

use proptest::prelude::*;
use tidegate_model::{
    AskAfter, CheckpointOffer, GpuCount, JobId, JobSpec, NodeId, Order, Span, TaskExit, TaskId,
    TaskSeen, UserId,
};

use super::lab::{Lab, ended, offer};
use crate::{
    AccountRequest, Amount, AttemptState, Cut, Event, JobRequest, JobState, Outcome, Reason, Size,
};

#[derive(Debug, Clone)]
enum Step {
    Submit { user: u8, account: u8, gpus: u8, hours: u8, saves: bool, order: i8 },
    Obey { node: u8, task: u8, how: u8 },
    Pass { minutes: u16, heard: u8 },
    Cancel(u8),
    Drain(u8),
    Resume(u8),
    Reboot(u8),
    Restart,
    Budget { account: u8, percent: u8, now: bool },
    Transfer { from: u8, to: u8, hours: u8 },
    Delete(u8),
    Ask(u8, u8),
}

const NODES: u32 = 4;
/// What accounts and users are called; the order in which accounts are made is the same.
struct Names {
    accounts: [&'static str; 4],
    parent: &'static str,
    users: [u32; 3],
    blocks: [&'static str; 2],
}

const NAMES: Names = Names {
    accounts: ["default", "a", "b/x", "b/y"],
    parent: "b",
    users: [1000, 1001, 1002],
    blocks: ["a", "b"],
};

const OTHER_NAMES: Names = Names {
    accounts: ["default", "zz", "m/k", "m/a"],
    parent: "m",
    users: [2002, 1001, 7],
    blocks: ["z", "c"],
};

fn step() -> impl Strategy<Value = Step> {
    let any = any::<u8>;
    prop_oneof![
        8 => (any(), any(), any(), any(), proptest::bool::ANY, -1..2_i8).prop_map(
            |(user, account, gpus, hours, saves, order)| Step::Submit {
                user, account, gpus, hours, saves, order
            }
        ),
        40 => (any(), any(), any()).prop_map(|(node, task, how)| Step::Obey { node, task, how }),
        8 => (0..1500_u16, any()).prop_map(|(minutes, heard)| Step::Pass { minutes, heard }),
        1 => any().prop_map(Step::Cancel),
        1 => any().prop_map(Step::Drain),
        2 => any().prop_map(Step::Resume),
        1 => any().prop_map(Step::Reboot),
        1 => Just(Step::Restart),
        1 => (any(), any(), proptest::bool::ANY)
            .prop_map(|(account, percent, now)| Step::Budget { account, percent, now }),
        1 => (any(), any(), any()).prop_map(|(from, to, hours)| Step::Transfer { from, to, hours }),
        1 => any().prop_map(Step::Delete),
        2 => (any(), any()).prop_map(|(job, what)| Step::Ask(job, what)),
    ]
}

fn pick(node: u8) -> u32 {
    u32::from(node) % NODES + 1
}

fn account(names: &Names, index: u8) -> &'static str {
    names.accounts[usize::from(index) % names.accounts.len()]
}

fn spec_of(lab: &Lab, names: &Names, step: &Step) -> Option<JobSpec> {
    let Step::Submit { account: a, gpus, hours, saves, order, .. } = *step else { return None };
    let gpus = [1, 1, 2, 4, 8, 8, 16, 24][usize::from(gpus) % 8];
    let min_runtime = [
        Span::ZERO,
        Span::ZERO,
        Span::minutes(10),
        Span::minutes(60),
        Span::hours(2),
        Span::hours(8),
    ][usize::from(hours) % 6];
    Some(JobSpec {
        account: account(names, a).parse().unwrap(),
        min_runtime,
        gpus: GpuCount(gpus),
        checkpoint: saves.then(|| CheckpointOffer {
            rehearsal: AskAfter::of(Span::minutes(10)).filter(|_| hours % 12 > 6),
            ..offer()
        }),
        own_order: order.into(),
        max_restarts: 2,
        ..lab.spec(gpus)
    })
}

fn job(index: u8) -> JobId {
    JobId(u64::from(index % 40) + 1)
}

fn take(lab: &mut Lab, names: &Names, step: &Step) {
    match *step {
        Step::Submit { user, .. } => {
            let spec = spec_of(lab, names, step).unwrap();
            let _answer = lab.submit_as(UserId(names.users[usize::from(user % 3)]), spec);
        }
        Step::Obey { node, task, how } => obey(lab, pick(node), task, how),
        Step::Pass { minutes, heard } => {
            let heard: Vec<_> = (1..=NODES).filter(|node| heard >> node & 3 != 0).collect();
            pass(lab, Span::minutes(minutes.into()), &heard);
        }
        Step::Cancel(index) => {
            lab.apply(&Event::CancelRequested { job: job(index), by: UserId(0) });
        }
        Step::Drain(node) => lab.drain(pick(node)),
        Step::Resume(node) => lab.resume(pick(node)),
        Step::Reboot(node) => lab.reboot(pick(node)),
        Step::Restart => {
            lab.restart();
            (1..=NODES).for_each(|node| lab.introduce(node));
        }
        Step::Budget { account: a, percent, now } => {
            let cut = if now { Cut::Now } else { Cut::Gradual };
            let size = Size::Share(u32::from(percent % 60) * 10_000);
            let account = account(names, a).parse().unwrap();
            request(lab, AccountRequest::Set { account, size, cut });
        }
        Step::Transfer { from, to, hours } => {
            let (from, to) =
                (account(names, from).parse().unwrap(), account(names, to).parse().unwrap());
            let amount = Amount::gpu_hours(hours.into());
            let (permanent, key) = (hours % 4 == 0, None);
            request(lab, AccountRequest::Transfer { from, to, amount, permanent, key });
        }
        Step::Delete(a) => {
            let account = account(names, a).parse().unwrap();
            request(lab, AccountRequest::Delete { account });
        }
        Step::Ask(index, what) => {
            let request = match what % 4 {
                0 => JobRequest::Park,
                1 => JobRequest::Release,
                2 => JobRequest::AllowElder,
                _ => JobRequest::DropReservation,
            };
            lab.apply(&Event::JobRequested { job: job(index), by: UserId(0), request });
        }
    }
}

fn request(lab: &mut Lab, request: AccountRequest) {
    lab.apply(&Event::AccountRequested { by: UserId(0), request });
}

/// Time passes, deadline by deadline, as the engine would have it.
fn pass(lab: &mut Lab, span: Span, heard: &[u32]) {
    let end = lab.now().plus(span);
    for _ in 0..200 {
        let next = lab.core.next_deadline(lab.now()).map_or(end, |at| at.min(end));
        lab.pass_with(next.since(lab.now()), heard);
        if next >= end {
            return;
        }
    }
}

fn obey(lab: &mut Lab, node: u32, task: u8, how: u8) {
    let wanted = lab.core.wanted_of(NodeId(node));
    let chosen = usize::from(task) % wanted.len().max(1);
    let Some((id, wanted)) = wanted.iter().nth(chosen) else { return };
    let id = *id;
    let seen = match wanted {
        Order::Prepare(_) => TaskSeen::Prepared { port: 29_500 },
        Order::Run(launch) if launch.save.is_some() => save(lab, id, how),
        Order::Run(_) => run(lab, id, how),
        Order::Stop(_) => ended(TaskExit::Signaled(15)),
        Order::Forget => TaskSeen::Gone,
    };
    lab.report(node, &[(id.attempt.job, id.attempt.number, id.index, seen)]);
}

fn save(lab: &mut Lab, id: TaskId, how: u8) -> TaskSeen {
    // A rehearsal may begin again; of others that counts for nothing.
    let step = if how % 10 == 4 { 1 } else { lab.now().0 };
    match how % 5 {
        0 => TaskSeen::Running,
        1 => ended(TaskExit::Exited(0)),
        2 => ended(TaskExit::Exited(85)),
        _ => {
            lab.commit(id, step);
            ended(TaskExit::Exited(85))
        }
    }
}

fn run(lab: &mut Lab, id: TaskId, how: u8) -> TaskSeen {
    let started = lab.core.books().task(id).is_some_and(|task| task.started);
    match (started, how % 16) {
        (false, _) | (true, 4..=11) => TaskSeen::Running,
        (true, 0) => ended(TaskExit::Exited(1)),
        (true, 1) => ended(TaskExit::Lost("its shim died".into())),
        (true, 2 | 3) => {
            lab.commit(id, lab.now().0);
            TaskSeen::Running
        }
        (true, _) => ended(TaskExit::Exited(0)),
    }
}

fn lab() -> Lab {
    lab_of(&NAMES)
}

fn lab_of(names: &Names) -> Lab {
    let [first, second] = names.blocks;
    let mut lab = Lab::with_blocks(&[(8, first), (8, first), (8, second), (4, second)]);
    let [default, a, x, y] = names.accounts;
    for (account, percent) in [(default, 20), (a, 50), (names.parent, 30), (x, 60), (y, 40)] {
        lab.set(account, percent);
    }
    // Heartbeats and regular passes are rare, so that hours pass in few steps.
    lab.change_policy(|policy| {
        policy.sharing.pass_every = Span::hours(1);
        policy.silent_after = Span::hours(1);
    });
    lab
}

/// The small first: together they never exceed what is there.
fn divide(lab: &mut Lab) {
    for account in ["b", "a", "default", "b/x", "b/y"] {
        lab.set(account, 1);
    }
    for (account, percent) in [("b", 30), ("a", 50), ("default", 20), ("b/x", 60), ("b/y", 40)] {
        lab.set(account, percent);
    }
}

/// With all nodes in service and obeying, everything that is alive comes to its end.
fn serve_to_the_end(lab: &mut Lab) {
    for node in 1..=NODES {
        lab.introduce(node);
        lab.resume(node);
    }
    let heard: Vec<_> = (1..=NODES).collect();
    for round in 0..4000 {
        // What a dated cut or a transfer has not freed yet is refused, and is there later.
        if round % 500 == 0 {
            divide(lab);
        }
        if lab.core.books().live_jobs() == 0 {
            return;
        }
        let parked: Vec<_> =
            lab.core.books().jobs.values().filter(|j| j.parked.is_some()).collect();
        let parked: Vec<_> = parked.into_iter().map(|job| job.id).collect();
        for job in parked {
            let (by, request) = (UserId(0), JobRequest::Release);
            lab.apply(&Event::JobRequested { job, by, request });
        }
        for node in 1..=NODES {
            for task in 0..lab.core.wanted_of(NodeId(node)).len() {
                obey(lab, node, u8::try_from(task).unwrap_or(0), 13);
            }
        }
        if round % 4 == 3 {
            lab.pass_with(Span::minutes(90), &heard);
        }
    }
    let alive = lab.core.books().jobs.values();
    let alive: Vec<_> = alive
        .filter(|job| !matches!(job.state, JobState::Ended { .. }))
        .map(|job| (job.id, lab.core.explain(lab.now(), job.id)))
        .collect();
    panic!("still alive: {alive:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn budgets_and_contracts_hold_after_every_event_and_every_job_ends(
        steps in proptest::collection::vec(step(), 0..120)
    ) {
        let mut lab = lab();
        for step in &steps {
            take(&mut lab, &NAMES, step);
        }
        serve_to_the_end(&mut lab);
    }

    #[test]
    fn renaming_accounts_users_and_blocks_changes_nobodys_outcome(
        steps in proptest::collection::vec(step(), 0..60)
    ) {
        let (mut one, mut other) = (lab_of(&NAMES), lab_of(&OTHER_NAMES));
        for step in &steps {
            take(&mut one, &NAMES, step);
            take(&mut other, &OTHER_NAMES, step);
        }
        prop_assert_eq!(outcomes(&one), outcomes(&other));
    }

    #[test]
    fn more_passes_change_no_standing_and_no_charge(
        jobs in proptest::collection::vec((0..4_u8, 1..6_u8, 0..6_u8), 1..8),
        ticks in proptest::collection::vec(1..4000_u16, 0..30),
    ) {
        let run = |ticks: &[u16]| {
            let mut lab = lab();
            for (account, gpus, hours) in &jobs {
                let step = Step::Submit {
                    user: *account, account: *account, gpus: *gpus, hours: *hours, saves: false, order: 0,
                };
                let spec = spec_of(&lab, &NAMES, &step).unwrap();
                if let Ok(job) = lab.submit_as(UserId(1000), spec) {
                    // What could not start at once must not start later in one history only.
                    let ready = lab.job(job).attempts.first().and_then(|one| one.ready);
                    if ready.is_some() { lab.run(job) } else { lab.cancel(job) }
                }
            }
            let (heard, begin) = ([1, 2, 3, 4], lab.now());
            for seconds in ticks {
                pass(&mut lab, Span::seconds(u64::from(*seconds)), &heard);
            }
            let end = begin.plus(Span::hours(200));
            while lab.now() < end {
                let rest = end.since(lab.now());
                pass(&mut lab, rest, &heard);
            }
            let held: Vec<_> = lab.core.books().live_attempts().map(|one| one.held.clone()).collect();
            let accounts = lab.core.books().accounts.all();
            let charged: Vec<_> = accounts.map(|one| one.charged.value(end)).collect();
            (held, charged)
        };
        prop_assert_eq!(run(&[]), run(&ticks));
    }
}

/// What became of every job: its attempts, where and how they stood, and how they ended.
fn outcomes(lab: &Lab) -> Vec<String> {
    let jobs = lab.core.books().jobs.values();
    jobs.map(|job| {
        let attempts: Vec<_> = job
            .attempts
            .iter()
            .map(|one| (one.planned, one.running, one.ended, &one.held, lab.nodes_of_attempt(one)))
            .collect();
        format!("{} {:?} {:?} {attempts:?}", job.id, job.state, job.elder)
    })
    .collect()
}

#[test]
fn a_job_is_protected_for_its_min_runtime_and_then_yields_to_who_is_further_below_its_budget() {
    let mut lab = lab();
    lab.change_policy(|policy| policy.sharing.slack = 0);
    let ask = |lab: &Lab, account: &str, gpus| JobSpec {
        account: account.parse().unwrap(),
        min_runtime: Span::hours(2),
        checkpoint: Some(offer()),
        gpus_per_node: Some(GpuCount(8)),
        ..lab.spec(gpus)
    };
    let first = lab.submit_spec(ask(&lab, "a", 24));
    lab.run(first);
    let second = lab.submit_spec(ask(&lab, "b/x", 8));
    assert_eq!(lab.attempts(second), 0, "nothing displaces the first inside its min runtime");
    assert_eq!(lab.reason(second), Reason::AwaitingReservation);
    let heard = [1, 2, 3, 4];
    pass(&mut lab, Span(Span::hours(2).0 - 1), &heard);
    assert_eq!((lab.state(first), lab.attempts(second)), (AttemptState::Running, 0));
    pass(&mut lab, Span(1), &heard);
    assert_eq!(lab.state(first), AttemptState::Saving, "16 GPU-h of 30 % against 48 of 50 %");
    assert_eq!(lab.reason(second), Reason::AwaitingCheckpoint);
    for task in 0..3 {
        let id = lab.job(first).attempts[0].tasks().nth(task).unwrap().0;
        if task == 0 {
            lab.commit(id, 7);
        }
        lab.report(lab.nodes_of(first)[task], &[(first, 1, id.index, ended(TaskExit::Exited(85)))]);
    }
    assert_eq!(lab.state(first), AttemptState::Ended(Outcome::Saved));
    lab.run(second);
    assert_eq!(
        lab.reason(first),
        Reason::AwaitingReservation,
        "back in its place: 16 are idle, 24 asked"
    );
}
