use tidegate_model::{
    Ask, AttemptId, Idle, JobId, Permit, Save, SaveDelivery, SaveSignal, SaveTarget, TaskExit,
    TaskLayout, WriteClass,
};

use super::*;

fn task(index: u32) -> TaskId {
    TaskId { attempt: AttemptId { job: JobId(7), number: 1 }, index }
}

fn launch() -> Launch {
    Launch {
        user: UserId(1000),
        command: vec!["trainer".into()],
        working_dir: "/tmp".into(),
        env: vec![("A".into(), "1".into())],
        gpus: vec!["GPU-a-0".parse().unwrap()],
        layout: TaskLayout::PerGpu,
        rank: 1,
        local_rank: 1,
        world_size: 2,
        local_world_size: 2,
        node_rank: 0,
        nodes: 1,
        master_addr: "127.0.0.1".into(),
        master_port: 29_500,
        checkpoint_dir: "/tmp/c".into(),
        log_cap: Bytes(1 << 20),
        save: Some(Save {
            request: DecisionSeq(9),
            signal: Some(SaveSignal::Usr1),
            target: SaveTarget::Ranks,
            grace: Span::seconds(60),
            why: "a larger gang waits".into(),
        }),
        permit: Some(granted()),
        pty: true,
    }
}

fn granted() -> Permit {
    let (rate, after) = (Some(Bandwidth(10)), Some(Bandwidth(2)));
    Permit::Granted { ask: 3, rate, length: Span::seconds(15), after, rated: DecisionSeq(7) }
}

fn plan() -> NodePlan {
    let stop = Stop { decision: DecisionSeq(9), grace: Span::seconds(30), why: "cancelled".into() };
    NodePlan {
        cluster: ClusterId(5),
        epoch: Epoch(2),
        generation: Generation(3),
        tasks: BTreeMap::from([
            (task(0), Order::Prepare(vec!["GPU-a-0".parse().unwrap()])),
            (task(1), Order::Run(Box::new(launch()))),
            (task(2), Order::Stop(stop)),
            (task(3), Order::Forget),
        ]),
    }
}

#[test]
fn a_plan_reads_back_what_it_wrote() {
    assert_eq!(NodePlan::try_from(v1::NodePlan::from(plan())), Ok(plan()));
}

#[test]
fn every_answer_to_an_ask_reads_back_what_it_wrote() {
    let unlimited =
        Permit::Granted { ask: 1, rate: None, length: Span(1), after: None, rated: DecisionSeq(0) };
    let waits = Permit::Waits { ask: 2, position: 4, expected: Span::seconds(9) };
    let never = Permit::Denied { ask: 3, why: "no storage".into(), retry_after: None };
    let retry_after = Some(Span::seconds(7));
    let later = Permit::Denied { ask: 3, why: "another".into(), retry_after };
    for permit in [granted(), unlimited, waits, never, later] {
        assert_eq!(Permit::try_from(v1::Permit::from(permit.clone())), Ok(permit));
    }
}

#[test]
fn a_report_reads_back_what_it_wrote() {
    let ended = |exit| TaskSeen::Ended { exit, released: true, ran: Span(7), idle: None };
    let asked = |delivery| TaskReport {
        seen: TaskSeen::Running,
        save: Some(SaveSeen { request: DecisionSeq(4), delivery }),
        commit: None,
        ask: None,
    };
    let commit =
        Commit { step: 7, path: "/c/7".into(), bytes: Bytes(8), request: Some(DecisionSeq(4)) };
    let ask = Ask {
        number: 3,
        class: WriteClass::Periodic,
        bytes: Bytes(100),
        files: 8,
        patience: Some(Span::minutes(5)),
    };
    let ask =
        AskSeen { ask, waited: Span(4), written: Bytes(50), done: true, rated: DecisionSeq(7) };
    let report = Report {
        complete: false,
        facts: None,
        tasks: BTreeMap::from([
            (task(0), TaskSeen::Prepared { port: 1 }.into()),
            (task(1), TaskSeen::Starting.into()),
            (task(2), TaskSeen::Running.into()),
            (task(3), ended(TaskExit::Exited(3)).into()),
            (
                task(11),
                TaskSeen::Ended {
                    exit: TaskExit::Exited(0),
                    released: false,
                    ran: Span(7),
                    idle: Some(Idle { idle: Span(2), of: Span(5) }),
                }
                .into(),
            ),
            (
                task(4),
                TaskReport {
                    commit: Some(commit),
                    ..ended(TaskExit::Lost("shim died".into())).into()
                },
            ),
            (task(5), TaskSeen::Missing.into()),
            (task(6), TaskSeen::Gone.into()),
            (task(7), asked(SaveDelivery::Announced)),
            (task(8), asked(SaveDelivery::Signalled { ranks: 8 })),
            (task(9), asked(SaveDelivery::MaybeSent)),
            (task(10), asked(SaveDelivery::Unwilling)),
            (task(12), TaskReport { ask: Some(ask), ..TaskSeen::Running.into() }),
        ]),
        applied: Some((Epoch(1), Generation(0))),
        idle: BTreeMap::from([(task(2), Some(Span(9))), (task(7), None)]),
        renew: 5,
        writes: BTreeMap::from([(task(2), Bandwidth(11))]),
    };
    assert_eq!(Report::try_from(v1::Report::from(report.clone())), Ok(report));
}

fn check_refused(change: impl FnOnce(&mut v1::NodePlan), expected: &str) {
    let mut wire = v1::NodePlan::from(plan());
    change(&mut wire);
    let told = NodePlan::try_from(wire).map(|_| "accepted".to_owned());
    assert_eq!(told.unwrap_or_else(|error| error.to_string()), expected);
}

fn run(wire: &mut v1::NodePlan) -> &mut v1::Run {
    match wire.tasks[1].order.as_mut() {
        Some(v1::task_order::Order::Run(run)) => run,
        other => panic!("{other:?}"),
    }
}

fn save(wire: &mut v1::NodePlan) -> &mut v1::Save {
    run(wire).save.as_mut().unwrap()
}

fn permit(wire: &mut v1::NodePlan) -> &mut v1::Permit {
    run(wire).permit.as_mut().unwrap()
}

#[test]
fn a_commit_without_an_absolute_path_is_refused() {
    let check = |path: &str, expected: &str| {
        let wire = v1::Commit { step: 1, path: path.into(), bytes: 1, request: None };
        assert_eq!(Commit::try_from(wire).unwrap_err().to_string(), expected);
    };
    check("c/7", "Commit.path: give an absolute path");
    check("/c\n7", "Commit.path: a path with control characters is not accepted");
    let long = format!("/{}", "c".repeat(MAX_COMMIT_PATH));
    check(&long, "Commit.path: 1025 bytes long; at most 1024 are accepted");
}

#[test]
fn what_is_missing_or_unknown_is_refused_by_name() {
    check_refused(|_| (), "accepted");
    check_refused(|plan| plan.tasks[0].order = None, "TaskOrder.order is missing");
    check_refused(|plan| plan.cluster.clear(), "NodePlan.cluster is missing");
    check_refused(|plan| run(plan).layout = 0, "Run.layout is missing");
    check_refused(|plan| run(plan).layout = 9, "Run.layout: 9 is not a value this version knows");
    check_refused(|plan| run(plan).master_port = 65_536, "Run.master_port: 65536 is out of range");
    check_refused(
        |plan| save(plan).signal = Some("KILL".into()),
        "Save.signal: \"KILL\" is no signal a job is asked by: TERM, USR1, USR2, HUP or INT is \
         accepted",
    );
    check_refused(|plan| save(plan).target = 0, "Save.target is missing");
    check_refused(|plan| save(plan).request = 0, "Save.request is missing");
    check_refused(|plan| permit(plan).ask = 0, "Permit.ask is missing");
    check_refused(|plan| permit(plan).answer = None, "Permit.answer is missing");
    check_refused(
        |plan| plan.tasks[1].task = "job-7.1.0".into(),
        "NodePlan.tasks: job-7.1.0 is named twice",
    );
    check_refused(
        |plan| plan.tasks[0].task = "x".into(),
        "TaskOrder.task: \"x\" is not an id: expected the form job-7.2.0 (job, attempt and task)",
    );
}
