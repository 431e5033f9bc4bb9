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
