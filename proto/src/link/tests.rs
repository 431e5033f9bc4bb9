use tidegate_model::{AttemptId, JobId, TaskExit, TaskLayout};

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
    }
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
fn a_report_reads_back_what_it_wrote() {
    let ended = |exit| TaskSeen::Ended { exit, released: true, ran: Span(7) };
    let report = Report {
        complete: false,
        facts: None,
        tasks: BTreeMap::from([
            (task(0), TaskSeen::Prepared { port: 1 }),
            (task(1), TaskSeen::Starting),
            (task(2), TaskSeen::Running),
            (task(3), ended(TaskExit::Exited(3))),
            (task(4), ended(TaskExit::Lost("shim died".into()))),
            (task(5), TaskSeen::Missing),
            (task(6), TaskSeen::Gone),
        ]),
        applied: Some((Epoch(1), Generation(0))),
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

#[test]
fn what_is_missing_or_unknown_is_refused_by_name() {
    check_refused(|_| (), "accepted");
    check_refused(|plan| plan.tasks[0].order = None, "TaskOrder.order is missing");
    check_refused(|plan| plan.cluster.clear(), "NodePlan.cluster is missing");
    check_refused(|plan| run(plan).layout = 0, "Run.layout is missing");
    check_refused(|plan| run(plan).layout = 9, "Run.layout: 9 is not a value this version knows");
    check_refused(|plan| run(plan).master_port = 65_536, "Run.master_port: 65536 is out of range");
    check_refused(
        |plan| plan.tasks[1].task = "job-7.1.0".into(),
        "NodePlan.tasks: job-7.1.0 is named twice",
    );
    check_refused(
        |plan| plan.tasks[0].task = "x".into(),
        "TaskOrder.task: \"x\" is not an id: expected the form job-7.2.0 (job, attempt and task)",
    );
}
