//! `tidegate storm`: what a flood of checkpoint writes does, under the write gate and without it.

#![allow(clippy::print_stdout, reason = "a program for people and CI logs")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use cluster_tests::storm::{self, Row};
use serde_json::json;
use simulator::Server;
use simulator::storm::{Arm, Options, Storm};
use tidegate_model::Bandwidth;

/// The storm benchmark: jobs of 8 to 1,024 GPUs that all have to save, on a limited storage target.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate storm",
    version,
    after_help = "Examples:\n  tidegate storm --model\n  tidegate storm --model --arm permits \
                  --storm gang --json storm.json\n\nThe model is a simulated server at full scale: \
                  8,704 GPUs on 1,088 nodes, 135.4 TB, 100 GB/s\nwith one writer, 10 GB/s for each \
                  node; the cap is four fifths. The scheduler and its gate are the real ones."
)]
struct Args {
    /// The simulated server at full scale
    #[arg(long)]
    model: bool,
    /// Only this gate; else all of them
    #[arg(long, value_enum)]
    arm: Option<ArmName>,
    /// Only this cause; else all of them
    #[arg(long, value_enum)]
    storm: Option<StormName>,
    /// By how many thousandths each further writer slows all others down
    #[arg(long, value_name = "N", default_value_t = 20)]
    slower: u32,
    /// Write all figures to this file too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ArmName {
    /// All write at once
    None,
    /// One at a time
    One,
    /// Four at a time
    Fixed,
    /// The gate, of jobs that are signalled and write as fast as they can
    Ours,
    /// The gate, of jobs that ask before they write
    Permits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StormName {
    /// A gang of 1,024 GPUs displaces others
    Gang,
    /// All nodes are drained
    Maintenance,
    /// A tenth of the nodes each minute
    Waves,
}

const GB: u64 = 1_000_000_000;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint(&format!("error: {error:#}"));
            ExitCode::from(2)
        }
    }
}

#[allow(clippy::print_stderr, reason = "a program for people")]
fn eprint(words: &str) {
    eprintln!("{words}");
}

fn run(args: &Args) -> anyhow::Result<()> {
    if !args.model {
        bail!("no target is named: --model is accepted");
    }
    let mut rows = Vec::new();
    for storm in
        StormName::value_variants().iter().filter(|one| args.storm.is_none_or(|s| s == **one))
    {
        for arm in
            ArmName::value_variants().iter().filter(|one| args.arm.is_none_or(|a| a == **one))
        {
            rows.push(played(*arm, *storm, args.slower)?);
        }
    }
    println!("{}", storm::table(&rows));
    if let Some(file) = &args.json {
        let document = json!({ "target": "model", "rows": rows });
        std::fs::write(file, format!("{document:#}\n"))
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}

fn played(arm: ArmName, storm: StormName, slower: u32) -> anyhow::Result<Row> {
    let cap = Bandwidth(80 * GB);
    let options = Options {
        arm: match arm {
            ArmName::None => Arm::None,
            ArmName::One => Arm::One,
            ArmName::Fixed => Arm::Fixed(4),
            ArmName::Ours => Arm::Ours,
            ArmName::Permits => Arm::Permits,
        },
        storm: match storm {
            StormName::Gang => Storm::Gang,
            StormName::Maintenance => Storm::Maintenance,
            StormName::Waves => Storm::Waves,
        },
        server: Server {
            capacity: Bandwidth(100 * GB),
            slower: slower.saturating_mul(1000),
            node: Bandwidth(10 * GB),
        },
        cap,
    };
    let figures = simulator::storm::run(options).map_err(anyhow::Error::msg)?;
    Ok(Row::of(&name(&arm), &name(&storm), "model", cap, &figures))
}

fn name(one: &impl ValueEnum) -> String {
    one.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
