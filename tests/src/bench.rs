//! `tidegate-bench`: what is measured, and against which goal.
//!
//! `latency`, `throughput`, `memory` and `grace` run whole clusters of real processes; `fanout` runs a real
//! coordinator with simulated agents in this process; `journal` measures the store alone and
//! `restart` a coordinator over a long one; `core` the scheduler without any of it. `history` makes the records that both need, `usage`
//! reads what processes use, `report` reduces and prints.

pub mod core;
pub mod fanout;
pub mod grace;
pub mod history;
pub mod journal;
pub mod latency;
pub mod load;
pub mod memory;
pub mod report;
pub mod restart;
pub mod throughput;
pub mod usage;

use clap::ValueEnum;

use crate::binaries::Binaries;
use report::{Board, Figure};

/// Between an agent's heartbeats: what an agent has without configuration.
const HEARTBEAT: &str = "5s";

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum What {
    /// From submit until a one-GPU job runs, on an idle cluster of four agents.
    Latency,
    /// Jobs per second of 16 agents with 8 GPUs each, and what they cost the coordinator.
    Throughput,
    /// Appends to the store, beside the same bytes appended to a plain file.
    Journal,
    /// From the start of a coordinator over 100,000 records until it answers.
    Restart,
    /// Memory of every process, and what idle ones use.
    Memory,
    /// Plans to 1,024 agents, and the price of their heartbeats.
    Fanout,
    /// How exactly the graces of jobs that use all of theirs are kept.
    Grace,
    /// One event of the scheduler alone, with thousands of jobs waiting.
    Core,
    /// Each of these.
    All,
}

impl What {
    const EACH: [Self; 8] = [
        Self::Latency,
        Self::Throughput,
        Self::Journal,
        Self::Restart,
        Self::Memory,
        Self::Fanout,
        Self::Grace,
        Self::Core,
    ];

    /// Its word on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Journal => "journal",
            Self::Restart => "restart",
            Self::Memory => "memory",
            Self::Fanout => "fanout",
            Self::Grace => "grace",
            Self::Core => "core",
            Self::All => "all",
        }
    }
}

/// Measures each of `what` as often as asked, and puts the figures on the board.
///
/// # Errors
/// If something does not start or does not happen in time.
pub async fn run(what: &[What], runs: u32, board: &mut Board) -> anyhow::Result<()> {
    let binaries = Binaries::built()?;
    let all = what.contains(&What::All);
    for subject in What::EACH.into_iter().filter(|subject| all || what.contains(subject)) {
        for run in 1..=runs {
            announce(&format!("{}: run {run} of {runs}", subject.word()));
            board.add(subject.word(), measure(subject, &binaries).await?);
        }
    }
    Ok(())
}

async fn measure(subject: What, binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    // Boxed: each is large, and only one of them runs.
    match subject {
        What::Latency => Box::pin(latency::measure(binaries)).await,
        What::Throughput => Box::pin(throughput::measure(binaries)).await,
        What::Journal => Box::pin(journal::measure()).await,
        What::Restart => Box::pin(restart::measure(binaries)).await,
        What::Memory => Box::pin(memory::measure(binaries)).await,
        What::Fanout => Box::pin(fanout::measure(binaries)).await,
        What::Grace => Box::pin(grace::measure(binaries)).await,
        What::Core => core::measure(),
        What::All => Ok(Vec::new()),
    }
}

#[allow(clippy::print_stderr, reason = "a person waits for the figures")]
fn announce(what: &str) {
    eprintln!("{what}");
}
