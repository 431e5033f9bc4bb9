//! `tidegate-starter`: starts and ends this node's tasks for the agent.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tidegate_agent::config::Config;
use tidegate_agent::{logging, starter};

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
    let config = match Config::load(arguments.config.as_deref()) {
        Ok(config) => config,
        // As for wrong arguments: starting it again would not help.
        Err(error) => return logging::refuse(&error.into(), ExitCode::from(2)),
    };
    if arguments.check_config {
        return logging::print(&config);
    }
    logging::to_stderr();
    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => logging::refuse(&error, ExitCode::FAILURE),
    }
}

fn run(config: &Config) -> anyhow::Result<()> {
    starter::run(config)
}
