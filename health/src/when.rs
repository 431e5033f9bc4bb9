//! When a line was written, as far as it says.

use tidegate_model::{Span, Timestamp};

/// The instant of a line as `/dev/kmsg` (`6,1234,5678901,-;`), `dmesg` (`[ 5678.901234]`) or a journal
/// (`2026-11-29T12:00:00…`, `Nov 29 12:00:00`) has it: since boot, since 1970 or, where no year is said,
/// since the year began. None if it says nothing.
#[must_use]
pub fn when(line: &str) -> Option<Timestamp> {
    kmsg(line).or_else(|| dmesg(line)).or_else(|| dated(line)).or_else(|| syslog(line))
}

fn kmsg(line: &str) -> Option<Timestamp> {
    let (head, _) = line.split_once(';')?;
    let mut fields = head.split(',');
    let (_priority, _sequence): (u32, u64) = (number(fields.next()?)?, number(fields.next()?)?);
    Some(Timestamp(number::<u64>(fields.next()?)? / 1000))
}

fn dmesg(line: &str) -> Option<Timestamp> {
    let (head, _) = line.strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) = head.trim().split_once('.')?;
    let millis = number::<u64>(micros.get(..3)?)?;
    Some(Timestamp(number::<u64>(seconds)?.checked_mul(1000)?.checked_add(millis)?))
}

/// `2026-11-29T12:00:00` and what follows, of the zone that the file is in.
fn dated(line: &str) -> Option<Timestamp> {
    let (day, rest) = line.split_once(['T', ' '])?;
    let mut parts = day.splitn(3, '-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    if year.len() != 4 {
        return None;
    }
    let days = days_since_1970(number(year)?, number(month)?, number(day)?)?;
    Some(Timestamp(0).plus(days).plus(clock(rest)?))
}

/// `Nov 29 12:00:00`.
fn syslog(line: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = line.split_ascii_whitespace();
    let name = words.next()?;
    let month = (1..).zip(MONTHS).find(|(_, month)| *month == name)?.0;
    let days = days_since_1970(1972, month, number(words.next()?)?)?;
    let begin = days_since_1970(1972, 1, 1)?;
    Some(Timestamp(days.0.checked_sub(begin.0)?).plus(clock(words.next()?)?))
}

/// `12:00:00`, and the part of a second that may follow.
fn clock(text: &str) -> Option<Span> {
    let mut parts = text.splitn(3, ':');
    let (hours, minutes, rest) = (number(parts.next()?)?, number(parts.next()?)?, parts.next()?);
    let seconds: u64 = number(rest.get(..2)?)?;
    let millis = rest.get(2..).and_then(|rest| number(rest.strip_prefix(['.', ','])?.get(..3)?));
    let whole = Span::hours(hours).0.checked_add(Span::minutes(minutes).0)?;
    Some(Span(whole.checked_add(Span::seconds(seconds).0)?.checked_add(millis.unwrap_or(0))?))
}

/// Of the Gregorian calendar.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<Span> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March: a day more in February is at their end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_years = year * 365 + year / 4 - year / 100 + year / 400;
    let days = of_years + (month * 153 + 2) / 5 + day - 1;
    Some(Span::hours(days.checked_sub(719_468)?.checked_mul(24)?))
}

fn number<N: std::str::FromStr>(text: &str) -> Option<N> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_log_says_when_in_its_own_way() {
        let at = |line: &str| when(line).map(|at| at.0);
        assert_eq!(at("6,1234,5678901,-;NVRM: Xid"), Some(5678));
        assert_eq!(at("[ 5678.901234] NVRM: Xid"), Some(5_678_901));
        assert_eq!(at("1970-01-02T00:00:01.250Z host kernel: x"), Some(86_401_250));
        assert_eq!(at("2026-11-29 12:00:00 x"), Some(1_795_953_600_000));
        assert_eq!(at("Jan  2 00:00:01 host kernel: x"), Some(86_401_000));
        let day = |line: &str| at(line).unwrap() / 86_400_000;
        assert_eq!(day("Mar  1 00:00:00 x") - day("Feb 28 00:00:00 x"), 2);
        for line in ["", "NVRM: Xid", "[x] y", "Xxx 1 00:00:00", "2026-13-01T00:00:00", "a,b,c;d"] {
            assert_eq!(at(line), None, "{line}");
        }
    }
}
