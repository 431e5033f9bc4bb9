//! What was used.

use tidegate_model::Timestamp;
use tidegate_proto::{amount_bytes, v1};

use super::{check, users};
use crate::show::table::report;
use crate::view::report::Report;

fn hours(count: i128) -> Vec<u8> {
    amount_bytes(count * 3_600_000_000)
}

#[test]
fn a_report_has_figures_waits_and_what_they_are_of() {
    let class = v1::WaitClass::Small.into();
    let waits = v1::Waits { class, count: 12, p50_ms: 500, p90_ms: 60_000, max_ms: 7_200_000 };
    let usage = |uid: Option<u32>| v1::Usage {
        account: "olmo".into(),
        uid,
        budget: hours(100),
        charged: hours(50),
        lost: hours(2),
        displaced: 3,
        waits: uid.map(|_| waits).into_iter().collect(),
        // Of one user nobody knows how busy the GPUs were.
        idle: if uid.is_none() { hours(3) } else { Vec::new() },
        looked_at: if uid.is_none() { hours(30) } else { Vec::new() },
        ended: hours(40),
        ..v1::Usage::default()
    };
    let reply = v1::ReportReply {
        at_ms: Timestamp(1_209_600_000).0,
        from_ms: 0,
        complete_from_ms: 604_800_000,
        usages: vec![usage(None), usage(Some(1000))],
    };
    let read = Report::read(reply, 2, &mut users()).unwrap();
    check(
        &report(&read),
        "\
ACCOUNT  CHARGED   USED  FREE  PLEDGED  OVERHEAD  IDLE  CREDITED  DISPLACED  LOST
olmo        50.0  25.0%   0.0      0.0       0.0   3.0       0.0          3   2.0
  @ana      50.0      -   0.0      0.0       0.0     -       0.0          3   2.0

WAITED FOR  CLASS  STARTS  P50  P90  MAX
olmo @ana   small      12   1s   1m   2h

from 1970-01-01T00:00:00Z to 1970-01-15T00:00:00Z; idle protected time: measured for 75.0% of what has ended
jobs that ended before 1970-01-08T00:00:00Z may be forgotten: figures of the time before it are too low
",
    );
}
