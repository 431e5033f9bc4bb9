//! Whatever befalls a cluster, in whatever order, every step keeps the invariants: the audit is
//! empty, replay makes the same books, a second pass decides nothing, and nothing idles that could
//! run.

#[path = "invariants/conserving.rs"]
mod conserving;
#[path = "invariants/seeds.rs"]
mod seeds;

use scheduler_core::{
    AccountRequest, Books, Cut, Decision, Event, GateRequest, GateRule, JobRequest, Policy, Size,
};
use simulator::{Asks, EPOCH, NodeForm, Observer, OnSave, Work, World, Wrong, job_spec};
use tidegate_model::{
    ArrayPlace, AsksWithin, Bandwidth, Bytes, GpuCount, JobId, NodeName, Span, SubmitKey,
    Timestamp, UserId, WhileWaiting,
};

/// Seeds in a run of the tests; `CHAOS_SEEDS=from..to` names others.
const SEEDS: std::ops::Range<u64> = 0..2;
/// Things that befall a cluster under one seed.
const STEPS: u32 = 80;
const ROOT: UserId = UserId(0);
const LEAVES: [&str; 4] = ["p/a", "p/b", "q", "zero"];

struct Nobody;

impl Observer for Nobody {
    fn saw(&mut self, _before: &Books, _at: Timestamp, _decision: &Decision) {}
}

#[test]
fn whatever_befalls_a_cluster_the_invariants_hold() {
    let wrong: Vec<_> =
        seeds::seeds(SEEDS).filter_map(|seed| Some((seed, chaos(seed).err()?))).collect();
    let told: Vec<_> = wrong.iter().map(|(seed, why)| format!("seed {seed}: {why}")).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
}

struct Chaos {
    dice: fastrand::Rng,
    world: World<Nobody>,
    nodes: Vec<NodeName>,
}

fn chaos(seed: u64) -> Result<(), Wrong> {
    let mut dice = fastrand::Rng::with_seed(seed);
    let forms: Vec<NodeForm> = (1..=dice.u32(2..6))
        .map(|number| NodeForm {
            name: format!("n{number}").parse().expect("a name"),
            gpus: if dice.bool() { 8 } else { 4 },
            block: if dice.bool() { "a".to_owned() } else { "b".to_owned() },
            product: "simulated".to_owned(),
        })
        .collect();
    let mut policy = Policy::default();
    policy.sharing.patience = Span::minutes(dice.u64(30..600));
    policy.sharing.elder_gap = Span::minutes(dice.u64(0..120));
    policy.sharing.gate_width = dice.u32(1..5);
    policy.sharing.gang_cap = 1_000_000;
    if seed.is_multiple_of(2) {
        // Without expected starts it is plain who may start on what is idle.
        policy.sharing.max_reservations = 0;
    }
    policy.keep_ended = Span::hours(168);
    let nodes = forms.iter().map(|form| form.name.clone()).collect();
    let mut chaos = Chaos { dice, world: World::new(&forms, policy, Nobody, true)?, nodes };
    chaos.divide()?;
    chaos.limit()?;
    for step in 0..STEPS {
        let minutes = if chaos.dice.u32(0..80) == 0 { 3000 } else { chaos.dice.u64(0..40) };
        let pause = Span::minutes(minutes).0.saturating_add(chaos.dice.u64(0..3));
        let until = chaos.world.now().plus(Span(pause));
        chaos.world.run_until(until)?;
        chaos.befall(step)?;
        chaos.nothing_idles()?;
    }
    let end = chaos.world.now().plus(Span::hours(12));
    chaos.world.run_until(end)
}

impl Chaos {
    /// After a pass.
    fn nothing_idles(&mut self) -> Result<(), Wrong> {
        self.world.tell(&Event::DeadlineReached)?;
        let idles = conserving::who_could_start(self.world.core(), self.world.now());
        assert_eq!(idles, None, "at {}", self.world.now().since(EPOCH));
        Ok(())
    }

    fn divide(&mut self) -> Result<(), Wrong> {
        let small = u64::from(self.dice.u32(4..60));
        let sizes = [
            ("default", Size::Share(0)),
            ("p", Size::Share(500_000)),
            ("p/a", Size::Fixed(scheduler_core::Amount::gpu_hours(small))),
            ("p/b", Size::Share(300_000)),
            ("q", Size::Fixed(scheduler_core::Amount::gpu_hours(small))),
            ("zero", Size::Share(0)),
        ];
        sizes.into_iter().try_for_each(|(path, size)| self.set(path, size, Cut::Now))
    }

    /// The storage target has a cap under most seeds, of which a checkpoint takes a while; later another one.
    fn limit(&mut self) -> Result<(), Wrong> {
        if self.dice.u32(0..4) == 0 {
            return Ok(());
        }
        let rule = GateRule {
            cap: Some(Bandwidth(self.dice.u64(4..64) << 20)),
            writers: self.dice.bool().then_some(self.dice.u32(1..6)),
            reads: self.dice.bool().then_some(Bandwidth(self.dice.u64(4..64) << 20)),
            floor: self.dice.bool().then_some(Bandwidth(1 << 20)),
            node: self.dice.bool().then_some(Bandwidth(self.dice.u64(2..32) << 20)),
            ..GateRule::default()
        };
        let storage = "shared".parse().expect("a name");
        let request = GateRequest::Set(rule);
        self.world.tell(&Event::GateRequested { storage, by: ROOT, request }).map(|_decided| ())
    }

    fn set(&mut self, path: &str, size: Size, cut: Cut) -> Result<(), Wrong> {
        let account = path.parse().expect("a path");
        let request = AccountRequest::Set { account, size, cut };
        self.world.tell(&Event::AccountRequested { by: ROOT, request }).map(|_decided| ())
    }

    fn leaf(&mut self) -> &'static str {
        let index = self.dice.usize(0..LEAVES.len());
        LEAVES.get(index).copied().unwrap_or("q")
    }

    fn node(&mut self) -> NodeName {
        let index = self.dice.usize(0..self.nodes.len());
        self.nodes.get(index).cloned().expect("a node")
    }

    fn job(&mut self) -> Option<JobId> {
        let live: Vec<_> = self.world.core().books().jobs.values().cloned().collect();
        let live: Vec<_> = live.iter().filter(|job| job.is_alive()).map(|job| job.id).collect();
        let index = self.dice.usize(0..live.len().max(1));
        live.get(index).copied()
    }

    fn befall(&mut self, step: u32) -> Result<(), Wrong> {
        let node = self.node();
        let asked = match self.dice.u32(0..40) {
            0 => Event::DrainRequested {
                node,
                by: ROOT,
                reason: "chaos".to_owned(),
                wanted_by: None,
            },
            1..=3 => Event::ResumeRequested { node, by: ROOT },
            4 => {
                self.world.silence(&node);
                return Ok(());
            }
            5 | 6 => return self.world.hear_again(&node),
            7 => Event::NodeDeclaredLost { node, by: ROOT },
            8 => return self.world.reboot(&node),
            9 => {
                self.world.take_down();
                let away = Span::minutes(self.dice.u64(0..300));
                let until = self.world.now().plus(away);
                self.world.run_until(until)?;
                return self.world.restart();
            }
            10 => {
                let hours = u64::from(self.dice.u32(1..80));
                let cut = if self.dice.bool() { Cut::Now } else { Cut::Gradual };
                let size = Size::Fixed(scheduler_core::Amount::gpu_hours(hours));
                let leaf = if self.dice.bool() { "q" } else { "p/a" };
                return self.set(leaf, size, cut);
            }
            11 => {
                let (from, to) = ("q".parse().expect("a path"), "p/a".parse().expect("a path"));
                let amount = scheduler_core::Amount::gpu_hours(u64::from(self.dice.u32(1..9)));
                let request = AccountRequest::Transfer {
                    from,
                    to,
                    amount,
                    permanent: self.dice.bool(),
                    key: None,
                };
                Event::AccountRequested { by: ROOT, request }
            }
            12 if self.dice.bool() => Event::GateRequested {
                storage: "shared".parse().expect("a name"),
                by: ROOT,
                request: GateRequest::Pause { reason: "chaos".to_owned() },
            },
            12 | 13 => Event::GateRequested {
                storage: "shared".parse().expect("a name"),
                by: ROOT,
                request: GateRequest::Resume,
            },
            14 => return self.limit(),
            15..=18 => return self.befall_job(),
            _ => return self.submit(step),
        };
        self.world.tell(&asked).map(|_decided| ())
    }

    fn befall_job(&mut self) -> Result<(), Wrong> {
        let Some(job) = self.job() else { return Ok(()) };
        let request = match self.dice.u32(0..7) {
            0 => return self.world.fail(job),
            1 => return self.world.commit(job),
            2 => JobRequest::Park,
            3 => JobRequest::Release,
            4 => JobRequest::AllowElder,
            5 => JobRequest::DropReservation,
            _ => {
                let event = Event::CancelRequested { job, by: ROOT };
                return self.world.tell(&event).map(|_decided| ());
            }
        };
        self.world.tell(&Event::JobRequested { job, by: ROOT, request }).map(|_decided| ())
    }

    fn submit(&mut self, step: u32) -> Result<(), Wrong> {
        let dice = &mut self.dice;
        let gpus = *dice.choice(&[1, 1, 2, 4, 4, 8, 8, 12, 16, 24]).unwrap_or(&1);
        let minutes = *dice.choice(&[0, 0, 10, 30, 60, 60, 120, 240]).unwrap_or(&0);
        let on_save = *dice
            .choice(&[
                OnSave::Commit,
                OnSave::Commit,
                OnSave::Commit,
                OnSave::Ignore,
                OnSave::Leave,
            ])
            .unwrap_or(&OnSave::Commit);
        let mut work =
            Work::lasting(Some(Span::minutes(dice.u64(5..600))), Span::seconds(dice.u64(1..400)));
        work.on_save = on_save;
        work.asks = *dice
            .choice(&[
                Asks::Nothing,
                Asks::Nothing,
                Asks::Nothing,
                Asks::Writes,
                Asks::Restores,
                Asks::ForNothing,
            ])
            .unwrap_or(&Asks::Writes);
        let mut length = || Span::seconds(*dice.choice(&[0, 0, 20, 90]).unwrap_or(&0));
        // What a job says of its step need not be so.
        let (asks_after, asks_within) = (length(), length());
        work.asks_after = asks_after;
        work.bytes = Bytes(dice.u64(1..2000) << 20);
        work.start =
            Span::seconds(*dice.choice(&[0, 0, 0, 0, 0, 0, 30, 30, 30, 700]).unwrap_or(&0));
        work.stop = Span::seconds(*dice.choice(&[0, 10, 100]).unwrap_or(&0));
        work.commit_every = dice.bool().then_some(Span::minutes(45));
        let user = UserId(dice.u32(1..4));
        let (keeps, waits, order) = (dice.u32(0..6) > 0, dice.bool(), dice.i32(0..3));
        let account = self.leaf().parse().expect("a path");
        let mut spec = job_spec(account, GpuCount(gpus)).expect("a job");
        spec.min_runtime = Span::minutes(minutes);
        if let Some(offer) = spec.checkpoint.as_mut().filter(|_| work.asks != Asks::Nothing) {
            offer.asks_within = AsksWithin::of(asks_within);
        }
        spec.own_order = order;
        if !keeps {
            spec.checkpoint = None;
        }
        if waits {
            spec.while_waiting = WhileWaiting::Wait;
        }
        if step.is_multiple_of(9) {
            spec.max_blocks = Some(1);
        }
        if step.is_multiple_of(3) {
            let (key, at_a_time) = (SubmitKey((step % 2).into()), 1 + step % 2);
            spec.array = Some(Box::new(ArrayPlace { key, at_a_time }));
        }
        self.world.submit(user, spec, work).map(|_decided| ())
    }
}
