//! The line in one process on virtual time: the real engine, core, journal (redb on a simulated
//! disk) and the agents' real reconcile, with faults drawn from a seed.
//!
//! Simulated are the disk, the network, the starters with their shims and the training processes.
//! Everything a run does follows from its seed: two runs of one seed leave equal traces.

mod agent;
mod checks;
mod clock;
mod coordinator;
mod disk;
mod faults;
mod gates;
mod people;
mod permits;
mod saving;
mod starter;
mod traffic;
mod watch;
mod world;

use std::collections::BTreeMap;
use std::fmt;

pub use self::checks::Truth;
use self::world::World;

/// A bug put in on purpose, to see that the run finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Planted {
    /// Answers and plans go out before the records are appended.
    PublishBeforeAppend,
    /// The store's syncs return without having synced.
    SyncDropped,
    /// An agent takes plans older than what it has accepted.
    GenerationIgnored,
    /// An agent reports a task prepared before its ledger is durable.
    LedgerAfterReport,
    /// A starter writes the intent to start a task after it has started it.
    IntentAfterSpawn,
    /// A node reports GPUs free while a process still uses them.
    ReleasedTooEarly,
    /// The coordinator takes a node's silence for its loss.
    SilenceIsLoss,
    /// What was promised to an attempt that is displaced stays promised.
    PledgeKept,
    /// An attempt is asked to save inside its protected time.
    ProtectedAsked,
    /// A commit counts whose attempt can commit no more.
    ClosedCommits,
    /// A shim says that its job was told a lower rate, and lets it go on at the one before.
    LowerRateIgnored,
    /// The coordinator gives away what a silent node's permit keeps.
    SilentForgotten,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::PublishBeforeAppend,
        Self::SyncDropped,
        Self::GenerationIgnored,
        Self::LedgerAfterReport,
        Self::IntentAfterSpawn,
        Self::ReleasedTooEarly,
        Self::SilenceIsLoss,
        Self::PledgeKept,
        Self::ProtectedAsked,
        Self::ClosedCommits,
        Self::LowerRateIgnored,
        Self::SilentForgotten,
    ];
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// Steps under faults; then everything is let run to its end without.
    pub steps: u64,
    /// A bug to be found.
    pub planted: Option<Planted>,
    /// Print every step, to follow a seed.
    pub verbose: bool,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Steps taken, the last ones without faults.
    pub steps: u64,
    /// A hash of all that happened, in order.
    pub trace: u64,
    /// How often each fault and attempt state was met.
    pub coverage: BTreeMap<String, u64>,
    /// Jobs that came to their end.
    pub jobs_ended: u64,
    /// The most jobs alive at once.
    pub most_alive: usize,
    /// What did not hold, at which step.
    pub violation: Option<Violation>,
}

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The step after which it was seen.
    pub step: u64,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "after step {}: {}", self.step, self.what)
    }
}

/// What becomes of asks for permits, in any run of some length.
const MET: [&str; 10] = [
    "ask Periodic",
    "ask Preemption",
    "ask Final",
    "ask Restore",
    "ask answered",
    "ask denied",
    "permit granted",
    "permit lowered",
    "permit lapsed",
    "permit given back",
];

/// Runs a seed.
#[must_use]
pub fn run(options: Options) -> Run {
    let mut world = World::new(options);
    let violation = world.live(options.steps).and_then(|()| world.settle()).err();
    world.finish(violation)
}

/// What every run of some length must have met at least once: faults, and states of attempts
/// and nodes.
#[must_use]
pub fn required_coverage() -> Vec<String> {
    let faults = faults::Fault::ALL.iter().map(|fault| format!("fault {fault:?}"));
    let states = scheduler_core::AttemptState::LIVE.iter().map(|state| format!("state {state:?}"));
    let nodes = ["Unconfirmed", "Ready", "Draining", "Drained", "Unreachable"];
    let nodes = nodes.iter().map(|state| format!("node {state}"));
    let decisions = watch::MET.iter().map(|decision| format!("decision {decision}"));
    let permits = MET.iter().map(|&what| what.to_owned());
    faults.chain(states).chain(nodes).chain(decisions).chain(permits).collect()
}
