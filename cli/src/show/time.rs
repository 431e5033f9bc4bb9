//! Times for people. JSON carries milliseconds instead.

use std::time::SystemTime;

use tidegate_model::{Span, Timestamp};
pub(crate) use tidegate_model::{from_rfc3339, rfc3339};

/// Now, by the wall clock of this machine: for ages only.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// One unit is enough to judge an age by: `42s`, `3m`, `5h`, `12d`.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(since).0 / 1000;
    let (size, unit) = match seconds {
        0..60 => (1, "s"),
        60..3600 => (60, "m"),
        3600..172_800 => (3600, "h"),
        _ => (86_400, "d"),
    };
    format!("{}{unit}", seconds / size)
}

/// `3m ago`.
pub(crate) fn ago(since: Timestamp, now: Timestamp) -> String {
    format!("{} ago", age(since, now))
}

/// A span to its two largest units, the nearest: `42s`, `2h10m`, `3d4h`. What it is worth to know of
/// the future.
pub(crate) fn coarse(span: Span) -> String {
    let seconds = span.0.saturating_add(500) / 1000;
    let minutes = (seconds + 30) / 60;
    in_units(seconds, minutes, (minutes + 30) / 60)
}

/// By when at the latest: `in 2h10m`, or `now` if it is over.
pub(crate) fn latest(at: Timestamp, now: Timestamp) -> String {
    bound(at, now).map_or_else(|| "now".to_owned(), |left| format!("in {left}"))
}

/// The same as `+2h10m`.
pub(crate) fn until_latest(at: Timestamp, now: Timestamp) -> String {
    bound(at, now).map_or_else(|| "now".to_owned(), |left| format!("+{left}"))
}

/// A bound is not told shorter than it is.
fn bound(at: Timestamp, now: Timestamp) -> Option<String> {
    let seconds = at.since(now).0.div_ceil(1000);
    let minutes = seconds.div_ceil(60);
    (seconds > 0).then(|| in_units(seconds, minutes, minutes.div_ceil(60)))
}

/// The same span in each unit.
fn in_units(seconds: u64, minutes: u64, hours: u64) -> String {
    let two = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match (seconds, minutes) {
        (0..60, _) => format!("{seconds}s"),
        (_, 0..60) => format!("{minutes}m"),
        (_, 60..2880) => two(minutes / 60, "h", minutes % 60, "m"),
        (_, _) => two(hours / 24, "d", hours % 24, "h"),
    }
}

/// `+1h20m`, or `now` if it is not after now.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> String {
    if is_now(at, now) { "now".to_owned() } else { format!("+{}", coarse(at.since(now))) }
}

/// `in 2h10m`, or `now` if it is not after now.
pub(crate) fn away(at: Timestamp, now: Timestamp) -> String {
    if is_now(at, now) { "now".to_owned() } else { format!("in {}", coarse(at.since(now))) }
}

/// `in 2h10m`, `now` or `3m ago`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    if now.since(at) >= Span::seconds(1) { ago(at, now) } else { away(at, now) }
}

/// Within a second: this clock and the coordinator's are not the same.
fn is_now(at: Timestamp, now: Timestamp) -> bool {
    at.since(now) < Span::seconds(1)
}

/// A span in whole seconds once it is over one: nobody reads the milliseconds of an hour.
pub(crate) fn rounded(span: Span) -> String {
    let whole = if span.0 < 1000 { span } else { Span(span.0 - span.0 % 1000) };
    whole.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_one_unit() {
        let now = Timestamp(1_000_000_000_000);
        for (seconds, expected) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(Timestamp(now.0 - seconds * 1000), now), expected);
        }
        assert_eq!(age(Timestamp(now.0 + 5000), now), "0s", "a clock behind the coordinator's");
        assert_eq!(ago(Timestamp(now.0 - 180_000), now), "3m ago");
    }

    #[test]
    fn the_future_is_told_in_two_units() {
        let now = Timestamp(1_000_000_000_000);
        for (seconds, expected) in [
            (1, "in 1s"),
            (59, "in 59s"),
            (3569, "in 59m"),
            (3599, "in 1h"),
            (7829, "in 2h10m"),
            (86_399, "in 24h"),
            (172_769, "in 47h59m"),
            (172_799, "in 2d"),
            (273_600, "in 3d4h"),
        ] {
            assert_eq!(away(Timestamp(now.0 + seconds * 1000), now), expected);
        }
        assert_eq!(away(now, now), "now");
        for (ms, expected) in [
            (0, "now"),
            (1, "in 1s"),
            (59_001, "in 1m"),
            (60_001, "in 2m"),
            (7_805_000, "in 2h11m"),
            (172_740_001, "in 2d"),
            (273_601_000, "in 3d5h"),
        ] {
            assert_eq!(latest(Timestamp(now.0 + ms), now), expected, "at the latest");
        }
        assert_eq!(until(Timestamp(now.0 + 4_800_000), now), "+1h20m");
        assert_eq!(until(Timestamp(now.0 - 4_800_000), now), "now", "it is over");
        assert_eq!(relative(Timestamp(now.0 - 180_000), now), "3m ago");
        assert_eq!(relative(Timestamp(now.0 + 180_000), now), "in 3m");
    }

    #[test]
    fn milliseconds_are_shown_only_where_they_are_all_there_is() {
        for (ms, expected) in [(0, "0"), (7, "7ms"), (61_234, "1m1s"), (7_200_000, "2h")] {
            assert_eq!(rounded(Span(ms)), expected);
        }
    }
}
