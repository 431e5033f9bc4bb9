//! What would happen to a job, for several min runtimes.

use tidegate_model::Timestamp;

use super::{Column, LEFT, RIGHT, table};
use crate::show::text::plain;
use crate::show::time::away;
use crate::view::dry_run::DryRun;

/// Marks the min runtime that the job asks.
const OWN: &str = "*";

/// A row for each min runtime, and below it why it is so for the job's own.
pub(crate) fn dry_runs(runs: &[DryRun], now: Timestamp) -> String {
    const COLUMNS: [Column; 5] = [
        ("MIN-RUNTIME", RIGHT),
        ("STARTS", LEFT),
        ("PLEDGES", RIGHT),
        ("SMALL", LEFT),
        ("ELDER", LEFT),
    ];
    let row = |run: &DryRun| {
        let elder = run.elder_at_ms.map_or_else(|| "never".to_owned(), |at| away(at, now));
        let elder = if run.refused.is_some() { "-".to_owned() } else { elder };
        [
            format!("{}{}", if run.own { OWN } else { "" }, run.min_runtime),
            starts(run, now),
            format!("{} GPU-h", run.pledge_gpu_us),
            if run.small { "yes" } else { "no" }.to_owned(),
            elder,
        ]
    };
    let mut text = table(&COLUMNS, runs.iter().map(row));
    for run in runs.iter().filter(|run| run.own && run.refused.is_none()) {
        text.push_str(&format!("\n\n{}: {}", run.min_runtime, plain(&run.reason)));
        for line in &run.lines {
            text.push_str(&format!("\n  {}", plain(line)));
        }
    }
    text
}

/// When, and how it would stand, in a few words.
fn starts(run: &DryRun, now: Timestamp) -> String {
    if let Some(why) = &run.refused {
        return format!("refused: {why}");
    }
    let line = run.lines.first().cloned().unwrap_or_default();
    match (run.starts, run.at_ms) {
        (Some(standing), at) => {
            let at = at.map_or_else(|| "now".to_owned(), |at| away(at, now));
            format!("{at}, {}", standing.word().to_lowercase())
        }
        (None, _) if run.is_beyond_budget() => "never: this account can never fund it".to_owned(),
        (None, _) if run.reason == "Unsatisfiable" => format!("never: {line}"),
        (None, Some(at)) => format!("{}, expected", away(at, now)),
        (None, None) if run.reason == "AwaitingBudget" => {
            let refills = run.numbers.get("refills_at_ms");
            let about = |ms: &u64| format!("about {}", away(Timestamp(*ms), now));
            let refills = refills.map_or_else(|| "more than a week".to_owned(), about);
            format!("waits for budget, {refills}")
        }
        (None, None) => format!("waits: {line}"),
    }
}
