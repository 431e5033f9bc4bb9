//! Progress of elders (2-scheduling, invariant 10), over random trees and demand.
//!
//! The bound of the rule is the sum of three, and each is held by itself, while all nodes are healthy
//! and every job saves within its grace:
//!
//! * **Named.** Of an account's waiting ordinary jobs the one that waits longest becomes an elder as
//!   soon as it has waited `patience` and the gap since the one before is over. Hence the k-th in line
//!   is named within patience + k gaps.
//! * **Funded.** The first elder that waits for budget is funded once the windows of its accounts have
//!   slid out what they lack; Funded work makes room within `settle`, and so does that of other
//!   accounts which are above their limits below the same ancestor. An hour is for the passes.
//! * **Started.** Its instant comes at most `1 + p` turns after its reservation was made, p = firm
//!   reservations that were older then: the longest protection, the time to start, and the time in
//!   which all who leave have left, the rounds of the gate, grace, kill and verification. It starts
//!   when those have left.
//!
//! Whoever has a reservation has its GPUs by the instant it was last told, "at the latest", unless that
//! moved for a cause.
//!
//! Small jobs are left out: they may claim what slides out before the elder does, up to their own
//! limits (`shares`).

use std::collections::BTreeMap;

use scheduler_core::{
    AccountId, Books, Decision, Job, JobState, MoveCause, Policy, ROOT, Rate, Standing, WHOLE,
    Weight,
};
use simulator::{EPOCH, Observer, Work, World};
use tidegate_model::{JobId, Span, Timestamp, UserId, WhileWaiting};

use crate::lab::{self, pick};

const STEP: Span = Span::minutes(15);
const LONGEST: Span = Span::hours(4);

/// Holds the instants of reservations to the number of those before them, and to what was told.
#[derive(Default)]
struct Instants {
    made: usize,
    /// By when each has its GPUs at the latest, as it was last told; how many were held to it.
    told: Due,
    kept: usize,
    wrong: Vec<String>,
}

impl Observer for Instants {
    #[allow(clippy::wildcard_enum_match_arm, reason = "only these bear on reservations")]
    fn saw(&mut self, before: &Books, now: Timestamp, decision: &Decision) {
        match decision {
            Decision::AttemptGranted(attempt) => self.granted(attempt.job, now),
            Decision::ReservationMoved { job, cause, .. } if *cause != MoveCause::Earlier => {
                self.told.remove(job);
            }
            Decision::ReservationMade { job, at, .. } => self.made(before, now, *job, *at),
            _ => {}
        }
    }
}

impl Instants {
    fn made(&mut self, before: &Books, now: Timestamp, job: JobId, at: Timestamp) {
        self.made += 1;
        let older = before.jobs.values().filter(|other| other.reservation.is_some()).count();
        let turns = 1 + u64::try_from(older).unwrap_or(u64::MAX);
        let (turn, _) = one_turn(before);
        if at > now.plus(Span(turn.0 * turns)) {
            let after = at.since(now);
            self.wrong.push(format!("{job}, behind {older}, is to start {after} from now"));
        }
    }

    fn granted(&mut self, job: JobId, now: Timestamp) {
        let Some(told) = self.told.remove(&job) else { return };
        self.kept += 1;
        if now > told {
            let (late, at) = (now.since(told), told.since(EPOCH));
            self.wrong.push(format!("{job} was told {at} at the latest, and was {late} late"));
        }
    }
}

/// What is to have happened, and by when.
type Due = BTreeMap<JobId, Timestamp>;

struct Line {
    dice: fastrand::Rng,
    world: World<Instants>,
    leaves: [&'static str; 4],
    /// Whether ordinary jobs run Free while they wait.
    free: bool,
    funded_by: Due,
    started_by: Due,
    /// How many were named, and waited for budget.
    counts: (usize, usize),
}

impl Line {
    fn new(seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut policy = Policy { keep_ended: Span::hours(24 * 30), ..Policy::default() };
        policy.sharing.patience = Span::hours(dice.u64(2..24));
        policy.sharing.elder_gap = Span::hours(dice.u64(0..6));
        policy.sharing.settle = Span::hours(dice.u64(2..25));
        policy.sharing.gate_width = dice.u32(1..5);
        policy.sharing.max_min_runtime = LONGEST;
        policy.sharing.large_min_runtime = LONGEST;
        policy.sharing.gang_cap = WHOLE;
        policy.sharing.pass_every = Span::minutes(10);
        policy.silent_after = Span::hours(1);
        let sizes: Vec<u32> = (0..dice.u32(2..6)).map(|_| 8).collect();
        let mut world = lab::world(&sizes, policy, Instants::default());
        let (first, inner) = (dice.u32(10..70), dice.u32(10..90));
        let tree =
            [("p", first), ("p/a", inner), ("p/b", 100 - inner), ("q", 95 - first), ("r", 5)];
        lab::divide(&mut world, &tree);
        let (leaves, free) = (["p/a", "p/b", "q", "r"], !seed.is_multiple_of(2));
        let (funded_by, started_by) = (Due::new(), Due::new());
        Self { dice, world, leaves, free, funded_by, started_by, counts: (0, 0) }
    }

    fn step(&mut self) {
        let until = self.world.now().plus(STEP);
        for _ in 0..self.dice.u32(0..4) {
            if self.world.core().books().live_jobs() < 40 {
                self.submit();
            }
        }
        self.world.run_until(until).expect("a step");
        self.check();
    }

    fn submit(&mut self) {
        let dice = &mut self.dice;
        let all = u32::try_from(self.world.core().books().nodes.len()).expect("few nodes") * 8;
        let gpus = pick(dice, &[2, 4, 8, 8, 16, all / 8 * 8, all]);
        let minutes = if dice.u32(0..6) == 0 { 0 } else { pick(dice, &[70, 120, 240]) };
        let mut spec = lab::spec(pick(dice, &self.leaves), gpus, Span::minutes(minutes));
        if !self.free || dice.u32(0..3) == 0 {
            spec.while_waiting = WhileWaiting::Wait;
        }
        let run = Span::minutes(pick(dice, &[30, 120, 300, 900, 3000]));
        let mut work = Work::lasting(Some(run), Span::seconds(dice.u64(0..100)));
        work.commit_every = Some(Span::minutes(40));
        self.world.submit(UserId(dice.u32(1..4)), spec, work).expect("a step");
    }

    fn check(&mut self) {
        let (books, now) = (self.world.core().books(), self.world.now());
        let mut lines: BTreeMap<AccountId, Vec<&Job>> = BTreeMap::new();
        for job in books.jobs.values().map(AsRef::as_ref).filter(|job| waits(job, now)) {
            lines.entry(job.account).or_default().push(job);
        }
        for (leaf, line) in &lines {
            named(books, *leaf, line, now);
            let elders = line.iter().filter(|job| job.elder.is_some());
            let first = elders.filter(|job| job.reservation.is_none());
            let first = first.min_by_key(|job| (job.elder, job.id));
            if let Some(first) = first {
                let by = self.funded_by.entry(first.id).or_insert_with(|| {
                    self.counts.1 += 1;
                    funded_by(books, first, now)
                });
                let late = format!("{} waits for budget at {}", first.id, now.since(EPOCH));
                assert!(now <= *by, "{late}, not only until {}", by.since(EPOCH));
            }
        }
        self.funded_by.retain(|id, _| books.jobs.get(id).is_some_and(|job| job.elder.is_some()));
        let all = books.jobs.values();
        let reserved: Vec<_> = all.filter(|job| job.reservation.is_some()).collect();
        for job in &reserved {
            let at = job.reservation.as_ref().map_or(now, |held| held.at);
            let (_, leave) = one_turn(books);
            let by = self.started_by.entry(job.id).or_insert_with(|| at.plus(leave).plus(STEP));
            let late = format!("{} waits for its reservation at {}", job.id, now.since(EPOCH));
            assert!(now <= *by, "{late}, not only until {}", by.since(EPOCH));
        }
        let core = self.world.core();
        let told = reserved.iter().filter_map(|job| Some((job.id, core.latest_of(now, job.id)?)));
        let told: Vec<_> = told.collect();
        let held = |id: &JobId| reserved.iter().any(|job| job.id == *id);
        self.started_by.retain(|id, _| held(id));
        let named = books.jobs.values().filter(|job| job.elder.is_some());
        self.counts.0 +=
            named.filter(|job| now.since(job.elder.unwrap_or_default()) < STEP).count();
        self.world.observer.told.extend(told);
    }
}

/// Whether an ordinary job waits for protected time, in the queue or while it runs free.
fn waits(job: &Job, now: Timestamp) -> bool {
    let ordinary = job.spec.min_runtime > Span::hours(1);
    ordinary
        && job.parked.is_none()
        && match job.state {
            JobState::Pending { not_before } => not_before <= now,
            JobState::Active { .. } => job.active_attempt().is_some_and(|attempt| {
                !attempt.was_protected() && attempt.standing == Standing::Free
            }),
            JobState::Ended { .. } => false,
        }
}

/// Whoever could be named by now has been.
fn named(books: &Books, leaf: AccountId, line: &[&Job], now: Timestamp) {
    let sharing = &books.policy.sharing;
    let limit = books.accounts.sheet(now, sharing.small_reserve).row(leaf).limit;
    let ask = |job: &Job| Weight::REFERENCE.rate(job.spec.gpus).over(job.spec.min_runtime);
    let account = books.accounts.get(leaf).expect("a leaf");
    let gap_over = account.elder_named.map_or(EPOCH, |named| named.plus(sharing.elder_gap));
    let unnamed = line.iter().filter(|job| job.elder.is_none() && ask(job) <= limit.part(1, 2));
    for job in unnamed {
        let due = job.waits_since.plus(sharing.patience).max(gap_over);
        let (id, at) = (job.id, now.since(EPOCH));
        assert!(due >= now, "{id} was to be an elder at {}, and is not at {at}", due.since(EPOCH));
    }
}

/// When the windows of all its accounts have slid out what an elder lacks, and Funded work has made
/// room.
fn funded_by(books: &Books, job: &Job, now: Timestamp) -> Timestamp {
    let sharing = &books.policy.sharing;
    let sheet = books.accounts.sheet(now, sharing.small_reserve);
    let ask = Weight::REFERENCE.rate(job.spec.gpus).over(job.spec.min_runtime);
    let still = Rate::default();
    let slides = |account: &scheduler_core::Account| {
        let row = sheet.row(account.id);
        let lacks = row.claim + ask - row.limit;
        let kept = account.charged.projected(now, still);
        let hours = (0..=7 * 24).map(Span::hours);
        // Of the root and the like others have their part: theirs slides out for them.
        let mut enough =
            hours.filter(|span| kept - account.charged.projected(now.plus(*span), still) >= lacks);
        enough.next().unwrap_or(Span::hours(7 * 24))
    };
    let below_root = books.accounts.path(job.account).filter(|account| account.id != ROOT);
    let slides = below_root.map(slides).max().unwrap_or(Span::ZERO);
    let settle = sharing.settle;
    now.plus(slides.max(settle)).plus(settle).plus(Span::hours(1))
}

/// The longest protection with the time to start and to leave; and the latter alone.
fn one_turn(books: &Books) -> (Span, Span) {
    let (policy, live) = (&books.policy, u64::try_from(books.live_attempts().count()).unwrap_or(0));
    let grace = Span::minutes(5).0;
    let rounds = live / u64::from(policy.sharing.gate_width) + 1;
    let leave = grace * rounds + Span::seconds(30).0 + policy.sharing.verify_limit.0;
    (Span(LONGEST.0 + policy.start_timeout.0 + leave), Span(leave))
}

#[test]
fn every_elder_is_named_funded_and_started_within_the_bound_of_the_rule() {
    let (mut named, mut waited, mut reserved, mut kept) = (0, 0, 0, 0);
    for seed in lab::seeds(0..8) {
        let mut line = Line::new(seed);
        while line.world.now() < EPOCH.plus(Span::hours(24 * 10)) {
            line.step();
        }
        let instants = &line.world.observer;
        assert!(instants.wrong.is_empty(), "seed {seed}: {}", instants.wrong.join("\n"));
        (named, waited) = (named + line.counts.0, waited + line.counts.1);
        (reserved, kept) = (reserved + instants.made, kept + instants.kept);
    }
    println!(
        "{named} elders, {waited} waited for budget, {reserved} had reservations, {kept} were held \
         to what was told"
    );
    assert!(named > 100 && waited > 20 && reserved > 20 && kept > 20, "{named}, {waited}, {kept}");
}
