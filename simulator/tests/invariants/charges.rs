//! Budgets are exact over more than a window, and over restarts (2-scheduling, invariants 3 and 4).
//!
//! A cluster has 2.5 times the work it can do for nine days. At three instants the scheduler is
//! thrown away and restored from what it had decided; nodes are Unconfirmed then, and some of them
//! report late. All along, what every account has spent is recounted from when the virtual nodes
//! ran what, and every protected start, firm reservation and turn in place is held against the
//! funding test, by a ledger that shares no code with the scheduler's books.
//!
//! What may differ from the same days without restarts: whatever happens from the first restart on,
//! since nodes that have not reported take no work, and ends on silent nodes are heard of late. What
//! may not: all that happened before, and the charge of every attempt that ran over the same spans
//! with the same standings, whenever that was.

use scheduler_core::{AccountId, Amount, Attempt, Policy, totals};
use simulator::{EPOCH, Work, World};
use tidegate_model::{NodeName, Span, Timestamp, UserId, WhileWaiting};

use crate::lab::{self, pick};
use crate::ledger::Ledger;

const NODES: [u32; 6] = [8; 6];
const GPUS: u64 = 48;
const TREE: [(&str, u32); 6] =
    [("p", 60), ("p/a", 55), ("p/b", 45), ("q", 37), ("tiny", 1), ("idle", 2)];
const LEAVES: [&str; 4] = ["p/a", "p/b", "q", "tiny"];
const DAYS: u64 = 9;

/// GPU-milliseconds that are asked in an hour: 2.5 times those there are.
const ASKED: u64 = GPUS * 3_600_000 * 5 / 2;

struct Days {
    dice: fastrand::Rng,
    world: World<Ledger>,
    asked: u64,
    compared: u32,
}

impl Days {
    fn new(seed: u64) -> Self {
        let mut policy = Policy { keep_ended: Span::hours(24 * 30), ..Policy::default() };
        policy.sharing.pass_every = Span::minutes(10);
        policy.silent_after = Span::minutes(10);
        let mut world = lab::world(&NODES, policy, Ledger::default());
        lab::divide(&mut world, &TREE);
        world.observer.share(48, &TREE);
        Self { dice: fastrand::Rng::with_seed(seed), world, asked: 0, compared: 0 }
    }

    /// Submits what falls into the next hour, at its instants.
    fn demand(&mut self) -> Vec<(Timestamp, UserId, tidegate_model::JobSpec, Work)> {
        let (dice, begin) = (&mut self.dice, self.world.now());
        let mut wishes = Vec::new();
        self.asked += ASKED;
        while self.asked > 0 {
            let (gpus, minutes, run) = match dice.u32(0..6) {
                0..3 => (pick(dice, &[1, 2, 4]), pick(dice, &[10, 30, 60]), dice.u64(5..90)),
                3 => (pick(dice, &[1, 4, 8]), 0, dice.u64(10..300)),
                4 => (pick(dice, &[8, 16]), pick(dice, &[60, 120, 240]), dice.u64(60..600)),
                _ => (pick(dice, &[16, 24, 40]), pick(dice, &[120, 240]), dice.u64(60..1200)),
            };
            self.asked = self.asked.saturating_sub(u64::from(gpus) * run * 60_000);
            let mut spec = lab::spec(pick(dice, &LEAVES), gpus, Span::minutes(minutes));
            if dice.u32(0..4) == 0 {
                spec.while_waiting = WhileWaiting::Wait;
            }
            let run = Span(run * 60_000 + dice.u64(0..1000));
            let mut work = Work::lasting(Some(run), Span(dice.u64(0..100_000)));
            work.start = Span(dice.u64(0..40_000));
            work.commit_every = Some(Span::minutes(50));
            let at = begin.plus(Span(dice.u64(0..3_600_000)));
            wishes.push((at, UserId(dice.u32(1..4)), spec, work));
        }
        wishes.sort_by_key(|(at, ..)| *at);
        wishes
    }

    fn hour(&mut self) {
        let end = self.world.now().plus(Span::hours(1));
        for (at, user, spec, work) in self.demand() {
            self.world.run_until(at).expect("a step");
            self.world.submit(user, spec, work).expect("a step");
        }
        self.world.run_until(end).expect("a step");
        self.compare();
    }

    /// What accounts are said to have spent and been promised equals the ledger's recount.
    fn compare(&mut self) {
        let (books, now) = (self.world.core().books(), self.world.now());
        for path in self.world.observer.budgets.keys() {
            let id = path
                .parse()
                .map_or(AccountId(0), |path| books.accounts.find(&path).expect("an account").id);
            let account = books.accounts.get(id).expect("an account");
            let at = now.since(EPOCH);
            let (spent, claim) = (account.charged.value(now), account.claim(now));
            assert_eq!(
                spent,
                Amount(self.world.observer.spent(path, now) * 1000),
                "{path} at {at}"
            );
            assert_eq!(
                claim,
                Amount(self.world.observer.claim(path, now) * 1000),
                "{path} at {at}"
            );
            let budget = self.world.observer.budgets[path].0 * 1000;
            assert!(spent.0 <= budget, "{path} is charged {spent} of {budget} at {at}");
            self.compared += 1;
        }
    }

    /// Another scheduler takes over after a while; some nodes report to it late.
    fn restart(&mut self, dice: &mut fastrand::Rng) {
        let late: Vec<NodeName> = lab::nodes(&NODES).into_iter().map(|form| form.name).collect();
        let late: Vec<_> = late.into_iter().filter(|_| dice.u32(0..3) == 0).collect();
        self.world.take_down();
        let away = self.world.now().plus(Span(dice.u64(0..30 * 60_000)));
        late.iter().for_each(|node| self.world.silence(node));
        self.world.run_until(away).expect("a step");
        self.world.restart().expect("a restart");
        self.compare();
        for node in &late {
            let heard = self.world.now().plus(Span(dice.u64(0..60 * 60_000)));
            self.world.run_until(heard).expect("a step");
            self.world.hear_again(node).expect("a step");
            self.compare();
        }
    }

    /// What nodes said of how long tasks ran is what they saw; nothing was above its funding.
    fn close(&self) {
        let ledger = &self.world.observer;
        assert!(ledger.wrong.is_empty(), "{}", ledger.wrong.join("\n"));
        for (task, said) in &ledger.said {
            let ran = self.world.ran(*task).and_then(|(from, until)| Some(until?.since(from)));
            assert_eq!(*said, ran.unwrap_or(Span::ZERO), "{task}");
            let running = ledger.runs[&task.attempt].running;
            let began = self.world.ran(*task).map(|(from, _)| from);
            assert!(running.is_none() || began <= running, "{task} is charged before it ran");
        }
    }
}

/// The days with restarts in these hours, and how long it was until the first.
fn days(seed: u64, restarts: &[u64]) -> Days {
    let mut days = Days::new(seed);
    let mut dice = fastrand::Rng::with_seed(seed + 1000);
    let end = EPOCH.plus(Span::hours(24 * DAYS));
    let mut hour = 0;
    while days.world.now() < end {
        if restarts.contains(&hour) {
            days.restart(&mut dice);
        }
        days.hour();
        hour += 1;
    }
    days.close();
    days
}

/// What an attempt is charged in all.
fn net(attempt: &Attempt, now: Timestamp) -> Amount {
    let [protected, funded, _free, excused] = totals(attempt, now);
    protected + funded - excused
}

#[test]
fn nine_days_are_charged_to_the_millisecond_over_three_restarts() {
    for seed in lab::seeds(0..1) {
        let mut dice = fastrand::Rng::with_seed(seed + 2000);
        let hours = [dice.u64(5..60), dice.u64(60..150), dice.u64(150..200)];
        let (with, without) = (days(seed, &hours), days(seed, &[]));
        let first = EPOCH.plus(Span::hours(hours[0]));
        let (one, other) = (&with.world.observer, &without.world.observer);
        assert!(one.tested > 300 && one.displaced > 30, "{} starts", one.tested);
        let (mut alike, mut before) = (0, 0);
        let ends = [with.world.now(), without.world.now()];
        for (id, run) in &one.runs {
            let same = other.runs.get(id);
            if run.running.is_some_and(|at| at < first) {
                let same = same.expect("it runs without restarts too");
                assert_eq!(run.charged(first), same.charged(first), "{id} before a restart");
                before += 1;
            }
            let charged = run.charged(ends[0]);
            let same = same.filter(|same| same.charged(ends[1]) == charged);
            if same.is_some() && !charged.is_empty() {
                let books = [with.world.core().books(), without.world.core().books()];
                let [one, other] = books.map(|books| books.attempt(*id).expect("it is kept"));
                assert_eq!(net(one, ends[0]), net(other, ends[1]), "{id}");
                alike += 1;
            }
        }
        println!(
            "seed {seed}: restarts after {hours:?} h, {} runs, {before} before the first, {alike} \
             alike; {} starts tested, {} displaced, {} comparisons",
            one.runs.len(),
            one.tested,
            one.displaced,
            with.compared + without.compared
        );
        assert!(before > 30 && alike > 30, "{before} runs before a restart, {alike} alike");
    }
}
