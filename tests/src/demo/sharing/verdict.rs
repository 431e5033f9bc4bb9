//! What the facts of the second act must say. Pure: facts in, sentences out.

use super::super::tally::Promise;
use super::cast::{FREE_GPUS, GANG_GPUS, GRACE};
use super::facts::{Attempt, Facts, Job, Save};

/// In which a small job has to run, on a busy machine too: others save in it, nobody ends.
pub const AT_ONCE_MS: u64 = 15_000;

/// As the act's policy has it: from the last exit to verified gone.
const VERIFY_LIMIT_MS: u64 = 1000;

/// Every promise of the act with what is wrong.
#[must_use]
pub fn judge(facts: &Facts) -> Vec<(Promise, Vec<String>)> {
    vec![
        (Promise::FreeGivesWay, free_gives_way(facts)),
        (Promise::ProtectedStays, protected_stays(facts)),
        (Promise::PlaceIsKept, place_is_kept(facts)),
        (Promise::SmallAtOnce, small_at_once(facts)),
        (Promise::ChargedOnce, charged_once(facts)),
    ]
}

/// Collects what does not hold.
#[derive(Default)]
struct Wrong(Vec<String>);

impl Wrong {
    fn unless(&mut self, holds: bool, say: impl FnOnce() -> String) {
        if !holds {
            self.0.push(say());
        }
    }
}

/// Only the first run of the gang is looked at. When it returns, its GPUs come back node by node, and
/// free work that has just begun on the first of them leaves again with nothing new to save.
fn free_gives_way(facts: &Facts) -> Vec<String> {
    let mut wrong = Wrong::default();
    let needed = usize::try_from(GANG_GPUS.div_ceil(FREE_GPUS)).unwrap_or(usize::MAX);
    let Some(first) = facts.first.attempts.first() else {
        return vec![format!("{} never ran", facts.first.job)];
    };
    let left: Vec<&Attempt> = facts.left_for(&first.attempt).collect();
    // Fewer where one has ended by itself before.
    wrong.unless((1..=needed).contains(&left.len()), || {
        format!("{} free runs left for {}, {needed} were in its way", left.len(), first.attempt)
    });
    for attempt in left {
        saved_and_left(attempt, &mut wrong);
        wrong.unless(attempt.ended_ms.is_some() && attempt.ended_ms <= first.running_ms, || {
            format!("{} ran before {} had left", first.attempt, attempt.attempt)
        });
    }
    wrong.0
}

fn saved_and_left(attempt: &Attempt, wrong: &mut Wrong) {
    let asked = attempt.save.as_ref().map(|save| save.at_ms);
    wrong.unless(attempt.state == "saved", || {
        format!("{} was asked to save and ended {}", attempt.attempt, attempt.state)
    });
    wrong.unless(asked.is_some() && attempt.committed_ms >= asked, || {
        format!("no commit of {} followed the request", attempt.attempt)
    });
}

fn protected_stays(facts: &Facts) -> Vec<String> {
    let mut wrong = Wrong::default();
    let promised = facts.seen.promised_until_ms;
    let first = facts.first.attempts.first();
    let save: Option<&Save> = first.and_then(|attempt| attempt.save.as_ref());
    wrong.unless(save.is_some_and(|save| save.at_ms >= promised), || {
        format!("{} was not left alone until {promised}: {save:?}", facts.first.job)
    });
    let second = facts.second.attempts.first();
    let heir = second.map_or("", |attempt| attempt.attempt.as_str());
    wrong.unless(save.is_some_and(|save| save.is_for(heir)), || {
        format!("{} did not leave for {}: {save:?}", facts.first.job, facts.second.job)
    });
    wrong.unless(second.is_some_and(|attempt| attempt.planned_ms >= promised), || {
        format!("{} was planned before {promised}", facts.second.job)
    });
    let said = &facts.seen.said_reason;
    wrong.unless(said == "AwaitingReservation", || format!("it was said to wait for {said}"));
    let began = second.and_then(|attempt| attempt.running_ms);
    // The instant is that from which its GPUs may be asked for; the rest is said beside it.
    let late = |at: u64| at.saturating_add(GRACE.0).saturating_add(VERIFY_LIMIT_MS);
    let within = |at: u64| at >= promised && began.is_some_and(|began| began <= late(at));
    wrong.unless(facts.seen.said_at_ms.is_some_and(within), || {
        format!(
            "{} was told {:?}; the promise was until {promised}, and it began at {began:?}",
            facts.second.job, facts.seen.said_at_ms
        )
    });
    wrong.0
}

fn place_is_kept(facts: &Facts) -> Vec<String> {
    let mut wrong = Wrong::default();
    let job = &facts.first.job;
    let ends: Vec<_> = facts.first.attempts.iter().map(|one| one.state.as_str()).collect();
    wrong.unless(ends == ["saved", "done"], || format!("the runs of {job} ended {ends:?}"));
    if let Some(attempt) = facts.first.attempts.first() {
        saved_and_left(attempt, &mut wrong);
    }
    let (from, saved) = (facts.resumed_from, facts.seen.committed_step);
    wrong.unless(from.is_some_and(|step| step > 0) && from == saved, || {
        format!("{job} had committed {saved:?} and went on from {from:?}")
    });
    let again = facts.first.attempts.get(1).map(|attempt| attempt.planned_ms);
    let next = facts.third.attempts.first().map(|attempt| attempt.planned_ms);
    wrong.unless(again.is_some() && next.is_some() && next >= again, || {
        format!("{}, submitted later, was planned before {job} came back", facts.third.job)
    });
    wrong.0
}

fn small_at_once(facts: &Facts) -> Vec<String> {
    let mut wrong = Wrong::default();
    let small = &facts.small;
    let idle = facts.seen.idle_before_small;
    wrong.unless(idle == 0, || format!("{idle} GPUs were idle before {}", small.job));
    let began = small.attempts.first().and_then(|attempt| attempt.running_ms);
    let waited = began.map(|at| at.saturating_sub(small.submitted_ms));
    wrong.unless(waited.is_some_and(|waited| waited <= AT_ONCE_MS), || {
        format!("{} waited {waited:?} ms", small.job)
    });
    let run = small.attempts.first().map_or("", |attempt| attempt.attempt.as_str());
    let made_way = facts.left_for(run).count();
    wrong.unless(made_way == 1, || format!("{made_way} free runs left for {}", small.job));
    wrong.0
}

fn charged_once(facts: &Facts) -> Vec<String> {
    let mut wrong = Wrong::default();
    let (before, after) = facts.seen.epochs;
    wrong.unless(before.checked_add(1) == Some(after), || {
        format!("epoch {after} followed epoch {before}: not one kill of the coordinator")
    });
    for account in facts.accounts.iter().filter(|account| account.leaf) {
        let (had, excused) = facts.recount(&account.account);
        let booked = account.charged_gpu_us.saturating_add(excused);
        wrong.unless(booked == had, || {
            format!(
                "{} is charged {} and excused {excused} GPU-µs; its runs had {had}",
                account.account, account.charged_gpu_us
            )
        });
    }
    for job in facts.jobs() {
        wrong.unless(facts.accounts.iter().any(|one| one.account == job.account), || {
            format!("{} is charged to an account that is not there", job.job)
        });
        job.attempts.iter().for_each(|attempt| within_its_life(job, attempt, &mut wrong));
    }
    let charged = facts.first.attempts.iter().all(|attempt| attempt.protected_gpu_us > 0);
    wrong.unless(charged, || format!("a protected run of {} cost nothing", facts.first.job));
    wrong.0
}

/// What the runs say of themselves has a bound of its own: nobody has more than GPUs times time.
fn within_its_life(job: &Job, attempt: &Attempt, wrong: &mut Wrong) {
    let life = attempt.running_ms.zip(attempt.ended_ms);
    let life_ms = life.map_or(0, |(from, until)| until.saturating_sub(from));
    let most = life_ms.saturating_mul(1000).saturating_mul(u64::from(job.gpus));
    let parts = [attempt.protected_gpu_us, attempt.funded_gpu_us, attempt.free_gpu_us];
    let had = parts.into_iter().fold(0_i64, i64::saturating_add);
    wrong.unless(u64::try_from(had).is_ok_and(|had| had <= most), || {
        format!("{} had {had} GPU-µs in a life of at most {most}", attempt.attempt)
    });
}
