//! The scheduler alone: how long one event takes with thousands waiting, and how fast a journal's
//! decisions are applied again.
//!
//! One core of the machine, no network; a disk only where it is said. `cluster` draws the cluster, its accounts and
//! its work; nodes do what they are told.

mod asks;
mod cluster;

use std::hint::black_box;
use std::time::{Duration, Instant};

use scheduler_core::{Books, Core, Decision, Event, Stamp};
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Journal, codec};
use tidegate_model::{ClusterId, DecisionSeq, Epoch, Span, Timestamp};

pub use self::cluster::Size;

use self::cluster::Drawn;
use super::report::{Figure, Goal, millis, number};
use super::usage::{resident, thread_time};
use crate::figures::percentile;

/// A lab: 128 nodes of 8 GPUs, 10,000 waiting jobs.
const LAB: Size = Size { nodes: 128, waiting: 10_000 };
/// As many nodes as the largest clusters have, and ten times the queue.
const LARGE: Size = Size { nodes: 1_250, waiting: 100_000 };
/// Events measured in each.
const EVENTS: usize = 6_000;
/// Events before the first that is measured: jobs start, end and make room.
const WARM_UP: usize = 2_000;
/// Verdicts measured.
const VERDICTS: usize = 100;
/// How many times the median a queue of twice the length may have.
const DOUBLED: f64 = 1.2;

/// Gangs of 64 nodes that are submitted, each at the same instant.
const GANGS: usize = 40;
/// Turns of the large cluster with all that an engine does in them.
const TURNS: usize = 1_000;

/// One event in a lab with a queue, in one with half the queue, and in a large cluster. Times are CPU
/// time of the one thread that does it all.
///
/// # Errors
/// If the core breaks.
pub fn measure() -> anyhow::Result<Vec<Figure>> {
    // First: nothing that is used before is used again.
    let mut large = Run::begin(LARGE, WARM_UP, false)?;
    let mut figures = vec![Figure {
        what: "memory of a waiting job, 1,250 nodes, 100,000 waiting".into(),
        value: number(large.filled) / number(LARGE.waiting),
        unit: "B",
        n: usize::try_from(LARGE.waiting)?,
        goal: Goal::AtMost(1024.0),
    }];
    let of_large = large.events(EVENTS / 2)?;
    figures.extend(of_large.figures("1,250 nodes, 100,000 waiting", Goal::AtMost(20.0)));
    figures.extend(large.turns(TURNS)?);
    drop(large);
    let mut lab = Run::begin(LAB, WARM_UP, true)?;
    figures.extend(lab.doubled()?);
    figures.extend(Run::gangs()?);
    figures.extend(asks::measure()?);
    let one = lab.events(EVENTS)?;
    figures.extend(one.figures("128 nodes, 10,000 waiting", Goal::AtMost(1.0)));
    figures.extend(one.examined());
    figures.extend(lab.replay()?);
    figures.push(lab.verdict());
    Ok(figures)
}

/// A fixed load, and in one line what came of it and how long it took.
///
/// # Errors
/// If the core breaks.
pub fn load(size: Size, warm_up: usize, events: usize) -> anyhow::Result<String> {
    let mut run = Run::begin(size, warm_up, true)?;
    let before = run.journal.len();
    let taken = run.events(events)?;
    let at = |percent| percentile(&taken.events, percent).map_or(f64::NAN, millis);
    let decided = run.journal.len() - before;
    let (p50, p90, p99, most) = (at(50), at(90), at(99), at(100));
    Ok(format!(
        "{events} events, {decided} durable decisions; p50 {p50:.3} ms, p90 {p90:.3} ms, p99 {p99:.3} ms, \
         max {most:.3} ms"
    ))
}

/// What the events of one run took.
#[derive(Default)]
struct Taken {
    events: Vec<Duration>,
    /// Of them those in which a pass looked at jobs.
    busy: Vec<Duration>,
    deadlines: Vec<Duration>,
    /// Jobs that passes looked at closely.
    looked_at: u64,
}

impl Taken {
    fn mean(&self) -> f64 {
        self.events.iter().sum::<Duration>().as_secs_f64() / counted(&self.events)
    }

    fn median_busy(&self) -> f64 {
        percentile(&self.busy, 50).map_or(f64::NAN, millis)
    }

    fn figures(&self, how: &str, goal: Goal) -> Vec<Figure> {
        let figure = |what: &str, samples: &[Duration], percent, goal| Figure {
            what: format!("{what}, {how}"),
            value: percentile(samples, percent).map_or(f64::NAN, millis),
            unit: "ms",
            n: samples.len(),
            goal,
        };
        vec![
            figure("one event p50", &self.events, 50, Goal::None),
            figure("one event p99", &self.events, 99, goal),
            figure("one event, the slowest", &self.events, 100, Goal::None),
            figure("finding the next deadline p50", &self.deadlines, 50, Goal::None),
        ]
    }

    fn examined(&self) -> Vec<Figure> {
        let n = self.events.len();
        let micros = self.events.iter().sum::<Duration>().as_secs_f64() * 1e6;
        let looked_at = number(self.looked_at);
        let figure = |what: &str, value, unit| Figure {
            what: what.into(),
            value,
            unit,
            n,
            goal: Goal::None,
        };
        vec![
            figure("jobs examined per event", looked_at / counted(&self.events), ""),
            figure("time per job examined", micros / looked_at, "us"),
        ]
    }
}

fn counted(samples: &[Duration]) -> f64 {
    number(u64::try_from(samples.len()).unwrap_or(u64::MAX))
}

#[derive(Clone)]
struct Run {
    core: Core,
    drawn: Drawn,
    seq: u64,
    keeps: bool,
    journal: Vec<(Stamp, Decision)>,
    /// What the queue added to this process's memory, in bytes.
    filled: u64,
}

impl Run {
    /// Fills the cluster and its queue.
    /// Without `keeps` no journal is kept: it is the measurement's, and takes more than the queue.
    fn begin(size: Size, warm_up: usize, keeps: bool) -> anyhow::Result<Self> {
        let (core, journal) = (Core::default(), Vec::new());
        let mut run = Self { core, drawn: Drawn::new(size), seq: 0, keeps, journal, filled: 0 };
        for event in run.drawn.founding() {
            run.apply(&event)?;
        }
        // While all nodes are silent the queue fills quickly.
        run.drawn.fall_silent();
        let before = resident();
        while u64::try_from(run.core.books().pending_jobs())? < size.waiting {
            let event = run.drawn.next(&run.core);
            run.apply(&event)?;
        }
        run.filled = resident().saturating_sub(before);
        run.drawn.speak();
        run.apply(&Event::DeadlineReached)?;
        for _ in 0..warm_up {
            let event = run.drawn.next(&run.core);
            run.apply(&event)?;
        }
        Ok(run)
    }

    /// Events beside those of the same cluster at the same instant with every other waiting job
    /// cancelled: on average, and the median of those that looked at waiting jobs.
    fn doubled(&self) -> anyhow::Result<Vec<Figure>> {
        let mut half = self.clone();
        half.cancel(2)?;
        half.drawn.halve();
        let (one, half) = (self.clone().events(EVENTS / 2)?, half.events(EVENTS / 2)?);
        let figure = |what: &str, value, goal| Figure {
            what: format!("{what} with 10,000 waiting over that with 5,000"),
            value,
            unit: "",
            n: EVENTS / 2,
            goal,
        };
        let busy = one.median_busy() / half.median_busy();
        Ok(vec![
            figure("median of events with a pass", busy, Goal::AtMost(DOUBLED)),
            figure("mean of all events", one.mean() / half.mean(), Goal::None),
        ])
    }

    /// Cancels every so manieth waiting job.
    fn cancel(&mut self, each: usize) -> anyhow::Result<()> {
        let waiting: Vec<_> = self.core.books().queue().map(|job| (job.id, job.user)).collect();
        for (job, by) in waiting.into_iter().step_by(each) {
            self.apply(&Event::CancelRequested { job, by })?;
        }
        Ok(())
    }

    /// One programme has the whole cluster, in jobs of one node and less that are past their min
    /// runtimes; nobody else waits.
    fn crowded() -> anyhow::Result<Self> {
        let (core, journal) = (Core::default(), Vec::new());
        let drawn = Drawn::new(Size { waiting: 0, ..LAB });
        let mut run = Self { core, drawn, seq: 0, keeps: true, journal, filled: 0 };
        for event in run.drawn.founding() {
            run.apply(&event)?;
        }
        while run.core.books().pending_jobs() == 0 {
            let event = run.drawn.crowd();
            run.apply(&event)?;
        }
        run.cancel(1)?;
        run.drawn.settle();
        while run.core.books().live_attempts().any(|one| one.running.is_none()) {
            let event = run.drawn.next(&run.core);
            run.apply(&event)?;
        }
        run.drawn.pass(Span::hours(9));
        run.apply(&Event::DeadlineReached)?;
        Ok(run)
    }

    /// How long it takes to plan a gang of half the nodes that displaces others.
    fn gangs() -> anyhow::Result<Vec<Figure>> {
        let (mut took, mut victims) = (Vec::new(), 0);
        for which in 0..GANGS {
            // Not a copy of one run: changing books that a copy shares would cost more.
            let mut run = Self::crowded()?;
            let event = run.drawn.gang(which);
            let before = run.journal.len();
            let one = run.apply(&event)?;
            let asked = run.journal.iter().skip(before);
            let asked =
                asked.filter(|(_, one)| matches!(one, Decision::SaveOrdered { .. })).count();
            if asked > 0 {
                took.push(one);
                victims += asked;
            }
        }
        let figure = |what: &str, percent| Figure {
            what: format!("{what}, {} victims each on average", victims / took.len().max(1)),
            value: percentile(&took, percent).map_or(f64::NAN, millis),
            unit: "ms",
            n: took.len(),
            goal: Goal::AtMost(1.0),
        };
        let of = "a submitted gang of 64 nodes that displaces others";
        Ok(vec![figure(&format!("{of}, p50"), 50), figure(&format!("{of}, the slowest"), 100)])
    }

    fn apply(&mut self, event: &Event) -> anyhow::Result<Duration> {
        self.seq += 1;
        let stamp = Stamp { at: self.drawn.now(), seq: DecisionSeq(self.seq) };
        self.drawn.hear(&mut self.core);
        let began = thread_time();
        let decisions = self.core.apply(stamp, event)?;
        let took = thread_time() - began;
        let durable = decisions.into_iter().filter(Decision::is_durable);
        if self.keeps {
            self.journal.extend(durable.map(|decision| (stamp, decision)));
        }
        Ok(took)
    }

    fn events(&mut self, count: usize) -> anyhow::Result<Taken> {
        let before = self.core.examined();
        let mut taken = Taken::default();
        while taken.events.len() < count {
            let event = self.drawn.next(&self.core);
            let known = self.core.examined();
            let took = self.apply(&event)?;
            taken.events.push(took);
            taken.busy.extend((self.core.examined() > known).then_some(took));
            let began = thread_time();
            black_box(self.core.next_deadline(self.drawn.now()));
            taken.deadlines.push(thread_time() - began);
        }
        taken.looked_at = self.core.examined() - before;
        Ok(taken)
    }

    /// Events with the append to a store and a copy for readers, each by the clock.
    fn turns(&mut self, count: usize) -> anyhow::Result<Vec<Figure>> {
        let dir = tempfile::Builder::new().prefix("tg-").tempdir()?;
        let mut journal = RedbJournal::open(&dir.path().join("store.redb"), ClusterId(1))?;
        let (mut whole, mut copies) = (Vec::new(), Vec::new());
        let mut published = Box::new(self.core.clone());
        for _ in 0..count {
            let event = self.drawn.next(&self.core);
            // As an engine numbers them: what decides nothing durable leaves no record.
            let stamp = Stamp { at: self.drawn.now(), seq: DecisionSeq(self.seq + 1) };
            self.drawn.hear(&mut self.core);
            let began = Instant::now();
            let decisions = self.core.apply(stamp, &event)?;
            if decisions.iter().any(Decision::is_durable) {
                let epoch = self.core.books().epoch.unwrap_or(Epoch(1));
                let bytes = codec::encode(stamp, epoch, &event, &decisions);
                journal.append(&[(stamp.seq, bytes)])?;
                self.seq += 1;
            }
            let copying = Instant::now();
            *published = self.core.clone();
            copies.push(copying.elapsed());
            whole.push(began.elapsed());
        }
        drop(published);
        let figure = |what: &str, samples: &[Duration], percent, goal| Figure {
            what: format!("{what}, 1,250 nodes, 100,000 waiting"),
            value: percentile(samples, percent).map_or(f64::NAN, millis),
            unit: "ms",
            n: samples.len(),
            goal,
        };
        let with = "one event, its append and a copy for readers";
        Ok(vec![
            figure(&format!("{with}, p50"), &whole, 50, Goal::None),
            figure(&format!("{with}, p99"), &whole, 99, Goal::AtMost(20.0)),
            figure("the copy alone, p50", &copies, 50, Goal::None),
        ])
    }

    /// Applies all decisions so far again, as a restart does.
    fn replay(&self) -> anyhow::Result<Vec<Figure>> {
        let began = thread_time();
        let mut books = Books::default();
        for (stamp, decision) in &self.journal {
            books.evolve(*stamp, decision)?;
        }
        let took = thread_time() - began;
        anyhow::ensure!(books == *self.core.books(), "the replay differs");
        let figure = |what: &str, count: u64, goal| Figure {
            what: what.into(),
            value: number(count) / took.as_secs_f64(),
            unit: "1/s",
            n: self.journal.len(),
            goal,
        };
        let decisions = u64::try_from(self.journal.len())?;
        Ok(vec![
            figure("events replayed", self.seq, Goal::AtLeast(200_000.0)),
            figure("decisions applied again", decisions, Goal::None),
        ])
    }

    /// How long the verdict takes that no nodes could ever serve a job.
    fn verdict(&mut self) -> Figure {
        let spec = self.drawn.unsatisfiable();
        let mut took: Vec<_> = Vec::new();
        for _ in 0..VERDICTS {
            let began = thread_time();
            let verdict = black_box(self.core.dry_run(self.drawn.now(), Drawn::USER, &spec));
            took.push(thread_time() - began);
            assert!(verdict.is_err(), "no cluster has so many GPUs");
        }
        Figure {
            what: "\"can never be served, because\", the slowest".into(),
            value: percentile(&took, 100).map_or(f64::NAN, millis),
            unit: "ms",
            n: VERDICTS,
            goal: Goal::AtMost(1.0),
        }
    }
}

/// The instant at which all these histories begin.
const BEGIN: Timestamp = Timestamp(1_700_000_000_000);
