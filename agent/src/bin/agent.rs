//! `tidegate-agent`: this node's side of a Tidegate cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidegate_agent::classify::{self, Classify};
use tidegate_agent::job_client::{self, Job};
use tidegate_agent::{daemon, shell};

/// Serves this node to a Tidegate cluster: reports its GPUs and tasks to the coordinator and does
/// what the coordinator plans for it, through tidegate-starter. Tasks go on while it is away.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// The node's configuration, the same file as the starter's. Without it: defaults for one
    /// machine.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration and exit.
    #[arg(long)]
    check_config: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Job(Job),
    Classify(Classify),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Job(job)) => return job_client::run(job),
        Some(Command::Classify(log)) => return classify::run(log),
        None => {}
    }
    daemon::run(arguments.config.as_deref(), arguments.check_config, |config| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(shell::run(config.clone()))
    })
}
