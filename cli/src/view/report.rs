//! What was used, by account and user.

use serde::Serialize;
use tidegate_model::{Span, Timestamp};
use tidegate_proto::{WireError, v1};

use crate::amount::GpuTime;
use crate::view::users::Users;
use crate::view::{as_ms, span_as_ms};

/// The classes of waits, in the order they are shown.
pub(crate) const CLASSES: [&str; 3] = ["small", "ordinary", "free"];

/// Figures of a span, accounts before their users and before those below them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    pub(crate) weeks: u32,
    #[serde(serialize_with = "as_ms")]
    pub(crate) from_ms: Timestamp,
    #[serde(serialize_with = "as_ms")]
    pub(crate) at_ms: Timestamp,
    /// What was used before this may be missing.
    #[serde(serialize_with = "as_ms")]
    pub(crate) complete_from_ms: Timestamp,
    pub(crate) usages: Vec<Usage>,
}

/// One account with those below it, or one user in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    pub(crate) account: String,
    /// Null of the account.
    pub(crate) user: Option<String>,
    pub(crate) uid: Option<u32>,
    /// Of one window, as it is now; null of a user.
    pub(crate) budget_gpu_us: Option<GpuTime>,
    pub(crate) charged_gpu_us: GpuTime,
    pub(crate) free_gpu_us: GpuTime,
    pub(crate) pledged_gpu_us: GpuTime,
    pub(crate) overhead_gpu_us: GpuTime,
    pub(crate) credited_gpu_us: GpuTime,
    pub(crate) lost_gpu_us: GpuTime,
    pub(crate) displaced: u32,
    pub(crate) waits: Vec<Waits>,
    /// Charged in the last window, as the scheduler counts it.
    pub(crate) window_charged_gpu_us: GpuTime,
    /// How long what was planned protected, and has ended, had idle GPUs.
    pub(crate) idle_gpu_us: GpuTime,
    /// Of so much time in which they were looked at.
    pub(crate) looked_at_gpu_us: GpuTime,
    /// Of so much time that it ran.
    pub(crate) ended_gpu_us: GpuTime,
}

/// Waits of one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Waits {
    pub(crate) class: &'static str,
    pub(crate) count: u64,
    #[serde(serialize_with = "span_as_ms")]
    pub(crate) p50_ms: Span,
    #[serde(serialize_with = "span_as_ms")]
    pub(crate) p90_ms: Span,
    #[serde(serialize_with = "span_as_ms")]
    pub(crate) max_ms: Span,
}

impl Report {
    /// Reads the coordinator's report.
    ///
    /// # Errors
    /// If a figure is malformed.
    pub(crate) fn read(
        wire: v1::ReportReply,
        weeks: u32,
        users: &mut Users,
    ) -> Result<Self, WireError> {
        let usages = wire.usages.into_iter().map(|usage| Usage::read(usage, users));
        Ok(Self {
            weeks,
            from_ms: Timestamp(wire.from_ms),
            at_ms: Timestamp(wire.at_ms),
            complete_from_ms: Timestamp(wire.complete_from_ms),
            usages: usages.collect::<Result<_, _>>()?,
        })
    }
}

impl Usage {
    fn read(wire: v1::Usage, users: &mut Users) -> Result<Self, WireError> {
        let budget = match wire.uid {
            Some(_) => None,
            None => Some(GpuTime::read(&wire.budget, "Usage.budget")?),
        };
        Ok(Self {
            account: wire.account,
            user: wire.uid.map(|uid| users.name(uid)),
            uid: wire.uid,
            budget_gpu_us: budget,
            charged_gpu_us: GpuTime::read(&wire.charged, "Usage.charged")?,
            free_gpu_us: GpuTime::read(&wire.free, "Usage.free")?,
            pledged_gpu_us: GpuTime::read(&wire.pledged, "Usage.pledged")?,
            overhead_gpu_us: GpuTime::read(&wire.overhead, "Usage.overhead")?,
            credited_gpu_us: GpuTime::read(&wire.credited, "Usage.credited")?,
            lost_gpu_us: GpuTime::read(&wire.lost, "Usage.lost")?,
            displaced: wire.displaced,
            waits: wire.waits.iter().map(Waits::read).collect::<Result<_, _>>()?,
            window_charged_gpu_us: GpuTime::read(&wire.window_charged, "Usage.window_charged")?,
            idle_gpu_us: GpuTime::read(&wire.idle, "Usage.idle")?,
            looked_at_gpu_us: GpuTime::read(&wire.looked_at, "Usage.looked_at")?,
            ended_gpu_us: GpuTime::read(&wire.ended, "Usage.ended")?,
        })
    }

    /// How long protected GPUs were idle; a dash where nobody looked.
    pub(crate) fn idle(&self) -> String {
        let is_known = self.looked_at_gpu_us > GpuTime(0);
        if is_known { self.idle_gpu_us.to_string() } else { "-".to_owned() }
    }

    /// Of the budget of the whole span, such as `93.7%`; a dash of a user.
    pub(crate) fn used(&self, weeks: u32) -> String {
        let whole = self.budget_gpu_us.map(|budget| GpuTime(budget.0.saturating_mul(weeks.into())));
        whole.map_or_else(|| "-".to_owned(), |whole| self.charged_gpu_us.percent_of(whole))
    }
}

impl Waits {
    fn read(wire: &v1::Waits) -> Result<Self, WireError> {
        let class = match v1::WaitClass::try_from(wire.class) {
            Ok(v1::WaitClass::Small) => "small",
            Ok(v1::WaitClass::Ordinary) => "ordinary",
            Ok(v1::WaitClass::Free) => "free",
            Ok(v1::WaitClass::Unspecified) => {
                return Err(WireError::Missing { field: "Waits.class" });
            }
            Err(_) => {
                return Err(WireError::UnknownEnum { field: "Waits.class", value: wire.class });
            }
        };
        Ok(Self {
            class,
            count: wire.count,
            p50_ms: Span(wire.p50_ms),
            p90_ms: Span(wire.p90_ms),
            max_ms: Span(wire.max_ms),
        })
    }
}
