//! Long run: with endless demand everywhere each account's claim tends to L and its small use above
//! it (2-scheduling, invariant 9).
//!
//! What may be between them, from the second window on, as it follows from the rules:
//!
//! * above: the slack, since nobody displaces for less; more only for `settle`, in which an account
//!   that reached L is brought back to it by what slides out, and never more than B;
//! * below: the slack, and of each leaf the largest g*m of a job that is not funded yet, for which
//!   Funded work makes room once it is an elder; more only for `settle`, and then at most two terms
//!   more: what others have by which an ancestor is at its limit first, and the account's part of
//!   what the root lacks itself, since where the cluster cannot deliver more the ratios share out
//!   what there is.
//!
//! In the first case all jobs are of one size, saves take no time and ordinary work may hold all GPUs
//! Protected: nothing keeps GPU-time from being charged, and this is about how it is shared. What
//! others have is their small use.
//!
//! In the second sizes are mixed, saves take time and the cap is that of the policy. Fragments,
//! overhead and the cap leave GPU-time to nobody; the root is held to the slack and the jobs of its
//! leaves all the same. What others have is what they are above their own limits, until it has slid
//! out within `settle`: a gang needs all of its g*m at every ancestor at once.
//!
//! Endless demand is of every size in every leaf. Where large gangs alone wait, what does not fit them
//! is used Free or idles, and nobody is charged for it.

use std::collections::BTreeMap;

use scheduler_core::{JobState, Policy, WHOLE};
use simulator::{EPOCH, Work, World};
use tidegate_model::{Span, Timestamp, UserId};

use crate::lab::{self, pick};
use crate::ledger::{GpuMs, Ledger};

const TREE: [(&str, u32); 8] = [
    ("p", 62),
    ("p/a", 50),
    ("p/b", 50),
    ("p/b/x", 80),
    ("p/b/y", 20),
    ("q", 30),
    ("r", 8),
    ("r/z", 100),
];
const LEAVES: [&str; 5] = ["p/a", "p/b/x", "p/b/y", "q", "r/z"];
const HOUR: GpuMs = 3_600_000;
const SETTLE: Span = Span::hours(24);

/// A cluster, and what is asked of it.
struct Case {
    nodes: &'static [u32],
    /// Ordinary jobs of so many GPUs, and how many of each wait in each leaf at the least.
    asked: &'static [(u32, usize)],
    min_runtimes: &'static [Span],
    /// Longest time to save, in seconds.
    save: u64,
    protected_cap: u32,
    /// How often ordinary jobs commit unasked.
    commit_every: Span,
    /// Between two looks at demand and claims.
    step: Span,
    days: u64,
    /// What others may have that keeps an account from its limit.
    of_others: fn(&Ledger, &str, Timestamp) -> GpuMs,
}

/// All of one size, with saves that take no time.
const ALIKE: Case = Case {
    nodes: &[8; 4],
    asked: &[(4, 8)],
    min_runtimes: &[Span::hours(2)],
    save: 0,
    protected_cap: WHOLE,
    commit_every: Span::minutes(30),
    step: Span::minutes(20),
    days: 15,
    of_others: small_of_others,
};

/// Of all sizes, with saves that take time, below the cap on protected work.
const MIXED: Case = Case {
    nodes: &[8; 8],
    asked: &[(1, 4), (8, 2), (16, 1), (32, 1)],
    min_runtimes: &[Span::minutes(90), Span::hours(2), Span::hours(4)],
    save: 120,
    protected_cap: WHOLE / 10 * 9,
    commit_every: Span::hours(1),
    step: Span::hours(1),
    days: 11,
    of_others: Ledger::above_beside,
};

impl Case {
    /// The largest g*m of one job.
    fn largest_job(&self) -> GpuMs {
        let gpus = self.asked.iter().map(|(gpus, _)| *gpus).max().expect("a size");
        let longest = self.min_runtimes.iter().max().expect("a span");
        GpuMs::from(gpus) * GpuMs::from(longest.0)
    }
}

struct LongRun {
    case: &'static Case,
    world: World<Ledger>,
    /// Who has more than is theirs, and who has less.
    above: Beyond,
    below: Beyond,
    /// The most that was used of what may be lacking, in percent.
    lacked: GpuMs,
}

fn long_run(case: &'static Case, seed: u64) -> LongRun {
    let mut policy = Policy { keep_ended: Span::hours(24 * 30), ..Policy::default() };
    policy.sharing.pass_every = Span::minutes(10);
    policy.silent_after = Span::hours(1);
    policy.sharing.protected_cap = case.protected_cap;
    let mut world = lab::world(case.nodes, policy, Ledger::default());
    lab::divide(&mut world, &TREE);
    world.observer.share(case.nodes.iter().sum(), &TREE);
    let mut dice = fastrand::Rng::with_seed(seed);
    let (above, below) = Default::default();
    let mut run = LongRun { case, world, above, below, lacked: 0 };
    while run.world.now() < EPOCH.plus(Span::hours(24 * case.days)) {
        demand(run.case, &mut run.world, &mut dice);
        let next = run.world.now().plus(case.step);
        run.world.run_until(next).expect("a step");
        if next > EPOCH.plus(Span::hours(24 * 8)) {
            run.check(next);
        }
    }
    run
}

/// In every leaf more waits than the whole cluster could take; and now and then a small job.
fn demand(case: &Case, world: &mut World<Ledger>, dice: &mut fastrand::Rng) {
    let mut waiting: BTreeMap<(String, u32), usize> = BTreeMap::new();
    for job in world.core().books().jobs.values() {
        let waits = matches!(job.state, JobState::Pending { .. });
        if waits && job.spec.min_runtime > Span::hours(1) {
            *waiting.entry((job.spec.account.to_string(), job.spec.gpus.0)).or_default() += 1;
        }
    }
    for leaf in LEAVES {
        let user = UserId(dice.u32(1..4));
        for &(gpus, asked) in case.asked {
            let here = waiting.get(&(leaf.to_owned(), gpus)).copied().unwrap_or(0);
            for _ in here..asked {
                let run = Span::minutes(dice.u64(600..2400));
                let mut work = Work::lasting(Some(run), Span::seconds(dice.u64(0..=case.save)));
                work.commit_every = Some(case.commit_every);
                let min_runtime = pick(dice, case.min_runtimes);
                world.submit(user, lab::spec(leaf, gpus, min_runtime), work).expect("a step");
            }
        }
        if dice.u32(0..40) == 0 {
            let work = Work::lasting(Some(Span::minutes(dice.u64(2..20))), Span::ZERO);
            let small = lab::spec(leaf, 4, Span::minutes(20));
            world.submit(user, small, work).expect("a step");
        }
    }
}

impl LongRun {
    /// Holds every account's claim to its limits.
    fn check(&mut self, now: Timestamp) {
        let (ledger, at) = (&self.world.observer, now.since(EPOCH));
        let (whole, limit) = ledger.budgets[""];
        let lacks = (limit - ledger.claim("", now)).max(0);
        for (path, (budget, limit)) in &ledger.budgets {
            let (claim, small) = (ledger.claim(path, now), ledger.small(path, now));
            let slack = budget / 100;
            let figures = format!("{path} has {} GPU-h of {} at {at}", claim / HOUR, limit / HOUR);
            self.above.note(path, now, claim > limit + small + slack);
            assert!(claim <= *budget || claim <= limit + small + slack, "above B: {figures}");
            let leaves = LEAVES.iter().filter(|leaf| leaf.starts_with(path.as_str())).count();
            let jobs = GpuMs::try_from(leaves).expect("few leaves") * self.case.largest_job();
            self.below.note(path, now, claim < limit - slack - jobs);
            let share = if path.is_empty() { 0 } else { lacks * budget / whole };
            let short = slack + jobs + share + (self.case.of_others)(ledger, path, now);
            assert!(claim >= limit - short, "{} GPU-h short: {figures}", short / HOUR);
            self.lacked = self.lacked.max((limit - claim) * 100 / short);
        }
    }
}

/// Small use of others, by which an ancestor may be at its limit first.
fn small_of_others(ledger: &Ledger, path: &str, now: Timestamp) -> GpuMs {
    ledger.small("", now) - ledger.small(path, now)
}

/// Accounts that are beyond what they may be but for a while, and since when.
#[derive(Default)]
struct Beyond {
    since: BTreeMap<String, Timestamp>,
    longest: Span,
}

impl Beyond {
    fn note(&mut self, path: &str, now: Timestamp, is_beyond: bool) {
        if !is_beyond {
            self.since.remove(path);
            return;
        }
        let since = *self.since.entry(path.to_owned()).or_insert(now);
        self.longest = self.longest.max(now.since(since));
        assert!(now.since(since) <= SETTLE, "{path} since {}", since.since(EPOCH));
    }
}

/// A case is held to its limits, over all seeds.
fn check(case: &'static Case) {
    for seed in lab::seeds(0..1) {
        let run = long_run(case, seed);
        let ledger = &run.world.observer;
        assert!(ledger.wrong.is_empty(), "{}", ledger.wrong.join("\n"));
        assert!(ledger.displaced > 100, "{} displaced", ledger.displaced);
        let mut jobs = run.world.core().books().jobs.values();
        assert!(jobs.any(|job| job.elder.is_some()), "nobody waits as an elder");
        println!(
            "seed {seed}: above for {} at most, below for {}; {} % of what may be lacking was",
            run.above.longest, run.below.longest, run.lacked
        );
    }
}

#[test]
fn with_endless_demand_everywhere_each_account_has_its_limit_and_its_small_use_above() {
    check(&ALIKE);
}

#[test]
fn shares_hold_among_jobs_of_all_sizes_that_take_time_to_save_below_the_cap_on_protected_work() {
    check(&MIXED);
}
