//! What a run came to.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{AttemptId, GpuCount, JobId, JobSpec, Span, Timestamp};

use scheduler_core::{Books, Decision, JobOutcome, MoveCause, SaveReason, Standing};

use super::draw::Kind;
use crate::world::Observer;

/// What a firm reservation may be late after its published instant: grace of 30 min and 60 s to
/// verify, as the prototype measured it, and what the gate needs for 992 GPUs.
const FIRM_BOUND: Span = Span::seconds(31 * 60 + 278);

/// Collected while a run lasts, and said at its end.
#[derive(Debug, Clone)]
pub struct Figures {
    counted_from: Timestamp,
    waits: BTreeMap<JobId, Wait>,
    firm: BTreeMap<JobId, Timestamp>,
    /// Protected gangs of nearly all of the cluster.
    large: BTreeSet<AttemptId>,
    /// Firm reservations that started, and those of them that were late beyond their bound.
    pub firm_started: u32,
    /// Late ones.
    pub firm_late: u32,
    /// How often instants were moved later.
    pub firm_moved: u32,
    /// Attempts displaced, and of them Funded ones.
    pub displaced: (u32, u32),
    /// Work that is kept, in millionths of the supply.
    pub goodput: u64,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    kind: Kind,
    gpus: GpuCount,
    protected: bool,
    submitted: Timestamp,
    /// Whether a gang of nearly all of the cluster was protected then.
    beside_large: bool,
    started: Option<Timestamp>,
    /// It ended, and if all its work was done, when.
    over: Option<Option<Timestamp>>,
}

impl Observer for Figures {
    #[allow(clippy::wildcard_enum_match_arm, reason = "only these are counted")]
    fn saw(&mut self, before: &Books, at: Timestamp, decision: &Decision) {
        match decision {
            Decision::AttemptRunning(AttemptId { job, .. }) => self.started(*job, at),
            Decision::AttemptPlanned { attempt, terms, .. } => {
                let large = self.waits.get(&attempt.job).is_some_and(|job| job.kind == Kind::Whole);
                let held = large && terms.standing == Standing::Protected;
                self.large.extend(held.then_some(*attempt));
            }
            Decision::StandingChanged { attempt, to, .. } if *to != Standing::Protected => {
                self.large.remove(attempt);
            }
            Decision::AttemptEnded { attempt, .. } => {
                self.large.remove(attempt);
            }
            Decision::JobEnded { job, outcome } => {
                if let Some(wait) = self.waits.get_mut(job) {
                    let done = matches!(outcome, JobOutcome::Done);
                    wait.over = Some(done.then_some(at));
                }
                self.firm.remove(job);
            }
            Decision::ReservationMade { job, at, .. } => {
                self.firm.insert(*job, *at);
            }
            Decision::ReservationMoved { job, at, cause, .. } if *cause != MoveCause::Earlier => {
                self.firm_moved = self.firm_moved.saturating_add(1);
                self.firm.entry(*job).or_insert(*at);
            }
            Decision::SaveOrdered { attempt, why: SaveReason::Displaced { .. } } => {
                let standing = before.attempt(*attempt).map(|one| one.standing);
                let funded = u32::from(standing == Some(Standing::Funded));
                let (all, of_funded) = self.displaced;
                self.displaced = (all.saturating_add(1), of_funded.saturating_add(funded));
            }
            _ => {}
        }
    }
}

impl Figures {
    pub(super) fn new(counted_from: Timestamp) -> Self {
        Self {
            counted_from,
            waits: BTreeMap::new(),
            firm: BTreeMap::new(),
            large: BTreeSet::new(),
            firm_started: 0,
            firm_late: 0,
            firm_moved: 0,
            displaced: (0, 0),
            goodput: 0,
        }
    }

    fn started(&mut self, job: JobId, at: Timestamp) {
        if let Some(wait) = self.waits.get_mut(&job) {
            wait.started.get_or_insert(at);
        }
        if let Some(due) = self.firm.remove(&job) {
            self.firm_started = self.firm_started.saturating_add(1);
            let late = at.since(due) > FIRM_BOUND;
            self.firm_late = self.firm_late.saturating_add(u32::from(late));
        }
    }

    pub(super) fn submitted(&mut self, job: JobId, kind: Kind, spec: &JobSpec, at: Timestamp) {
        let (gpus, protected) = (spec.gpus, spec.min_runtime > Span::ZERO);
        let (started, over) = (None, None);
        let beside_large = !self.large.is_empty();
        let wait = Wait { kind, gpus, protected, submitted: at, beside_large, started, over };
        self.waits.insert(job, wait);
    }

    /// Jobs that have waited longer than anybody of their kind does.
    pub(super) fn unwanted(&self, now: Timestamp) -> Vec<JobId> {
        let waits =
            self.waits.iter().filter(|(_, wait)| wait.started.is_none() && wait.over.is_none());
        let unwanted = waits.filter(|(_, wait)| {
            let days = match wait.kind {
                Kind::Debug => 1,
                Kind::Eval => 3,
                Kind::Tuning => 14,
                Kind::Pretraining | Kind::Whole => return false,
            };
            now.since(wait.submitted) >= Span::hours(24 * days)
        });
        unwanted.map(|(job, _)| *job).collect()
    }

    /// The run is over: `progress` is what each job has done and not lost.
    pub(super) fn finished(&mut self, all: GpuCount, span: Span, progress: impl Fn(JobId) -> Span) {
        let kept = self.waits.iter().map(|(job, wait)| wait.gpus.held_for(progress(*job)).0);
        let kept: u128 = kept.sum();
        let part = kept.saturating_mul(1_000_000).checked_div(all.held_for(span).0);
        self.goodput = u64::try_from(part.unwrap_or(0)).unwrap_or(u64::MAX);
    }

    /// How long jobs of a kind that ask protection waited until they first ran, or have by now, at
    /// these percentiles.
    #[must_use]
    pub fn waits<const N: usize>(
        &self,
        kind: Kind,
        percent: [usize; N],
        now: Timestamp,
    ) -> [Span; N] {
        Self::percentiles(self.counted(kind), percent, now)
    }

    /// Likewise of those that came while no gang of nearly all of the cluster was protected.
    #[must_use]
    pub fn waits_apart<const N: usize>(
        &self,
        kind: Kind,
        percent: [usize; N],
        now: Timestamp,
    ) -> [Span; N] {
        Self::percentiles(self.counted(kind).filter(|wait| !wait.beside_large), percent, now)
    }

    fn counted(&self, kind: Kind) -> impl Iterator<Item = &Wait> {
        self.waits.values().filter(move |wait| {
            wait.kind == kind && wait.protected && wait.submitted >= self.counted_from
        })
    }

    fn percentiles<'wait, const N: usize>(
        counted: impl Iterator<Item = &'wait Wait>,
        percent: [usize; N],
        now: Timestamp,
    ) -> [Span; N] {
        let mut waits: Vec<_> =
            counted.map(|wait| wait.started.unwrap_or(now).since(wait.submitted)).collect();
        waits.sort_unstable();
        percent.map(|part| {
            let index = waits.len().saturating_mul(part) / 100;
            waits.get(index.min(waits.len().saturating_sub(1))).copied().unwrap_or(Span::ZERO)
        })
    }

    /// The median of the time from submission to the end of all its work, of jobs of a kind that ask
    /// protection and are done.
    #[must_use]
    pub fn median_to_done(&self, kind: Kind) -> Span {
        let spans = self.counted(kind).filter_map(|wait| Some(wait.over??.since(wait.submitted)));
        let mut spans: Vec<_> = spans.collect();
        spans.sort_unstable();
        spans.get(spans.len() / 2).copied().unwrap_or(Span::ZERO)
    }

    /// How many jobs of a kind were asked for.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.waits.values().filter(|wait| wait.kind == kind).count()
    }
}
