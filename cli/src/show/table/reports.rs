//! What was used, and how long was waited for it. Figures are GPU-hours.

use super::{Column, LEFT, RIGHT, below, table};
use crate::amount::GpuTime;
use crate::show::time::{coarse, rfc3339};
use crate::view::report::{Report, Usage, Waits};

/// Figures, waits, and of which time they are.
pub(crate) fn report(report: &Report) -> String {
    const USED: [Column; 10] = [
        ("ACCOUNT", LEFT),
        ("CHARGED", RIGHT),
        ("USED", RIGHT),
        ("FREE", RIGHT),
        ("PLEDGED", RIGHT),
        ("OVERHEAD", RIGHT),
        ("IDLE", RIGHT),
        ("CREDITED", RIGHT),
        ("DISPLACED", RIGHT),
        ("LOST", RIGHT),
    ];
    const WAITS: [Column; 6] = [
        ("WAITED FOR", LEFT),
        ("CLASS", LEFT),
        ("STARTS", RIGHT),
        ("P50", RIGHT),
        ("P90", RIGHT),
        ("MAX", RIGHT),
    ];
    let used = report.usages.iter().map(|usage| {
        [
            name(usage),
            usage.charged_gpu_us.to_string(),
            usage.used(report.weeks),
            usage.free_gpu_us.to_string(),
            usage.pledged_gpu_us.to_string(),
            usage.overhead_gpu_us.to_string(),
            usage.idle(),
            usage.credited_gpu_us.to_string(),
            usage.displaced.to_string(),
            usage.lost_gpu_us.to_string(),
        ]
    });
    let mut text = table(&USED, used);
    let waits = report.usages.iter();
    let waits = waits.flat_map(|usage| usage.waits.iter().map(move |waits| row(usage, waits)));
    below(&mut text, &WAITS, waits.collect());
    let (from, to) = (rfc3339(report.from_ms), rfc3339(report.at_ms));
    text.push_str(&format!("\n\nfrom {from} to {to}; {}", measured(report)));
    if report.complete_from_ms > report.from_ms {
        let complete = rfc3339(report.complete_from_ms);
        text.push_str(&format!(
            "\njobs that ended before {complete} may be forgotten: figures of the time before it \
             are too low"
        ));
    }
    text
}

/// For how much of the time it is known how busy GPUs were. The first row has all that are shown.
fn measured(report: &Report) -> String {
    let known = report.usages.first().filter(|all| all.looked_at_gpu_us > GpuTime(0));
    known.map_or_else(
        || "idle protected time: not measured".to_owned(),
        |all| {
            let part = all.looked_at_gpu_us.percent_of(all.ended_gpu_us);
            format!("idle protected time: measured for {part} of what has ended")
        },
    )
}

/// A user stands below its account.
fn name(usage: &Usage) -> String {
    match &usage.user {
        Some(user) => format!("  @{user}"),
        None => usage.account.clone(),
    }
}

fn row(usage: &Usage, waits: &Waits) -> [String; 6] {
    [
        match &usage.user {
            Some(user) => format!("{} @{user}", usage.account),
            None => usage.account.clone(),
        },
        waits.class.to_owned(),
        waits.count.to_string(),
        coarse(waits.p50_ms),
        coarse(waits.p90_ms),
        coarse(waits.max_ms),
    ]
}
