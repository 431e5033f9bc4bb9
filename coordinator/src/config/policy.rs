//! `[initial_policy]`: the policy that a new store begins with.

use std::fmt;

use scheduler_core::{Amount, GpuRule, Policy, Sharing, SmallLimit, Weight, percent};
use serde::Deserialize;
use tidegate_model::{GpuCount, Span, UserId};

use super::{field, refuse_unknown};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawPolicy {
    start_timeout: Option<String>,
    restart_backoff: Option<String>,
    restart_backoff_max: Option<String>,
    steady_after: Option<String>,
    keep_ended: Option<String>,
    silent_after: Option<String>,
    max_live_jobs: Option<u32>,
    admins: Option<Vec<u32>>,
    small_reserve: Option<String>,
    small_gpus: Option<u32>,
    small_min_runtime: Option<String>,
    small_gpu_minutes: Option<u32>,
    small_floor: Option<String>,
    settle: Option<String>,
    patience: Option<String>,
    elder_gap: Option<String>,
    slack: Option<String>,
    protected_cap: Option<String>,
    headroom: Option<String>,
    gang_cap: Option<String>,
    large_gang: Option<String>,
    large_min_runtime: Option<String>,
    max_min_runtime: Option<String>,
    free_grace: Option<String>,
    leave_limit: Option<String>,
    verify_limit: Option<String>,
    max_reservations: Option<u32>,
    look_ahead: Option<u32>,
    spare_recent: Option<String>,
    return_span: Option<String>,
    pass_every: Option<String>,
    gate_width: Option<u32>,
    gate_patience: Option<String>,
    no_progress_limit: Option<u32>,
    require_rehearsal: Option<u32>,
    gpu_types: Option<Vec<RawGpuType>>,
}

#[derive(Debug, Deserialize)]
struct RawGpuType {
    name: String,
    product: String,
    weight: u32,
}

const KEYS: [&str; 36] = [
    "start_timeout",
    "restart_backoff",
    "restart_backoff_max",
    "steady_after",
    "keep_ended",
    "silent_after",
    "max_live_jobs",
    "admins",
    "small_reserve",
    "small_gpus",
    "small_min_runtime",
    "small_gpu_minutes",
    "small_floor",
    "settle",
    "patience",
    "elder_gap",
    "slack",
    "protected_cap",
    "headroom",
    "gang_cap",
    "large_gang",
    "large_min_runtime",
    "max_min_runtime",
    "free_grace",
    "leave_limit",
    "verify_limit",
    "max_reservations",
    "look_ahead",
    "spare_recent",
    "return_span",
    "pass_every",
    "gate_width",
    "gate_patience",
    "no_progress_limit",
    "require_rehearsal",
    "gpu_types",
];
const GPU_KEYS: [&str; 3] = ["name", "product", "weight"];

/// Refuses keys that are none.
pub(super) fn refuse_unknown_keys(table: &toml::Table) -> Result<(), String> {
    refuse_unknown(table, &KEYS, "initial_policy.")?;
    let types = table.get("gpu_types").and_then(toml::Value::as_array);
    let mut tables = types.into_iter().flatten().filter_map(toml::Value::as_table);
    tables.try_for_each(|table| refuse_unknown(table, &GPU_KEYS, "initial_policy.gpu_types."))
}

/// Checks the values; `coordinator` is who the coordinator runs as.
pub(super) fn checked(raw: &RawPolicy, coordinator: UserId) -> Result<Policy, String> {
    let default = Policy::default();
    let admins: Option<Vec<u32>> = raw.admins.clone();
    let admins = admins.map(|uids| uids.into_iter().map(UserId).collect());
    let policy = Policy {
        start_timeout: span("start_timeout", raw.start_timeout.as_ref(), default.start_timeout)?,
        restart_backoff: span(
            "restart_backoff",
            raw.restart_backoff.as_ref(),
            default.restart_backoff,
        )?,
        restart_backoff_max: span(
            "restart_backoff_max",
            raw.restart_backoff_max.as_ref(),
            default.restart_backoff_max,
        )?,
        steady_after: span("steady_after", raw.steady_after.as_ref(), default.steady_after)?,
        keep_ended: span("keep_ended", raw.keep_ended.as_ref(), default.keep_ended)?,
        silent_after: span("silent_after", raw.silent_after.as_ref(), default.silent_after)?,
        max_live_jobs: raw.max_live_jobs.unwrap_or(default.max_live_jobs),
        admins: admins.unwrap_or_else(|| [coordinator].into()),
        sharing: sharing(raw, &default.sharing)?,
    };
    policy.check().map_err(|why| format!("initial_policy.{why}"))?;
    Ok(policy)
}

fn sharing(raw: &RawPolicy, default: &Sharing) -> Result<Sharing, String> {
    let small = SmallLimit {
        gpus: GpuCount(raw.small_gpus.unwrap_or(default.small.gpus.0)),
        min_runtime: span(
            "small_min_runtime",
            raw.small_min_runtime.as_ref(),
            default.small.min_runtime,
        )?,
        gpu_minutes: raw.small_gpu_minutes.unwrap_or(default.small.gpu_minutes),
    };
    Ok(Sharing {
        small_reserve: part("small_reserve", raw.small_reserve.as_ref(), default.small_reserve)?,
        small,
        small_floor: gpu_hours("small_floor", raw.small_floor.as_ref(), default.small_floor)?,
        settle: span("settle", raw.settle.as_ref(), default.settle)?,
        patience: span("patience", raw.patience.as_ref(), default.patience)?,
        elder_gap: span("elder_gap", raw.elder_gap.as_ref(), default.elder_gap)?,
        slack: part("slack", raw.slack.as_ref(), default.slack)?,
        protected_cap: part("protected_cap", raw.protected_cap.as_ref(), default.protected_cap)?,
        headroom: part("headroom", raw.headroom.as_ref(), default.headroom)?,
        gang_cap: part("gang_cap", raw.gang_cap.as_ref(), default.gang_cap)?,
        large_gang: part("large_gang", raw.large_gang.as_ref(), default.large_gang)?,
        large_min_runtime: span(
            "large_min_runtime",
            raw.large_min_runtime.as_ref(),
            default.large_min_runtime,
        )?,
        max_min_runtime: span(
            "max_min_runtime",
            raw.max_min_runtime.as_ref(),
            default.max_min_runtime,
        )?,
        free_grace: span("free_grace", raw.free_grace.as_ref(), default.free_grace)?,
        leave_limit: span("leave_limit", raw.leave_limit.as_ref(), default.leave_limit)?,
        verify_limit: span("verify_limit", raw.verify_limit.as_ref(), default.verify_limit)?,
        max_reservations: raw.max_reservations.unwrap_or(default.max_reservations),
        look_ahead: raw.look_ahead.unwrap_or(default.look_ahead),
        spare_recent: span("spare_recent", raw.spare_recent.as_ref(), default.spare_recent)?,
        return_span: span("return_span", raw.return_span.as_ref(), default.return_span)?,
        pass_every: span("pass_every", raw.pass_every.as_ref(), default.pass_every)?,
        gate_width: raw.gate_width.unwrap_or(default.gate_width),
        gate_patience: span("gate_patience", raw.gate_patience.as_ref(), default.gate_patience)?,
        no_progress_limit: raw.no_progress_limit.unwrap_or(default.no_progress_limit),
        require_rehearsal: raw.require_rehearsal.map(GpuCount).or(default.require_rehearsal),
        gpu_types: raw.gpu_types.iter().flatten().map(rule).collect::<Result<_, _>>()?,
    })
}

fn rule(raw: &RawGpuType) -> Result<GpuRule, String> {
    let name = field("gpu_types.name", &raw.name)?;
    Ok(GpuRule { name, product: raw.product.clone(), weight: Weight(raw.weight) })
}

fn span(key: &'static str, text: Option<&String>, default: Span) -> Result<Span, String> {
    text.map_or(Ok(default), |text| field(key, text))
}

/// Millionths, from a percentage such as `5 %` or `12.5%`: digits, not a float, so that it is
/// exact.
fn part(key: &'static str, text: Option<&String>, default: u32) -> Result<u32, String> {
    let Some(text) = text else { return Ok(default) };
    let digits = text.trim().strip_suffix('%').map(str::trim_end);
    digits.and_then(millionths).ok_or_else(|| {
        format!(
            "{key}: {text:?} is not a percentage: expected a form like 5 % or 12.5 %, with at \
                 most four decimals"
        )
    })
}

fn millionths(percent: &str) -> Option<u32> {
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 4 {
        return None;
    }
    let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(10_000)?.checked_add(decimals)
}

fn gpu_hours(key: &'static str, text: Option<&String>, default: Amount) -> Result<Amount, String> {
    let Some(text) = text else { return Ok(default) };
    let hours = text.trim().strip_suffix("GPU-h").map(str::trim_end);
    let hours = hours.and_then(|hours| hours.parse::<u32>().ok());
    hours.map(|hours| Amount::gpu_hours(hours.into())).ok_or_else(|| {
        format!("{key}: {text:?} is not a number of GPU-hours: expected a form like 64 GPU-h")
    })
}

/// The effective values, as `--check-config` prints them; without the table's name.
pub(super) struct Shown<'policy>(pub(super) &'policy Policy);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = self.0;
        let admins: Vec<_> = policy.admins.iter().map(|user| user.0.to_string()).collect();
        writeln!(out, "start_timeout = \"{}\"", policy.start_timeout)?;
        writeln!(out, "restart_backoff = \"{}\"", policy.restart_backoff)?;
        writeln!(out, "restart_backoff_max = \"{}\"", policy.restart_backoff_max)?;
        writeln!(out, "steady_after = \"{}\"", policy.steady_after)?;
        writeln!(out, "keep_ended = \"{}\"", policy.keep_ended)?;
        writeln!(out, "silent_after = \"{}\"", policy.silent_after)?;
        writeln!(out, "max_live_jobs = {}", policy.max_live_jobs)?;
        writeln!(out, "admins = [{}]", admins.join(", "))?;
        show_sharing(out, &policy.sharing)
    }
}

fn show_sharing(out: &mut fmt::Formatter<'_>, sharing: &Sharing) -> fmt::Result {
    writeln!(out, "small_reserve = \"{}\"", percent(sharing.small_reserve))?;
    writeln!(out, "small_gpus = {}", sharing.small.gpus.0)?;
    writeln!(out, "small_min_runtime = \"{}\"", sharing.small.min_runtime)?;
    writeln!(out, "small_gpu_minutes = {}", sharing.small.gpu_minutes)?;
    let floor = sharing.small_floor.0 / Amount::gpu_hours(1).0;
    writeln!(out, "small_floor = \"{floor} GPU-h\"")?;
    writeln!(out, "settle = \"{}\"", sharing.settle)?;
    writeln!(out, "patience = \"{}\"", sharing.patience)?;
    writeln!(out, "elder_gap = \"{}\"", sharing.elder_gap)?;
    writeln!(out, "slack = \"{}\"", percent(sharing.slack))?;
    writeln!(out, "protected_cap = \"{}\"", percent(sharing.protected_cap))?;
    writeln!(out, "headroom = \"{}\"", percent(sharing.headroom))?;
    writeln!(out, "gang_cap = \"{}\"", percent(sharing.gang_cap))?;
    writeln!(out, "large_gang = \"{}\"", percent(sharing.large_gang))?;
    writeln!(out, "large_min_runtime = \"{}\"", sharing.large_min_runtime)?;
    writeln!(out, "max_min_runtime = \"{}\"", sharing.max_min_runtime)?;
    writeln!(out, "free_grace = \"{}\"", sharing.free_grace)?;
    writeln!(out, "leave_limit = \"{}\"", sharing.leave_limit)?;
    writeln!(out, "verify_limit = \"{}\"", sharing.verify_limit)?;
    writeln!(out, "max_reservations = {}", sharing.max_reservations)?;
    writeln!(out, "look_ahead = {}", sharing.look_ahead)?;
    writeln!(out, "spare_recent = \"{}\"", sharing.spare_recent)?;
    writeln!(out, "return_span = \"{}\"", sharing.return_span)?;
    writeln!(out, "pass_every = \"{}\"", sharing.pass_every)?;
    writeln!(out, "gate_width = {}", sharing.gate_width)?;
    writeln!(out, "gate_patience = \"{}\"", sharing.gate_patience)?;
    write!(out, "no_progress_limit = {}", sharing.no_progress_limit)?;
    for rule in &sharing.gpu_types {
        write!(
            out,
            "\n\n[[initial_policy.gpu_types]]\nname = {:?}\nproduct = {:?}\nweight = {}",
            rule.name.as_str(),
            rule.product,
            rule.weight.0
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_exact_and_reads_back() {
        let check = |text: &str, expected: Option<u32>| {
            let read = part("slack", Some(&text.to_owned()), 0).ok();
            assert_eq!(read, expected, "{text}");
            if let Some(read) = read {
                assert_eq!(part("slack", Some(&percent(read)), 0), Ok(read), "{text}");
            }
        };
        check("5 %", Some(50_000));
        check("12.5%", Some(125_000));
        check("0.0001 %", Some(1));
        check("100 %", Some(1_000_000));
        check("0.00001 %", None);
        check("5", None);
        check("-5 %", None);
        check(". %", None);
    }
}
