//! Values that people set and the journal keeps. Every default has its reason.

mod change;

use std::collections::BTreeSet;

use tidegate_model::{GpuCount, GpuType, Span, UserId};

use crate::accounts::WHOLE;
use crate::money::{Amount, Weight};

pub use self::change::{Author, PolicyChange, PolicyEdit};

/// A kind of GPU: which products it covers, and what one costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuRule {
    /// What jobs call it.
    pub name: GpuType,
    /// A part of the product's name as the driver gives it.
    pub product: String,
    /// What one of it costs.
    pub weight: Weight,
}

/// What a job of at most this size and length is: small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallLimit {
    /// Most GPUs.
    pub gpus: GpuCount,
    /// Longest min runtime.
    pub min_runtime: Span,
    /// Most GPUs times min runtime.
    pub gpu_minutes: u32,
}

/// The cluster's rules, in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// From planned to running; a gang that takes longer is stopped and placed again (10 min).
    pub start_timeout: Span,
    /// First pause before a failed job is started again; doubles with each (1 s).
    pub restart_backoff: Span,
    /// Longest such pause (5 min).
    pub restart_backoff_max: Span,
    /// An attempt that ran this long ends a streak of failures (10 min).
    pub steady_after: Span,
    /// How long an ended job, its key and its history are kept (7 days, as submit keys promise).
    pub keep_ended: Span,
    /// A node not heard for this long is unreachable (15 s: three heartbeats).
    pub silent_after: Span,
    /// Jobs that may be alive at once (100,000: 1 KiB each is 100 MB of memory).
    pub max_live_jobs: u32,
    /// Who may drain nodes and end the jobs of others. Root always may.
    pub admins: BTreeSet<UserId>,
    /// The rules of budgets and displacement.
    pub sharing: Sharing,
}

/// The rules of 2-scheduling, in numbers. Parts are in millionths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    /// The part of a budget that only small jobs may be funded from (5 %: 0 gives debug p99 16 h,
    /// 10 % buys nothing more).
    pub small_reserve: u32,
    /// What is small (8 GPUs, 60 min, 240 GPU-min: longer ones were the way to game).
    pub small: SmallLimit,
    /// What a user may always draw of the reserve (64 GPU-h: half a reserve is less than one debug
    /// job in a small account).
    pub small_floor: Amount,
    /// The time in which an account above its limit is brought back to it (24 h).
    pub settle: Span,
    /// How long an ordinary job waits before it may become its account's elder (24 h).
    pub patience: Span,
    /// Between two elders of an account (6 h; without a gap a backlogged account becomes FIFO).
    pub elder_gap: Span,
    /// By how much a claimant must stay below its victim (1 %).
    pub slack: u32,
    /// Most of the GPUs that ordinary protected work starts up to (90 %).
    pub protected_cap: u32,
    /// Idle GPUs that free work leaves (1 %, rounded down).
    pub headroom: u32,
    /// Most of the healthy GPUs of its type that a gang may hold (97 %).
    pub gang_cap: u32,
    /// A gang above this part of the GPUs is large (90 %) ...
    pub large_gang: u32,
    /// ... and may be protected this long (4 h).
    pub large_min_runtime: Span,
    /// Longest min runtime (8 h).
    pub max_min_runtime: Span,
    /// Grace of work that never was protected (2 min).
    pub free_grace: Span,
    /// From the commit that a request to save was for to the stop of who has not left by itself (1 min).
    pub leave_limit: Span,
    /// From the last exit to verified gone, in published instants (60 s).
    pub verify_limit: Span,
    /// Expected starts that shape backfill (16).
    pub max_reservations: u32,
    /// Waiting jobs of a leaf that plans and reservations are made for in one pass (100).
    pub look_ahead: u32,
    /// An attempt displaced within this span is spared while others are there (30 min).
    pub spare_recent: Span,
    /// The promise of an attempt that returns to Funded (15 min).
    pub return_span: Span,
    /// At least one pass in this span while protected demand waits and Funded attempts run (60 s).
    pub pass_every: Span,
    /// Attempts that may save to one storage target at a time (4).
    pub gate_width: u32,
    /// How long anybody waits at a gate before what is kept of its cap is there for it (10 min).
    pub gate_patience: Span,
    /// Attempts in a row without a new commit after which a job is parked (3).
    pub no_progress_limit: u32,
    /// Protected jobs of more GPUs must have passed a rehearsal; none = none must.
    pub require_rehearsal: Option<GpuCount>,
    /// Kinds of GPU; what none covers is `gpu`, with the weight of the reference GPU.
    pub gpu_types: Vec<GpuRule>,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            small_reserve: 50_000,
            small: SmallLimit {
                gpus: GpuCount(8),
                min_runtime: Span::minutes(60),
                gpu_minutes: 240,
            },
            small_floor: Amount::gpu_hours(64),
            settle: Span::hours(24),
            patience: Span::hours(24),
            elder_gap: Span::hours(6),
            slack: 10_000,
            protected_cap: 900_000,
            headroom: 10_000,
            gang_cap: 970_000,
            large_gang: 900_000,
            large_min_runtime: Span::hours(4),
            max_min_runtime: Span::hours(8),
            free_grace: Span::minutes(2),
            leave_limit: Span::minutes(1),
            verify_limit: Span::seconds(60),
            max_reservations: 16,
            look_ahead: 100,
            spare_recent: Span::minutes(30),
            return_span: Span::minutes(15),
            pass_every: Span::seconds(60),
            gate_width: 4,
            gate_patience: Span::minutes(10),
            no_progress_limit: 3,
            require_rehearsal: None,
            gpu_types: Vec::new(),
        }
    }
}

impl Sharing {
    /// Holds the values against their bounds.
    ///
    /// # Errors
    /// The first that is outside, and what would be accepted.
    fn check(&self) -> Result<(), String> {
        let day = Span::hours(24);
        let spans = [
            ("settle", self.settle, Span::minutes(1), Span::hours(7 * 24)),
            ("patience", self.patience, Span::ZERO, Span::hours(28 * 24)),
            ("elder_gap", self.elder_gap, Span::ZERO, Span::hours(7 * 24)),
            ("small_min_runtime", self.small.min_runtime, Span::ZERO, self.max_min_runtime),
            ("max_min_runtime", self.max_min_runtime, Span::ZERO, tidegate_model::MAX_MIN_RUNTIME),
            ("large_min_runtime", self.large_min_runtime, Span::ZERO, self.max_min_runtime),
            ("free_grace", self.free_grace, Span::ZERO, tidegate_model::MAX_GRACE),
            ("leave_limit", self.leave_limit, Span::seconds(1), tidegate_model::MAX_GRACE),
            ("verify_limit", self.verify_limit, Span::seconds(1), Span::hours(1)),
            ("spare_recent", self.spare_recent, Span::ZERO, day),
            ("return_span", self.return_span, Span::minutes(1), day),
            ("pass_every", self.pass_every, Span::seconds(1), Span::hours(1)),
            ("gate_patience", self.gate_patience, Span::seconds(1), day),
        ];
        for (key, value, least, most) in spans {
            if value < least || value > most {
                return Err(format!("{key}: {value} given; {least} to {most} is accepted"));
            }
        }
        let parts = [
            ("small_reserve", self.small_reserve),
            ("slack", self.slack),
            ("protected_cap", self.protected_cap),
            ("headroom", self.headroom),
            ("gang_cap", self.gang_cap),
            ("large_gang", self.large_gang),
        ];
        for (key, value) in parts {
            if value > WHOLE {
                let given = percent(value);
                return Err(format!("{key}: {given} given; 0 to 100 % is accepted"));
            }
        }
        let counts = [
            ("max_reservations", self.max_reservations, 0, 1000),
            ("look_ahead", self.look_ahead, 1, 100_000),
            ("gate_width", self.gate_width, 1, 10_000),
            ("no_progress_limit", self.no_progress_limit, 1, 1_000_000),
        ];
        for (key, value, least, most) in counts {
            if value < least || value > most {
                return Err(format!("{key}: {value} given; {least} to {most} is accepted"));
            }
        }
        self.check_types()
    }

    /// Every kind has a name of its own, and a rule that products can reach: the first that names
    /// a part of a product's name covers it.
    fn check_types(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for (place, rule) in self.gpu_types.iter().enumerate() {
            let GpuRule { name, product, weight } = rule;
            if !names.insert(name) {
                return Err(format!("gpu_types: {name} is named twice; name each kind once"));
            }
            if product.trim().is_empty() {
                return Err(format!(
                    "gpu_types.{name}: product {product:?} given; a part of the product's name \
                     such as H100 is accepted"
                ));
            }
            let mut before = self.gpu_types.iter().take(place);
            if let Some(first) = before.find(|first| product.contains(&first.product)) {
                let other = if product == &first.product {
                    String::new()
                } else {
                    format!(", or {name} before {}", first.name)
                };
                return Err(format!(
                    "gpu_types.{name}: product {product:?} given, and {} before it has {:?}, which \
                     covers all of them; a product that no rule before it covers is accepted{other}",
                    first.name, first.product
                ));
            }
            if !(1..=1_000_000).contains(&weight.0) {
                return Err(format!(
                    "gpu_types.{name}: weight {} given; 1 to 1000000 is accepted (1000 = one \
                     reference GPU)",
                    weight.0
                ));
            }
        }
        Ok(())
    }

    /// Which rule covers a product; none = the reference kind.
    #[must_use]
    pub fn kind_of(&self, product: &str) -> Kind {
        let rule = self.gpu_types.iter().position(|rule| product.contains(&rule.product));
        Kind(rule.and_then(|index| u16::try_from(index).ok()))
    }

    /// What one GPU of a kind costs.
    #[must_use]
    pub fn weight(&self, kind: Kind) -> Weight {
        self.rule(kind).map_or(Weight::REFERENCE, |rule| rule.weight)
    }

    /// What jobs call a kind.
    #[must_use]
    pub fn kind_name(&self, kind: Kind) -> &str {
        self.rule(kind).map_or(OTHER_KIND, |rule| rule.name.as_str())
    }

    /// The kind that jobs call so.
    #[must_use]
    pub fn kind_named(&self, name: &GpuType) -> Option<Kind> {
        let rule = self.gpu_types.iter().position(|rule| rule.name == *name);
        let rule = rule.and_then(|index| u16::try_from(index).ok());
        (rule.is_some() || name.as_str() == OTHER_KIND).then_some(Kind(rule))
    }

    fn rule(&self, kind: Kind) -> Option<&GpuRule> {
        self.gpu_types.get(usize::from(kind.0?))
    }

    /// Whether a job of `gpus` GPUs and `min_runtime` is small.
    #[must_use]
    pub fn is_small(&self, gpus: GpuCount, min_runtime: Span) -> bool {
        let limit = Span::minutes(self.small.gpu_minutes.into());
        min_runtime > Span::ZERO
            && gpus <= self.small.gpus
            && min_runtime <= self.small.min_runtime
            && gpus.held_for(min_runtime) <= GpuCount(1).held_for(limit)
    }
}

/// A kind of GPU: the place of its rule, or none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Kind(pub Option<u16>);

/// What the kind that no rule covers is called.
const OTHER_KIND: &str = "gpu";

/// Millionths as percent with up to four decimals: `12.5 %`.
#[must_use]
pub fn percent(millionths: u32) -> String {
    let (whole, rest) = (millionths / 10_000, millionths % 10_000);
    let text = format!("{whole}.{rest:04}");
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

/// So many millionths of a count, rounded down.
pub(crate) fn part_of(count: u64, millionths: u32) -> u64 {
    count.saturating_mul(millionths.into()) / u64::from(WHOLE)
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            start_timeout: Span::minutes(10),
            restart_backoff: Span::seconds(1),
            restart_backoff_max: Span::minutes(5),
            steady_after: Span::minutes(10),
            keep_ended: Span::hours(7 * 24),
            silent_after: Span::seconds(15),
            max_live_jobs: 100_000,
            admins: BTreeSet::new(),
            sharing: Sharing::default(),
        }
    }
}

impl Policy {
    /// Holds the values against their bounds.
    ///
    /// # Errors
    /// The first that is outside, and what would be accepted.
    pub fn check(&self) -> Result<(), String> {
        let spans = [
            ("start_timeout", self.start_timeout, Span::seconds(1), Span::hours(24)),
            ("restart_backoff", self.restart_backoff, Span::ZERO, self.restart_backoff_max),
            ("restart_backoff_max", self.restart_backoff_max, Span::ZERO, Span::hours(24)),
            ("steady_after", self.steady_after, Span::ZERO, Span::hours(7 * 24)),
            ("keep_ended", self.keep_ended, Span::hours(1), Span::hours(365 * 24)),
            ("silent_after", self.silent_after, Span::seconds(1), Span::hours(1)),
        ];
        for (key, value, least, most) in spans {
            if value < least || value > most {
                return Err(format!("{key}: {value} given; {least} to {most} is accepted"));
            }
        }
        self.sharing.check()?;
        let jobs = self.max_live_jobs;
        if (1..=1_000_000).contains(&jobs) {
            return Ok(());
        }
        Err(format!("max_live_jobs: {jobs} given; 1 to 1000000 is accepted"))
    }

    /// Whether `user` may do what only admins may.
    #[must_use]
    pub fn is_admin(&self, user: UserId) -> bool {
        user == UserId(0) || self.admins.contains(&user)
    }

    /// The pause before the next start after `streak` attempts that did not last: 0, then
    /// `restart_backoff` doubling with each, at most `restart_backoff_max`.
    #[must_use]
    pub fn backoff(&self, streak: u32) -> Span {
        let Some(doublings) = streak.checked_sub(1) else {
            return Span::ZERO;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        Span(self.restart_backoff.0.saturating_mul(factor)).min(self.restart_backoff_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_its_bounds_is_refused_with_what_would_be_accepted() {
        assert_eq!(Policy::default().check(), Ok(()));
        let none = Policy { max_live_jobs: 0, ..Policy::default() };
        assert_eq!(none.check().unwrap_err(), "max_live_jobs: 0 given; 1 to 1000000 is accepted");
        let deaf = Policy { silent_after: Span::ZERO, ..Policy::default() };
        assert_eq!(deaf.check().unwrap_err(), "silent_after: 0 given; 1s to 1h is accepted");
        let slow = Policy { restart_backoff: Span::minutes(10), ..Policy::default() };
        assert_eq!(slow.check().unwrap_err(), "restart_backoff: 10m given; 0 to 5m is accepted");
    }

    #[test]
    fn a_kind_that_no_gpu_can_be_is_refused_and_an_order_that_reaches_it_is_named() {
        let check = |rules: &[(&str, &str)]| {
            let rule = |(name, product): &(&str, &str)| GpuRule {
                name: name.parse().unwrap(),
                product: (*product).into(),
                weight: Weight(1000),
            };
            let gpu_types = rules.iter().map(rule).collect();
            Sharing { gpu_types, ..Sharing::default() }.check().err().unwrap_or_default()
        };
        assert_eq!(check(&[("nvl", "H100 NVL"), ("h100", "H100"), ("a100", "A100")]), "");
        assert_eq!(
            check(&[("h100", "H100"), ("nvl", "H100 NVL")]),
            "gpu_types.nvl: product \"H100 NVL\" given, and h100 before it has \"H100\", which covers \
             all of them; a product that no rule before it covers is accepted, or nvl before h100"
        );
        let same = check(&[("h100", "H100"), ("same", "H100")]);
        assert!(same.ends_with("a product that no rule before it covers is accepted"), "{same}");
        assert_eq!(
            check(&[("h100", " ")]),
            "gpu_types.h100: product \" \" given; a part of the product's name such as H100 is \
             accepted"
        );
    }

    #[test]
    fn the_pause_doubles_up_to_its_limit() {
        let pauses: Vec<_> = [0, 1, 2, 9, 10, 64, u32::MAX]
            .map(|streak| Policy::default().backoff(streak).to_string())
            .into();
        assert_eq!(pauses, ["0", "1s", "2s", "4m16s", "5m", "5m", "5m"]);
    }
}
