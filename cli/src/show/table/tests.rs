mod gates;
mod reports;
mod sharing;

use std::collections::BTreeMap;

use tidegate_model::Timestamp;
use tidegate_proto::v1;

use super::*;
use crate::view::job::Job;
use crate::view::node::{Cluster, Node};
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
        standing: v1::Standing::Protected.into(),
        promised_until_ms: (number == 2).then_some(NOW.0 + 4_800_000),
        protected: tidegate_proto::amount_bytes(7_200_000_000),
        excused: tidegate_proto::amount_bytes(1_800_000_000),
        ..v1::AttemptView::default()
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
        standing: v1::Standing::Protected.into(),
        promised_until_ms: Some(NOW.0 + 4_800_000),
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
JOB     NAME         USER  ACCOUNT        GPUS  MIN-RUNTIME  STATE    ATTEMPT    \
STANDING                AGE  WHY
job-7   pretrain-7b  ana   olmo/pretrain     4           2h  active   2 running  \
Protected until +1h20m   2h  Running
job-12  eval         bo    olmo/pretrain   128            0  pending  -          \
-                       42s  AwaitingNodes: 128 GPUs asked,\\n64 idle
",
    );
}

#[test]
fn no_jobs_are_a_heading() {
    check(
        &jobs(&[], NOW),
        "JOB  NAME  USER  ACCOUNT  GPUS  MIN-RUNTIME  STATE  ATTEMPT  STANDING  AGE  WHY\n",
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
standing     Protected until +1h20m

ATTEMPT  STATE    STANDING                PLANNED      RAN  CHARGED  FREE  WHY
job-7.1  failed   -                        2h ago    1m30s      1.5   0.0  task 0: exit code 1
job-7.2  running  Protected until +1h20m   1h ago  1h1m30s      1.5   0.0

TASK       NODE    GPUS  STATE
job-7.2.0  gpu-00     2  running
job-7.2.1  gpu-01     2  running
",
    );
}

/// With all that is not so of every job.
fn busy() -> v1::JobView {
    let save = v1::SaveView {
        request: "decision-41".into(),
        at_ms: ago_ms(120),
        admitted_ms: Some(ago_ms(60)),
        why: "job-9 has its GPUs".into(),
    };
    let mut wire = running();
    wire.attempts[1].save = Some(save);
    wire.attempts[1].state = v1::AttemptState::Saving.into();
    let asked = wire.spec.as_mut().unwrap();
    asked.gpu_type = "h100".into();
    asked.max_blocks = 2;
    asked.own_order = -1;
    asked.while_waiting = v1::WhileWaiting::Wait.into();
    asked.after = vec![v1::Dependency { job: "job-3".into(), success: true }];
    asked.whole_cluster = true;
    asked.array = Some(v1::ArrayPlace { key: "01JQ".into(), at_a_time: 10 });
    asked.checkpoint = Some(v1::CheckpointOffer {
        signal: Some("USR1".into()),
        target: v1::SaveTarget::Ranks.into(),
        grace_ms: 600_000,
        bytes: Some(1 << 40),
        storage: "shared".into(),
        ask_after_ms: None,
        saved_codes: vec![85],
        asks_within_ms: None,
    });
    v1::JobView {
        account: "olmo/sft".into(),
        parked: "by user 1000".into(),
        waits_for: vec!["job-3".into()],
        reservation: Some(v1::ReservationView {
            made_ms: ago_ms(600),
            at_ms: NOW.0 + 7_800_000,
            latest_ms: Some(NOW.0 + 8_160_000),
            nodes: vec![v1::ReservedNode { node: "gpu-01".into(), gpus: 4 }],
            pledge: tidegate_proto::amount_bytes(8 * 3_600_000_000),
        }),
        elder_since_ms: Some(ago_ms(7200)),
        commit: Some(v1::CommitView {
            attempt: "job-7.1".into(),
            step: 1200,
            path: "/ckpt/1200".into(),
            bytes: 71_303_168,
            at_ms: ago_ms(180),
        }),
        stalled: 2,
        ..wire
    }
}

#[test]
fn what_was_asked_and_what_is_promised_is_shown_only_where_it_is_so() {
    let told = job(&read(busy()), NOW);
    let facts = told.split("\n\n").next().unwrap();
    check(
        facts,
        "\
job           job-7
name          pretrain-7b
state         active
why           Running
user          ana
account       olmo/sft
GPUs          4
GPU type      h100
blocks        at most 2
tasks         per-node
min runtime   2h
until funded  waits
order         -1
may hold      all GPUs of its kind
array         10 at a time, under the key 01JQ
after         job-3 is done
grace         30s
saves         asked by USR1 to ranks, 1.0TiB to shared within 10m
restarts      at most 3
command       torchrun \"my train.py\"
directory     /home/ana
submitted     2h ago
standing      Protected until +1h20m
parked        by user 1000
waits for     job-3
reservation   4 on gpu-01; its own from in 2h10m and empty at the latest in 2h16m, made 10m ago, 8.0 GPU-h pledged
elder         for 2h
saved         step 1200, 3m ago, 68.0MiB, by job-7.1 in /ckpt/1200
saving        decision-41, asked 2m ago, admitted 1m ago: job-9 has its GPUs
stalled       2 attempts in a row without a new commit
",
    );
}

#[test]
fn an_explanation_tells_its_numbers_in_peoples_units() {
    let numbers = [
        ("ahead", 3),
        ("ended_ms", NOW.0 - 180_000),
        ("refills_at_ms", NOW.0 + 7_800_000),
        ("short_by_gpu_ms", 5_400_000),
    ];
    let numbers: BTreeMap<_, _> =
        numbers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let lines = ["olmo is 1.50 GPU-hours short".to_owned()];
    check(
        &explanation("job-7: AwaitingBudget", &lines, &numbers, NOW),
        "\
job-7: AwaitingBudget
  olmo is 1.50 GPU-hours short

  ahead       3
  ended       3m ago
  refills_at  in 2h10m
  short_by    1.5 GPU-h
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
    let draining = v1::NodeView {
        gpus: Vec::new(),
        reason: "new switch".into(),
        owner_uid: Some(0),
        since_ms: Some(NOW.0 - 60_000),
        wanted_by_ms: Some(NOW.0 + 3_600_000),
        saves_from_ms: Some(NOW.0 + 4_800_000),
        empty_by_ms: Some(NOW.0 + 5_400_000),
        ..node("gpu-03", v1::NodeState::Draining)
    };
    [busy, drained, draining].into_iter().map(|wire| Node::read(wire, &mut users())).collect()
}

#[test]
fn nodes_name_a_few_jobs_and_say_what_is_simulated_or_odd() {
    check(
        &nodes(&drained(), NOW),
        "\
NODE    STATE     GPUS  IDLE  JOBS                   BLOCK   NOTE
gpu-01  ready        8     2  job-7,job-9,job-10,+1  leaf-1  simulated
gpu-02  drained      0     2  -                      -       driver not loaded; 1 unknown task
gpu-03  draining     0     2  -                      -       saves from +1h20m, empty by +1h30m, \
wanted by +1h
",
    );
}

#[test]
fn reasons_list_only_drained_nodes_with_an_instant_in_utc() {
    check(
        &reasons(&drained()),
        "\
REASON         USER  TIMESTAMP             NODE    EMPTY-BY
fan 3 is loud  ana   2026-02-28T23:59:59Z  gpu-02  -
new switch     root  2026-02-28T23:59:00Z  gpu-03  2026-03-01T01:30:00Z
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

/// Longest line, headings.
fn fits(width: usize) -> (usize, Vec<String>) {
    const COLUMNS: [Column; 6] = [
        ("JOB", LEFT),
        ("NAME", LEFT),
        ("ACCOUNT", LEFT),
        ("GPUS", RIGHT),
        ("AGE", RIGHT),
        ("WHY", LEFT),
    ];
    let row = ["job-7", "pretrain-7b", "olmo/pretrain", "1024", "2h", "its node has gone to sleep"];
    let text = fitted(&COLUMNS, &[row.map(str::to_owned)], Some(width));
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
    let headings = text.lines().next().unwrap().split_whitespace().map(str::to_owned);
    (longest, headings.collect())
}

#[test]
fn a_narrow_window_does_without_what_is_worth_least_and_wraps_the_rest() {
    let check = |width: usize, headings: &str| {
        let (longest, kept) = fits(width);
        assert!(longest <= width, "{longest} in {width}");
        assert_eq!(kept.join(" "), headings, "{width}");
    };
    check(200, "JOB NAME ACCOUNT GPUS AGE WHY");
    check(75, "JOB NAME ACCOUNT GPUS AGE WHY");
    check(60, "JOB NAME GPUS AGE WHY");
    check(45, "JOB GPUS WHY");
    check(30, "JOB GPUS WHY");
}
