//! GPU-time and parts, as people give and read them. Digits, not floats: what is given is what is
//! sent.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use tidegate_proto::{WireError, amount, amount_bytes, v1};

/// Reference-GPU microseconds in a GPU-hour.
const HOUR: i128 = 3_600_000_000;

/// Most GPU-hours that anybody names: six million GPUs in a window.
const MAX_HOURS: i128 = 1_000_000_000;

/// Millionths of one percent.
const PERCENT: u32 = 10_000;

/// Most decimals that are accepted: a hundred-thousandth of a percent, a third of a second.
const DECIMALS: usize = 4;

/// GPU-time in reference-GPU microseconds. Negative where it is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct GpuTime(pub(crate) i128);

impl GpuTime {
    /// Reads an amount of the wire.
    ///
    /// # Errors
    /// If it is longer than any amount.
    pub(crate) fn read(bytes: &[u8], field: &'static str) -> Result<Self, WireError> {
        amount(bytes, field).map(Self)
    }

    pub(crate) fn on_wire(self) -> Vec<u8> {
        amount_bytes(self.0)
    }

    /// Such as `93.7%`, rounded down; a dash of nothing.
    pub(crate) fn percent_of(self, whole: Self) -> String {
        let tenths = self.0.saturating_mul(1000).checked_div(whole.0).filter(|_| whole.0 > 0);
        tenths.map_or_else(|| "-".to_owned(), |tenths| format!("{}%", one_decimal(tenths)))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// GPU-hours with one decimal, the nearest: a sum looks like one.
impl fmt::Display for GpuTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let half = if self.0 < 0 { -HOUR / 20 } else { HOUR / 20 };
        out.pad(&one_decimal(self.0.saturating_add(half) / (HOUR / 10)))
    }
}

fn one_decimal(tenths: i128) -> String {
    let sign = if tenths < 0 { "-" } else { "" };
    let whole = tenths.unsigned_abs();
    format!("{sign}{}.{}", whole / 10, whole % 10)
}

/// GPU-hours: `100`, `100h` or `0.5 GPU-h`.
impl FromStr for GpuTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = ["GPU-h", "h"].iter().find_map(|unit| text.strip_suffix(unit));
        hours(number.unwrap_or(text)).ok_or_else(|| {
            format!(
                "{:?} is no number of GPU-hours: expected a form like 64h or 0.5h, from 0h to \
                 {MAX_HOURS}h",
                short(text)
            )
        })
    }
}

/// JSON carries the exact amount.
impl Serialize for GpuTime {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_i128(self.0)
    }
}

/// How large a budget is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Size {
    /// Millionths of the parent's budget.
    #[serde(rename = "share_millionths")]
    Share(u32),
    /// In a window.
    #[serde(rename = "gpu_us")]
    Fixed(GpuTime),
}

impl Size {
    /// Reads a size of the wire.
    ///
    /// # Errors
    /// If it is missing or malformed.
    pub(crate) fn read(wire: Option<v1::Size>) -> Result<Self, WireError> {
        match wire.and_then(|size| size.size) {
            None => Err(WireError::Missing { field: "Size.size" }),
            Some(v1::size::Size::ShareMillionths(share)) => Ok(Self::Share(share)),
            Some(v1::size::Size::Fixed(bytes)) => {
                GpuTime::read(&bytes, "Size.fixed").map(Self::Fixed)
            }
        }
    }
}

impl From<Size> for v1::Size {
    fn from(size: Size) -> Self {
        let size = match size {
            Size::Share(share) => v1::size::Size::ShareMillionths(share),
            Size::Fixed(amount) => v1::size::Size::Fixed(amount.on_wire()),
        };
        Self { size: Some(size) }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => out.pad(&percent(*share)),
            Self::Fixed(amount) => out.pad(&format!("{amount} GPU-h")),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = || part(text).map(Self::Share);
        let fixed = || {
            let number = ["GPU-h", "h"].iter().find_map(|unit| text.strip_suffix(unit))?;
            hours(number).map(Self::Fixed)
        };
        share().or_else(fixed).ok_or_else(|| {
            format!(
                "{:?} is no size of a budget: expected a share of the parent such as 30%, from 0% \
                 to 100%, or GPU-hours of a window such as 1200h, from 0h to {MAX_HOURS}h",
                short(text)
            )
        })
    }
}

/// Millionths, from `5%` or `12.5 %`; at most 100 %.
pub(crate) fn part(text: &str) -> Option<u32> {
    let percent = text.strip_suffix('%')?;
    let part = u32::try_from(decimal(percent.trim())?).ok()?;
    (part <= 100 * PERCENT).then_some(part)
}

/// The inverse of [`part`]: as few decimals as there are.
pub(crate) fn percent(millionths: u32) -> String {
    let text = format!("{}.{:04}", millionths / PERCENT, millionths % PERCENT);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

fn hours(number: &str) -> Option<GpuTime> {
    let scaled = i128::from(decimal(number.trim())?);
    if scaled > MAX_HOURS * i128::from(PERCENT) {
        return None;
    }
    scaled.checked_mul(HOUR / i128::from(PERCENT)).map(GpuTime)
}

/// A decimal number in ten-thousandths.
fn decimal(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > DECIMALS {
        return None;
    }
    let decimals: u64 = format!("{decimals:0<DECIMALS$}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(u64::from(PERCENT))?.checked_add(decimals)
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_size(text: &str, expected: Option<Size>) {
        assert_eq!(text.parse::<Size>().ok(), expected, "{text}");
    }

    #[test]
    fn a_size_is_a_share_or_hours_exactly_as_given() {
        check_size("30%", Some(Size::Share(300_000)));
        check_size("12.5 %", Some(Size::Share(125_000)));
        check_size("0.0001%", Some(Size::Share(1)));
        check_size("100%", Some(Size::Share(1_000_000)));
        check_size("0%", Some(Size::Share(0)));
        check_size("1200h", Some(Size::Fixed(GpuTime(1200 * HOUR))));
        check_size("0.5 GPU-h", Some(Size::Fixed(GpuTime(HOUR / 2))));
        for text in ["", "%", "30", "101%", "-1%", "1.00001%", "1e3h", "h", ".5h", "1.h", "1,5h"] {
            check_size(text, None);
        }
        check_size("99999999999999999999h", None);
    }

    #[test]
    fn hours_are_shown_with_one_decimal_and_parts_with_what_they_have() {
        for (amount, expected) in [
            (0, "0.0"),
            (HOUR, "1.0"),
            (HOUR * 2 - 1, "2.0"),
            (HOUR / 20 - 1, "0.0"),
            (HOUR / 20, "0.1"),
            (-HOUR / 2, "-0.5"),
            (-1, "0.0"),
            (1024 * 168 * HOUR, "172032.0"),
        ] {
            assert_eq!(GpuTime(amount).to_string(), expected);
        }
        for (part, expected) in [(0, "0%"), (50_000, "5%"), (125_000, "12.5%"), (1, "0.0001%")] {
            assert_eq!(percent(part), expected);
        }
    }

    #[test]
    fn a_ratio_is_rounded_down_and_none_of_nothing() {
        assert_eq!(GpuTime(999).percent_of(GpuTime(1000)), "99.9%");
        assert_eq!(GpuTime(9999).percent_of(GpuTime(10_000)), "99.9%");
        assert_eq!(GpuTime(3000).percent_of(GpuTime(1000)), "300.0%");
        assert_eq!(GpuTime(5).percent_of(GpuTime(0)), "-");
    }

    #[test]
    fn a_size_reads_back_from_the_wire() {
        for size in [Size::Share(7), Size::Fixed(GpuTime(1200 * HOUR)), Size::Share(0)] {
            assert_eq!(Size::read(Some(size.into())), Ok(size));
        }
        assert!(Size::read(None).is_err());
    }

    #[test]
    fn hours_may_be_given_with_or_without_their_unit() {
        for text in ["100", "100h", "100 GPU-h"] {
            assert_eq!(text.parse(), Ok(GpuTime(100 * HOUR)));
        }
        let told = "ten".parse::<GpuTime>().unwrap_err();
        let expected = "\"ten\" is no number of GPU-hours: expected a form like 64h or 0.5h, from 0h to \
                        1000000000h";
        assert_eq!(told, expected);
    }
}
