//! `tidegate-starter`: starts and ends this node's tasks for the agent.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tidegate_agent::{daemon, starter};

/// Starts and ends this node's tasks for tidegate-agent. Tasks go on while it is away.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The node's configuration, the same file as the agent's. Without it: defaults for one
    /// machine.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration and exit.
    #[arg(long)]
    check_config: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    daemon::run(arguments.config.as_deref(), arguments.check_config, starter::run)
}
