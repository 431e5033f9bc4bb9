//! Measurements, reduced.

use std::time::Duration;

/// The value below which `percent` of the samples lie; the largest where there are fewer than
/// 100 / (100 - percent) of them. `None` without samples.
#[must_use]
pub fn percentile(samples: &[Duration], percent: u8) -> Option<Duration> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().checked_sub(1)?;
    let rank = sorted.len().saturating_mul(usize::from(percent)).div_ceil(100);
    sorted.get(rank.saturating_sub(1).min(last)).copied()
}
