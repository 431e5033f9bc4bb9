//! Amounts of GPU-time on the wire: 128-bit numbers in as few bytes as they need.
//!
//! Two's complement, big-endian, without the leading bytes that the sign implies; zero is empty.
//! Exact whatever the size, and short for what there is: a week of a thousand GPUs in reference-GPU
//! microseconds takes 7 bytes, where two halves take 16 and decimal digits 15.

use crate::wire_error::WireError;

/// Most bytes an amount takes.
const WIDTH: usize = 16;

/// The shortest bytes of an amount.
#[must_use]
pub fn amount_bytes(amount: i128) -> Vec<u8> {
    let full = amount.to_be_bytes();
    let sign = if amount < 0 { 0xff } else { 0 };
    let is_implied = |byte: &u8, next: Option<&u8>| {
        *byte == sign && next.map_or(amount == 0, |next| (next & 0x80) == (sign & 0x80))
    };
    let implied = (0..WIDTH).take_while(|at| {
        full.get(*at).is_some_and(|byte| is_implied(byte, full.get(at.saturating_add(1))))
    });
    full.iter().skip(implied.count()).copied().collect()
}

/// The inverse of [`amount_bytes`].
///
/// # Errors
/// [`WireError::Invalid`] if it is longer than any amount.
pub fn amount(bytes: &[u8], field: &'static str) -> Result<i128, WireError> {
    if bytes.len() > WIDTH {
        let why = format!("{} bytes long; at most {WIDTH} are accepted", bytes.len());
        return Err(WireError::Invalid { field, why });
    }
    let negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let sign = if negative { -1 } else { 0 };
    Ok(bytes.iter().fold(sign, |amount: i128, byte| (amount << 8) | i128::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_reads_back_in_the_fewest_bytes() {
        let check = |value: i128, length: usize| {
            let bytes = amount_bytes(value);
            assert_eq!(bytes.len(), length, "{value}");
            assert_eq!(amount(&bytes, "Amount"), Ok(value), "{value}");
        };
        check(0, 0);
        check(1, 1);
        check(-1, 1);
        check(127, 1);
        check(128, 2);
        check(-128, 1);
        check(-129, 2);
        check(255, 2);
        check(1000 * 168 * 3_600_000_000, 7);
        check(i128::MAX, 16);
        check(i128::MIN, 16);
    }

    #[test]
    fn what_no_amount_can_be_is_refused() {
        let refused = amount(&[1; 17], "Amount").unwrap_err().to_string();
        assert_eq!(refused, "Amount: 17 bytes long; at most 16 are accepted");
    }
}
