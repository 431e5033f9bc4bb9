//! `tidegate`, the command line: submits jobs, shows what becomes of them, and keeps nodes.
//!
//! It decides nothing. Every answer is the coordinator's, asked over one Unix socket; what is here
//! is how arguments and job files become requests, and replies become tables, JSON and exit codes.

mod accounts;
mod amount;
mod args;
mod array;
mod attach;
mod budget;
mod cancel;
mod checkpoints;
mod connect;
mod dry_run;
mod exit;
mod explain;
mod external;
mod follow;
mod gates;
mod job_changes;
mod jobfile;
mod jobs;
mod keys;
mod logs;
mod nodes;
mod notices;
mod policy;
mod progress;
mod rehearse;
mod report;
mod retry;
mod screen;
mod show;
mod submit;
mod usage;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command, NodeCommand, PolicyCommand, ReservationCommand, RunArgs};
use crate::connect::{Api, Sockets};
use crate::exit::{Exit, Failure};
use crate::follow::Start;
use crate::logs::{Sink, Stream};
use crate::show::{out, table};

fn main() -> ExitCode {
    if let Some(width) = screen::width() {
        table::fit_into(width);
    }
    let outcome = match Cli::try_parse() {
        Ok(cli) => run(cli),
        Err(error) if !usage::is_wrong(&error) => error.exit(),
        Err(error) => Err(Failure::refused(usage::in_one_line(&error))),
    };
    if let Err(failure @ Failure::Told { .. }) = &outcome {
        out::remark(&format!("error: {failure}"));
    }
    outcome.map_or_else(|failure| failure.exit(), |()| Exit::Done).into()
}

fn run(cli: Cli) -> Result<(), Failure> {
    if let Some(word) = cli.command.passes_on().filter(|_| cli.json) {
        let words = format!("{word} passes output on as it is: it has no JSON");
        return Err(Failure::refused(words));
    }
    if let Command::External(words) = &cli.command {
        return external::run(words, cli.socket.as_deref());
    }
    if let Command::Completions(args) = &cli.command {
        return out::pass_on(&completion_script(args.shell));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    runtime.block_on(ask(cli))
}

async fn ask(cli: Cli) -> Result<(), Failure> {
    let api = &Api::new(Sockets::find(cli.socket));
    let json = cli.json;
    match cli.command {
        Command::Submit(args) => submit::submit(api, args, json).await,
        Command::Run(args) => submit_and_follow(api, *args, json).await,
        Command::Rehearse(args) => rehearse::rehearse(api, args, json).await,
        Command::Attach(args) => attach::attach(api, args.job).await,
        Command::Jobs(args) => jobs::list(api, args, json).await,
        Command::Job(args) => jobs::show(api, &args, json).await,
        Command::Explain(args) => explain::explain(api, &args, json).await,
        Command::Checkpoints(args) => checkpoints::list(api, &args, json).await,
        Command::Cancel(args) => cancel::cancel(api, args, json).await,
        Command::Park(args) => job_changes::park(api, &args, json).await,
        Command::Release(args) => job_changes::release(api, &args, json).await,
        Command::Elder(args) => job_changes::allow_elder(api, &args, json).await,
        Command::Reservation(ReservationCommand::Drop(args)) => {
            job_changes::drop_reservation(api, &args, json).await
        }
        Command::Logs(args) => logs::logs(api, &args, json).await,
        Command::Notices(args) => notices::notices(api, &args, json).await,
        Command::Nodes(args) => nodes::list(api, &args, json).await,
        Command::Drain(args) => nodes::drain(api, args, json).await,
        Command::Resume(args) => nodes::resume(api, &args, json).await,
        Command::Node(NodeCommand::Lost(args)) => nodes::lost(api, &args, json).await,
        Command::Node(NodeCommand::Remove(args)) => nodes::remove(api, &args, json).await,
        Command::Gate(args) => gates::gate(api, args, json).await,
        Command::Accounts(args) => accounts::list(api, &args, json).await,
        Command::Report(args) => report::report(api, &args, json).await,
        Command::Budget(command) => budget::budget(api, command, json).await,
        Command::Role(command) => budget::role(api, command, json).await,
        Command::Policy(PolicyCommand::Show) => policy::show(api, json).await,
        Command::Policy(PolicyCommand::Set { pairs }) => policy::set(api, &pairs, json).await,
        Command::Status => nodes::status(api, json).await,
        // Both are done before there is a runtime.
        Command::Completions(_) | Command::External(_) => Ok(()),
    }
}

async fn submit_and_follow(api: &Api, args: RunArgs, json: bool) -> Result<(), Failure> {
    if args.pty && !args.hand_over.dry_run {
        return attach::run(api, args).await;
    }
    if !args.follow {
        return submit::run(api, args, json).await;
    }
    let job = submit::run_one(api, args).await?;
    out::remark(&format!("{job} is submitted; Ctrl-C leaves it running"));
    let outputs = vec![(Stream::Stdout, Sink::Stdout), (Stream::Stderr, Sink::Stderr)];
    follow::follow(api, job, 0, Start::First, outputs).await
}

fn completion_script(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = external::with_external(Cli::command());
    clap_complete::generate(shell, &mut command, "tidegate", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_script_knows_every_command_of_every_shell() {
        for shell in
            [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish]
        {
            let script = String::from_utf8(completion_script(shell)).unwrap();
            for word in [
                "submit",
                "explain",
                "completions",
                "demo",
                "min-runtime",
                "accounts",
                "transfer",
                "reservation",
                "dry-run",
                "array",
                "gate",
                "checkpoints",
                "rehearse",
            ] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }
}
