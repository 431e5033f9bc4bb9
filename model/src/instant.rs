//! Instants as people give and read them: RFC 3339, in the calendar of today.

use crate::time::Timestamp;

const MS_PER_DAY: u64 = 86_400_000;
/// Days from 0000-03-01 to 1970-01-01.
const SHIFT: u64 = 719_468;
/// Days of 400 years.
const ERA: u64 = 146_097;

/// RFC 3339 in UTC, to the second: `2026-02-28T23:59:59Z`.
#[must_use]
pub fn rfc3339(at: Timestamp) -> String {
    format!("{}Z", to_the_second(at))
}

/// RFC 3339 in UTC, to the millisecond: `2026-02-28T23:59:59.999Z`.
#[must_use]
pub fn rfc3339_ms(at: Timestamp) -> String {
    format!("{}.{:03}Z", to_the_second(at), at.0 % 1000)
}

fn to_the_second(at: Timestamp) -> String {
    let (year, month, day) = civil(at.0 / MS_PER_DAY);
    let seconds = at.0 % MS_PER_DAY / 1000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// An instant as RFC 3339 has it: `2026-12-01T08:00:00Z`, or with an offset such as `+01:00`. Seconds
/// may be left out, and may have a fraction, which counts to the millisecond. None if it is not one, or
/// before 1970.
#[must_use]
pub fn from_rfc3339(text: &str) -> Option<Timestamp> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at_checked(at)?;
    let (clock, ms) = match clock.split_once('.') {
        Some((clock, fraction)) => (clock, Some(milliseconds(fraction)?)),
        None => (clock, None),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let to_the_minute = || numbers(clock, ':', [2, 2]).filter(|_| ms.is_none());
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])
        .or_else(|| to_the_minute().map(|[hour, minute]| [hour, minute, 0]))?;
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
    Some(Timestamp(seconds * 1000 + ms.unwrap_or(0)))
}

/// Of a fraction of one to nine digits.
fn milliseconds(fraction: &str) -> Option<u64> {
    let [number] = numbers(fraction, '.', [fraction.len()])?;
    match fraction.len() {
        digits @ 1..=3 => Some((digits..3).fold(number, |number, _| number * 10)),
        digits @ 4..=9 => Some((3..digits).fold(number, |number, _| number / 10)),
        _ => None,
    }
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

/// Days since 1970-01-01, by the algorithm `days_from_civil` of Howard Hinnant ("chrono-Compatible
/// Low-Level Date Algorithms"); none of a day that is not in the calendar, or before 1970.
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    let march_year = if month <= 2 { year.checked_sub(1)? } else { year };
    let in_era = march_year % 400;
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    let days = march_year / 400 * ERA + in_era * 365 + in_era / 4 - in_era / 100 + in_year;
    let days = days.checked_sub(SHIFT)?;
    (civil(days) == (year, month, day)).then_some(days)
}

/// Year, month and day of a day counted from 1970-01-01, by the algorithm `civil_from_days` of
/// Howard Hinnant ("chrono-Compatible Low-Level Date Algorithms"), for days not before 1970.
///
/// Years begin in March there, so that the leap day is a year's last.
fn civil(days: u64) -> (u64, u64, u64) {
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
    fn an_instant_reads_back_and_what_is_none_is_refused() {
        for text in ["2026-02-28T23:59:59Z", "2024-02-29T00:00:00Z", "1970-01-01T00:00:00Z"] {
            assert_eq!(from_rfc3339(text).map(rfc3339).as_deref(), Some(text));
        }
        for (text, expected) in [
            ("2026-12-01T08:00Z", "2026-12-01T08:00:00Z"),
            ("2026-12-01T08:00:00+01:30", "2026-12-01T06:30:00Z"),
            ("2026-12-31t20:00:00-05:00", "2027-01-01T01:00:00Z"),
            ("2026-12-01 08:00:00.25Z", "2026-12-01T08:00:00Z"),
        ] {
            assert_eq!(from_rfc3339(text).map(rfc3339).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-12-01",
            "2026-12-01T08:00:00",
            "2026-12-01T24:00:00Z",
            "2026-12-01T08:00:00.Z",
            "2026-12-01T08:00:00.0123456789Z",
            "2026-12-01T08:00.5Z",
            "2026-12-01T08:00:00+1:00",
            "2026-12-01T08:00:00Zulu",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "+026-12-01T08:00:00Z",
        ] {
            assert_eq!(from_rfc3339(text), None, "{text}");
        }
        for text in ["2024-02-29T23:59:59.999Z", "2100-03-01T00:00:00.001Z"] {
            assert_eq!(from_rfc3339(text).map(rfc3339_ms).as_deref(), Some(text));
        }
        assert_eq!(from_rfc3339("1970-01-01T00:00:00.5Z"), Some(Timestamp(500)));
        assert_eq!(from_rfc3339("1970-01-01T00:00:00.123456789Z"), Some(Timestamp(123)));
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
