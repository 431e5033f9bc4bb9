use tidegate_proto::v1;

use super::*;
use crate::view::users::Users;

const NOW: Timestamp = Timestamp(1_772_323_200_000);

fn users() -> Users {
    Users::knowing(&[(1000, "ana"), (1001, "bo"), (0, "root")])
}

fn ago_ms(seconds: u64) -> u64 {
    NOW.0 - seconds * 1000
}

fn spec(name: &str, gpus: u32, min_runtime_ms: u64) -> v1::JobSpec {
    v1::JobSpec {
        name: name.into(),
        account: "olmo/pretrain".into(),
        command: vec!["torchrun".into(), "my train.py".into()],
        working_dir: "/home/ana".into(),
        gpus,
        layout: v1::TaskLayout::PerNode.into(),
        min_runtime_ms,
        grace_ms: 30_000,
        max_restarts: 3,
        log_cap_bytes: 64 << 20,
        ..v1::JobSpec::default()
    }
}

fn running() -> v1::JobView {
    let task = |index: u32| v1::TaskView {
        task: format!("job-7.2.{index}"),
        node: format!("gpu-0{index}"),
        gpus: vec!["GPU-a".into(), "GPU-b".into()],
        state: "running".into(),
    };
    let attempt = |number: u32, state: v1::AttemptState, since: u64| v1::AttemptView {
        attempt: format!("job-7.{number}"),
        state: state.into(),
        planned_ms: ago_ms(since),
        running_ms: Some(ago_ms(since - 10)),
        ended_ms: (number == 1).then(|| ago_ms(since - 100)),
        why: if number == 1 { "task 0: exit code 1".into() } else { String::new() },
        tasks: (0..2).map(task).collect(),
    };
    v1::JobView {
        job: "job-7".into(),
        uid: 1000,
        spec: Some(spec("pretrain-7b", 4, 7_200_000)),
        state: v1::JobState::Active.into(),
        submitted_ms: ago_ms(7300),
        attempts: vec![
            attempt(1, v1::AttemptState::Failed, 7200),
            attempt(2, v1::AttemptState::Running, 3700),
        ],
        reason: "Running".into(),
        ..v1::JobView::default()
    }
}

fn pending() -> v1::JobView {
    v1::JobView {
        job: "job-12".into(),
        uid: 1001,
        spec: Some(spec("eval", 128, 0)),
        state: v1::JobState::Pending.into(),
        submitted_ms: ago_ms(42),
        reason: "AwaitingNodes: 128 GPUs asked,\n64 idle".into(),
        ..v1::JobView::default()
    }
}

fn read(wire: v1::JobView) -> Job {
    Job::read(wire, &mut users()).unwrap()
}

fn check(table: &str, expected: &str) {
    assert_eq!(format!("{table}\n"), expected);
}

#[test]
fn jobs_are_one_line_each_with_numbers_to_the_right() {
    check(
        &jobs(&[read(running()), read(pending())], NOW),
        "\
JOB     NAME         USER  ACCOUNT        GPUS  MIN-RUNTIME  STATE    ATTEMPT    AGE  WHY
job-7   pretrain-7b  ana   olmo/pretrain     4           2h  active   2 running   2h  Running
job-12  eval         bo    olmo/pretrain   128            0  pending  -          42s  \
AwaitingNodes: 128 GPUs asked,\\n64 idle
",
    );
}

#[test]
fn no_jobs_are_a_heading() {
    check(
        &jobs(&[], NOW),
        "JOB  NAME  USER  ACCOUNT  GPUS  MIN-RUNTIME  STATE  ATTEMPT  AGE  WHY\n",
    );
}

#[test]
fn a_job_is_shown_with_its_attempts_and_the_newest_ones_tasks() {
    check(
        &job(&read(running()), NOW),
        "\
job          job-7
name         pretrain-7b
state        active
why          Running
user         ana
account      olmo/pretrain
GPUs         4
tasks        per-node
min runtime  2h
grace        30s
restarts     at most 3
command      torchrun \"my train.py\"
directory    /home/ana
submitted    2h ago

ATTEMPT  STATE    PLANNED      RAN  WHY
job-7.1  failed    2h ago    1m30s  task 0: exit code 1
job-7.2  running   1h ago  1h1m30s

TASK       NODE    GPUS  STATE
job-7.2.0  gpu-00     2  running
job-7.2.1  gpu-01     2  running
",
    );
}

fn node(name: &str, state: v1::NodeState) -> v1::NodeView {
    let gpu = |at: u32| v1::Gpu {
        uuid: format!("GPU-{at}"),
        product: "NVIDIA H100 80GB HBM3 (simulated)".into(),
        memory_bytes: 80 << 30,
    };
    v1::NodeView {
        node: name.into(),
        id: "node-1".into(),
        state: state.into(),
        gpus: (0..8).map(gpu).collect(),
        idle: 2,
        ..v1::NodeView::default()
    }
}

fn drained() -> Vec<Node> {
    let tasks = ["job-7.2.0", "job-7.2.1", "job-10.1.0", "job-9.1.0", "job-11.1.0"];
    let busy = v1::NodeView {
        tasks: tasks.map(str::to_owned).to_vec(),
        block: "leaf-1".into(),
        ..node("gpu-01", v1::NodeState::Ready)
    };
    let drained = v1::NodeView {
        gpus: Vec::new(),
        gpu_note: "driver not loaded".into(),
        reason: "fan 3 is loud".into(),
        owner_uid: Some(1000),
        since_ms: Some(NOW.0 - 1000),
        unknown_tasks: vec!["job-3.1.0".into()],
        ..node("gpu-02", v1::NodeState::Drained)
    };
    [busy, drained].into_iter().map(|wire| Node::read(wire, &mut users())).collect()
}

#[test]
fn nodes_name_a_few_jobs_and_say_what_is_simulated_or_odd() {
    check(
        &nodes(&drained()),
        "\
NODE    STATE    GPUS  IDLE  JOBS                   BLOCK   NOTE
gpu-01  ready       8     2  job-7,job-9,job-10,+1  leaf-1  simulated
gpu-02  drained     0     2  -                      -       driver not loaded; 1 unknown task
",
    );
}

#[test]
fn reasons_list_only_drained_nodes_with_an_instant_in_utc() {
    check(
        &reasons(&drained()),
        "\
REASON         USER  TIMESTAMP             NODE
fan 3 is loud  ana   2026-02-28T23:59:59Z  gpu-02
",
    );
}

#[test]
fn the_cluster_says_why_new_work_is_not_taken() {
    let reply = v1::StatusReply {
        cluster: "01JQ".into(),
        epoch: 3,
        version: "0.1.0".into(),
        journal_seq: 1,
        nodes: 4,
        nodes_ready: 3,
        gpus: 32,
        gpus_idle: 12,
        jobs_pending: 5,
        jobs_active: 2,
        closed: "the disk is full".into(),
    };
    check(
        &cluster(&Cluster::from(reply)),
        "\
cluster      01JQ
coordinator  0.1.0
epoch        3
journal      1 record
nodes        3 of 4 ready
GPUs         12 of 32 idle
jobs         2 active, 5 pending
new work     answered \"unavailable\": the disk is full
",
    );
}
