//! The arguments. Parsed here once: past here an id is an id and a span is a span.

mod accounts;
mod bounds;
mod cluster;
mod gates;
mod jobs;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub(crate) use self::accounts::{
    AccountsArgs, AnswerArgs, AnyAccount, BudgetCommand, ReportArgs, RoleCommand,
};
pub(crate) use self::cluster::{
    CompletionsArgs, DrainArgs, NodeArgs, NodeCommand, NodesArgs, PolicyCommand,
};
pub(crate) use self::gates::{GateArgs, GateCommand, SetGateArgs};
pub(crate) use self::jobs::{
    CancelArgs, ExplainArgs, HandOver, JobArgs, JobsArgs, LogsArgs, NoticesArgs, RehearseArgs,
    ReservationCommand, RunArgs, SubmitArgs,
};
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
        after_help = "Examples:\n  tidegate submit train.toml\n  tidegate submit --dry-run \
                      train.toml\n  tidegate submit --array 0-99%10 sweep.toml\n  generate | \
                      tidegate submit -",
        after_long_help = submit_help()
    )]
    Submit(SubmitArgs),
    /// Submit a command as a job; prints its id
    #[command(
        after_help = "Examples:\n  tidegate run -f -- python hello.py\n  tidegate run --gpus 16 \
                      --min-runtime 2h --checkpoint megatron -- torchrun train.py\n  tidegate run \
                      --array 0-9 -- python eval.py\n\nWith --follow, the output of task \
                      0 is passed on and the exit code tells how the\njob ended: 0 done, 1 failed \
                      or cancelled. Ctrl-C leaves the job running.\n\nWith --pty you work in it: \
                      `tidegate run --pty -- bash` waits for a GPU and gives you the shell;\nthe \
                      exit code is the command's. Ctrl-] d leaves it running, `tidegate attach` \
                      comes back."
    )]
    Run(Box<RunArgs>),
    /// See whether a job saves when it is asked, leaves, and goes on from there
    #[command(
        after_help = "Examples:\n  tidegate rehearse train.toml\n  tidegate rehearse --gpus 8 \
                      train.toml\n  tidegate rehearse --ask-after 10m --json train.toml\n\nThe job runs \
                      free, is asked to save once it has committed or after --ask-after, leaves,\nand \
                      is started again. Its checkpoints go into a directory of their own. The result is\n\
                      kept with the job's command, environment and checkpoint settings, and \
                      `explain` shows it.\nThe exit code is 0 if it passed, 7 if it failed, 1 if it \
                      came to no verdict. Ctrl-C leaves it\nto its end."
    )]
    Rehearse(RehearseArgs),
    /// Come back to the terminal of a job that was started with run --pty
    #[command(
        after_help = "Example:\n  tidegate attach job-7\n\nCtrl-] d leaves the job running, Ctrl-] \
                      Ctrl-] types one Ctrl-]. Only the job's owner may attach;\nwho attaches \
                      takes the terminal over from where it was attached before. The exit code is \
                      the\ncommand's own, 128 and the signal's number if it was killed."
    )]
    Attach(JobArgs),
    /// List jobs
    #[command(after_help = "Examples:\n  tidegate jobs --mine\n  tidegate jobs --all --json")]
    Jobs(JobsArgs),
    /// Show one job with its attempts and tasks
    #[command(after_help = "Example:\n  tidegate job job-7")]
    Job(JobArgs),
    /// Say why a job is where it is, with the numbers
    #[command(after_help = "Examples:\n  tidegate explain job-7\n  tidegate explain job-7 --at \
                            -2h\n  tidegate explain job-7 --at 2026-12-01T08:00:00Z\n\nOf a past \
                            instant the newest decisions about the job are told too, with the\n\
                            journal records that hold them.")]
    Explain(ExplainArgs),
    /// Show the checkpoints of a job, and what became of each request to save
    #[command(after_help = "Example:\n  tidegate checkpoints job-7\n\nTOLD is counted from the \
                            request on, what follows from TOLD on. A next attempt resumes\nfrom \
                            the checkpoint that counts.")]
    Checkpoints(JobArgs),
    /// Cancel jobs
    #[command(after_help = "Example:\n  tidegate cancel job-7 job-8")]
    Cancel(CancelArgs),
    /// Keep a job from starting until it is released
    #[command(after_help = "Example:\n  tidegate park job-7")]
    Park(JobArgs),
    /// Let a parked job start again
    #[command(after_help = "Example:\n  tidegate release job-7")]
    Release(JobArgs),
    /// Let a job become its account's elder though it asks more than half of the limit
    #[command(after_help = "Example:\n  tidegate elder job-7\n\nOnly a manager of its account \
                            may. While it waits for budget, only small jobs start\nprotected in \
                            that account.")]
    Elder(JobArgs),
    /// End what was promised to a waiting job
    #[command(subcommand)]
    Reservation(ReservationCommand),
    /// Print what a task has written
    #[command(
        after_help = "Examples:\n  tidegate logs job-7\n  tidegate logs -f job-7\n  tidegate logs \
                      job-7 --attempt 1 --task 3 --stderr"
    )]
    Logs(LogsArgs),
    /// Tell what became of your jobs since you last asked: starts, requests to save, ends
    #[command(
        after_help = "Examples:\n  tidegate notices\n  tidegate notices --follow\n  tidegate notices \
                      -f --exec ./to-my-phone\n\nHow far you were told is kept in \
                      $XDG_STATE_HOME/tidegate/notices, else in\n~/.local/state/tidegate/notices; \
                      the first time, notices begin then. With --json each is a\nline of JSON. To have \
                      them posted to a web address, name it when you submit: --notify-url."
    )]
    Notices(NoticesArgs),
    /// List nodes
    #[command(after_help = "Examples:\n  tidegate nodes\n  tidegate nodes --reasons")]
    Nodes(NodesArgs),
    /// Let a node empty: no new work is placed on it
    #[command(after_help = "Examples:\n  tidegate drain gpu-01 --reason \"fan 3 is loud\"\n  \
                            tidegate drain gpu-01 --reason \"new switch\" --by 4h")]
    Drain(DrainArgs),
    /// Let a drained node take work again
    #[command(after_help = "Example:\n  tidegate resume gpu-01")]
    Resume(NodeArgs),
    /// Say what only a person can know of a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show and set what storage targets may carry: who writes checkpoints there, who waits
    #[command(
        after_help = "Examples:\n  tidegate gate\n  tidegate gate shared\n  tidegate gate set \
                            shared --cap 80GiB/s\n  tidegate gate pause shared --reason \"disk rebuild\""
    )]
    Gate(GateArgs),
    /// List accounts: budgets, what is charged, what is promised
    #[command(
        after_help = "Examples:\n  tidegate accounts\n  tidegate accounts olmo --users\n\nFigures \
                      are GPU-hours of the last 7 days, to one decimal. The limit \
                      is\nthe budget less what only small jobs are funded from; the claim is what \
                      is charged\nand pledged; the ratio is the claim in percent of the limit."
    )]
    Accounts(AccountsArgs),
    /// Tell what was used, by account and user
    #[command(
        after_help = "Examples:\n  tidegate report\n  tidegate report --weeks 4 --account olmo \
                            --csv\n\nFigures are GPU-hours; the part that was used is of the \
                            budget as it is now. Jobs are forgotten\nsome time after they ended \
                            (keep_ended of the policy): what was used longer ago may be missing."
    )]
    Report(ReportArgs),
    /// Set, show, move and ask for budgets
    #[command(subcommand)]
    Budget(BudgetCommand),
    /// Say who may do what in which account
    #[command(subcommand)]
    Role(RoleCommand),
    /// Show and change the rules of the cluster
    #[command(subcommand)]
    Policy(PolicyCommand),
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
    /// By which word of it a job's output is passed on for as long as the job lives.
    pub(crate) fn passes_on(&self) -> Option<&'static str> {
        if matches!(self, Self::Attach(_)) {
            return Some("attach");
        }
        if matches!(self, Self::Run(args) if args.pty && !args.hand_over.dry_run) {
            return Some("--pty");
        }
        let follows = matches!(self, Self::Run(args) if args.follow)
            || matches!(self, Self::Logs(args) if args.follow);
        follows.then_some("--follow")
    }
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
        for at in ["-2h", "2026-12-01T08:00:00Z", "1764576000000"] {
            check(&format!("tidegate explain job-7 --at {at}"), "accepted");
        }
        check(
            "tidegate explain job-7 --at 2h",
            "error: invalid value '2h' for '--at <TIME>': \"2h\" is no time: expected -2h for two \
             hours ago, an instant like 2026-12-01T08:00:00Z or 2026-12-01T08:00:00+01:00, or \
             milliseconds since 1970",
        );
        check("tidegate run --env A=b=c -- true", "accepted");
        check(
            "tidegate job 7",
            "error: invalid value '7' for '<JOB>': \"7\" is not an id: expected the form job-7",
        );
        check(
            "tidegate run --grace 5 -- true",
            "error: invalid value '5' for '--grace <SPAN>': a span of time such as 90s, 30m or \
             1h30m, from 0 to 30m, is accepted",
        );
        check(
            "tidegate run --env A -- true",
            "error: invalid value 'A' for '--env <NAME=VALUE>': give NAME=VALUE",
        );
        check(
            "tidegate logs job-7 --attempt 0",
            "error: invalid value '0' for '--attempt <N>': a whole number from 1 to 4294967295 is \
             accepted",
        );
        check(
            "tidegate run --gpu-type H100 -- true",
            "error: invalid value 'H100' for '--gpu-type <NAME>': \"H100\" is not a name: expected \
             1 to 63 of a-z 0-9 - _",
        );
    }

    #[test]
    fn sizes_times_and_ranges_are_refused_with_what_is_accepted() {
        check("tidegate budget set olmo 12.5% --now", "accepted");
        check("tidegate budget transfer olmo/a olmo/b 100", "accepted");
        check("tidegate role set root ana manager", "accepted");
        check("tidegate run --order -3 --array 0-9%2 -- true", "accepted");
        check(
            "tidegate budget set olmo 30",
            "error: invalid value '30' for '<SIZE>': \"30\" is no size of a budget: expected a \
             share of the parent such as 30%, from 0% to 100%, or GPU-hours of a window such as \
             1200h, from 0h to 1000000000h",
        );
        check(
            "tidegate drain a --reason b --by tomorrow",
            "error: invalid value 'tomorrow' for '--by <TIME|SPAN>': \"tomorrow\" is no time: \
             expected a span from now like 2h or 1h30m, from 0 to 3653d, or an instant like \
             2026-12-01T08:00:00Z or 2026-12-01T08:00:00+01:00",
        );
        check(
            "tidegate run --array 0-9999999 -- true",
            "error: invalid value '0-9999999' for '--array <RANGE>': 10000000 jobs asked; 1 to 1000 \
             are accepted",
        );
        check(
            "tidegate run --array 0-9 --dry-run -- true",
            "error: the argument '--array <RANGE>' cannot be used with '--dry-run'",
        );
    }
}
