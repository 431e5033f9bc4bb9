//! How long tasks have had idle GPUs: told while it lasts, and summed up for their end. Pure but for
//! the instants it is given.
//!
//! What is not here: how busy a GPU is (`sense::gpu`), and what follows from idleness (the
//! scheduler displaces who is idle first, and the report sums it up).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_model::{GpuUuid, Idle, Span, TaskId};

/// Percent of time with a kernel running, below which a GPU is idle (2-scheduling, "Victim cost").
const BUSY: u32 = 5;

/// Samples in a row until idleness is worth telling: a step that loads data is none.
const WORTH_TELLING: u32 = 6;

/// Samples further apart than this many of their usual distances say nothing of the time between.
const GAP: u32 = 3;

/// What was measured.
#[derive(Debug)]
pub struct Idleness {
    /// Between two samples.
    every: Duration,
    tasks: BTreeMap<TaskId, Watched>,
}

#[derive(Debug)]
struct Watched {
    sampled: Instant,
    /// Since when it is idle, and at how many samples it was.
    idle: Option<(Instant, u32)>,
}

impl Idleness {
    /// Of samples that are so far apart.
    #[must_use]
    pub fn every(every: Duration) -> Self {
        Self { every, tasks: BTreeMap::new() }
    }

    /// Takes a sample: how busy GPUs are now, in percent; one that cannot say is not there. Adds
    /// to the sums of the tasks that run.
    pub fn sample<'a>(
        &mut self,
        now: Instant,
        busy: &BTreeMap<GpuUuid, u32>,
        running: impl Iterator<Item = (TaskId, &'a [GpuUuid])>,
        sums: &mut BTreeMap<TaskId, Idle>,
    ) {
        let mut before = std::mem::take(&mut self.tasks);
        for (task, gpus) in running {
            let percents: Option<Vec<u32>> =
                gpus.iter().map(|gpu| busy.get(gpu).copied()).collect();
            // A task that is not measured as a whole is not measured.
            let Some(percents) = percents.filter(|percents| !percents.is_empty()) else { continue };
            let is_idle = percents.iter().all(|percent| *percent < BUSY);
            let last = before.remove(&task);
            let since = last.as_ref().map(|last| now.duration_since(last.sampled));
            let known = since.filter(|since| *since <= self.every.saturating_mul(GAP));
            let idle = match last.filter(|_| known.is_some()).and_then(|last| last.idle) {
                Some((since, samples)) if is_idle => Some((since, samples.saturating_add(1))),
                _ => is_idle.then_some((now, 1)),
            };
            let sum = sums.entry(task).or_default();
            let length = span(known.unwrap_or_default());
            sum.of = Span(sum.of.0.saturating_add(length.0));
            if is_idle {
                sum.idle = Span(sum.idle.0.saturating_add(length.0));
            }
            self.tasks.insert(task, Watched { sampled: now, idle });
        }
    }

    /// Tasks whose idleness is worth telling, and since when they are idle. Of a driver that says
    /// nothing any more nothing is told.
    #[must_use]
    pub fn idle(&self, now: Instant) -> BTreeMap<TaskId, Instant> {
        let recent = self.every.saturating_mul(GAP);
        let idle = |(task, watched): (&TaskId, &Watched)| {
            let (since, samples) = watched.idle?;
            let is_known = now.duration_since(watched.sampled) <= recent;
            (is_known && samples >= WORTH_TELLING).then_some((*task, since))
        };
        self.tasks.iter().filter_map(idle).collect()
    }
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn task() -> TaskId {
        "job-1.1.0".parse().unwrap()
    }

    /// One sample a second of a task with two GPUs; what is told and summed up then.
    fn check(samples: &[(u64, Option<[u32; 2]>)], told_since: Option<u64>, sum: (u64, u64)) {
        let gpus: [GpuUuid; 2] = ["GPU-a".parse().unwrap(), "GPU-b".parse().unwrap()];
        let began = Instant::now();
        let mut idleness = Idleness::every(SECOND);
        let mut sums = BTreeMap::new();
        for (at, percents) in samples {
            let busy = percents.map(|[a, b]| [(gpus[0].clone(), a), (gpus[1].clone(), b)]);
            let busy = busy.into_iter().flatten().collect();
            let running = std::iter::once((task(), &gpus[..]));
            idleness.sample(began + Duration::from_secs(*at), &busy, running, &mut sums);
        }
        let last = samples.last().map_or(0, |(at, _)| *at);
        let told = |later: u64| {
            let now = began + Duration::from_secs(last + later);
            idleness.idle(now).get(&task()).map(|since| since.duration_since(began).as_secs())
        };
        assert_eq!((told(0), told(3)), (told_since, told_since), "{samples:?}");
        assert_eq!(told(4), None, "nobody has looked for a while");
        let Idle { idle, of } = sums.get(&task()).copied().unwrap_or_default();
        assert_eq!((idle.0 / 1000, of.0 / 1000), sum, "{samples:?}");
    }

    #[test]
    fn a_task_is_idle_while_all_its_gpus_are_and_that_is_told_when_it_lasts() {
        let of = |from: u64, to: u64, percents| (from..=to).map(move |at| (at, Some(percents)));
        let idle: Vec<_> = of(0, 6, [0, 4]).collect();
        check(&idle, Some(0), (6, 6));
        check(&idle[..5], None, (4, 4));
        check(&of(0, 9, [0, 5]).collect::<Vec<_>>(), None, (0, 9));
        let later: Vec<_> = of(0, 3, [90, 0]).chain(of(4, 9, [0, 0])).collect();
        check(&later, Some(4), (6, 9));
        let busy_again: Vec<_> = of(0, 8, [0, 0]).chain(of(9, 9, [50, 0])).collect();
        check(&busy_again, None, (8, 9));
    }

    #[test]
    fn time_in_which_nobody_looked_is_not_measured_and_not_idle() {
        check(&[(0, Some([0, 0])), (3, Some([0, 0]))], None, (3, 3));
        check(&[(0, Some([0, 0])), (4, Some([0, 0])), (5, Some([0, 0]))], None, (1, 1));
        check(&[(0, Some([0, 0])), (1, None), (2, Some([0, 0]))], None, (0, 0));
        check(&[(0, None), (1, None)], None, (0, 0));
    }
}
