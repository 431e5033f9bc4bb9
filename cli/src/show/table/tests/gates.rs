use tidegate_model::Timestamp;
use tidegate_proto::v1;

use super::super::{gate, gates};
use crate::view::gate::Gate;
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
    };
    let writer = |attempt: &str, turn, measured| v1::GateWriter {
        attempt: attempt.into(),
        user: 1000,
        gpus: 8,
        turn,
        measured_bytes_per_s: measured,
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
hours       22:00 to 06:00 UTC: 20.0GiB/s

WRITES   USER  GPUS  CLASS            BYTES           RATE  MEASURED  DONE
job-7.2  ana      8  periodic      105.0GiB      10.0GiB/s  9.0GiB/s  +30s
job-8.1  ana      8  told to save  105.0GiB  1.0GiB/s kept  2.0GiB/s  +30s
job-3.1  ana      8  no permit            -              -  1.0GiB/s     -

WAITS    USER  GPUS  CLASS        BYTES   SINCE  TURN  FOR
job-9.1  bo      64  to leave  912.0GiB  2m ago  +30s  job-12.1

writing most: ana 12.0GiB/s, partly without a permit";
    assert_eq!(gate(&shown(), NOW), expected);
}

#[test]
fn all_gates_are_a_row_each_and_a_paused_one_says_by_whom_and_why() {
    let pause = v1::GatePause { since_ms: 400_000, by: 1000, reason: "disks".into() };
    let view =
        v1::GateView { storage: "scratch".into(), paused: Some(pause), ..v1::GateView::default() };
    let paused = Gate::read(view, &mut Users::knowing(&[(1000, "ana")]));
    let expected = "\
STORAGE        CAP   ADMITTED   MEASURED  WRITERS  WAITING  NOTE
shared   10.0GiB/s  11.0GiB/s  12.0GiB/s        3        1  -
scratch       none       0B/s          -        0        0  paused 10m ago by ana: disks";
    assert_eq!(gates(&[shown(), paused], NOW), expected);
}
