//! `tidegate storm`: what a flood of checkpoint writes does, under the write gate and without it.

#![allow(clippy::print_stdout, reason = "a program for people and CI logs")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use cluster_tests::binaries::Binaries;
use cluster_tests::storm::real::{self, Calm};
use cluster_tests::storm::{self, Row, Target};
use serde_json::{Value, json};
use simulator::Server;
use simulator::storm::{Arm, Options, Storm};
use tidegate_model::Bandwidth;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// The storm benchmark: jobs of 8 to 1,024 GPUs that all have to save, on a limited storage target.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate storm",
    version,
    after_help = "Examples:\n  tidegate storm --model\n  tidegate storm --model --arm permits \
                  --storm gang --json storm.json\n  tests/targets/loop.sh up /tmp/loop && tidegate \
                  storm --target /tmp/loop/target.json\n\nThe model is a simulated server at full \
                  scale: 8,704 GPUs on 1,088 nodes, 135.4 TB, 100 GB/s\nwith one writer, 10 GB/s for \
                  each node; the cap is four fifths. The scheduler and its gate are the real \
                  ones.\n\nA real target is written to by real jobs under real agents, with an eighth \
                  of the GPUs, which\nare simulated, and bytes divided by --scale. Its cap is four \
                  fifths of what it is measured to take."
)]
struct Args {
    /// The simulated server at full scale
    #[arg(long, required_unless_present = "target", conflicts_with = "target")]
    model: bool,
    /// Real storage: a directory, or a description as tests/targets write it
    #[arg(long, value_name = "PATH")]
    target: Option<PathBuf>,
    /// On real storage: by what bytes are divided
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    scale: u64,
    /// On real storage: a tenth of the jobs
    #[arg(long)]
    small: bool,
    /// Only this gate; may be repeated
    #[arg(long, value_enum)]
    arm: Vec<ArmName>,
    /// Only this cause; may be repeated
    #[arg(long, value_enum)]
    storm: Vec<StormName>,
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
    let mut rows = Vec::new();
    let real = args.target.as_deref().map(|path| Real::of(path, args)).transpose()?;
    for storm in storms(args) {
        let arms = ArmName::value_variants().iter().copied();
        for arm in arms.filter(|arm| args.arm.is_empty() || args.arm.contains(arm)) {
            rows.push(match &real {
                Some(real) => real.played(arm, storm)?,
                None => modelled(arm, storm, args.slower)?,
            });
        }
    }
    println!("{}", storm::table(&rows));
    if let Some(file) = &args.json {
        let target = real.map_or_else(|| json!({ "name": "model" }), |real| real.described());
        let document = json!({ "target": target, "rows": rows });
        std::fs::write(file, format!("{document:#}\n"))
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    Ok(())
}

/// Ten waves a minute apart are for the model alone, unless they are named.
fn storms(args: &Args) -> Vec<StormName> {
    let all = StormName::value_variants().iter().copied();
    let is_meant = |storm: &StormName| match args.storm.as_slice() {
        [] => args.model || *storm != StormName::Waves,
        named => named.contains(storm),
    };
    all.filter(is_meant).collect()
}

impl ArmName {
    fn arm(self) -> Arm {
        match self {
            Self::None => Arm::None,
            Self::One => Arm::One,
            Self::Fixed => Arm::Fixed(4),
            Self::Ours => Arm::Ours,
            Self::Permits => Arm::Permits,
        }
    }
}

impl StormName {
    fn storm(self) -> Storm {
        match self {
            Self::Gang => Storm::Gang,
            Self::Maintenance => Storm::Maintenance,
            Self::Waves => Storm::Waves,
        }
    }
}

/// Real storage, and what it does when no storm is.
struct Real {
    runtime: Runtime,
    binaries: Binaries,
    options: real::Options,
    calm: Calm,
}

impl Real {
    fn of(path: &Path, args: &Args) -> anyhow::Result<Self> {
        let target = Target::of(path)?;
        let binaries = Binaries::beside_me()?;
        eprint(&format!("measuring {}: up to 45 s", target.name));
        let calm = real::measure(&target, args.small)?;
        eprint(&format!("it takes {} MB/s", calm.capacity.0 / 1_000_000));
        let options = real::Options { target, scale: args.scale, small: args.small };
        Ok(Self {
            runtime: Builder::new_current_thread().enable_all().build()?,
            binaries,
            options,
            calm,
        })
    }

    fn played(&self, arm: ArmName, storm: StormName) -> anyhow::Result<Row> {
        eprint(&format!("{}, {}", name(&storm), name(&arm)));
        let Self { runtime, binaries, options, calm } = self;
        let what = (arm.arm(), storm.storm());
        let play = real::play(binaries.clone(), options, calm, what);
        // An interrupted storm takes its cluster and its files along.
        let played = runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            tokio::select! {
                played = play => played,
                _ = tokio::signal::ctrl_c() => bail!("interrupted"),
                _ = terminate.recv() => bail!("interrupted"),
            }
        })?;
        let target = &options.target.name;
        let row = Row::of(&name(&arm), &name(&storm), target, calm.cap(), &played.figures);
        Ok(row.beside(&played.bystanders, &calm.bystanders))
    }

    fn described(&self) -> Value {
        json!({
            "name": self.options.target.name,
            "scale": self.options.scale,
            "capacity_bytes_per_s": self.calm.capacity.0,
            "cap_bytes_per_s": self.calm.cap().0,
            "idle_bystander_p99_us": storm::late(&self.calm.bystanders).as_micros(),
            "idle_bystander_samples": self.calm.bystanders.len(),
        })
    }
}

fn modelled(arm: ArmName, storm: StormName, slower: u32) -> anyhow::Result<Row> {
    let cap = Bandwidth(80 * GB);
    let server = Server {
        capacity: Bandwidth(100 * GB),
        slower: slower.saturating_mul(1000),
        node: Bandwidth(10 * GB),
    };
    let options = Options { arm: arm.arm(), storm: storm.storm(), server, cap };
    let figures = simulator::storm::run(options).map_err(anyhow::Error::msg)?;
    Ok(Row::of(&name(&arm), &name(&storm), "model", cap, &figures))
}

fn name(one: &impl ValueEnum) -> String {
    one.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
