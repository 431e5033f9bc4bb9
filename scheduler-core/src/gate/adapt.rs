//! A cap that follows what its target proves to carry (3-checkpoint, "Adaptive").
//!
//! What is looked at is how long permits took beside how long they were expected to, in windows of ten
//! seconds. Slower than expected: seven tenths of the cap from now on. As fast, with the cap in
//! use: back to what it was before if that is not long ago, else a sixteenth of the whole cap more.
//! Between the two, or while nobody uses the cap, nothing is known and nothing changes.

use tidegate_model::{Bandwidth, Span, Timestamp};

/// Evidence is gathered for so long.
pub(crate) const WINDOW: Span = Span::seconds(10);

/// A dip no longer than so many windows is over as quickly as it came.
const SHORT_DIP: u64 = 2;

/// A dip that begins sooner after the one before is not a short one.
const AGAIN: Span = Span(16 * WINDOW.0);

/// Of a hundred parts of what was expected: below is too slow, from there on is as fast.
const SLOW: u64 = 85;
const FAST: u64 = 95;

/// A step up, as a part of the whole cap.
const STEP_PART: u64 = 16;

/// How long permits took in a window, and how long they were expected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evidence {
    /// Which window, counted from the epoch of the clock.
    pub window: u64,
    /// Expected.
    pub expected: Span,
    /// Taken.
    pub taken: Span,
}

/// A cap that may be below the rule's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adapted {
    /// What holds.
    pub cap: Bandwidth,
    /// What held before the dip.
    pub good: Bandwidth,
    /// When the dip began.
    pub began: Timestamp,
    /// Since when this holds.
    pub since: Timestamp,
}

fn window_of(at: Timestamp) -> u64 {
    at.0 / WINDOW.0
}

/// The first instant of the window after the one of `now`.
pub(crate) fn next_window(now: Timestamp) -> Timestamp {
    Timestamp(window_of(now).saturating_add(1).saturating_mul(WINDOW.0))
}

impl Evidence {
    /// A permit took so long, or has so far. Nobody proves more than was expected.
    pub(crate) fn add(&mut self, now: Timestamp, expected: Span, taken: Span) {
        if self.window != window_of(now) {
            *self = Self { window: window_of(now), ..Self::default() };
        }
        self.expected = Span(self.expected.0.saturating_add(expected.0.min(taken.0)));
        self.taken = Span(self.taken.0.saturating_add(taken.0));
    }

    /// What is still worth something: of this window and the one before.
    pub(crate) fn recent(self, now: Timestamp) -> Self {
        let is_recent = self.window.saturating_add(1) >= window_of(now);
        Self { window: window_of(now), ..if is_recent { self } else { Self::default() } }
    }

    /// In parts of a hundred; none if there is too little of it.
    fn part(self) -> Option<u64> {
        let enough = self.taken.0 >= WINDOW.0 / 2;
        enough.then(|| self.expected.0.saturating_mul(100).checked_div(self.taken.0)).flatten()
    }
}

/// What bounds a cap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The rule's cap.
    pub(crate) whole: Bandwidth,
    pub(crate) floor: Bandwidth,
}

/// Without its last digits: people read it.
fn rounded(cap: Bandwidth) -> Bandwidth {
    let sizes = [30, 20, 10].map(|power| 1_u64 << power);
    let size = sizes.into_iter().find(|size| cap.0 / size >= 1000).unwrap_or(1);
    Bandwidth(cap.0 / size * size)
}

/// The cap that the evidence calls for, if it is another. `in_use`: what may be written.
pub(crate) fn next(
    now: Timestamp,
    bounds: Bounds,
    adapted: Option<Adapted>,
    evidence: Evidence,
    in_use: Bandwidth,
) -> Option<Bandwidth> {
    if adapted.is_some_and(|adapted| now.since(adapted.since) < WINDOW) {
        return None;
    }
    let cap = adapted.map_or(bounds.whole, |adapted| adapted.cap.min(bounds.whole));
    let part = evidence.recent(now).part()?;
    let part_of = |of: Bandwidth, ten: u64| Bandwidth((of.0 / 10).saturating_mul(ten));
    if part < SLOW {
        let lower = rounded(part_of(cap, 7)).max(bounds.floor);
        return (lower < cap).then_some(lower);
    }
    let lowered = adapted.filter(|_| cap < bounds.whole);
    let adapted = lowered.filter(|_| part >= FAST && in_use >= part_of(cap, 8))?;
    let is_short = now.since(adapted.began).0 <= WINDOW.0.saturating_mul(SHORT_DIP);
    let higher = if is_short {
        adapted.good
    } else {
        rounded(Bandwidth(cap.0.saturating_add(bounds.whole.0 / STEP_PART)))
    };
    Some(higher.min(bounds.whole))
}

impl Adapted {
    /// That holds from `now` on after `before`.
    pub(crate) fn after(
        before: Option<Self>,
        now: Timestamp,
        cap: Bandwidth,
        whole: Bandwidth,
    ) -> Self {
        let held = before.map_or(whole, |before| before.cap.min(whole));
        let (good, began) = match before {
            Some(before) if cap < held && before.cap < before.good => (before.good, before.began),
            // Who falls again soon after it came up comes up slowly.
            Some(before) if cap < held && now.since(before.since) < AGAIN => (held, Timestamp(0)),
            _ if cap < held => (held, now),
            Some(before) => (cap, before.began),
            None => (cap, now),
        };
        // All of it is so at any hour, whatever its cap is.
        let cap = if cap < whole { cap } else { Bandwidth(u64::MAX) };
        Self { cap, good, began, since: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;
    const WHOLE: Bandwidth = Bandwidth(80 * GB);
    const FLOOR: Bandwidth = Bandwidth(8 * GB);

    fn in_gb(rate: Bandwidth) -> u64 {
        (rate.0 + GB / 2) / GB
    }

    /// A target that carries so much in each window, under a cap of which all is in use. The caps
    /// after each.
    fn caps(carries: impl Iterator<Item = u64>) -> Vec<u64> {
        let (mut adapted, mut now) = (None::<Adapted>, Timestamp(1_000_000));
        let bounds = Bounds { whole: WHOLE, floor: FLOOR };
        let mut caps = Vec::new();
        for carried in carries {
            let cap = adapted.map_or(WHOLE, |adapted| adapted.cap.min(WHOLE));
            now = now.plus(WINDOW);
            let mut evidence = Evidence::default();
            let expected = WINDOW.0 * (carried * GB).min(cap.0) / cap.0;
            evidence.add(now, Span(expected), WINDOW);
            if let Some(next) = next(now, bounds, adapted, evidence, cap) {
                adapted = Some(Adapted::after(adapted, now, next, WHOLE));
            }
            caps.push(in_gb(adapted.map_or(WHOLE, |adapted| adapted.cap.min(WHOLE))));
        }
        caps
    }

    #[test]
    fn it_is_down_within_six_windows_and_back_within_sixteen() {
        let caps = caps((0..40).map(|window| if (5..22).contains(&window) { 30 } else { 100 }));
        assert_eq!(caps[..5], [80; 5]);
        assert!(caps[5 + 5] <= 33, "{caps:?}");
        assert!(caps[5 + 5..22].iter().all(|cap| (25..=33).contains(cap)), "{caps:?}");
        assert_eq!(caps[22 + 15..], [80; 3], "{caps:?}");
    }

    #[test]
    fn a_short_dip_is_over_as_quickly_as_it_came_and_a_dead_target_is_given_its_floor() {
        let dip = caps([100, 20, 100, 100].into_iter());
        assert_eq!(dip, [80, 56, 80, 80]);
        let dead = caps([0; 12].into_iter());
        assert_eq!(dead.last(), Some(&8));
    }

    #[test]
    fn a_target_that_carries_a_little_less_than_the_cap_is_not_tried_with_all_of_it_again_and_again()
     {
        let caps = caps(std::iter::repeat_n(57, 60));
        let whole = caps.iter().skip(3).filter(|cap| **cap == 80).count();
        assert!(whole == 0 && caps[10..].iter().all(|cap| (50..=66).contains(cap)), "{caps:?}");
    }

    #[test]
    fn without_evidence_or_with_the_cap_not_in_use_nothing_changes() {
        let now = Timestamp(1_000_000);
        let adapted = Some(Adapted::after(None, Timestamp(0), Bandwidth(40 * GB), WHOLE));
        let bounds = Bounds { whole: WHOLE, floor: FLOOR };
        let mut fast = Evidence::default();
        fast.add(now, WINDOW, WINDOW);
        assert_eq!(next(now, bounds, adapted, Evidence::default(), WHOLE), None);
        assert_eq!(next(now, bounds, adapted, fast, Bandwidth(20 * GB)), None);
        let more = next(now, bounds, adapted, fast, Bandwidth(40 * GB));
        assert_eq!(more.map(in_gb), Some(45));
        assert_eq!(next(now, bounds, None, fast, WHOLE), None, "more than the whole is not given");
        let old = now.plus(Span(3 * WINDOW.0));
        assert_eq!(next(old, bounds, adapted, fast, WHOLE), None, "of long ago");
    }
}
