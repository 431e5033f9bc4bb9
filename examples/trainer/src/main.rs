//! A small real trainer: seeded SGD by several ranks that sum their gradients over TCP.
//!
//! It behaves towards a scheduler as a large training job does: it dies as one when a rank dies,
//! saves when asked, stops when asked, and resumes where it was. Its final weights depend only on
//! seed, world size and steps, never on how often it was stopped, so a test can compare them.
//!
//! Not here: GPUs, an async runtime, and any knowledge of Tidegate beyond environment variables,
//! two signals, one file and one socket (docs/job-protocol.md).

mod checkpoint;
mod cli;
mod group;
mod job_socket;
mod launch;
mod model;
mod output;
mod place;
mod rendezvous;
mod result;
mod signals;
mod train;
mod wire;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::cli::{Cli, Command, DigestArgs};
use crate::model::{Model, Task};
use crate::place::Place;
use crate::train::Outcome;

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            output::complain(&format!("{error:#}"));
            ExitCode::from(cli::EXIT_FAILED)
        }
    }
}

fn run(cli: &Cli) -> Result<u8> {
    if let Some(Command::Digest(args)) = &cli.command {
        print_reference_digest(args);
        return Ok(cli::EXIT_DONE);
    }
    if cli.run.launch {
        return launch::run();
    }
    launch::die_with_launcher()?;
    signals::install(cli.run.ignore_term, cli.run.ignore_save)?;
    let outcome = train::run(&cli.run, &Place::from_environment()?)?;
    Ok(match outcome {
        Outcome::Finished => cli::EXIT_DONE,
        Outcome::Saved => cli::EXIT_SAVED,
        Outcome::Stopped => cli::EXIT_STOPPED,
        Outcome::FailedOnPurpose => cli::EXIT_ON_PURPOSE,
    })
}

/// The whole run in one process: the same gradients, summed in the same order.
fn print_reference_digest(args: &DigestArgs) {
    let task = Task::new(args.seed);
    let mut model = Model::seeded(args.seed);
    for step in 1..=args.steps {
        let mut sum = task.gradient(&model, step, 0);
        for rank in 1..args.world_size {
            sum.add(&task.gradient(&model, step, rank));
        }
        model.descend(&sum, args.world_size);
    }
    output::say(&result::final_line(args.steps, task.evaluate(&model), model.digest()));
}
