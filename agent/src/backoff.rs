//! How long to wait before trying again.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Doubles from the first pause to the longest; each is cut by up to a half at random, so that a
/// thousand agents do not return in step.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

/// The first pause and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: PAUSES.0 }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(PAUSES.1);
        pause.mul_f64(1.0 - random_half())
    }
}

/// At least 0, less than 0.5. The standard library's hash seeds are random enough for this.
fn random_half() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    let top = u32::try_from(random >> 32).unwrap_or(0);
    f64::from(top) / f64::from(u32::MAX) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_five_seconds_and_are_cut_by_half_at_most() {
        let mut backoff = Backoff::new();
        for whole in [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let pause = backoff.pause();
            let whole = Duration::from_millis(whole);
            assert!(pause <= whole && pause >= whole / 2, "{pause:?} of {whole:?}");
        }
    }
}
