//! Instants and spans, in whole milliseconds. Nothing here reads a clock.

use std::fmt;
use std::str::FromStr;

/// An instant: milliseconds since 1970-01-01 UTC. No calendar, time zone or daylight saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The instant `span` later; saturates at the end of time.
    #[must_use]
    pub fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`; zero if `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ms", self.0)
    }
}

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// So many seconds. Saturates.
    #[must_use]
    pub const fn seconds(count: u64) -> Self {
        Self(count.saturating_mul(1000))
    }

    /// So many minutes. Saturates.
    #[must_use]
    pub const fn minutes(count: u64) -> Self {
        Self::seconds(count.saturating_mul(60))
    }

    /// So many hours. Saturates.
    #[must_use]
    pub const fn hours(count: u64) -> Self {
        Self::minutes(count.saturating_mul(60))
    }
}

impl From<Span> for std::time::Duration {
    fn from(span: Span) -> Self {
        Self::from_millis(span.0)
    }
}

/// Why a text is not a span of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanError {
    given: String,
}

impl fmt::Display for SpanError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { given } = self;
        write!(out, "{given:?} is not a span of time: expected a form like 90s, 30m, 2h or 1h30m")
    }
}

impl std::error::Error for SpanError {}

const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Whole numbers with units, largest first: `1h30m`. Zero is `0`.
impl fmt::Display for Span {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return out.pad("0");
        }
        let mut rest = self.0;
        let mut text = String::new();
        for (unit, size) in UNITS {
            if rest >= size {
                text.push_str(&format!("{}{unit}", rest / size));
                rest %= size;
            }
        }
        out.pad(&text)
    }
}

impl FromStr for Span {
    type Err = SpanError;
    fn from_str(text: &str) -> Result<Self, SpanError> {
        parse_span(text).ok_or_else(|| SpanError { given: text.chars().take(64).collect() })
    }
}

fn parse_span(text: &str) -> Option<Span> {
    if text == "0" {
        return Some(Span::ZERO);
    }
    let mut total = 0_u64;
    let mut rest = text;
    let mut last_size = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let (_, size) = *UNITS.iter().find(|(name, _)| *name == unit)?;
        if size >= last_size {
            return None;
        }
        last_size = size;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(size)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(Span(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_reads_back_what_it_wrote() {
        for (text, ms) in
            [("0", 0), ("90s", 90_000), ("1h30m", 5_400_000), ("2d", 172_800_000), ("7ms", 7)]
        {
            assert_eq!(text.parse(), Ok(Span(ms)), "{text}");
        }
        for ms in [0, 1, 999, 1000, 61_001, 5_400_000, u64::MAX] {
            assert_eq!(Span(ms).to_string().parse(), Ok(Span(ms)));
        }
    }

    #[test]
    fn a_span_without_a_unit_or_with_doubtful_order_is_refused() {
        for text in ["", "5", "h", "1x", "1m1h", "1h1h", "-1s", "1.5h", "99999999999999999999d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
