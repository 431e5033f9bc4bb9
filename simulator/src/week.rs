//! A synthetic week of a research lab: 1,024 GPUs, 20 accounts, 150 users, more demand than supply.
//!
//! Everything follows from the seed. The mix is that of the prototype of the rules: 1 % of the
//! GPU-time asked is debugging, 3 % evaluation, 20 % fine-tuning, 76 % pretraining in closed chains,
//! and two accounts ask for nearly all of the cluster now and then. A quarter of the jobs ask no
//! protection. What is drawn otherwise than there: sizes and lengths are the plain ranges below,
//! and saving takes 0.14 s a GPU, four attempts at a time.

mod draw;
mod figures;

use std::collections::BTreeMap;

use tidegate_model::{AccountPath, GpuCount, JobId, Span, Timestamp, UserId};

use scheduler_core::{AccountRequest, Cut, Event, Policy, Size, WHOLE};

pub use self::draw::Kind;
use self::draw::{Draw, Wish};
pub use self::figures::Figures;
use crate::cluster::NodeForm;
use crate::world::{EPOCH, World, Wrong};

const NODES: u32 = 128;
const GPUS_PER_NODE: u32 = 8;
/// Parts of the cluster in percent, by programme; each is split likewise among four groups.
const PROGRAMMES: [u32; 5] = [35, 25, 20, 12, 8];
const GROUPS: [u32; 4] = [40, 30, 20, 10];
const USERS: u32 = 150;
/// How often ends of chains are looked for, and jobs that nobody wants any more are withdrawn.
const STEP: Span = Span::minutes(10);

/// What is asked of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// How long it lasts.
    pub days: u64,
    /// Jobs submitted before that day are not counted: the window fills first.
    pub counted_from: u64,
    /// GPU-time asked over GPU-time there is, in percent.
    pub load: u32,
    /// Whether every step is held against the invariants; slow.
    pub checked: bool,
}

/// One account with its users.
#[derive(Debug, Clone)]
struct Leaf {
    path: AccountPath,
    /// Part of the cluster, in millionths.
    part: u32,
    /// How much it asks of that part of all demand, in percent.
    demand: u32,
    users: std::ops::Range<u32>,
}

/// Plays a run and says what it came to.
///
/// # Errors
/// If an invariant does not hold, with its text.
pub fn run(options: Options) -> Result<Figures, String> {
    let mut nodes = Vec::new();
    for number in 1..=NODES {
        let name = format!("n{number}").parse().map_err(|error| format!("{error}"))?;
        let (gpus, block) = (GPUS_PER_NODE, format!("b{}", number / 16));
        nodes.push(NodeForm { name, gpus, block, product: "simulated".to_owned() });
    }
    let counted_from = Span::hours(options.counted_from.saturating_mul(24));
    let figures = Figures::new(EPOCH.plus(counted_from));
    let world = World::new(&nodes, Policy::default(), figures, options.checked);
    let world = world.map_err(|wrong| wrong.to_string())?;
    let draw = Draw::new(options.seed, options.load, NODES.saturating_mul(GPUS_PER_NODE));
    let mut lab =
        Lab { world, draw, leaves: Vec::new(), due: BTreeMap::new(), chains: BTreeMap::new() };
    lab.divide()?;
    lab.open();
    lab.play(EPOCH.plus(Span::hours(options.days.saturating_mul(24))))
        .map_err(|w| w.to_string())?;
    let span = lab.world.now().since(EPOCH);
    let all = GpuCount(NODES.saturating_mul(GPUS_PER_NODE));
    let mut figures = lab.world.observer.clone();
    figures.finished(all, span, |job| lab.world.progress(job));
    Ok(figures)
}

struct Lab {
    world: World<Figures>,
    draw: Draw,
    leaves: Vec<Leaf>,
    /// What will be submitted, by instant: by which leaf, and what.
    due: BTreeMap<(Timestamp, u64), (usize, Wish)>,
    /// Links of chains that have not ended.
    chains: BTreeMap<JobId, (usize, Wish)>,
}

impl Lab {
    fn divide(&mut self) -> Result<(), String> {
        self.set("default", 0)?;
        let mut users = 1;
        for (programme, percent) in (1..).zip(PROGRAMMES) {
            self.set(&format!("p{programme}"), percent.saturating_mul(WHOLE / 100))?;
            for (group, part) in (1..).zip(GROUPS) {
                let path = format!("p{programme}/g{group}");
                self.set(&path, part.saturating_mul(WHOLE / 100))?;
                let part = percent.saturating_mul(part).saturating_mul(WHOLE / 10_000);
                let count = (u64::from(USERS) * u64::from(part) / u64::from(WHOLE)).max(2);
                let end = u32::try_from(count).unwrap_or(2).saturating_add(users);
                let path = path.parse().map_err(|error| format!("{error}"))?;
                let demand = self.draw.demand();
                self.leaves.push(Leaf { path, part, demand, users: users..end });
                users = end;
            }
        }
        Ok(())
    }

    fn set(&mut self, path: &str, part: u32) -> Result<(), String> {
        let account = path.parse().map_err(|error| format!("{error}"))?;
        let request = AccountRequest::Set { account, size: Size::Share(part), cut: Cut::Now };
        let event = Event::AccountRequested { by: UserId(0), request };
        self.world.tell(&event).map(|_decided| ()).map_err(|wrong| wrong.to_string())
    }

    /// The first wishes of every leaf.
    fn open(&mut self) {
        for (index, leaf) in self.leaves.clone().iter().enumerate() {
            for kind in [Kind::Debug, Kind::Eval, Kind::Tuning] {
                self.await_next(index, kind, EPOCH);
            }
            for wish in self.draw.chains((leaf.part, leaf.demand)) {
                let at = EPOCH.plus(self.draw.pause());
                self.put(at, index, wish);
            }
        }
    }

    fn put(&mut self, at: Timestamp, leaf: usize, wish: Wish) {
        let number = u64::try_from(self.due.len()).unwrap_or(0).saturating_add(self.draw.number());
        self.due.insert((at, number), (leaf, wish));
    }

    fn await_next(&mut self, leaf: usize, kind: Kind, from: Timestamp) {
        let asks = self.leaves.get(leaf).map(|leaf| (leaf.part, leaf.demand));
        let Some(asks) = asks else { return };
        let (pause, wish) = self.draw.next(kind, asks);
        self.put(from.plus(pause), leaf, wish);
    }

    fn play(&mut self, end: Timestamp) -> Result<(), Wrong> {
        while self.world.now() < end {
            let step = self.world.now().plus(STEP).min(end);
            while let Some((key, (leaf, wish))) = self.due.pop_first() {
                if key.0 > step {
                    self.due.insert(key, (leaf, wish));
                    break;
                }
                self.world.run_until(key.0)?;
                self.submit(leaf, wish)?;
            }
            self.world.run_until(step)?;
            self.follow_chains();
            self.withdraw()?;
        }
        Ok(())
    }

    fn submit(&mut self, index: usize, wish: Wish) -> Result<(), Wrong> {
        let Some(leaf) = self.leaves.get(index).cloned() else { return Ok(()) };
        let user = UserId(self.draw.within(leaf.users.clone()));
        let Ok((spec, work)) = self.draw.job(leaf.path, &wish) else { return Ok(()) };
        let decided = self.world.submit(user, spec.clone(), work)?;
        let job = decided.iter().find_map(scheduler_core::Decision::answers);
        let job = job.and_then(Result::ok).map(|(job, _)| job);
        let now = self.world.now();
        if let Some(job) = job {
            self.world.observer.submitted(job, wish.kind, &spec, now);
        }
        match (wish.kind, job) {
            (Kind::Pretraining | Kind::Whole, Some(job)) => {
                self.chains.insert(job, (index, wish));
            }
            (Kind::Pretraining | Kind::Whole, None) => {}
            (kind, _) => self.await_next(index, kind, now),
        }
        Ok(())
    }

    /// After the end of a link the next is asked for.
    fn follow_chains(&mut self) {
        let books = self.world.core().books();
        let over = |job: &JobId| books.jobs.get(job).is_none_or(|job| !job.is_alive());
        let ended: Vec<JobId> = self.chains.keys().filter(|job| over(job)).copied().collect();
        for job in ended {
            let Some((leaf, wish)) = self.chains.remove(&job) else { continue };
            let (pause, next) = self.draw.next_link(&wish);
            self.put(self.world.now().plus(pause), leaf, next);
        }
    }

    /// What has not begun in the time in which anybody still wants it is cancelled.
    fn withdraw(&mut self) -> Result<(), Wrong> {
        let now = self.world.now();
        for job in self.world.observer.unwanted(now) {
            self.world.tell(&Event::CancelRequested { job, by: UserId(0) })?;
        }
        Ok(())
    }
}
