//! Amounts of GPU-time, and the sliding window over them. Exact integers.
//!
//! A [`Window`] is the integral of a step function over the last seven days. It is kept as its
//! value at one instant and the changes of the rate since seven days before it, so that its value
//! at any later instant is arithmetic: nothing is sampled, and extra passes change nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

use tidegate_model::{GpuCount, Span, Timestamp};

/// The sliding window: seven days (2-scheduling, "W").
pub const WINDOW: Span = Span::hours(7 * 24);

/// What one GPU of a type costs: 1000 = one reference GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(pub u32);

impl Weight {
    /// One reference GPU.
    pub const REFERENCE: Self = Self(1000);

    /// The rate at which `gpus` of this weight are charged.
    #[must_use]
    pub fn rate(self, gpus: GpuCount) -> Rate {
        Rate(i64::from(gpus.0).saturating_mul(i64::from(self.0)))
    }

    /// What so many GPU-milliseconds of this weight amount to.
    pub(crate) fn of(self, gpu_ms: u128) -> Amount {
        Amount(i128::try_from(gpu_ms).unwrap_or(i128::MAX).saturating_mul(self.0.into()))
    }
}

/// GPU-time a millisecond: thousandths of a reference GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Rate(pub i64);

impl Rate {
    /// What this rate amounts to in `span`.
    #[must_use]
    pub fn over(self, span: Span) -> Amount {
        // 64 bits times 64 bits: it cannot overflow.
        Amount(i128::from(self.0).wrapping_mul(i128::from(span.0)))
    }
}

impl Add for Rate {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Rate {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for Rate {
    type Output = Self;
    fn neg(self) -> Self {
        Self(0_i64.saturating_sub(self.0))
    }
}

/// GPU-time in reference-GPU microseconds; may be negative as a difference. Saturates: a cluster
/// of 2^32 GPUs for 10^9 years is below 2^127.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Amount(pub i128);

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// So many GPU-hours of the reference GPU.
    #[must_use]
    pub fn gpu_hours(hours: u64) -> Self {
        Self(i128::from(hours).saturating_mul(3_600_000_000))
    }

    /// `numerator / denominator` of it, rounded down. 0 of a denominator of 0.
    #[must_use]
    pub fn part(self, numerator: u64, denominator: u64) -> Self {
        if self == Self::ZERO || numerator == denominator && denominator > 0 {
            return self;
        }
        let whole = self.0.saturating_mul(i128::from(numerator));
        Self(whole.checked_div_euclid(i128::from(denominator)).unwrap_or(0))
    }

    /// The smaller of two.
    #[must_use]
    pub fn at_least(self, least: Self) -> Self {
        self.max(least)
    }
}

impl Add for Amount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Amount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Amount {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

/// GPU-hours with two decimals, rounded down.
impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.0.unsigned_abs() / 36_000_000;
        let sign = if self.0 < 0 && hundredths > 0 { "-" } else { "" };
        out.pad(&format!("{sign}{}.{:02}", hundredths / 100, hundredths % 100))
    }
}

/// The integral of a rate over the last [`WINDOW`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Window {
    /// Changes of the rate, by instant, later than `at - WINDOW`. No zero is kept.
    changes: BTreeMap<Timestamp, i64>,
    /// The instant that the other fields are about.
    at: Timestamp,
    /// The integral over `[at - WINDOW, at]`.
    amount: Amount,
    /// The rate from `at` on.
    head: Rate,
    /// The rate at `at - WINDOW`.
    tail: Rate,
}

impl Window {
    /// Puts a stored window back.
    #[must_use]
    pub fn restored(
        at: Timestamp,
        amount: Amount,
        tail: Rate,
        changes: BTreeMap<Timestamp, i64>,
    ) -> Self {
        let head = Rate(changes.values().fold(tail.0, |rate, change| rate.saturating_add(*change)));
        Self { changes, at, amount, head, tail }
    }

    /// What [`Window::restored`] needs: the instant, the amount, the oldest rate, the changes.
    #[must_use]
    pub fn parts(&self) -> (Timestamp, Amount, Rate, &BTreeMap<Timestamp, i64>) {
        (self.at, self.amount, self.tail, &self.changes)
    }

    /// The rate after the last change.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.head
    }

    /// The integral over `[t - WINDOW, t]`. `t` is not before the last change.
    #[must_use]
    pub fn value(&self, t: Timestamp) -> Amount {
        self.projected(t, self.head)
    }

    /// The integral at `t` if the rate were `head` since the last change was noted.
    #[must_use]
    pub fn projected(&self, t: Timestamp, head: Rate) -> Amount {
        self.amount + head.over(t.since(self.at)) - self.slid_out(t)
    }

    /// What leaves the window between the instant it is kept at and `t`.
    fn slid_out(&self, t: Timestamp) -> Amount {
        let end = start(t);
        let (mut from, mut rate, mut out) = (start(self.at), self.tail, Amount::ZERO);
        let out_of_it = self.changes.iter().take_while(|(instant, _)| **instant <= end);
        for (instant, change) in out_of_it {
            out += rate.over(instant.since(from));
            from = *instant;
            rate = rate + Rate(*change);
        }
        out + rate.over(end.since(from))
    }

    /// Changes the rate from `instant` on. An instant before the last change rewrites nothing that
    /// was decided: it is how a span that is learned of late, or excused, is booked.
    pub fn change(&mut self, instant: Timestamp, by: Rate) {
        if by == Rate::default() {
            return;
        }
        self.advance(instant);
        let begin = start(self.at);
        self.amount += by.over(self.at.since(instant.max(begin)));
        self.head = self.head + by;
        if instant <= begin && begin != Timestamp::default() {
            self.tail = self.tail + by;
            return;
        }
        let entry = self.changes.entry(instant).or_default();
        *entry = entry.saturating_add(by.0);
        if *entry == 0 {
            self.changes.remove(&instant);
        }
    }

    fn advance(&mut self, to: Timestamp) {
        if to <= self.at {
            return;
        }
        self.amount = self.value(to);
        let begin = start(to);
        let kept = self.changes.split_off(&Timestamp(begin.0.saturating_add(1)));
        let left = std::mem::replace(&mut self.changes, kept);
        for change in left.values() {
            self.tail = self.tail + Rate(*change);
        }
        self.at = to;
    }
}

/// The oldest instant inside the window that ends at `t`.
fn start(t: Timestamp) -> Timestamp {
    Timestamp(t.0.saturating_sub(WINDOW.0))
}

/// Promised GPU-time of many holders, together: `fixed` and what falls with time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pledge {
    /// Not running yet.
    pub fixed: Amount,
    /// Of those that run: the rate at which it is used up.
    pub rate: Rate,
    /// Of those that run: the sum of rate times the instant at which each is used up.
    pub until: Amount,
}

impl Pledge {
    /// Of one that does not run yet.
    #[must_use]
    pub fn lump(fixed: Amount) -> Self {
        Self { fixed, ..Self::default() }
    }

    /// Of one that runs at `rate` and is used up at `until`.
    #[must_use]
    pub fn running(rate: Rate, until: Timestamp) -> Self {
        Self { fixed: Amount::ZERO, rate, until: rate.over(Span(until.0)) }
    }

    /// What is promised and not yet run, at `t`.
    #[must_use]
    pub fn value(&self, t: Timestamp) -> Amount {
        self.fixed + self.until - self.rate.over(Span(t.0))
    }
}

impl Add for Pledge {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            fixed: self.fixed + other.fixed,
            rate: self.rate + other.rate,
            until: self.until + other.until,
        }
    }
}

impl Sub for Pledge {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            fixed: self.fixed - other.fixed,
            rate: self.rate - other.rate,
            until: self.until - other.until,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: u64 = 3_600_000;
    const DAY: u64 = 24 * HOUR;
    /// Later than a window after zero, as real instants are.
    const T0: u64 = 100 * DAY;

    fn gpus(count: u32) -> Rate {
        Weight::REFERENCE.rate(GpuCount(count))
    }

    #[test]
    fn eight_gpus_for_a_day_leave_the_window_a_week_later_along_a_straight_line() {
        let mut window = Window::default();
        window.change(Timestamp(T0), gpus(8));
        window.change(Timestamp(T0 + DAY), -gpus(8));
        let end = T0 + DAY;
        for (half_days, hours) in [(0, 192), (6, 192), (12, 192), (13, 96), (14, 0), (16, 0)] {
            let at = Timestamp(end + half_days * DAY / 2);
            assert_eq!(window.value(at), Amount::gpu_hours(hours), "{half_days} half days");
        }
    }

    #[test]
    fn one_gpu_for_five_minutes_is_a_twelfth_of_a_gpu_hour_and_twelve_are_one() {
        let mut window = Window::default();
        for run in 0..12 {
            window.change(Timestamp(T0 + run * HOUR), gpus(1));
            window.change(Timestamp(T0 + run * HOUR + HOUR / 12), -gpus(1));
            let so_far = Amount::gpu_hours(1).part(run + 1, 12);
            assert_eq!(window.value(Timestamp(T0 + run * HOUR + HOUR / 2)), so_far);
        }
        assert_eq!(window.value(Timestamp(T0 + 20 * HOUR)), Amount::gpu_hours(1));
    }

    #[test]
    fn a_span_learned_of_late_is_as_if_it_had_been_booked_in_time() {
        let (mut late, mut timely) = (Window::default(), Window::default());
        timely.change(Timestamp(T0), gpus(3));
        timely.change(Timestamp(T0 + HOUR), -gpus(3));
        timely.change(Timestamp(T0 + 9 * DAY), gpus(1));
        late.change(Timestamp(T0), gpus(3));
        late.change(Timestamp(T0 + 9 * DAY), gpus(1));
        late.change(Timestamp(T0 + HOUR), -gpus(3));
        assert_eq!(late.value(Timestamp(T0 + 10 * DAY)), timely.value(Timestamp(T0 + 10 * DAY)));
    }

    #[test]
    fn a_promise_that_runs_is_used_up_at_its_end() {
        let pledge = Pledge::running(gpus(4), Timestamp(T0 + 2 * HOUR)) + Pledge::lump(Amount(7));
        assert_eq!(pledge.value(Timestamp(T0 + HOUR)), Amount::gpu_hours(4) + Amount(7));
        assert_eq!(pledge.value(Timestamp(T0 + 2 * HOUR)), Amount(7));
    }

    #[test]
    fn an_amount_shows_gpu_hours() {
        assert_eq!(Amount::gpu_hours(3).part(1, 8).to_string(), "0.37");
        assert_eq!(Amount(-Amount::gpu_hours(2).0).to_string(), "-2.00");
        assert_eq!(Amount(-1).to_string(), "0.00");
    }

    /// The definition, by brute force.
    fn recounted(spans: &[(u64, u64, u32)], t: u64) -> Amount {
        let inside = |(from, length, rate): &(u64, u64, u32)| {
            let (from, to) = (*from, from + length);
            let overlap = to.min(t).saturating_sub(from.max(t.saturating_sub(WINDOW.0)));
            Rate(i64::from(*rate)).over(Span(overlap))
        };
        spans.iter().map(inside).sum()
    }

    proptest! {
        #[test]
        fn the_window_equals_its_definition_at_every_instant_in_whatever_order_it_was_told(
            spans in proptest::collection::vec((T0..T0 + 20 * DAY, 1..3 * DAY, 1..100_u32), 0..40),
            later in 0..9 * DAY,
        ) {
            let mut window = Window::default();
            for (from, length, rate) in &spans {
                window.change(Timestamp(*from), Rate(i64::from(*rate)));
                window.change(Timestamp(from + length), -Rate(i64::from(*rate)));
            }
            let t = T0 + 23 * DAY + later;
            prop_assert_eq!(window.value(Timestamp(t)), recounted(&spans, t));
            let (at, amount, tail, changes) = window.parts();
            prop_assert_eq!(&Window::restored(at, amount, tail, changes.clone()), &window);
        }
    }
}
