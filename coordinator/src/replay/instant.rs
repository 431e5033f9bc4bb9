//! Instants as people give and read them.

use tidegate_model::{Span, Timestamp};
use toml::value::{Datetime, Offset};

const MS_PER_DAY: i64 = 86_400_000;

/// From 0000-03-01 to 1970-01-01: years begin in March here, so that the leap day is a year's last.
const SHIFT: i64 = 719_468;

/// RFC 3339 in UTC, to the millisecond.
#[must_use]
pub fn rfc3339(at: Timestamp) -> String {
    let at = i64::try_from(at.0).unwrap_or(i64::MAX);
    let (year, month, day) = civil(at / MS_PER_DAY);
    let ms = at % MS_PER_DAY;
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    let ms = ms % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// An instant with a date and an offset as RFC 3339 has it, in milliseconds since 1970, or such as
/// `-2h`: so long before `last`.
///
/// # Errors
/// What would be accepted.
pub fn parse(text: &str, last: Timestamp) -> Result<Timestamp, String> {
    if let Ok(ms) = text.parse() {
        return Ok(Timestamp(ms));
    }
    let before = text.strip_prefix('-').and_then(|span| span.parse::<Span>().ok());
    if let Some(span) = before {
        return Ok(Timestamp(last.0.saturating_sub(span.0)));
    }
    text.parse().ok().and_then(from_datetime).ok_or_else(|| {
        let given: String = text.chars().take(64).collect();
        format!(
            "{given:?} is no time: expected an instant like 2026-12-01T08:00:00Z, milliseconds \
             since 1970, or -2h for two hours before the last record"
        )
    })
}

fn from_datetime(given: Datetime) -> Option<Timestamp> {
    let (date, time) = (given.date?, given.time?);
    let ahead = match given.offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let minutes = i64::from(time.hour) * 60 + i64::from(time.minute) - ahead;
    let seconds = minutes * 60 + i64::from(time.second.unwrap_or(0));
    let ms = seconds * 1000 + i64::from(time.nanosecond.unwrap_or(0) / 1_000_000);
    let days = days(date.year.into(), date.month.into(), date.day.into());
    u64::try_from(days * MS_PER_DAY + ms).ok().map(Timestamp)
}

/// Days since 1970-01-01, by the algorithm `days_from_civil` of Howard Hinnant ("chrono-Compatible
/// Low-Level Date Algorithms").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, in_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + in_era * 365 + in_era / 4 - in_era / 100 + day_of_year - SHIFT
}

/// The inverse of [`days`], by `civil_from_days`.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + SHIFT;
    let (era, in_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let day_of_year = in_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let in_next = i64::from(month >= 10);
    (year + era * 400 + in_next, if month < 10 { month + 3 } else { month - 9 }, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_read_back_and_others_are_refused_with_what_is_accepted() {
        let last = Timestamp(10_000_000);
        for text in
            ["1970-01-01T00:00:00.000Z", "2024-02-29T23:59:59.999Z", "2100-03-01T00:00:00.001Z"]
        {
            assert_eq!(rfc3339(parse(text, last).unwrap()), text);
        }
        assert_eq!(parse("1970-01-02T01:00:00+01:00", last), Ok(Timestamp(86_400_000)));
        assert_eq!(parse("1234", last), Ok(Timestamp(1234)));
        assert_eq!(parse("-2h", last), Ok(Timestamp(2_800_000)));
        assert_eq!(parse("-20h", last), Ok(Timestamp(0)));
        let told = parse("tomorrow", last).unwrap_err();
        assert!(told.starts_with("\"tomorrow\" is no time: expected"), "{told}");
    }
}
