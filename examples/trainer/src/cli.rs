//! The command line, and what each exit code means.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// All steps are done and the result is durable.
pub(crate) const EXIT_DONE: u8 = 0;
/// A peer died, the network or the file system failed, or the environment makes no sense.
pub(crate) const EXIT_FAILED: u8 = 1;
/// `--fail-at-step`.
pub(crate) const EXIT_ON_PURPOSE: u8 = 3;
/// Asked to stop, and saved before leaving (`EX_TEMPFAIL` of sysexits.h: try again later).
pub(crate) const EXIT_STOPPED: u8 = 75;

/// Asked to save, and saved before leaving (as self-checkpointing jobs tell `HTCondor`).
pub(crate) const EXIT_SAVED: u8 = 85;

/// More ranks than file descriptors a process has by default would fail late; this fails early.
pub(crate) const MAX_WORLD: u32 = 1_000;

/// A checkpoint is made in memory, and a machine may run a hundred trainers.
pub(crate) const MAX_BALLAST: u64 = 1 << 30;

const AFTER_HELP: &str = "\
Signals:  SIGUSR1  save at the next step and leave with exit code 85
          SIGTERM  save at the next step and stop with exit code 75
          The appearance of $TIDEGATE_PREEMPT_FILE, and a save asked for on $TIDEGATE_SOCKET, do the
          same as SIGUSR1.

Exit codes:  0  all steps done       2  wrong usage                  75  saved and stopped at SIGTERM
             1  failed, a peer died  3  failed by --fail-at-step     85  saved and left as asked
                                                                  128+n  (--launch) a rank died of signal n

Environment:  RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT
              TIDEGATE_JOB_ID TIDEGATE_ATTEMPT TIDEGATE_CHECKPOINT_DIR TIDEGATE_PREEMPT_FILE
              TIDEGATE_SOCKET
              Without them, one rank runs alone.";

/// A small real trainer whose final weights do not depend on how often it was stopped.
#[derive(Debug, Parser)]
#[command(version, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compute in one process, without a network, what a run must end with
    Digest(DigestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DigestArgs {
    /// Steps of the run
    #[arg(long, default_value_t = 200)]
    pub(crate) steps: u64,
    /// Number of ranks of the run
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WORLD)))]
    pub(crate) world_size: u32,
    /// Seed of the weights and the data
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct RunArgs {
    /// Start `LOCAL_WORLD_SIZE` ranks on this node and wait for them, as torchrun does
    #[arg(long)]
    pub(crate) launch: bool,
    /// Train until this step
    #[arg(long, default_value_t = 200)]
    pub(crate) steps: u64,
    /// A step takes at least this many milliseconds
    // Peers give up on a silent rank 0 after 60 s, so a step must stay well below.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=30_000))]
    pub(crate) step_ms: u64,
    /// Save every this many steps, besides the last; 0: never
    #[arg(long, value_name = "STEPS", default_value_t = 25)]
    pub(crate) save_every: u64,
    /// Seed of the weights and the data
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Where checkpoints and result.json go [default: `$TIDEGATE_CHECKPOINT_DIR`, else nowhere]
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// How long to wait at the start until every rank has joined
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub(crate) join_timeout: u64,
    /// Ask for a permit before each save, and write no faster than it says
    #[arg(long)]
    pub(crate) permits: bool,
    /// A checkpoint has so many bytes more, to weigh as much as one of a larger model
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=MAX_BALLAST))]
    pub(crate) ballast: u64,
    /// For tests: leave with exit code 3 instead of taking this step
    #[arg(long, value_name = "STEP")]
    pub(crate) fail_at_step: Option<u64>,
    /// For tests: fail only if FILE does not exist yet, and create it
    #[arg(long, value_name = "FILE", requires = "fail_at_step")]
    pub(crate) fail_once: Option<PathBuf>,
    /// For tests: a save takes at least this long
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) save_seconds: u64,
    /// For tests: take no notice of SIGTERM
    #[arg(long)]
    pub(crate) ignore_term: bool,
    /// For tests: look for checkpoints where this attempt writes its own, and so find none
    #[arg(long)]
    pub(crate) begin_anew: bool,
    /// For tests: take no notice of being asked to save, in whichever way
    #[arg(long)]
    pub(crate) ignore_save: bool,
}
