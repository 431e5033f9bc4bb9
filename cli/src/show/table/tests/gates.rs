use tidegate_model::Timestamp;
use tidegate_proto::v1;

use super::super::{gate, gates};
use crate::view::gate::{Gate, Waiter};
use crate::view::users::Users;

const NOW: Timestamp = Timestamp(1_000_000);

fn shown() -> Gate {
    let turn = v1::GateTurn {
        since_ms: 990_000,
        bytes: 105 << 30,
        bytes_per_s: Some(10 << 30),
        pooled: false,
        until_ms: 1_030_000,
        class: v1::WriteClass::Periodic.into(),
        due_ms: Some(1_030_000),
        stopped_ms: None,
    };
    let writer = |attempt: &str, turn, measured| v1::GateWriter {
        attempt: attempt.into(),
        user: 1000,
        gpus: 8,
        turn,
        measured_bytes_per_s: measured,
        unheard_node: String::new(),
    };
    let told = v1::GateTurn { class: 0, pooled: true, bytes_per_s: Some(1 << 30), ..turn };
    let waiter = v1::GateWaiter {
        attempt: "job-9.1".into(),
        user: 1001,
        gpus: 64,
        bytes: 912 << 30,
        since_ms: 880_000,
        from_ms: Some(1_030_000),
        until_ms: Some(1_100_000),
        class: 0,
        waited_for_by: "job-12.1".into(),
        unheard_node: String::new(),
    };
    let view = v1::GateView {
        storage: "shared".into(),
        rule: Some(v1::GateRule {
            cap_bytes_per_s: Some(10 << 30),
            hours: vec![v1::CapHours {
                from_minute: 22 * 60,
                until_minute: 6 * 60,
                cap_bytes_per_s: 20 << 30,
            }],
            ..v1::GateRule::default()
        }),
        cap_bytes_per_s: Some(10 << 30),
        pool_bytes_per_s: 1 << 30,
        admitted_bytes_per_s: 11 << 30,
        measured_bytes_per_s: Some(12 << 30),
        writers: vec![
            writer("job-7.2", Some(turn), Some(9 << 30)),
            writer("job-8.1", Some(told), Some(2 << 30)),
            writer("job-3.1", None, Some(1 << 30)),
        ],
        queue: vec![waiter],
        ..v1::GateView::default()
    };
    Gate::read(view, &mut Users::knowing(&[(1000, "ana"), (1001, "bo")]))
}

#[test]
fn a_gate_tells_who_writes_who_waits_and_who_writes_most() {
    let expected = "\
storage     shared
cap         10.0GiB/s
kept of it  1.0GiB/s
admitted    11.0GiB/s
node        none
measured    12.0GiB/s
writers     the policy's
files       none
hours       22:00 to 06:00 UTC: 20.0GiB/s, else 10.0GiB/s

WRITES   USER  GPUS  CLASS            BYTES           RATE  MEASURED  DONE  NOTE
job-7.2  ana      8  periodic      105.0GiB      10.0GiB/s  9.0GiB/s  +30s  -
job-8.1  ana      8  told to save  105.0GiB  1.0GiB/s kept  2.0GiB/s  +30s  -
job-3.1  ana      8  no permit            -              -  1.0GiB/s     -  -

WAITS    USER  GPUS  CLASS        BYTES   SINCE  TURN  FOR       NOTE
job-9.1  bo      64  to leave  912.0GiB  2m ago  +30s  job-12.1  -

writing most: ana 12.0GiB/s, partly without a permit";
    assert_eq!(gate(&shown(), NOW), expected);
}

#[test]
fn who_is_overdue_or_not_heard_is_told_so_and_whose_turn_waits_for_it() {
    let mut shown = shown();
    shown.rule.hours.clear();
    shown.writers.truncate(2);
    for (writer, stopped_ms) in shown.writers.iter_mut().zip([None, Some(1_180_000)]) {
        let turn = writer.turn.as_mut().unwrap();
        (turn.until_ms, turn.due_ms, turn.stopped_ms) = (1_000_001, Some(880_000), stopped_ms);
    }
    shown.writers[0].unheard_node = Some("n3".to_owned());
    shown.queue[0].from_ms = Some(1_000_001);
    let other = Waiter { from_ms: None, unheard_node: Some("n4".into()), ..shown.queue[0].clone() };
    shown.queue.push(other);
    let told = gate(&shown, NOW);
    let (_, tables) = told.split_once("\n\n").unwrap();
    let expected = "\
WRITES   USER  GPUS  CLASS            BYTES           RATE  MEASURED           DONE  NOTE
job-7.2  ana      8  periodic      105.0GiB      10.0GiB/s  9.0GiB/s  overdue by 2m  n3 is not heard; holds its permit until it gives it back
job-8.1  ana      8  told to save  105.0GiB  1.0GiB/s kept  2.0GiB/s  overdue by 2m  stopped in 3m at the latest

WAITS    USER  GPUS  CLASS        BYTES   SINCE           TURN  FOR       NOTE
job-9.1  bo      64  to leave  912.0GiB  2m ago  after job-7.2  job-12.1  -
job-9.1  bo      64  to leave  912.0GiB  2m ago              -  job-12.1  n4 is not heard

writing most: ana 11.0GiB/s";
    assert_eq!(tables, expected);
    let row = gates(&[shown], NOW);
    assert!(row.ends_with("2        2  2 on a node that is not heard"), "{row}");
}

#[test]
fn all_gates_are_a_row_each_and_a_paused_one_says_by_whom_and_why() {
    let pause = v1::GatePause { since_ms: 400_000, by: 1000, reason: "disks".into() };
    let view =
        v1::GateView { storage: "scratch".into(), paused: Some(pause), ..v1::GateView::default() };
    let paused = Gate::read(view, &mut Users::knowing(&[(1000, "ana")]));
    let expected = "\
STORAGE        CAP   ADMITTED   MEASURED  WRITERS  WAITING  NOTE
shared   10.0GiB/s  11.0GiB/s  12.0GiB/s        3        1  22:00 to 06:00 UTC: 20.0GiB/s, else 10.0GiB/s
scratch       none       0B/s          -        0        0  paused 10m ago by ana: disks";
    assert_eq!(gates(&[shown(), paused], NOW), expected);
}
