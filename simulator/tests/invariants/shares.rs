//! Long run: with endless demand everywhere each account's claim tends to L and its small use above
//! it (2-scheduling, invariant 9).
//!
//! What may be between them, from the second window on, as it follows from the rules:
//!
//! * above: the slack, since nobody displaces for less; more only for `settle`, in which an account
//!   that reached L is brought back to it by what slides out, and never more than B;
//! * below: the slack; of each leaf g*m of the job that is not funded yet, for which Funded work makes
//!   room once it is an elder; small use of others, by which an ancestor may be at its limit
//!   first; and the account's part of what the root lacks itself, since where the cluster cannot
//!   deliver more the ratios share out what there is.
//!
//! All jobs are of one size, saves take no time and ordinary work may hold all GPUs Protected:
//! fragments, overhead and the cap of 90 % keep GPU-time from being charged to anybody at all, and
//! this is about how it is shared.

use std::collections::BTreeMap;

use scheduler_core::{Policy, WHOLE};
use simulator::{EPOCH, Work, World};
use tidegate_model::{Span, Timestamp, UserId};

use crate::lab;
use crate::ledger::{GpuMs, Ledger};

const NODES: [u32; 4] = [8; 4];
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
/// Of every job.
const GPUS: u32 = 4;
/// g*m of an ordinary job: 2 hours.
const ONE_JOB: GpuMs = 4 * 2 * HOUR;
const SETTLE: Span = Span::hours(24);
const STEP: Span = Span::minutes(20);

struct LongRun {
    world: World<Ledger>,
    /// Since when accounts have more than is theirs.
    above: BTreeMap<String, Timestamp>,
    longest_above: Span,
    /// The most that was used of what may be lacking, in percent.
    lacked: GpuMs,
}

fn long_run(seed: u64) -> LongRun {
    let mut policy = Policy { keep_ended: Span::hours(24 * 30), ..Policy::default() };
    policy.sharing.pass_every = Span::minutes(10);
    policy.silent_after = Span::hours(1);
    policy.sharing.protected_cap = WHOLE;
    let mut world = lab::world(&NODES, policy, Ledger::default());
    lab::divide(&mut world, &TREE);
    world.observer.share(32, &TREE);
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut run = LongRun { world, above: BTreeMap::new(), longest_above: Span::ZERO, lacked: 0 };
    while run.world.now() < EPOCH.plus(Span::hours(24 * 15)) {
        demand(&mut run.world, &mut dice);
        let next = run.world.now().plus(STEP);
        run.world.run_until(next).expect("a step");
        if next > EPOCH.plus(Span::hours(24 * 8)) {
            run.check(next);
        }
    }
    run
}

/// In every leaf more waits than the whole cluster could take; and now and then a small job.
fn demand(world: &mut World<Ledger>, dice: &mut fastrand::Rng) {
    let mut waiting: BTreeMap<String, u32> = BTreeMap::new();
    for job in world.core().books().jobs.values() {
        if job.is_alive() && job.spec.min_runtime > Span::hours(1) {
            *waiting.entry(job.spec.account.to_string()).or_default() += 1;
        }
    }
    for leaf in LEAVES {
        let user = UserId(dice.u32(1..4));
        for _ in waiting.get(leaf).copied().unwrap_or(0)..10 {
            let mut work = Work::lasting(Some(Span::minutes(dice.u64(600..2400))), Span::ZERO);
            work.commit_every = Some(Span::minutes(30));
            let ordinary = lab::spec(leaf, GPUS, Span::hours(2));
            world.submit(user, ordinary, work).expect("a step");
        }
        if dice.u32(0..40) == 0 {
            let work = Work::lasting(Some(Span::minutes(dice.u64(2..20))), Span::ZERO);
            let small = lab::spec(leaf, GPUS, Span::minutes(20));
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
        let all_small = ledger.small("", now);
        for (path, (budget, limit)) in &ledger.budgets {
            let (claim, small) = (ledger.claim(path, now), ledger.small(path, now));
            let slack = budget / 100;
            if claim > limit + small + slack {
                let since = *self.above.entry(path.clone()).or_insert(now);
                self.longest_above = self.longest_above.max(now.since(since));
                let why =
                    format!("{path} has {} GPU-h of {} since {at}", claim / HOUR, limit / HOUR);
                assert!(now.since(since) <= SETTLE && claim <= *budget, "{why}");
            } else {
                self.above.remove(path);
            }
            let leaves = LEAVES.iter().filter(|leaf| leaf.starts_with(path.as_str())).count();
            let jobs = GpuMs::try_from(leaves).expect("few leaves") * ONE_JOB;
            let share = if path.is_empty() { 0 } else { lacks * budget / whole };
            let short = slack + jobs + share + all_small - small;
            let least = limit - short;
            let why = format!("{path} has {} GPU-h, not {}, at {at}", claim / HOUR, least / HOUR);
            assert!(claim >= least, "{why}");
            self.lacked = self.lacked.max((limit - claim) * 100 / short);
        }
    }
}

#[test]
fn with_endless_demand_everywhere_each_account_has_its_limit_and_its_small_use_above() {
    for seed in lab::seeds(0..1) {
        let run = long_run(seed);
        let ledger = &run.world.observer;
        assert!(ledger.wrong.is_empty(), "{}", ledger.wrong.join("\n"));
        assert!(ledger.displaced > 100, "{} displaced", ledger.displaced);
        println!(
            "seed {seed}: above for {} at most; {} % of what may be lacking was",
            run.longest_above, run.lacked
        );
    }
}
