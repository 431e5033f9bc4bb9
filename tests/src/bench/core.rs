//! The scheduler alone: how long one event takes with thousands waiting, and how fast a journal's
//! decisions are applied again.
//!
//! One core of the machine, no disk and no network. `cluster` draws the cluster, its accounts and
//! its work; nodes do what they are told.

mod cluster;

use std::hint::black_box;
use std::time::{Duration, Instant};

use scheduler_core::{Books, Core, Decision, Event, Stamp};
use tidegate_model::{DecisionSeq, Timestamp};

pub use self::cluster::Size;

use self::cluster::Drawn;
use super::report::{Figure, Goal, millis, number};
use crate::figures::percentile;

/// A lab: 128 nodes of 8 GPUs, 10,000 waiting jobs.
const LAB: Size = Size { nodes: 128, waiting: 10_000 };
/// As many nodes as the largest clusters have, and ten times the queue.
const LARGE: Size = Size { nodes: 1_250, waiting: 100_000 };
/// Events measured in each.
const EVENTS: usize = 6_000;
/// Events before the first that is measured: jobs start, end and make room.
const WARM_UP: usize = 2_000;
/// How many times the median a queue of twice the length may have.
const DOUBLED: f64 = 1.2;

/// One event in a lab with a queue, in one with twice the queue, and in a large cluster.
///
/// # Errors
/// If the core breaks.
pub fn measure() -> anyhow::Result<Vec<Figure>> {
    let mut lab = Run::begin(LAB, WARM_UP)?;
    let one = lab.events(EVENTS)?;
    let mut figures = one.figures("128 nodes, 10,000 waiting", Goal::AtMost(1.0));
    figures.extend(lab.replay()?);
    figures.push(lab.verdict());
    let half = Run::begin(Size { waiting: LAB.waiting / 2, ..LAB }, WARM_UP)?.events(EVENTS)?;
    figures.push(Figure {
        what: "median with 10,000 waiting over that with 5,000".into(),
        value: one.median() / half.median(),
        unit: "",
        n: EVENTS,
        goal: Goal::AtMost(DOUBLED),
    });
    let large = Run::begin(LARGE, WARM_UP)?.events(EVENTS / 6)?;
    figures.extend(large.figures("1,250 nodes, 100,000 waiting", Goal::AtMost(20.0)));
    Ok(figures)
}

/// A fixed load, and in one line what came of it and how long it took.
///
/// # Errors
/// If the core breaks.
pub fn load(size: Size, warm_up: usize, events: usize) -> anyhow::Result<String> {
    let mut run = Run::begin(size, warm_up)?;
    let before = run.journal.len();
    let taken = run.events(events)?;
    let at = |percent| percentile(&taken.events, percent).map_or(f64::NAN, millis);
    let decided = run.journal.len() - before;
    Ok(format!(
        "{events} events, {decided} durable decisions; p50 {:.3} ms, p90 {:.3} ms, p99 {:.3} ms, \
         max {:.3} ms",
        at(50),
        at(90),
        at(99),
        at(100),
    ))
}

/// What the events of one run took.
struct Taken {
    events: Vec<Duration>,
    deadlines: Vec<Duration>,
}

impl Taken {
    fn median(&self) -> f64 {
        percentile(&self.events, 50).map_or(f64::NAN, millis)
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
            figure("finding the next deadline p50", &self.deadlines, 50, Goal::None),
        ]
    }
}

struct Run {
    core: Core,
    drawn: Drawn,
    seq: u64,
    journal: Vec<(Stamp, Decision)>,
}

impl Run {
    /// Fills the cluster and its queue.
    fn begin(size: Size, warm_up: usize) -> anyhow::Result<Self> {
        let (core, journal) = (Core::default(), Vec::new());
        let mut run = Self { core, drawn: Drawn::new(size), seq: 0, journal };
        for event in run.drawn.founding() {
            run.apply(&event)?;
        }
        // While all nodes are silent the queue fills quickly.
        run.drawn.fall_silent();
        while u64::try_from(run.core.books().pending_jobs())? < size.waiting {
            let event = run.drawn.next(&run.core);
            run.apply(&event)?;
        }
        run.drawn.speak();
        run.apply(&Event::DeadlineReached)?;
        for _ in 0..warm_up {
            let event = run.drawn.next(&run.core);
            run.apply(&event)?;
        }
        Ok(run)
    }

    fn apply(&mut self, event: &Event) -> anyhow::Result<Duration> {
        self.seq += 1;
        let stamp = Stamp { at: self.drawn.now(), seq: DecisionSeq(self.seq) };
        self.drawn.hear(&mut self.core);
        let began = Instant::now();
        let decisions = self.core.apply(stamp, event)?;
        let took = began.elapsed();
        let durable = decisions.into_iter().filter(Decision::is_durable);
        self.journal.extend(durable.map(|decision| (stamp, decision)));
        Ok(took)
    }

    fn events(&mut self, count: usize) -> anyhow::Result<Taken> {
        let mut taken = Taken { events: Vec::new(), deadlines: Vec::new() };
        while taken.events.len() < count {
            let event = self.drawn.next(&self.core);
            taken.events.push(self.apply(&event)?);
            let began = Instant::now();
            black_box(self.core.next_deadline(self.drawn.now()));
            taken.deadlines.push(began.elapsed());
        }
        Ok(taken)
    }

    /// Applies all decisions so far again, as a restart does.
    fn replay(&self) -> anyhow::Result<Vec<Figure>> {
        let began = Instant::now();
        let mut books = Books::default();
        for (stamp, decision) in &self.journal {
            books.evolve(*stamp, decision)?;
        }
        let took = began.elapsed();
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
        let began = Instant::now();
        let verdict = self.core.dry_run(self.drawn.now(), Drawn::USER, &spec);
        let took = began.elapsed();
        assert!(verdict.is_err(), "no cluster has so many GPUs");
        Figure {
            what: "\"can never be served, because\"".into(),
            value: millis(took),
            unit: "ms",
            n: 1,
            goal: Goal::AtMost(1.0),
        }
    }
}

/// The instant at which all these histories begin.
const BEGIN: Timestamp = Timestamp(1_700_000_000_000);
