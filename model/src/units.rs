//! Quantities. Operations are checked or saturate; nothing wraps and nothing is a float.

use std::fmt;
use std::str::FromStr;

use crate::time::Span;

/// A number of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuCount(pub u32);

impl GpuCount {
    /// Both together. Saturates: no cluster holds 2^32 GPUs.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The occupancy of this many GPUs held for `span`. Cannot overflow: 32 + 64 bits < 128.
    #[must_use]
    pub fn held_for(self, span: Span) -> GpuTime {
        GpuTime(u128::from(self.0).saturating_mul(u128::from(span.0)))
    }
}

impl std::iter::Sum for GpuCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self(0), Self::plus)
    }
}

impl fmt::Display for GpuCount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// GPU-milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GpuTime(pub u128);

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitError {
    given: String,
    /// What was expected, and forms of it.
    expected: (&'static str, &'static str),
}

const SIZE: (&str, &str) = ("size", "512KiB, 64MiB or 10GiB");
const RATE: (&str, &str) = ("rate", "512KiB/s, 64MiB/s or 10GiB/s");

impl UnitError {
    fn of(given: &str, expected: (&'static str, &'static str)) -> Self {
        Self { given: given.chars().take(64).collect(), expected }
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { given, expected: (what, forms) } = self;
        write!(out, "{given:?} is not a {what}: expected a form like {forms}")
    }
}

impl std::error::Error for UnitError {}

const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// The largest unit that divides the size without a rest.
impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |size: u64| self.0 >= size && self.0.is_multiple_of(size);
        let (unit, size) = SIZES.iter().find(|(_, size)| fits(*size)).copied().unwrap_or(("B", 1));
        out.pad(&format!("{}{unit}", self.0 / size))
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let parse = || {
            let (unit, size) = SIZES.iter().find(|(unit, _)| text.ends_with(unit))?;
            let number = text.strip_suffix(unit)?.trim_end();
            number.parse::<u64>().ok()?.checked_mul(*size).map(Self)
        };
        parse().ok_or_else(|| UnitError::of(text, SIZE))
    }
}

/// A number of bytes in each second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bandwidth(pub u64);

impl Bandwidth {
    /// How long so many bytes take, rounded up to a millisecond; for ever at none.
    #[must_use]
    pub fn takes(self, bytes: Bytes) -> Span {
        let thousandfold = u128::from(bytes.0).saturating_mul(1000);
        let span = thousandfold
            .checked_add(u128::from(self.0))
            .and_then(|sum| sum.checked_sub(1)?.checked_div(u128::from(self.0)));
        Span(span.and_then(|span| u64::try_from(span).ok()).unwrap_or(u64::MAX))
    }

    /// What is written in a span, rounded down.
    #[must_use]
    pub fn over(self, span: Span) -> Bytes {
        let bytes = u128::from(self.0).saturating_mul(u128::from(span.0)) / 1000;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// What so many bytes in a span come to, rounded down; none in no time.
    #[must_use]
    pub fn of(bytes: Bytes, span: Span) -> Option<Self> {
        let rate = u128::from(bytes.0).saturating_mul(1000).checked_div(u128::from(span.0))?;
        Some(Self(u64::try_from(rate).unwrap_or(u64::MAX)))
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// What is left of it beside the other.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for Bandwidth {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self(0), Self::plus)
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(&format!("{}/s", Bytes(self.0)))
    }
}

impl FromStr for Bandwidth {
    type Err = UnitError;
    /// `20GiB/s`, or `20GiB`.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let bytes = text.strip_suffix("/s").unwrap_or(text).parse::<Bytes>().ok();
        bytes.map(|bytes| Self(bytes.0)).ok_or_else(|| UnitError::of(text, RATE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_reads_back_what_it_wrote() {
        for bytes in [0, 1, 1024, 1536, 64 << 20, u64::MAX] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
        assert_eq!("64 MiB".parse(), Ok(Bytes(64 << 20)));
        for text in ["", "5", "MiB", "1.5GiB", "-1B", "99999999999TiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_bandwidth_takes_its_time_rounded_up_and_writes_rounded_down() {
        let rate = Bandwidth(3);
        assert_eq!(rate.takes(Bytes(1)), Span(334));
        assert_eq!(rate.over(Span(334)), Bytes(1));
        assert_eq!(rate.takes(Bytes(0)), Span(0));
        assert_eq!(Bandwidth(0).takes(Bytes(1)), Span(u64::MAX));
        assert_eq!(Bandwidth::of(Bytes(1), Span(334)), Some(Bandwidth(2)));
        assert_eq!(Bandwidth::of(Bytes(1), Span(0)), None);
        assert_eq!("20GiB/s".parse(), Ok(Bandwidth(20 << 30)));
        assert_eq!(Bandwidth(20 << 30).to_string(), "20GiB/s");
        let told = "80/s".parse::<Bandwidth>().unwrap_err().to_string();
        let expected = "\"80/s\" is not a rate: expected a form like 512KiB/s, 64MiB/s or 10GiB/s";
        assert_eq!(told, expected);
    }

    #[test]
    fn occupancy_of_the_largest_cluster_for_all_time_does_not_overflow() {
        let most = GpuCount(u32::MAX).held_for(Span(u64::MAX));
        assert_eq!(most.0, u128::from(u32::MAX) * u128::from(u64::MAX));
    }
}
