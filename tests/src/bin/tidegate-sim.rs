//! `tidegate-sim`: runs seeds of the simulation, each twice, and prints what they met.

#![allow(clippy::print_stdout, reason = "a program for people and CI logs")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use cluster_tests::sim::{self, Options, Planted};

/// Runs the coordinator's engine and the agents' reconcile on virtual time, with faults.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Steps under faults, of each seed.
    #[arg(long, default_value_t = 10_000)]
    steps: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Look for the bugs planted on purpose instead: each must be found.
    #[arg(long)]
    planted: bool,
    /// Print every step on stderr, to follow a seed.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.planted {
        return look_for_planted(&args);
    }
    let mut coverage: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = false;
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let began = Instant::now();
        let options = Options { seed, steps: args.steps, planted: None, verbose: args.verbose };
        let run = sim::run(options);
        let again = sim::run(Options { verbose: false, ..options });
        println!(
            "seed {seed}: {} steps, {} jobs ended, at most {} alive, trace {:016x}, {:.1} s",
            run.steps,
            run.jobs_ended,
            run.most_alive,
            run.trace,
            began.elapsed().as_secs_f32()
        );
        if let Some(violation) = &run.violation {
            println!("seed {seed}: VIOLATION {violation}");
            failed = true;
        }
        if run != again {
            println!("seed {seed}: the second run differs (trace {:016x})", again.trace);
            failed = true;
        }
        for (what, count) in run.coverage {
            let sum = coverage.entry(what).or_insert(0);
            *sum = sum.saturating_add(count);
        }
    }
    for what in sim::required_coverage() {
        let count = coverage.get(&what).copied().unwrap_or(0);
        println!("{count:>10}  {what}");
        failed |= count == 0;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs seeds with one bug each until it is found, or the seeds are used up.
fn look_for_planted(args: &Args) -> ExitCode {
    let mut missed = false;
    for planted in Planted::ALL {
        let mut steps = 0_u64;
        let found = (args.seed..args.seed.saturating_add(args.seeds)).find_map(|seed| {
            let run = sim::run(Options {
                seed,
                steps: args.steps,
                planted: Some(planted),
                verbose: args.verbose,
            });
            let found = run.violation.map(|violation| (seed, violation));
            steps = steps.saturating_add(found.as_ref().map_or(run.steps, |(_, at)| at.step));
            found
        });
        match found {
            Some((seed, violation)) => {
                println!("{planted:?}: found in {steps} steps, seed {seed} {violation}");
            }
            None => {
                println!("{planted:?}: NOT found in {steps} steps");
                missed = true;
            }
        }
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
