//! `report`: what was used, by account and user.

use tidegate_proto::v1;

use crate::args::{AnyAccount, ReportArgs};
use crate::connect::Api;
use crate::exit::Failure;
use crate::jobs::broken;
use crate::show::out::{json, say};
use crate::show::table;
use crate::view::report::{CLASSES, Report, Usage, Waits};
use crate::view::users::Users;

/// Tells what was used in the last windows.
///
/// # Errors
/// If there is no such account, or the coordinator does not answer.
pub(crate) async fn report(api: &Api, args: &ReportArgs, as_json: bool) -> Result<(), Failure> {
    if as_json && args.csv {
        return Err(Failure::refused("--csv and --json are two forms of one answer: give one"));
    }
    let below = args.account.as_ref().map(AnyAccount::on_wire).unwrap_or_default();
    let request = v1::ReportRequest { weeks: args.weeks, below };
    let reply = api.read(async |mut client| client.report(request.clone()).await).await?;
    let report = Report::read(reply, args.weeks, &mut Users::default());
    let report = report.map_err(|error| broken(&error))?;
    if as_json {
        json(&report)
    } else if args.csv {
        say(&csv(&report))
    } else {
        say(&table::report(&report))
    }
}

/// One line a row, with the exact values of the JSON document.
fn csv(report: &Report) -> String {
    let mut heads: Vec<String> = HEADS.map(str::to_owned).to_vec();
    for class in CLASSES {
        heads.extend(["count", "p50_ms", "p90_ms", "max_ms"].map(|of| format!("{class}_{of}")));
    }
    heads.extend(LAST_HEADS.map(str::to_owned));
    let mut lines = vec![heads.join(",")];
    lines.extend(report.usages.iter().map(|usage| line(report, usage)));
    lines.join("\n")
}

const HEADS: [&str; 14] = [
    "from_ms",
    "at_ms",
    "account",
    "user",
    "uid",
    "budget_gpu_us",
    "charged_gpu_us",
    "free_gpu_us",
    "pledged_gpu_us",
    "overhead_gpu_us",
    "credited_gpu_us",
    "lost_gpu_us",
    "displaced",
    "window_charged_gpu_us",
];

/// Columns are added at the end.
const LAST_HEADS: [&str; 3] = ["idle_gpu_us", "looked_at_gpu_us", "ended_gpu_us"];

fn line(report: &Report, usage: &Usage) -> String {
    let mut cells = vec![
        report.from_ms.0.to_string(),
        report.at_ms.0.to_string(),
        cell(&usage.account),
        usage.user.as_deref().map(cell).unwrap_or_default(),
        usage.uid.map(|uid| uid.to_string()).unwrap_or_default(),
        usage.budget_gpu_us.map(|budget| budget.0.to_string()).unwrap_or_default(),
        usage.charged_gpu_us.0.to_string(),
        usage.free_gpu_us.0.to_string(),
        usage.pledged_gpu_us.0.to_string(),
        usage.overhead_gpu_us.0.to_string(),
        usage.credited_gpu_us.0.to_string(),
        usage.lost_gpu_us.0.to_string(),
        usage.displaced.to_string(),
        usage.window_charged_gpu_us.0.to_string(),
    ];
    for class in CLASSES {
        let waits = usage.waits.iter().find(|waits| waits.class == class);
        let of = |of: fn(&Waits) -> u64| waits.map_or(0, of).to_string();
        cells.push(of(|waits| waits.count));
        cells.push(of(|waits| waits.p50_ms.0));
        cells.push(of(|waits| waits.p90_ms.0));
        cells.push(of(|waits| waits.max_ms.0));
    }
    let last = [usage.idle_gpu_us, usage.looked_at_gpu_us, usage.ended_gpu_us];
    cells.extend(last.map(|amount| amount.0.to_string()));
    cells.join(",")
}

/// A directory service may have names with anything in them.
fn cell(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_with_a_comma_or_a_quote_is_quoted() {
        assert_eq!(cell("olmo/sft"), "olmo/sft");
        assert_eq!(cell("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
