//! The arguments. Parsed here once: past here an id is an id and a span is a span.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tidegate_model::{AccountPath, Bytes, JobId, NodeName, Span, SubmitKey, TaskLayout};

use crate::connect::SOCKET_ENV;
use crate::{exit, external, jobfile};

/// Heading of the options that every command has.
const GLOBAL: &str = "Options of every command";

/// Shares a GPU cluster by time: submit jobs, see what becomes of them, keep its nodes.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = after_help())]
pub(crate) struct Cli {
    /// Print one JSON document instead of text
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    #[arg(
        long,
        global = true,
        help_heading = GLOBAL,
        value_name = "PATH",
        help = "The coordinator's socket [default: $TIDEGATE_API, else the usual places]"
    )]
    pub(crate) socket: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Submit the job that a file describes; prints its id
    #[command(
        after_help = "Examples:\n  tidegate submit train.toml\n  generate | tidegate submit -",
        after_long_help = submit_help()
    )]
    Submit(SubmitArgs),
    /// Submit a command as a job; prints its id
    #[command(
        after_help = "Examples:\n  tidegate run -f -- python hello.py\n  tidegate run --gpus 16 \
                      --min-runtime 2h -- torchrun train.py\n\nWith --follow, the output of task \
                      0 is passed on and the exit code tells how the\njob ended: 0 done, 1 failed \
                      or cancelled. Ctrl-C leaves the job running."
    )]
    Run(Box<RunArgs>),
    /// List jobs
    #[command(after_help = "Examples:\n  tidegate jobs --mine\n  tidegate jobs --all --json")]
    Jobs(JobsArgs),
    /// Show one job with its attempts and tasks
    #[command(after_help = "Example:\n  tidegate job job-7")]
    Job(JobArgs),
    /// Say why a job is where it is, with the numbers
    #[command(after_help = "Example:\n  tidegate explain job-7")]
    Explain(JobArgs),
    /// Cancel jobs
    #[command(after_help = "Example:\n  tidegate cancel job-7 job-8")]
    Cancel(CancelArgs),
    /// Print what a task has written
    #[command(
        after_help = "Examples:\n  tidegate logs job-7\n  tidegate logs -f job-7\n  tidegate logs \
                      job-7 --attempt 1 --task 3 --stderr"
    )]
    Logs(LogsArgs),
    /// List nodes
    #[command(after_help = "Examples:\n  tidegate nodes\n  tidegate nodes --reasons")]
    Nodes(NodesArgs),
    /// Let a node empty: no new work is placed on it
    #[command(after_help = "Example:\n  tidegate drain gpu-01 --reason \"fan 3 is loud\"")]
    Drain(DrainArgs),
    /// Let a drained node take work again
    #[command(after_help = "Example:\n  tidegate resume gpu-01")]
    Resume(NodeArgs),
    /// Say what only a person can know of a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show the cluster and its coordinator
    Status,
    /// Print a completion script
    #[command(after_help = "Example:\n  tidegate completions bash > \
                      ~/.local/share/bash-completion/completions/tidegate")]
    Completions(CompletionsArgs),
    /// A program beside this one, with its own arguments.
    #[command(external_subcommand)]
    External(Vec<OsString>),
}

impl Command {
    /// Whether it passes a job's output on for as long as the job lives.
    pub(crate) fn follows(&self) -> bool {
        matches!(self, Self::Run(args) if args.follow)
            || matches!(self, Self::Logs(args) if args.follow)
    }
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Your own submit key: the same key answers the same job for 7 days
    #[arg(long, value_name = "ULID")]
    pub(crate) key: Option<SubmitKey>,
}

#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// The job file (TOML), or - for standard input
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// GPUs of the whole job
    #[arg(long, value_name = "N", default_value_t = jobfile::DEFAULT_GPUS)]
    pub(crate) gpus: u32,
    /// GPUs on each node [default: left to placement]
    #[arg(long, value_name = "N")]
    pub(crate) gpus_per_node: Option<u32>,
    /// One task per node (a launcher such as torchrun starts the ranks) or per GPU
    #[arg(long, value_enum, default_value_t = Tasks::PerNode)]
    pub(crate) tasks: Tasks,
    /// Protected span that makes a start worthwhile, at most 8h
    #[arg(long, value_name = "SPAN", default_value_t = jobfile::DEFAULT_MIN_RUNTIME)]
    pub(crate) min_runtime: Span,
    /// Account that is charged
    #[arg(long, value_name = "PATH", default_value = jobfile::DEFAULT_ACCOUNT)]
    pub(crate) account: AccountPath,
    /// Name, for people [default: the program's file name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// A variable of the job; may be repeated. Readable by all who may read the job
    #[arg(long, value_name = "NAME=VALUE", value_parser = env_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Where the job keeps its checkpoints [default: one made below the working directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// Time to save and leave when stopped
    #[arg(long, value_name = "SPAN", default_value_t = jobfile::DEFAULT_GRACE)]
    pub(crate) grace: Span,
    /// Restarts after failures of the job's own
    #[arg(long, value_name = "N", default_value_t = jobfile::DEFAULT_MAX_RESTARTS)]
    pub(crate) max_restarts: u32,
    /// What is kept of each output stream of each task
    #[arg(long, value_name = "SIZE", default_value_t = jobfile::DEFAULT_LOG_CAP)]
    pub(crate) log_cap: Bytes,
    /// Where the tasks start [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// Pass on the job's output until it ends
    #[arg(long, short)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
    /// Of this task, counted from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) task: u32,
    /// Its standard error instead of its standard output
    #[arg(long)]
    pub(crate) stderr: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// Only drained nodes, with reason, owner and time
    #[arg(long)]
    pub(crate) reasons: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The node's name
    pub(crate) node: NodeName,
    /// Why; shown to everybody
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node's name
    pub(crate) node: NodeName,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Its tasks are gone for ever: the machine is off or reinstalled
    #[command(after_help = "Example:\n  tidegate node lost gpu-01\n\nOnly say so of a node whose \
                      processes cannot be running any more: its jobs\nare started again elsewhere.")]
    Lost(NodeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// For this shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

fn env_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or("give NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn after_help() -> String {
    format!(
        "{}\n\n{}\n\nThe coordinator's socket is --socket, else ${SOCKET_ENV}, else the first of \
         these that exists:\n$XDG_RUNTIME_DIR/tidegate/api.sock, /run/tidegate/api.sock, \
         /tmp/tidegate-UID/api.sock",
        external::help(),
        exit::help()
    )
}

fn submit_help() -> String {
    let indented = |line: &str| if line.is_empty() { String::new() } else { format!("  {line}") };
    let example: Vec<_> = jobfile::EXAMPLE.trim().lines().map(indented).collect();
    format!(
        "{}\n\nRelative directories are taken from the job file's directory. Example:\n\n{}",
        jobfile::help(),
        example.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        Cli::command().debug_assert();
    }

    fn check(line: &str, expected: &str) {
        let told = Cli::try_parse_from(line.split(' ')).map(|_| "accepted".to_owned());
        let told = told.unwrap_or_else(|error| error.to_string());
        assert_eq!(told.lines().next(), Some(expected));
    }

    #[test]
    fn ids_spans_and_pairs_are_refused_with_what_is_accepted() {
        check("tidegate job job-7", "accepted");
        check("tidegate run --env A=b=c -- true", "accepted");
        check(
            "tidegate job 7",
            "error: invalid value '7' for '<JOB>': \"7\" is not an id: expected the form job-7",
        );
        check(
            "tidegate run --grace 5 -- true",
            "error: invalid value '5' for '--grace <SPAN>': \"5\" is not a span of time: \
                 expected a form like 90s, 30m, 2h or 1h30m",
        );
        check(
            "tidegate run --env A -- true",
            "error: invalid value 'A' for '--env <NAME=VALUE>': give NAME=VALUE",
        );
        check(
            "tidegate logs job-7 --attempt 0",
            "error: invalid value '0' for '--attempt <N>': 0 is not in 1..=4294967295",
        );
    }
}
