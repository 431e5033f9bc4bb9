//! `tidegate-bench`: see [`cluster_tests::bench`].

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and CI logs")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use cluster_tests::bench::report::Board;
use cluster_tests::bench::usage::raise_open_files;
use cluster_tests::bench::{self, What};
use tokio::signal::unix::{SignalKind, signal};

/// As shells do: 128 + the signal's number.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

const AFTER_HELP: &str = "\
Real processes with SIMULATED GPUs, but for the 1,024 agents of fanout, which live in this process.
A goal that is missed is shown and does not change the exit code: figures of a busy machine are
upper bounds.

Exit codes:  0  everything was measured    1  something failed
             2  wrong usage                130  interrupted; everything has been ended";

/// Measure Tidegate against its goals.
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench", version, after_help = AFTER_HELP)]
struct Arguments {
    /// What to measure
    #[arg(required = true, value_name = "WHAT")]
    what: Vec<What>,
    /// Write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Repeat everything so often; figures are then medians, with the least and the most
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Measure a debug build all the same; its figures say nothing about a release
    #[arg(long)]
    allow_debug: bool,
}

fn main() -> ExitCode {
    match perform(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if cfg!(debug_assertions) && !arguments.allow_debug {
        bail!(
            "this is a debug build, whose figures mean nothing; use `cargo run --release \
             --bin tidegate-bench`, or --allow-debug to try the tool"
        );
    }
    raise_open_files().context("the limit of open files")?;
    let mut board = Board::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let interrupted = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            measured = bench::run(&arguments.what, arguments.runs, &mut board) => {
                measured.map(|()| None)
            }
            _ = interrupt.recv() => Ok(Some(INTERRUPTED)),
            _ = terminate.recv() => Ok(Some(TERMINATED)),
        }
    });
    // What was measured before something failed is shown too.
    board.finish();
    println!("{board}");
    if let Some(file) = &arguments.json {
        let mut text = serde_json::to_string_pretty(&board.to_json())?;
        text.push('\n');
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    Ok(interrupted?.map_or(ExitCode::SUCCESS, ExitCode::from))
}
