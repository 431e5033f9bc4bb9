//! What was used in a span of time, recounted from the attempts in the books: they hold how they
//! stood from instant to instant, what of it is excused, and why they ended.
//!
//! How long protected GPUs were idle is known of what has ended only: it is kept with the end.

use std::collections::BTreeMap;

use scheduler_core::{
    AccountId, Amount, Attempt, Books, Excuse, Excused, Job, JobState, Outcome, Rate, SaveReason,
    Standing, WINDOW,
};
use tidegate_model::{GpuCount, Idle, Span, Timestamp, UserId};

/// How a wait is classed: by the terms on which the attempt was planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Small work.
    Small,
    /// Other protected work.
    Ordinary,
    /// Work outside the budget.
    Free,
}

/// What an account, or a user in it, has used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Used {
    /// Charged.
    pub charged: Amount,
    /// Had free.
    pub free: Amount,
    /// Not charged: from granted to running, and from a request to save to the release.
    pub overhead: Amount,
    /// Charged and taken back, because it was lost with hardware.
    pub credited: Amount,
    /// Done after the last commit by attempts that we ended unsaved.
    pub lost: Amount,
    /// How long what was planned protected, and has ended, had all GPUs of a task idle.
    pub idle: Amount,
    /// Of so much time in which they were looked at.
    pub looked_at: Amount,
    /// Of so much time that it ran.
    pub ended: Amount,
    /// Attempts that were asked to leave for another.
    pub displaced: u32,
    /// Until all tasks ran: since the submission, or the end of the attempt before.
    pub waits: BTreeMap<Class, Vec<Span>>,
}

/// What was used in a span, by account (those below it included) and by user of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Begin.
    pub from: Timestamp,
    /// End.
    pub at: Timestamp,
    /// Jobs that ended before this may be forgotten: what was used before it may be missing.
    pub complete_from: Timestamp,
    /// By account and user; an account's own row has no user. One that is not here used nothing.
    pub used: BTreeMap<(AccountId, Option<UserId>), Used>,
}

/// Count, median, nine tenths and the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quantiles {
    /// How many.
    pub count: u64,
    /// Half are not longer.
    pub p50: Span,
    /// Nine of ten are not longer.
    pub p90: Span,
    /// The longest.
    pub max: Span,
}

/// Most windows of one report: ten years of them.
pub const MAX_WEEKS: u32 = 520;

/// Recounts the last `weeks` windows before `at`; none is taken as one.
#[must_use]
pub fn report(books: &Books, at: Timestamp, weeks: u32) -> Report {
    let span = WINDOW.0.saturating_mul(weeks.max(1).into());
    let from = Timestamp(at.0.saturating_sub(span));
    let mut used = BTreeMap::new();
    for job in books.jobs.values() {
        if matches!(job.state, JobState::Ended { at, .. } if at < from) {
            continue;
        }
        for attempt in &job.attempts {
            let leaf: &mut Used = used.entry((job.account, Some(job.user))).or_default();
            let range = Range { from, until: at };
            count_time(leaf, attempt, range);
            count_turns(leaf, job, attempt, range);
            count_idle(leaf, attempt, range);
        }
    }
    sum_up(books, &mut used);
    let complete_from = Timestamp(at.0.saturating_sub(books.policy.keep_ended.0));
    Report { from, at, complete_from, used }
}

/// Accounts have what their users have, and those of the accounts below them.
fn sum_up(books: &Books, used: &mut BTreeMap<(AccountId, Option<UserId>), Used>) {
    let of_users: Vec<_> = used.iter().map(|((leaf, _), one)| (*leaf, one.clone())).collect();
    for (leaf, one) in of_users {
        for account in books.accounts.path(leaf) {
            used.entry((account.id, None)).or_default().add(&one);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Range {
    from: Timestamp,
    until: Timestamp,
}

impl Range {
    fn holds(self, at: Timestamp) -> bool {
        self.from < at && at <= self.until
    }

    /// What of a span lies in it; an open span lasts.
    fn part(self, from: Timestamp, until: Option<Timestamp>) -> Self {
        let until = until.map_or(self.until, |until| until.min(self.until));
        Self { from: from.max(self.from), until }
    }

    fn at(self, rate: Rate) -> Amount {
        rate.over(self.until.since(self.from))
    }
}

fn count_time(used: &mut Used, attempt: &Attempt, range: Range) {
    let rate = attempt.rate();
    for held in &attempt.held {
        let part = range.part(held.from, held.until);
        match held.standing {
            Standing::Free => used.free += part.at(rate),
            Standing::Protected | Standing::Funded => {
                used.charged += part.at(rate);
                attempt.excused.iter().for_each(|excused| used.excuse(excused, part, rate));
            }
        }
    }
    let ended = attempt.ended.map(|(at, _)| at);
    if let Some(granted) = attempt.granted {
        used.overhead += range.part(granted, attempt.running.or(ended)).at(rate);
    }
    if let (Some((at, Outcome::Unsaved)), Some(running)) = (attempt.ended, attempt.running) {
        let since = attempt.committed.map_or(running, |committed| committed.max(running));
        used.lost += range.part(since, Some(at)).at(rate);
    }
}

fn count_turns(used: &mut Used, job: &Job, attempt: &Attempt, range: Range) {
    if let Some(save) = attempt.save.filter(|save| range.holds(save.at)) {
        let displaced = matches!(save.why, SaveReason::Displaced { .. });
        used.displaced = used.displaced.saturating_add(u32::from(displaced));
    }
    if let Some(running) = attempt.running.filter(|at| range.holds(*at)) {
        let wait = running.since(waits_since(job, attempt));
        used.waits.entry(class(attempt)).or_default().push(wait);
    }
}

/// Whole, with the end: when in its life a task was idle is not kept.
fn count_idle(used: &mut Used, attempt: &Attempt, range: Range) {
    let has_ended = attempt.ended.is_some_and(|(at, _)| range.holds(at));
    if !has_ended || attempt.terms.standing == Standing::Free {
        return;
    }
    for task in &attempt.tasks {
        let gpus = GpuCount(u32::try_from(task.place.gpus.len()).unwrap_or(u32::MAX));
        let rate = attempt.terms.weight.rate(gpus);
        used.ended += rate.over(task.ran);
        if let Some(Idle { idle, of }) = task.idle {
            used.idle += rate.over(idle);
            used.looked_at += rate.over(of);
        }
    }
}

fn class(attempt: &Attempt) -> Class {
    match attempt.terms.standing {
        Standing::Free => Class::Free,
        Standing::Protected | Standing::Funded if attempt.terms.small => Class::Small,
        Standing::Protected | Standing::Funded => Class::Ordinary,
    }
}

/// The attempt before may not have ended: its node is silent, and the job went on without it. When
/// it went on is not kept, but it was not after the plan.
fn waits_since(job: &Job, attempt: &Attempt) -> Timestamp {
    let before = attempt.id.number.checked_sub(1).filter(|number| *number > 0);
    let Some(before) = before.and_then(|number| job.attempt(number)) else { return job.submitted };
    before.ended.map_or(attempt.planned, |(at, _)| at.min(attempt.planned))
}

impl Used {
    /// Takes what is excused out of a part that was charged.
    fn excuse(&mut self, excused: &Excused, part: Range, rate: Rate) {
        let amount = part.part(excused.from, Some(excused.until)).at(rate);
        self.charged -= amount;
        match excused.why {
            Excuse::Saved => self.overhead += amount,
            Excuse::Fault => self.credited += amount,
        }
    }

    fn add(&mut self, other: &Self) {
        self.charged += other.charged;
        self.free += other.free;
        self.overhead += other.overhead;
        self.credited += other.credited;
        self.lost += other.lost;
        self.idle += other.idle;
        self.looked_at += other.looked_at;
        self.ended += other.ended;
        self.displaced = self.displaced.saturating_add(other.displaced);
        for (class, waits) in &other.waits {
            self.waits.entry(*class).or_default().extend(waits);
        }
    }
}

impl Quantiles {
    /// Of these, by the nearest rank.
    #[must_use]
    pub fn of(waits: &[Span]) -> Self {
        let mut sorted = waits.to_vec();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        let rank = |percent: usize| {
            let rank = sorted.len().saturating_mul(percent).div_ceil(100).saturating_sub(1);
            sorted.get(rank.min(last)).copied().unwrap_or_default()
        };
        let count = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
        Self { count, p50: rank(50), p90: rank(90), max: rank(100) }
    }
}

#[cfg(test)]
mod tests {
    use scheduler_core::{Held, Place, Task, Terms, Weight};
    use tidegate_model::{AttemptId, JobId, NodeId};

    use super::*;

    /// One GPU, granted at 1 h, running from 2 h to 10 h, half protected and half funded.
    fn attempt(outcome: Outcome, committed: u64, excused: Option<(u64, Excuse)>) -> Attempt {
        let at = |hours| Timestamp(Span::hours(hours).0);
        let held =
            |standing, from, until| Held { standing, from: at(from), until: Some(at(until)) };
        let excuse = |(from, why)| Excused { from: at(from), until: at(10), why };
        let gpus = vec!["GPU-a-0".parse().unwrap()];
        Attempt {
            id: AttemptId { job: JobId(1), number: 1 },
            planned: at(0),
            granted: Some(at(1)),
            running: Some(at(2)),
            stop: None,
            ended: Some((at(10), outcome)),
            terms: Terms {
                standing: Standing::Protected,
                protect: Span::hours(4),
                weight: Weight::REFERENCE,
                small: false,
            },
            standing: Standing::Funded,
            promised_until: None,
            held: vec![held(Standing::Protected, 2, 6), held(Standing::Funded, 6, 10)],
            excused: excused.map(excuse).into_iter().collect(),
            ready: Some(at(0)),
            save: None,
            committed: Some(at(committed)),
            commits_closed: false,
            writing: None,
            tasks: vec![Task::planned(Place { node: NodeId(1), gpus })],
        }
    }

    /// Charged, overhead, credited and lost in GPU-hours, of the time from `from`.
    fn check(attempt: &Attempt, from: u64, expected: [u64; 4]) {
        let mut used = Used::default();
        let until = Timestamp(Span::hours(20).0);
        count_time(&mut used, attempt, Range { from: Timestamp(Span::hours(from).0), until });
        let told = [used.charged, used.overhead, used.credited, used.lost];
        assert_eq!(told, expected.map(Amount::gpu_hours));
    }

    #[test]
    fn what_is_excused_is_overhead_or_credit_and_what_is_unsaved_is_lost_since_the_last_commit() {
        check(&attempt(Outcome::Done, 9, None), 0, [8, 1, 0, 0]);
        check(&attempt(Outcome::Saved, 9, Some((9, Excuse::Saved))), 0, [7, 2, 0, 0]);
        check(&attempt(Outcome::Lost, 5, Some((5, Excuse::Fault))), 0, [3, 1, 5, 0]);
        check(&attempt(Outcome::Unsaved, 7, None), 0, [8, 1, 0, 3]);
        check(&attempt(Outcome::Unsaved, 0, None), 0, [8, 1, 0, 8]);
        // Of a span that begins while it runs.
        check(&attempt(Outcome::Lost, 5, Some((5, Excuse::Fault))), 8, [0, 0, 2, 0]);
        check(&attempt(Outcome::Unsaved, 7, None), 8, [2, 0, 0, 2]);
    }

    #[test]
    fn idle_time_is_counted_whole_with_the_end_of_what_was_planned_protected() {
        let measured = |idle: Option<u64>| {
            let mut attempt = attempt(Outcome::Done, 9, None);
            for task in &mut attempt.tasks {
                task.ran = Span::hours(8);
                task.idle = idle.map(|hours| Idle { idle: Span::hours(hours), of: Span::hours(6) });
            }
            attempt
        };
        let check = |attempt: &Attempt, from: u64, expected: [u64; 3]| {
            let mut used = Used::default();
            let until = Timestamp(Span::hours(20).0);
            count_idle(&mut used, attempt, Range { from: Timestamp(Span::hours(from).0), until });
            let told = [used.idle, used.looked_at, used.ended];
            assert_eq!(told, expected.map(Amount::gpu_hours));
        };
        check(&measured(Some(2)), 0, [2, 6, 8]);
        check(&measured(Some(2)), 9, [2, 6, 8]);
        check(&measured(Some(2)), 10, [0, 0, 0]);
        check(&measured(None), 0, [0, 0, 8]);
        let mut free = measured(Some(2));
        free.terms.standing = Standing::Free;
        check(&free, 0, [0, 0, 0]);
    }

    #[test]
    fn quantiles_are_by_the_nearest_rank_and_those_of_nothing_are_zero() {
        let waits: Vec<_> = (1..=10).rev().map(Span).collect();
        let of_ten = Quantiles { count: 10, p50: Span(5), p90: Span(9), max: Span(10) };
        assert_eq!(Quantiles::of(&waits), of_ten);
        assert_eq!(Quantiles::of(&[Span(7)]).p50, Span(7));
        assert_eq!(Quantiles::of(&[]), Quantiles::default());
    }
}
