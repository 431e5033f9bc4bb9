//! `scenario FILE…`: runs scenarios, and says what came otherwise than expected.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and CI logs")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use simulator::scenario;

/// Run scenarios of the scheduler and compare what comes with what they expect.
#[derive(Debug, Parser)]
#[command(name = "scenario", version)]
struct Arguments {
    /// Scenario files, or folders of them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write what came in the place of what was expected; so does `UPDATE_EXPECT=1`
    #[arg(long)]
    update: bool,
    /// Print all that came
    #[arg(long)]
    show: bool,
}

fn main() -> ExitCode {
    match perform(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scenario: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How many came otherwise.
fn perform(arguments: &Arguments) -> anyhow::Result<u32> {
    let mut others = 0_u32;
    let update = arguments.update || std::env::var_os("UPDATE_EXPECT").is_some();
    for file in files(&arguments.files)? {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let outcome = scenario::run(&text).with_context(|| file.display().to_string())?;
        if arguments.show {
            print!("{}:\n{}", file.display(), outcome.got);
        }
        if outcome.is_met() {
            continue;
        }
        if update {
            fs::write(&file, outcome.rewritten())?;
            println!("{}: rewritten", file.display());
            continue;
        }
        others = others.saturating_add(1);
        print!("{}:\n{}", file.display(), scenario::difference(&outcome.expected, &outcome.got));
    }
    Ok(others)
}

/// The files, and those that lie in the folders, in order of their names.
fn files(given: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in given {
        if path.is_dir() {
            all.extend(inside(path)?);
        } else {
            all.push(path.clone());
        }
    }
    Ok(all)
}

fn inside(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries: Result<Vec<_>, _> = fs::read_dir(folder)?.collect();
    let mut paths: Vec<_> = entries?.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "txt"));
    paths.sort();
    Ok(paths)
}
