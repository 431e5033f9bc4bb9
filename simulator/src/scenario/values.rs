//! Instants, sizes, amounts and policy values, as scenarios write them.

use tidegate_model::{GpuCount, GpuType, Span, Timestamp};

use scheduler_core::{Amount, GpuRule, Policy, Size, Weight};

use crate::world::EPOCH;

/// One GPU-hour.
const GPU_HOUR: i128 = 3_600_000_000;
/// One GPU-second.
const GPU_SECOND: i128 = 1_000_000;

/// `2:00`, `2:00:30` or `2:00:30.250` since the beginning.
pub(super) fn instant(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let mut parts = whole.split(':').map(str::parse::<u64>);
    let (hours, minutes) = (parts.next()?.ok()?, parts.next()?.ok()?);
    let seconds = parts.next().transpose().ok()?.unwrap_or(0);
    let ms = format!("{fraction:0<3}").parse::<u64>().ok()?;
    if parts.next().is_some() || minutes > 59 || seconds > 59 || ms > 999 {
        return None;
    }
    let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
    let ms = minutes.checked_mul(60)?.checked_add(seconds)?.checked_mul(1000)?.checked_add(ms)?;
    Some(EPOCH.plus(Span(ms)))
}

/// As [`instant`] reads it.
pub(super) fn instant_text(at: Timestamp) -> String {
    let ms = at.since(EPOCH).0;
    let (seconds, rest) = (ms / 1000, ms % 1000);
    let text = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if rest == 0 { text } else { format!("{text}.{rest:03}") }
}

/// `40%`, with up to four decimals, in millionths.
pub(super) fn part(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if decimals.len() > 4 {
        return None;
    }
    let whole = whole.parse::<u32>().ok()?.checked_mul(10_000)?;
    whole.checked_add(format!("{decimals:0<4}").parse().ok()?)
}

/// `10GPUh`.
pub(super) fn amount(text: &str) -> Option<Amount> {
    text.strip_suffix("GPUh")?.trim().parse().ok().map(Amount::gpu_hours)
}

/// `40%` of the parent, or `10GPUh`.
pub(super) fn size(text: &str) -> Option<Size> {
    part(text).map(Size::Share).or_else(|| amount(text).map(Size::Fixed))
}

/// GPU-hours where they have at most two decimals, else GPU-seconds.
pub(super) fn amount_text(amount: Amount) -> String {
    let sign = if amount.0 < 0 { "-" } else { "" };
    let size = amount.0.abs();
    if size % (GPU_HOUR / 100) == 0 {
        let text = format!("{sign}{}.{:02}", size / GPU_HOUR, size / (GPU_HOUR / 100) % 100);
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let (seconds, rest) = (size / GPU_SECOND, size % GPU_SECOND);
    let text = format!("{sign}{seconds}.{rest:06}");
    format!("{} GPU-s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Gives the policy's key that value.
pub(super) fn set_policy(policy: &mut Policy, key: &str, value: &str) -> Result<(), String> {
    let sharing = &mut policy.sharing;
    let parts = [
        ("slack", &mut sharing.slack),
        ("small_reserve", &mut sharing.small_reserve),
        ("protected_cap", &mut sharing.protected_cap),
        ("headroom", &mut sharing.headroom),
        ("gang_cap", &mut sharing.gang_cap),
        ("large_gang", &mut sharing.large_gang),
    ];
    if let Some((_, slot)) = parts.into_iter().find(|(name, _)| *name == key) {
        *slot = part(value).ok_or_else(|| format!("{key} is a part, such as 5%"))?;
        return Ok(());
    }
    let counts = [
        ("gate_width", &mut sharing.gate_width),
        ("look_ahead", &mut sharing.look_ahead),
        ("max_reservations", &mut sharing.max_reservations),
        ("no_progress_limit", &mut sharing.no_progress_limit),
        ("small_gpu_minutes", &mut sharing.small.gpu_minutes),
    ];
    if let Some((_, slot)) = counts.into_iter().find(|(name, _)| *name == key) {
        *slot = value.parse().map_err(|_not_one| format!("{key} is a number"))?;
        return Ok(());
    }
    if key == "small_gpus" {
        sharing.small.gpus = GpuCount(value.parse().map_err(|_not_one| "a number".to_owned())?);
        return Ok(());
    }
    if key == "require_rehearsal" {
        let gpus = if value == "off" { None } else { Some(value.parse()) };
        let gpus = gpus.transpose().map_err(|_not_one| "a number, or off".to_owned())?;
        sharing.require_rehearsal = gpus.map(GpuCount);
        return Ok(());
    }
    if key == "small_floor" {
        sharing.small_floor = amount(value).ok_or("small_floor is as 64GPUh")?;
        return Ok(());
    }
    set_span(policy, key, value)
}

fn set_span(policy: &mut Policy, key: &str, value: &str) -> Result<(), String> {
    let sharing = &mut policy.sharing;
    let spans = [
        ("settle", &mut sharing.settle),
        ("patience", &mut sharing.patience),
        ("elder_gap", &mut sharing.elder_gap),
        ("large_min_runtime", &mut sharing.large_min_runtime),
        ("max_min_runtime", &mut sharing.max_min_runtime),
        ("small_min_runtime", &mut sharing.small.min_runtime),
        ("free_grace", &mut sharing.free_grace),
        ("verify_limit", &mut sharing.verify_limit),
        ("spare_recent", &mut sharing.spare_recent),
        ("return_span", &mut sharing.return_span),
        ("pass_every", &mut sharing.pass_every),
        ("leave_limit", &mut sharing.leave_limit),
        ("gate_patience", &mut sharing.gate_patience),
        ("start_timeout", &mut policy.start_timeout),
        ("restart_backoff", &mut policy.restart_backoff),
        ("steady_after", &mut policy.steady_after),
        ("silent_after", &mut policy.silent_after),
        ("keep_ended", &mut policy.keep_ended),
    ];
    let slot = spans.into_iter().find(|(name, _)| *name == key);
    let (_, slot) = slot.ok_or_else(|| format!("{key} is no key of the policy"))?;
    *slot = value.parse().map_err(|error| format!("{key}: {error}"))?;
    Ok(())
}

/// `h100 weight=2000`: a kind of GPU.
pub(super) fn gpu_rule(name: &str, weight: Option<&str>) -> Result<GpuRule, String> {
    let name: GpuType = name.parse().map_err(|error| format!("{error}"))?;
    let weight = weight.and_then(|text| text.strip_prefix("weight="));
    let weight = weight.unwrap_or("1000").parse().map_err(|_not_one| "weight=1000".to_owned())?;
    Ok(GpuRule { product: name.to_string(), name, weight: Weight(weight) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_reads_back_what_it_wrote() {
        for text in ["0:00:00", "2:00:30", "168:59:59.007"] {
            assert_eq!(instant(text).map(instant_text).as_deref(), Some(text));
        }
        assert_eq!(instant("2:00"), instant("2:00:00"));
        for text in ["2", "2:60", "2:00:60", "a:00", "1:00:00:00"] {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    #[test]
    fn an_amount_is_never_rounded() {
        let hour = Amount::gpu_hours(1);
        assert_eq!(amount_text(Amount::gpu_hours(12)), "12");
        assert_eq!(amount_text(hour.part(1, 4)), "0.25");
        assert_eq!(amount_text(hour.part(1, 12)), "300 GPU-s");
        assert_eq!(amount_text(Amount(-1)), "-0.000001 GPU-s");
    }

    #[test]
    fn a_size_is_a_part_or_gpu_hours() {
        assert_eq!(size("40%"), Some(Size::Share(400_000)));
        assert_eq!(size("0.5%"), Some(Size::Share(5000)));
        assert_eq!(size("10GPUh"), Some(Size::Fixed(Amount::gpu_hours(10))));
        assert_eq!(size("10"), None);
    }
}
