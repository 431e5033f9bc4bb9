//! `tidegate demo`: see [`cluster_tests::demo`].

#![allow(clippy::print_stderr, reason = "a program for people")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use cluster_tests::demo::screen::Screen;
use cluster_tests::demo::{self, Acts, Options};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// As shells do: 128 + the signal's number.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;

const AFTER_HELP: &str = "\
A coordinator and four nodes with 8 SIMULATED GPUs each are started as real processes on this
machine. Real training jobs run on them while a rank, a shim, a starter, an agent and the
coordinator are killed; a node is drained and a job cancelled. In the end every job's digest is
compared with that of an undisturbed run.

In a second act budgets are given on another such cluster: free jobs save and leave for a funded
gang, nothing displaces it inside its min runtime, then a gang of another account does, a debug job
starts on the full cluster, the coordinator is killed, and what was charged is recounted.
Both take less than 90 seconds.

Exit codes:  0  every promise held    1  one was broken, or something failed
             2  wrong usage           130  interrupted; everything has been ended";

/// Start a small cluster with simulated GPUs and kill its processes while it works.
#[derive(Debug, Parser)]
#[command(name = "tidegate-demo", version, after_help = AFTER_HELP)]
struct Arguments {
    /// Write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// What is played
    #[arg(long, value_enum, value_name = "ACT", default_value_t = Acts::All)]
    act: Acts,
    /// Leave the first act's cluster running at the end, and say how to look at it
    #[arg(long)]
    keep: bool,
    /// Chooses the victims and the moments
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How many processes are killed; the first five are one of each kind
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=1000))]
    kills: usize,
    /// End a cluster that an earlier run has left running, and remove its directory
    #[arg(long, value_name = "DIR", exclusive = true)]
    end: Option<PathBuf>,
}

fn main() -> ExitCode {
    match perform(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tidegate-demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &arguments.end {
        demo::end(dir)?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            ended = demonstrate(arguments) => ended,
            code = asked_to_end(&mut interrupt, &mut terminate) => {
                eprintln!("tidegate-demo: interrupted; the cluster has been ended");
                Ok(ExitCode::from(code))
            }
        }
    })
}

async fn asked_to_end(interrupt: &mut Signal, terminate: &mut Signal) -> u8 {
    tokio::select! {
        _ = interrupt.recv() => INTERRUPTED,
        _ = terminate.recv() => TERMINATED,
    }
}

async fn demonstrate(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { json, act, keep, seed, kills, end: _ } = arguments;
    let screen = Screen::new();
    let options = Options { seed: *seed, kills: *kills, keep: *keep, acts: *act };
    let figures = match demo::run(&options, &screen).await {
        Ok(figures) => figures,
        Err(error) => {
            write(json.as_deref(), &json!({ "ok": false, "error": format!("{error:#}") }))?;
            return Err(error);
        }
    };
    write(json.as_deref(), &serde_json::to_value(&figures)?)?;
    let (word, code) = match figures.ok {
        true => ("every promise held", ExitCode::SUCCESS),
        false => ("a promise was BROKEN", ExitCode::FAILURE),
    };
    screen.say(&format!("{word}, on simulated GPUs"));
    Ok(code)
}

fn write(file: Option<&Path>, figures: &serde_json::Value) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let mut text = serde_json::to_string_pretty(figures)?;
    text.push('\n');
    std::fs::write(file, text).with_context(|| file.display().to_string())
}
