//! Rules that hold at every decision, checked on the books before it: an account of their own,
//! not the scheduler's code.

use tidegate_model::{JobId, Timestamp};

use crate::{
    AccountId, Amount, Books, Core, Decision, Job, JobState, MoveCause, NodeState, Right,
    SaveReason, Standing, Terms,
};

#[allow(clippy::wildcard_enum_match_arm, reason = "the others have no rule of this kind")]
pub(super) fn check(books: &Books, now: Timestamp, decision: &Decision) {
    if let Decision::AttemptPlanned { attempt, .. } = decision {
        so_many_at_a_time(books, attempt.job);
    }
    match decision {
        Decision::AttemptPlanned { attempt, terms, places }
            if terms.standing == Standing::Protected =>
        {
            let gpus: usize = places.iter().map(|place| place.gpus.len()).sum();
            funded(books, now, attempt.job, *terms, gpus);
        }
        Decision::ReservationMade { job, pledge, .. } => {
            let entry = &books.jobs[job];
            assert!(entry.elder.is_some(), "only an elder reserves");
            if entry.carried.is_none() {
                room(books, now, (entry.account, *pledge), false, decision);
            }
        }
        Decision::ReservationMoved { job, at, cause, .. } => {
            let held = books.jobs[job].reservation.as_ref().unwrap();
            let later = *at > held.at;
            assert!(!later || *cause != MoveCause::Earlier, "later only for a listed cause");
        }
        Decision::SaveOrdered { attempt, why } => {
            let victim = books.attempt(*attempt).unwrap();
            let rehearsed = books.jobs[&attempt.job].spec.rehearsal().is_some();
            let may = victim.standing != Standing::Protected
                || rehearsed && *why == SaveReason::Rehearsed;
            assert!(may, "nobody displaces {attempt}");
            if let SaveReason::Displaced { by, grounds } = why {
                if by.job == attempt.job {
                    assert_eq!(grounds.rule, Right::Reservation, "it leaves for its own");
                    return;
                }
                let heir = books.attempt(*by).unwrap();
                assert_eq!(heir.terms.standing, Standing::Protected, "free work displaces nobody");
                let users = |job| books.jobs.get(&job).map(|job| (job.account, job.user));
                let own = victim.terms.small && users(by.job) == users(attempt.job);
                let turns = grounds.rule == Right::Small && own;
                assert!(!turns, "{by} and {attempt} of one user would take turns for ever");
            }
        }
        Decision::StandingChanged { attempt, at, to, promised_until } => {
            let entry = books.attempt(*attempt).unwrap();
            if *to == Standing::Protected {
                let until = promised_until.unwrap();
                let account = books.jobs[&attempt.job].account;
                let ask = entry.rate().over(until.since(*at));
                room(books, now, (account, ask), entry.terms.small, decision);
            }
        }
        _ => {}
    }
}

/// Of an array that runs so many at a time fewer have an attempt under way before the next starts.
fn so_many_at_a_time(books: &Books, job: JobId) {
    let entry = &books.jobs[&job];
    let Some(array) = &entry.spec.array else { return };
    let (under_way, most) = (under_way(books, entry), array.at_a_time);
    assert!(under_way < most, "{job} starts beside {under_way} of its array, which runs {most}");
}

fn under_way(books: &Books, job: &Job) -> u32 {
    let alike = books.jobs.values().filter(|other| {
        let key = |job: &Job| job.spec.array.as_ref().map(|array| array.key);
        other.user == job.user && key(other) == key(job)
    });
    let under_way = alike.filter(|other| matches!(other.state, JobState::Active { .. })).count();
    u32::try_from(under_way).unwrap()
}

/// The pledge of a protected start fits at every ancestor, or was held before.
fn funded(books: &Books, now: Timestamp, job: JobId, terms: Terms, gpus: usize) {
    let entry = &books.jobs[&job];
    if entry.carried.is_some() || entry.reservation.is_some() {
        return;
    }
    let gpus = tidegate_model::GpuCount(u32::try_from(gpus).unwrap());
    assert_eq!(gpus, entry.spec.gpus);
    let ask = terms.weight.rate(gpus).over(terms.protect);
    room(books, now, (entry.account, ask), terms.small, &"a protected start");
}

fn room(
    books: &Books,
    now: Timestamp,
    (account, ask): (AccountId, Amount),
    small: bool,
    what: &dyn std::fmt::Debug,
) {
    let sheet = books.accounts.sheet(now, books.policy.sharing.small_reserve);
    for one in books.accounts.path(account) {
        let row = sheet.row(one.id);
        let most = if small { row.budget } else { row.limit };
        let claim = one.charged.value(now) + one.pledge.value(now) + ask;
        assert!(claim <= most, "{what:?}: {claim} of {most} in {}", books.accounts.name(one.id));
    }
}

/// No idle GPU beyond the headroom fits a job of one GPU that may run free.
pub(super) fn nothing_idle_that_could_run(core: &Core, now: Timestamp) {
    let books = core.books();
    let ready =
        books.nodes.values().filter(|node| core.node_state(now, node.id) == Some(NodeState::Ready));
    let (mut idle, mut all) = (0_usize, 0_usize);
    for node in ready {
        idle += node.idle().count();
        all += node.facts.gpus.len();
    }
    let headroom = all * usize::try_from(books.policy.sharing.headroom).unwrap() / 1_000_000;
    let could = books.jobs.values().find(|job| {
        let due = matches!(job.state, JobState::Pending { not_before } if not_before <= now);
        due && job.is_startable()
            && job.reservation.is_none()
            && job.runs_free()
            && job.spec.gpus.0 == 1
            && job.spec.array.as_ref().is_none_or(|array| under_way(books, job) < array.at_a_time)
    });
    if let Some(job) = could {
        assert!(idle <= headroom, "{idle} GPUs are idle and {} waits", job.id);
    }
}
