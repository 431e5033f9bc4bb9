//! When a line was written, as far as it says.

use tidegate_model::{Timestamp, from_rfc3339};

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

/// `2026-11-29T12:00:00` and the part of a second that may follow, of the zone that the file is in.
fn dated(line: &str) -> Option<Timestamp> {
    let (day, rest) = line.split_once(['T', ' '])?;
    let of_clock = |one: char| one.is_ascii_digit() || matches!(one, ':' | '.' | ',');
    let end = rest.find(|one| !of_clock(one)).unwrap_or(rest.len());
    from_rfc3339(&format!("{day}T{}Z", rest.get(..end)?.replace(',', ".")))
}

/// `Nov 29 12:00:00`.
fn syslog(line: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // A year that has each day there is.
    const BEGIN: &str = "1972-01-01T00:00:00Z";
    let mut words = line.split_ascii_whitespace();
    let name = words.next()?;
    let month = (1..).zip(MONTHS).find(|(_, month)| *month == name)?.0;
    let (day, clock): (u32, _) = (number(words.next()?)?, words.next()?);
    let at = from_rfc3339(&format!("1972-{month:02}-{day:02}T{clock}Z"))?;
    Some(Timestamp(at.since(from_rfc3339(BEGIN)?).0))
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
