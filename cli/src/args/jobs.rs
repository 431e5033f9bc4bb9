//! Arguments of what is done with jobs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use tidegate_model::{
    AccountPath, AskAfter, Bytes, GpuType, JobId, LOG_CAP_RANGE, MAX_BLOCKS, MAX_GRACE,
    MAX_MIN_RUNTIME, MAX_RESTARTS, Span, SubmitKey, TaskLayout, Timestamp,
};

use super::bounds::{count, size, span};
use crate::array::ArrayRange;
use crate::jobfile;
use crate::rehearse::ask_after;
use crate::show::time;

/// How a job is handed over, whether it comes from a file or from the command line.
#[derive(Debug, Args)]
pub(crate) struct HandOver {
    /// Your own submit key: the same key answers the same job for 7 days
    #[arg(long, value_name = "ULID")]
    pub(crate) key: Option<SubmitKey>,
    /// One job for each number, such as 0-99, or 0-99%10 for at most 10 at a time
    #[arg(long, value_name = "RANGE")]
    pub(crate) array: Option<ArrayRange>,
    /// Take more of the GPUs of a kind than one job may hold; for admins
    #[arg(long)]
    pub(crate) whole_cluster: bool,
    /// Say what would happen, and submit nothing
    #[arg(long, conflicts_with_all = ["array", "key"])]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// The job file (TOML), or - for standard input
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) hand_over: HandOver,
}

/// No rehearsal is waited for longer than a week.
const LONGEST_WAIT: Span = Span::hours(7 * 24);

#[derive(Debug, Args)]
pub(crate) struct RehearseArgs {
    /// The job file (TOML), or - for standard input
    pub(crate) file: PathBuf,
    /// On so many GPUs [default: as in the file]
    #[arg(long, value_name = "N", value_parser = count(1, u32::MAX), allow_negative_numbers = true)]
    pub(crate) gpus: Option<u32>,
    /// So many of them on each node [default: as in the file]
    #[arg(long, value_name = "N", value_parser = count(1, u32::MAX), allow_negative_numbers = true)]
    pub(crate) gpus_per_node: Option<u32>,
    /// How long it trains before it is asked to save, unless it commits before
    #[arg(long, value_name = "SPAN", default_value = RehearseArgs::ASK_AFTER, value_parser = ask_after, allow_hyphen_values = true)]
    pub(crate) ask_after: AskAfter,
    /// Protected span, where free work waits for long; it is asked to save within it
    #[arg(long, value_name = "SPAN", value_parser = span(MAX_MIN_RUNTIME), allow_hyphen_values = true)]
    pub(crate) min_runtime: Option<Span>,
    /// Cancel it if there is no verdict after this
    #[arg(long, value_name = "SPAN", value_parser = span(LONGEST_WAIT), allow_hyphen_values = true)]
    pub(crate) timeout: Option<Span>,
    /// Your own submit key: the same key follows the same rehearsal for 7 days
    #[arg(long, value_name = "ULID")]
    pub(crate) key: Option<SubmitKey>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// GPUs of the whole job
    #[arg(long, value_name = "N", default_value_t = jobfile::DEFAULT_GPUS, value_parser = count(1, u32::MAX), allow_negative_numbers = true)]
    pub(crate) gpus: u32,
    /// GPUs on each node [default: left to placement]
    #[arg(long, value_name = "N", value_parser = count(1, u32::MAX), allow_negative_numbers = true)]
    pub(crate) gpus_per_node: Option<u32>,
    /// Kind of GPU, as the policy names it [default: any, one for the whole job]
    #[arg(long, value_name = "NAME")]
    pub(crate) gpu_type: Option<GpuType>,
    /// Most blocks that the job may span [default: as few as possible]
    #[arg(long, value_name = "N", value_parser = count(1, MAX_BLOCKS), allow_negative_numbers = true)]
    pub(crate) max_blocks: Option<u32>,
    /// One task per node (a launcher such as torchrun starts the ranks) or per GPU
    #[arg(long, value_enum, default_value_t = Tasks::PerNode)]
    pub(crate) tasks: Tasks,
    /// Protected span that makes a start worthwhile, at most 8h [default: 0; 1h with --pty]
    #[arg(long, value_name = "SPAN", value_parser = span(MAX_MIN_RUNTIME), allow_hyphen_values = true)]
    pub(crate) min_runtime: Option<Span>,
    /// Wait until it is funded, rather than run free and unprotected
    #[arg(long)]
    pub(crate) no_free: bool,
    /// Account that is charged
    #[arg(long, value_name = "PATH", default_value = jobfile::DEFAULT_ACCOUNT)]
    pub(crate) account: AccountPath,
    /// Sorts your own jobs in one account, smallest first; affects nobody else
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) order: i32,
    /// Start when this job has ended, however it ended; may be repeated
    #[arg(long, value_name = "JOB")]
    pub(crate) after: Vec<JobId>,
    /// Start when this job is done; may be repeated
    #[arg(long, value_name = "JOB")]
    pub(crate) after_success: Vec<JobId>,
    /// Name, for people [default: the program's file name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// A variable of the job; may be repeated. Readable by all who may read the job
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// How it saves when asked: a preset, or a key of the table checkpoint; may be repeated
    #[arg(long, value_name = "PRESET|KEY=VALUE")]
    pub(crate) checkpoint: Vec<String>,
    /// Where the job keeps its checkpoints [default: one made below the working directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// Time to save and leave when stopped
    #[arg(long, value_name = "SPAN", default_value_t = jobfile::DEFAULT_GRACE, value_parser = span(MAX_GRACE), allow_hyphen_values = true)]
    pub(crate) grace: Span,
    /// Restarts after failures of the job's own [default: 3; 0 with --pty]
    #[arg(long, value_name = "N", value_parser = count(0, MAX_RESTARTS), allow_negative_numbers = true)]
    pub(crate) max_restarts: Option<u32>,
    /// What is kept of each output stream of each task
    #[arg(long, value_name = "SIZE", default_value_t = jobfile::DEFAULT_LOG_CAP, value_parser = size(LOG_CAP_RANGE))]
    pub(crate) log_cap: Bytes,
    /// Web address that is told of starts, requests to save and ends; the cluster allows some
    #[arg(long, value_name = "URL")]
    pub(crate) notify_url: Option<String>,
    /// Where the tasks start [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// Pass on the job's output until it ends
    #[arg(long, short, conflicts_with_all = ["array", "dry_run"])]
    pub(crate) follow: bool,
    /// Work in it: the command gets this terminal, as soon as the job has started
    #[arg(long, conflicts_with_all = ["array", "follow"])]
    pub(crate) pty: bool,
    #[command(flatten)]
    pub(crate) hand_over: HandOver,
    /// Program and arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// How many tasks a job has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tasks {
    PerNode,
    PerGpu,
}

impl From<Tasks> for TaskLayout {
    fn from(tasks: Tasks) -> Self {
        match tasks {
            Tasks::PerNode => Self::PerNode,
            Tasks::PerGpu => Self::PerGpu,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct JobsArgs {
    /// Ended jobs too; they are kept for 7 days
    #[arg(long)]
    pub(crate) all: bool,
    /// Your own only
    #[arg(long, conflicts_with = "user")]
    pub(crate) mine: bool,
    /// Of this user only (name or uid)
    #[arg(long)]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// The job's id, such as job-7
    #[arg(value_name = "JOB")]
    pub(crate) job: JobId,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The job's id, such as job-7
    #[arg(value_name = "JOB")]
    pub(crate) job: JobId,
    /// What was the reason at this instant: RFC 3339, milliseconds since 1970, or -2h for two hours
    /// ago
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: Option<Past>,
}

/// A past instant, as a person gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    At(Timestamp),
    /// So long before now.
    Ago(Span),
}

impl Past {
    pub(crate) fn instant(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(span) => Timestamp(now.0.saturating_sub(span.0)),
        }
    }
}

impl FromStr for Past {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ms = || text.parse().ok().map(Timestamp);
        let at = time::from_rfc3339(text).or_else(ms).map(Self::At);
        let ago = || text.strip_prefix('-')?.parse().ok().map(Self::Ago);
        at.or_else(ago).ok_or_else(|| {
            let given: String = text.chars().take(64).collect();
            format!(
                "{given:?} is no time: expected -2h for two hours ago, an instant like \
                 2026-12-01T08:00:00Z or 2026-12-01T08:00:00+01:00, or milliseconds since 1970"
            )
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct NoticesArgs {
    /// Go on until you end it
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Run this for each, with the notice as one line of JSON on its standard input; takes the rest
    /// of the line
    #[arg(long, value_name = "CMD", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) exec: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The jobs' ids
    #[arg(value_name = "JOB", required = true)]
    pub(crate) jobs: Vec<JobId>,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The job's id, such as job-7
    #[arg(value_name = "JOB")]
    pub(crate) job: JobId,
    /// Go on until the job ends, over its restarts
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Of this attempt, counted from 1 [default: the newest]
    #[arg(long, value_name = "N", value_parser = count(1, u32::MAX), allow_negative_numbers = true)]
    pub(crate) attempt: Option<u32>,
    /// Of this task, counted from 0
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0, u32::MAX), allow_negative_numbers = true)]
    pub(crate) task: u32,
    /// Its standard error instead of its standard output
    #[arg(long)]
    pub(crate) stderr: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReservationCommand {
    /// Give up the firm reservation of a job: it waits again like others
    #[command(after_help = "Example:\n  tidegate reservation drop job-7\n\nNothing else ends a \
                            firm reservation but its job's start or end, or the loss of\nits \
                            nodes. It is kept on record who did.")]
    Drop(JobArgs),
}

fn env_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or("give NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
