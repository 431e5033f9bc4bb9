//! The promises that the demo puts to the test, what it found, and its figures for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::blows::Kind;
use super::sharing::facts::Facts;

/// What must hold, whatever is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    /// Of all kills.
    NothingElseStops,
    /// Of kills of ranks and shims.
    GangResumes,
    /// Of kills of daemons.
    WorkGoesOn,
    /// Of the coordinator.
    JobsSurvive,
    /// Of submits.
    KeyIsOneJob,
    /// Of everything.
    NoRankTwice,
    /// Of drains.
    DrainKeepsWork,
    /// Of cancels.
    CancelLeavesNothing,
    /// Of free work.
    FreeGivesWay,
    /// Of min runtimes.
    ProtectedStays,
    /// Of the queue.
    PlaceIsKept,
    /// Of small jobs.
    SmallAtOnce,
    /// Of budgets.
    ChargedOnce,
    /// Of jobs.
    JobsEndRight,
}

impl Promise {
    /// All, as they are told.
    const ALL: [Self; 14] = [
        Self::NothingElseStops,
        Self::GangResumes,
        Self::WorkGoesOn,
        Self::JobsSurvive,
        Self::KeyIsOneJob,
        Self::NoRankTwice,
        Self::DrainKeepsWork,
        Self::CancelLeavesNothing,
        Self::FreeGivesWay,
        Self::ProtectedStays,
        Self::PlaceIsKept,
        Self::SmallAtOnce,
        Self::ChargedOnce,
        Self::JobsEndRight,
    ];

    fn text(self) -> &'static str {
        match self {
            Self::NothingElseStops => {
                "a kill stops nothing but the gang whose rank or shim it hits"
            }
            Self::GangResumes => "that gang starts again, once, from its last save",
            Self::WorkGoesOn => "what a killed daemon was in the middle of is carried on",
            Self::JobsSurvive => "jobs accepted before the coordinator was killed are all there",
            Self::KeyIsOneJob => "a submit repeated with one key is one job",
            Self::NoRankTwice => "no rank ever runs twice",
            Self::DrainKeepsWork => {
                "a drained node takes no new work and keeps what is protected on it"
            }
            Self::CancelLeavesNothing => "of a cancelled job no process is left",
            Self::FreeGivesWay => "free work saves and leaves for funded work; its commits count",
            Self::ProtectedStays => {
                "inside its min runtime nothing displaces a gang; who waits is told until when"
            }
            Self::PlaceIsKept => "a displaced gang keeps its place and goes on from its commit",
            Self::SmallAtOnce => "a small job starts at once on a full cluster",
            Self::ChargedOnce => {
                "what budgets are charged is what runs had, though the coordinator is killed"
            }
            Self::JobsEndRight => "each job ends with the digest of an undisturbed run",
        }
    }
}

/// What was found of one promise.
#[derive(Debug, Default, Clone, Serialize)]
struct Found {
    held: u32,
    broken: Vec<String>,
}

/// A kill that was done.
#[derive(Debug, Clone, Serialize)]
pub struct KillState {
    /// Of what.
    pub kind: Kind,
    /// The state that was waited for.
    pub wanted: String,
    /// The state in which it hit that attempt, as the API told right before.
    pub state: String,
    /// The attempt.
    pub attempt: String,
    /// Where, unless it was the coordinator.
    pub node: Option<String>,
    /// How many attempts were in which state.
    pub attempt_states: BTreeMap<String, u32>,
    /// Since the demo's start.
    pub at_ms: u64,
}

/// Promises and kills so far.
#[derive(Debug, Default)]
pub struct Tally {
    found: BTreeMap<Promise, Found>,
    /// In the order in which they were done.
    pub kills: Vec<KillState>,
}

impl Tally {
    /// Notes one look at a promise: nothing wrong, or what.
    pub fn note(&mut self, promise: Promise, wrong: Vec<String>) {
        let found = self.found.entry(promise).or_default();
        if wrong.is_empty() {
            found.held = found.held.saturating_add(1);
        }
        found.broken.extend(wrong);
    }

    /// Whether no promise was broken.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.found.values().all(|found| found.broken.is_empty())
    }

    /// Every kind with how many were killed.
    #[must_use]
    pub fn kills_by_kind(&self) -> BTreeMap<Kind, u32> {
        let mut kinds: BTreeMap<Kind, u32> = Kind::ALL.map(|kind| (kind, 0)).into();
        for kill in &self.kills {
            let count = kinds.entry(kill.kind).or_default();
            *count = count.saturating_add(1);
        }
        kinds
    }

    /// One line for each promise, and one for each way in which it was broken.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for promise in Promise::ALL {
            let found = self.found.get(&promise).cloned().unwrap_or_default();
            let (word, times) = match (found.broken.as_slice(), found.held) {
                ([], 0) => ("untried", String::new()),
                ([], held) => ("kept", format!(" ({})", counted(held, "look"))),
                (broken, _) => ("BROKEN", format!(" ({} found)", broken.len())),
            };
            lines.push(format!("  {word:<8} {}{times}", promise.text()));
            lines.extend(found.broken.iter().map(|how| format!("             {how}")));
        }
        lines
    }

    /// Of each promise: its words, how often it held, how it was broken.
    fn promises(&self) -> Vec<PromiseFigures> {
        let of = |promise: Promise| {
            let Found { held, broken } = self.found.get(&promise).cloned().unwrap_or_default();
            PromiseFigures { promise: promise.text(), held, broken }
        };
        Promise::ALL.into_iter().map(of).collect()
    }
}

/// A number with its noun.
#[must_use]
pub fn counted(count: u32, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}{plural}") }
}

#[derive(Debug, Clone, Serialize)]
struct PromiseFigures {
    promise: &'static str,
    held: u32,
    broken: Vec<String>,
}

/// What the jobs came to in the end.
#[derive(Debug, Default, Clone)]
pub struct Ends {
    /// Jobs that were accepted.
    pub jobs: usize,
    /// Their attempts.
    pub attempts: usize,
    /// Attempts that ended though nobody asked for it.
    pub unasked_stops: usize,
    /// Accepted jobs that are not there or did not end as they should.
    pub lost: usize,
    /// Ranks or tasks that ran twice.
    pub run_twice: usize,
    /// Digests that were compared.
    pub digests: usize,
    /// Whether all were those of undisturbed runs.
    pub digests_equal: bool,
}

impl Ends {
    /// Nothing was compared yet, and nothing differs.
    #[must_use]
    pub fn of_nothing() -> Self {
        Self { digests_equal: true, ..Self::default() }
    }
}

/// The figures of one run, for programs.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Whether every promise held.
    pub ok: bool,
    /// Always: there is no GPU in this demo.
    pub gpus_simulated: bool,
    /// Chooses victims and moments.
    pub seed: u64,
    nodes: usize,
    gpus: u32,
    jobs: usize,
    attempts: usize,
    kills: BTreeMap<Kind, u32>,
    kill_states: Vec<KillState>,
    unasked_stops: usize,
    lost: usize,
    run_twice: usize,
    digests_compared: usize,
    digests_equal: bool,
    seconds: f64,
    promises: Vec<PromiseFigures>,
    /// The facts of the second act, if it was played.
    pub sharing: Option<Facts>,
}

impl Figures {
    /// Of a whole run.
    #[must_use]
    pub fn of(tally: &Tally, ends: &Ends, seed: u64, took: Duration) -> Self {
        let Ends { jobs, attempts, unasked_stops, lost, run_twice, digests, digests_equal } = *ends;
        Self {
            ok: tally.is_kept(),
            gpus_simulated: true,
            seed,
            nodes: super::NODES,
            gpus: super::GPUS,
            jobs,
            attempts,
            kills: tally.kills_by_kind(),
            kill_states: tally.kills.clone(),
            unasked_stops,
            lost,
            run_twice,
            digests_compared: digests,
            digests_equal,
            seconds: took.as_secs_f64(),
            promises: tally.promises(),
            sharing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_broken_promise_is_told_and_makes_the_run_not_ok() {
        let mut tally = Tally::default();
        tally.note(Promise::NoRankTwice, vec![]);
        assert!(tally.is_kept());
        assert!(tally.lines().iter().any(|line| line.contains("kept     no rank ever runs twice")));
        tally.note(Promise::NoRankTwice, vec!["rank 0 of job-1 lived twice".into()]);
        assert!(!tally.is_kept());
        let lines = tally.lines().join("\n");
        assert!(lines.contains("BROKEN   no rank ever runs twice (1 found)"), "{lines}");
        assert!(lines.contains("rank 0 of job-1 lived twice"), "{lines}");
        assert!(!Figures::of(&tally, &Ends::default(), 0, Duration::ZERO).ok);
    }
}
