//! Times for people. JSON carries milliseconds instead.

use std::time::SystemTime;

use tidegate_model::{Span, Timestamp};

const MS_PER_DAY: u64 = 86_400_000;

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
    let hours = (minutes + 30) / 60;
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

/// RFC 3339 in UTC, to the second: `2026-02-28T23:59:59Z`.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let (year, month, day) = civil(at.0 / MS_PER_DAY);
    let seconds = at.0 % MS_PER_DAY / 1000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// An instant as RFC 3339 has it: `2026-12-01T08:00:00Z`, or with an offset such as `+01:00`. Seconds
/// may be left out. None if it is not one, or before 1970.
pub(crate) fn from_rfc3339(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once(['T', 't'])?;
    let at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at_checked(at)?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])
        .or_else(|| numbers(clock, ':', [2, 2]).map(|[hour, minute]| [hour, minute, 0]))?;
    let days = days_of(year, month, day)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    let ahead = |zone: &str| {
        let [hours, minutes] = numbers(zone, ':', [2, 2])?;
        (hours < 24 && minutes < 60).then_some(hours * 3600 + minutes * 60)
    };
    let seconds = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => seconds,
        ("+", offset) => seconds.checked_sub(ahead(offset)?)?,
        ("-", offset) => seconds + ahead(offset)?,
        _ => return None,
    };
    Some(Timestamp(seconds * 1000))
}

/// Numbers of so many digits each.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[u64; N]> {
    let parts: Vec<_> = text.split(between).collect();
    let parts: [&str; N] = parts.try_into().ok()?;
    let mut numbers = [0; N];
    for ((number, part), digits) in numbers.iter_mut().zip(parts).zip(digits) {
        let fits = part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
        *number = fits.then(|| part.parse().ok())??;
    }
    Some(numbers)
}

/// The inverse of [`civil`]; none of a day that is not in the calendar, or before 1970. At most four
/// digits of a year are some three million days: they are looked through by halves.
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    let (mut low, mut high) = (0, 366 * 10_000);
    while low < high {
        let middle = u64::midpoint(low, high);
        if civil(middle) < (year, month, day) { low = middle + 1 } else { high = middle }
    }
    (civil(low) == (year, month, day)).then_some(low)
}

/// Year, month and day of a day counted from 1970-01-01, by the algorithm `civil_from_days` of
/// Howard Hinnant ("chrono-Compatible Low-Level Date Algorithms"), for days not before 1970.
///
/// Years begin in March there, so that the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
    /// From 0000-03-01 to 1970-01-01.
    const SHIFT: u64 = 719_468;
    /// 400 years.
    const ERA: u64 = 146_097;
    let days = days + SHIFT;
    let in_era = days % ERA;
    let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + days / ERA * 400 + u64::from(month <= 2);
    (year, month, day)
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
        assert_eq!(until(Timestamp(now.0 + 4_800_000), now), "+1h20m");
        assert_eq!(until(Timestamp(now.0 - 4_800_000), now), "now", "it is over");
        assert_eq!(relative(Timestamp(now.0 - 180_000), now), "3m ago");
        assert_eq!(relative(Timestamp(now.0 + 180_000), now), "in 3m");
    }

    #[test]
    fn an_instant_reads_back_and_what_is_none_is_refused() {
        for text in ["2026-02-28T23:59:59Z", "2024-02-29T00:00:00Z", "1970-01-01T00:00:00Z"] {
            assert_eq!(from_rfc3339(text).map(rfc3339).as_deref(), Some(text));
        }
        for (text, expected) in [
            ("2026-12-01T08:00Z", "2026-12-01T08:00:00Z"),
            ("2026-12-01T08:00:00+01:30", "2026-12-01T06:30:00Z"),
            ("2026-12-31t20:00:00-05:00", "2027-01-01T01:00:00Z"),
        ] {
            assert_eq!(from_rfc3339(text).map(rfc3339).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-12-01",
            "2026-12-01T08:00:00",
            "2026-12-01T24:00:00Z",
            "2026-12-01T08:00:00+1:00",
            "2026-12-01T08:00:00Zulu",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "+026-12-01T08:00:00Z",
        ] {
            assert_eq!(from_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn milliseconds_are_shown_only_where_they_are_all_there_is() {
        for (ms, expected) in [(0, "0"), (7, "7ms"), (61_234, "1m1s"), (7_200_000, "2h")] {
            assert_eq!(rounded(Span(ms)), expected);
        }
    }

    /// Expected texts from `date -u -d @SECONDS +%FT%TZ`.
    #[test]
    fn an_instant_is_written_in_utc_through_leap_years_and_centuries() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_078_012_800, "2004-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_772_323_199, "2026-02-28T23:59:59Z"),
            (1_772_323_200, "2026-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(Timestamp(seconds * 1000 + 999)), expected);
        }
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_day_before() {
        let length = |year: u64, month: u64| match month {
            2 if year.is_multiple_of(4) && !year.is_multiple_of(100)
                || year.is_multiple_of(400) =>
            {
                29
            }
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut expected = (1970, 1, 1);
        for day in 0..146_097 {
            assert_eq!(civil(day), expected);
            let (year, month, of_month) = expected;
            expected = match (month, of_month) {
                (12, 31) => (year + 1, 1, 1),
                _ if of_month == length(year, month) => (year, month + 1, 1),
                _ => (year, month, of_month + 1),
            };
        }
    }
}
