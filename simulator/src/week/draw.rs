//! What people of the lab ask for, drawn from the seed.

use tidegate_model::{AccountPath, GpuCount, JobSpec, Span, WhileWaiting};

use crate::cluster::job_spec;
use crate::work::Work;

/// What a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Minutes on a few GPUs, and somebody waits for it.
    Debug,
    /// A run over finished checkpoints.
    Eval,
    /// Fine-tuning: 8 to 32 GPUs.
    Tuning,
    /// A link of a chain: 64 or 128 GPUs.
    Pretraining,
    /// Nearly all of the cluster.
    Whole,
}

/// One job that somebody will ask for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) kind: Kind,
    gpus: u32,
    run: Span,
    min: Span,
}

/// All draws.
#[derive(Debug)]
pub(super) struct Draw {
    dice: fastrand::Rng,
    /// GPU-time asked over GPU-time there is, in percent.
    load: u32,
    gpus: u32,
    number: u64,
}

/// Saving and loading, in milliseconds a GPU.
const SAVE_PER_GPU: u64 = 140;
/// Nearly all of 1,024 GPUs: what a gang may hold.
const WHOLE_GPUS: u32 = 992;
/// Leaves of these parts of the cluster, in millionths, have a chain of whole-cluster jobs.
const WHOLE: [u32; 2] = [140_000, 100_000];

impl Draw {
    pub(super) fn new(seed: u64, load: u32, gpus: u32) -> Self {
        Self { dice: fastrand::Rng::with_seed(seed), load, gpus, number: 0 }
    }

    /// How much a leaf asks of what its part is of all that is asked, in percent.
    pub(super) fn demand(&mut self) -> u32 {
        self.dice.u32(50..160)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.number = self.number.saturating_add(1_000_000);
        self.number
    }

    pub(super) fn within(&mut self, range: std::ops::Range<u32>) -> u32 {
        self.dice.u32(range)
    }

    /// Ten minutes to two hours.
    pub(super) fn pause(&mut self) -> Span {
        Span::minutes(self.dice.u64(10..120))
    }

    /// The next wish of a kind in a leaf of that part and demand, and how long after the last.
    pub(super) fn next(&mut self, kind: Kind, (part, demand): (u32, u32)) -> (Span, Wish) {
        let wish = self.wish(kind);
        // Mean GPU-minutes of the ranges in `wish`.
        let (share, mean) = match kind {
            Kind::Debug => (1, 52),
            Kind::Eval => (3, 180),
            Kind::Tuning | Kind::Pretraining | Kind::Whole => (20, 7300),
        };
        let asked = u128::from(self.gpus) * u128::from(part) * u128::from(self.load);
        let asked = asked * u128::from(demand) * share;
        // GPU-milliseconds a millisecond, in units of 10^-12.
        let mean = u128::from(wish_ms(mean)) * 1_000_000_000_000;
        let pause = u64::try_from(mean / asked.max(1)).unwrap_or(u64::MAX);
        (Span(self.dice.u64(0..pause.saturating_mul(2).max(1))), wish)
    }

    fn wish(&mut self, kind: Kind) -> Wish {
        let free = self.dice.u32(0..4) == 0;
        let short = self.dice.bool();
        let (gpus, minutes, mins): (&[u32], _, &[u64]) = match kind {
            Kind::Debug => (&[1, 1, 2, 4, 8], self.between(2, 60), &[15, 30]),
            Kind::Eval => (&[1, 2, 4, 8], self.between(10, 180), &[30, 60, 120]),
            Kind::Tuning if short => (&[8, 16, 32], self.between(5, 30), &[120, 240]),
            Kind::Tuning => (&[8, 16, 32], self.between(180, 1440), &[120, 240]),
            Kind::Pretraining if short => (&[64, 128], self.between(10, 60), &[240]),
            Kind::Pretraining => (&[64, 128], self.between(720, 2880), &[240]),
            Kind::Whole => (&[WHOLE_GPUS], self.between(360, 720), &[120, 180, 240]),
        };
        let gpus = self.dice.choice(gpus).copied().unwrap_or(1);
        let min = self.dice.choice(mins).copied().unwrap_or(0);
        let min = if free && kind != Kind::Whole { Span::ZERO } else { Span::minutes(min) };
        Wish { kind, gpus, run: Span::minutes(minutes), min }
    }

    /// Log-uniform, to the factor of two.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        let (mut low, mut high) = (least, most);
        while high / low.max(1) >= 4 {
            let middle = low.saturating_mul(2);
            if self.dice.u32(0..(most / least).max(2).ilog2().max(1)) == 0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        self.dice.u64(low..=high)
    }

    /// The chains of a leaf: as many as ask for its part of pretraining.
    pub(super) fn chains(&mut self, (part, demand): (u32, u32)) -> Vec<Wish> {
        let asked = u64::from(self.gpus) * u64::from(part) * u64::from(self.load);
        let mut left = asked * u64::from(demand) * 76 / 1_000_000_000_000;
        let mut chains = Vec::new();
        while left >= 64 {
            let wish = self.wish(Kind::Pretraining);
            left = left.saturating_sub(wish.gpus.into());
            chains.push(wish);
        }
        if WHOLE.contains(&part) {
            chains.push(self.wish(Kind::Whole));
        }
        chains
    }

    pub(super) fn next_link(&mut self, last: &Wish) -> (Span, Wish) {
        let pause = match last.kind {
            Kind::Whole => Span::hours(self.dice.u64(48..120)),
            Kind::Debug | Kind::Eval | Kind::Tuning | Kind::Pretraining => self.pause(),
        };
        let next = self.wish(last.kind);
        (pause, Wish { gpus: last.gpus, ..next })
    }

    /// The job of a wish, and how it will behave.
    pub(super) fn job(
        &mut self,
        path: AccountPath,
        wish: &Wish,
    ) -> Result<(JobSpec, Work), String> {
        let mut spec = job_spec(path, GpuCount(wish.gpus))?;
        spec.min_runtime = wish.min;
        spec.while_waiting = WhileWaiting::Free;
        let moved = Span(SAVE_PER_GPU.saturating_mul(wish.gpus.into()).max(2000));
        let mut work = Work::lasting(Some(wish.run), moved);
        work.start = moved;
        work.commit_every = Some(Span::hours(1));
        Ok((spec, work))
    }
}

fn wish_ms(minutes: u32) -> u64 {
    u64::from(minutes).saturating_mul(60_000)
}
