//! A ledger of the tests' own: what every attempt held, noted from the decisions as they come, and
//! what its account and user have spent and been promised by that. It shares no code with the
//! scheduler's books.

use std::collections::BTreeMap;

use scheduler_core::{Books, Decision, Outcome, SaveReason, Standing};
use simulator::Observer;
use tidegate_model::{AttemptId, JobId, JobSpec, Span, Timestamp, UserId};

/// GPU-milliseconds.
pub(crate) type GpuMs = i128;

const WINDOW_MS: u64 = 7 * 24 * 3_600_000;
/// What any user may draw of the small reserve of an account, however small that is.
const SMALL_FLOOR: GpuMs = 64 * 3_600_000;

/// One attempt as it was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Run {
    gpus: i128,
    protect: Span,
    small: bool,
    /// How it stood, each from an instant on; the first from when it was planned.
    stood: Vec<(Timestamp, Option<Standing>)>,
    promised_until: Option<Timestamp>,
    /// When all its tasks ran, and the longest of what its nodes said they ran.
    pub(crate) running: Option<Timestamp>,
    ran: Span,
    committed: Option<Timestamp>,
    /// When it was told to save.
    told: Option<Timestamp>,
    /// Told to end, or broken: nothing is promised to it any more.
    over: bool,
    /// When its GPUs were free again, and whether what it lost was seen.
    released: Option<Timestamp>,
    /// From when on nothing is charged.
    excused_from: Option<Timestamp>,
}

impl Run {
    /// From when to when it was charged, and whether that was Protected.
    pub(crate) fn charged(&self, now: Timestamp) -> Vec<(Timestamp, Timestamp, bool)> {
        let Some(running) = self.running else { return Vec::new() };
        let end =
            [self.released, self.excused_from].into_iter().flatten().fold(now, Timestamp::min);
        let until = self.stood.iter().skip(1).map(|(at, _)| *at).chain([end]);
        let spans = self.stood.iter().zip(until).filter_map(|((from, standing), until)| {
            let charged = matches!(standing, Some(Standing::Protected | Standing::Funded));
            let (from, until) = ((*from).max(running), until.min(end));
            let protected = *standing == Some(Standing::Protected);
            (charged && from < until).then_some((from, until, protected))
        });
        spans.collect()
    }

    fn spent(&self, now: Timestamp, protected_only: bool) -> GpuMs {
        let begin = now.0.saturating_sub(WINDOW_MS);
        let spans = self.charged(now).into_iter();
        let spans = spans.filter(|(_, _, protected)| *protected || !protected_only);
        spans.map(|(from, to, _)| self.gpus * i128::from(to.0.max(begin) - from.0.max(begin))).sum()
    }

    fn pledged(&self, now: Timestamp) -> GpuMs {
        let protected = self.stood.last().is_some_and(|(_, to)| *to == Some(Standing::Protected));
        match (self.running, self.promised_until) {
            _ if self.over || self.released.is_some() => 0,
            (Some(_), Some(until)) => self.gpus * i128::from(until.since(now).0),
            (None, _) if protected => self.gpus * i128::from(self.protect.0),
            _ => 0,
        }
    }
}

/// A job, and what is held for it while it waits.
#[derive(Debug, Clone)]
struct Asked {
    user: UserId,
    spec: JobSpec,
    /// The pledge of a firm reservation, or what its next attempt inherits.
    held: Option<GpuMs>,
}

/// Everything that is charged and promised to accounts, by their paths.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Budget and limit by path; the root's is the empty one.
    pub(crate) budgets: BTreeMap<String, (GpuMs, GpuMs)>,
    jobs: BTreeMap<JobId, Asked>,
    pub(crate) runs: BTreeMap<AttemptId, Run>,
    /// How long each task ran, as its node said.
    pub(crate) said: BTreeMap<tidegate_model::TaskId, Span>,
    /// Protected starts that were held against the funding test.
    pub(crate) tested: u32,
    pub(crate) displaced: u32,
    pub(crate) wrong: Vec<String>,
}

impl Ledger {
    /// The budget tree, percent of the parent each, of so many GPUs.
    pub(crate) fn share(&mut self, gpus: u32, tree: &[(&str, u32)]) {
        let whole = i128::from(gpus) * i128::from(WINDOW_MS);
        self.budgets.insert(String::new(), (whole, whole - whole * 5 / 100));
        for (path, percent) in tree {
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            let budget = self.budgets[above].0 * i128::from(*percent) / 100;
            self.budgets.insert((*path).to_owned(), (budget, budget - budget * 5 / 100));
        }
    }

    /// Charged to the account and below in the window that ends at `now`.
    pub(crate) fn spent(&self, path: &str, now: Timestamp) -> GpuMs {
        self.below(path).map(|(_, run)| run.spent(now, false)).sum()
    }

    /// Spent and promised.
    pub(crate) fn claim(&self, path: &str, now: Timestamp) -> GpuMs {
        let pledged: GpuMs = self.below(path).map(|(_, run)| run.pledged(now)).sum();
        let jobs = self.jobs.values().filter(|job| is_below(job.spec.account.as_str(), path));
        let held: GpuMs = jobs.filter_map(|job| job.held).sum();
        self.spent(path, now) + pledged + held
    }

    /// Of the claim, what small jobs have and may still have.
    pub(crate) fn small(&self, path: &str, now: Timestamp) -> GpuMs {
        let small = self.below(path).filter(|(_, run)| run.small);
        small.map(|(_, run)| run.spent(now, false) + run.pledged(now)).sum()
    }

    /// What accounts beside this one, and beside those above it, have above their own limits.
    pub(crate) fn above_beside(&self, path: &str, now: Timestamp) -> GpuMs {
        let beside = self.budgets.iter().filter(|(other, _)| {
            let above = other.rsplit_once('/').map_or("", |(above, _)| above);
            path != above && is_below(path, above) && !is_below(path, other)
        });
        beside.map(|(other, (_, limit))| (self.claim(other, now) - limit).max(0)).sum()
    }

    fn below(&self, path: &str) -> impl Iterator<Item = (&Asked, &Run)> {
        self.runs.iter().filter_map(move |(id, run)| {
            let job = self.jobs.get(&id.job)?;
            is_below(job.spec.account.as_str(), path).then_some((job, run))
        })
    }

    /// Protected time of the user's small jobs in the account, had and promised.
    fn small_use(&self, leaf: &str, user: UserId, now: Timestamp) -> GpuMs {
        let own = self.below(leaf).filter(|(job, run)| job.user == user && run.small);
        let protected =
            |run: &Run| run.stood.last().is_some_and(|(_, to)| *to == Some(Standing::Protected));
        own.map(|(_, run)| run.spent(now, true) + if protected(run) { run.pledged(now) } else { 0 })
            .sum()
    }

    /// The funding test (2-scheduling, "Money") for what is to be promised now.
    fn test(&mut self, job: JobId, ask: GpuMs, small: bool, now: Timestamp) {
        let Some(asked) = self.jobs.get(&job) else { return };
        if asked.held.is_some() {
            return;
        }
        let leaf = asked.spec.account.as_str().to_owned();
        let (budget, limit) = self.budgets[&leaf];
        let allowance = ((budget - limit) / 2).max(SMALL_FLOOR);
        let reserve = small && self.small_use(&leaf, asked.user, now) + ask <= allowance;
        let ancestors = leaf.match_indices('/').map(|(end, _)| &leaf[..end]);
        for path in ancestors.chain([leaf.as_str(), ""]) {
            let (budget, limit) = self.budgets[path];
            let most = if reserve { budget } else { limit };
            let claim = self.claim(path, now) + ask;
            if claim > most {
                self.wrong.push(format!("{job} starts with {claim} of {most} GPU-ms in {path}"));
            }
        }
        self.tested += 1;
    }

    fn run(&mut self, id: AttemptId) -> &mut Run {
        self.runs.get_mut(&id).expect("an attempt is planned before anything else")
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "the others are not about runs")]
    fn note_run(&mut self, at: Timestamp, decision: &Decision) {
        match decision {
            Decision::AttemptRunning(id) => {
                let run = self.run(*id);
                run.running = Some(at);
                let protected = run.stood.iter().any(|(_, to)| *to == Some(Standing::Protected));
                run.promised_until = protected.then(|| at.plus(run.protect));
            }
            Decision::StandingChanged { attempt, at, to, promised_until } => {
                let run = self.run(*attempt);
                run.stood.push((*at, Some(*to)));
                run.promised_until = *promised_until;
            }
            Decision::StopOrdered { attempt, .. } => self.run(*attempt).over = true,
            Decision::SaveOrdered { why, .. } => {
                self.displaced += u32::from(matches!(why, SaveReason::Displaced { .. }));
            }
            Decision::SaveTold(id) | Decision::SaveAdmitted { attempt: id, .. } => {
                self.run(*id).told.get_or_insert(at);
            }
            Decision::CheckpointCommitted { attempt, .. } => {
                self.run(*attempt).committed = Some(at);
            }
            Decision::TaskEnded { task, exit, ran } => {
                self.said.insert(*task, *ran);
                let run = self.run(task.attempt);
                run.ran = run.ran.max(*ran);
                run.over |= !exit.is_success();
            }
            Decision::AttemptEnded { attempt, outcome, .. } => {
                let run = self.run(*attempt);
                let ran = run.running.map(|running| running.plus(run.ran));
                run.released = Some(ran.map_or(at, |end| end.min(at)));
                run.excused_from = match outcome {
                    Outcome::Saved => run.told,
                    Outcome::Lost => run.committed.max(run.running),
                    _ => None,
                };
            }
            _ => {}
        }
    }
}

impl Observer for Ledger {
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "the others are about runs, or of no account"
    )]
    fn saw(&mut self, _before: &Books, at: Timestamp, decision: &Decision) {
        match decision {
            Decision::JobAccepted { job, user, spec, .. } => {
                let (user, spec) = (*user, JobSpec::clone(spec));
                self.jobs.insert(*job, Asked { user, spec, held: None });
            }
            Decision::AttemptPlanned { attempt, places, terms } => {
                let spec = &self.jobs[&attempt.job].spec;
                let gpus: usize = places.iter().map(|place| place.gpus.len()).sum();
                let gpus = i128::try_from(gpus).expect("few GPUs");
                let minutes = spec.min_runtime.0 / 60_000;
                let small = (1..=60).contains(&minutes)
                    && spec.gpus.0 <= 8
                    && u64::from(spec.gpus.0) * minutes <= 240;
                let protected = terms.standing == Standing::Protected;
                let protect = if protected { terms.protect } else { spec.min_runtime };
                if protected {
                    self.test(attempt.job, gpus * i128::from(protect.0), small, at);
                    self.jobs.entry(attempt.job).and_modify(|job| job.held = None);
                }
                let stood = vec![(at, Some(terms.standing))];
                let run = Run { gpus, protect, small, stood, ..Run::default() };
                self.runs.insert(*attempt, run);
            }
            Decision::StandingChanged { attempt, to: Standing::Protected, .. } => {
                let run = &self.runs[attempt];
                let (ask, small) = (run.gpus * i128::from(run.protect.0), run.small);
                self.test(attempt.job, ask, small, at);
                self.jobs.entry(attempt.job).and_modify(|job| job.held = None);
                self.note_run(at, decision);
            }
            Decision::ReservationMade { job, pledge, .. } => {
                let pledge = pledge.0 / 1000;
                self.test(*job, pledge, false, at);
                self.jobs.entry(*job).and_modify(|job| job.held = Some(pledge));
            }
            Decision::ReservationDropped { job, .. } | Decision::JobEnded { job, .. } => {
                self.jobs.entry(*job).and_modify(|job| job.held = None);
            }
            Decision::JobRequeued { job, carried, .. } => {
                let job = self.jobs.get_mut(job).expect("a known job");
                let gpus = i128::from(job.spec.gpus.0);
                job.held = carried.map(|rest| gpus * i128::from(rest.0));
            }
            _ => self.note_run(at, decision),
        }
    }
}

fn is_below(account: &str, path: &str) -> bool {
    path.is_empty() || account == path || account.starts_with(&format!("{path}/"))
}
