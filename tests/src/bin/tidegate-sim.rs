//! `tidegate-sim`: runs seeds of the simulation, every tenth twice, and prints what they met.

#![allow(clippy::print_stdout, reason = "a program for people and CI logs")]

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use cluster_tests::sim::{self, Options, Planted, Run};

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

/// Every how many seeds one is run a second time, beside the first, and must come out the same: what
/// makes a run differ from itself does so in any seed.
const SEEDS_PER_REPEAT: u64 = 10;

/// Runs a seed, and a second time where that is asked for.
fn run(options: Options, repeat: bool) -> (Run, Option<Run>) {
    std::thread::scope(|scope| {
        let quiet = Options { verbose: false, ..options };
        let again = repeat.then(|| scope.spawn(move || sim::run(quiet)));
        let run = sim::run(options);
        let again = again.map(|again| again.join().unwrap_or_else(|broken| resume_unwind(broken)));
        (run, again)
    })
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
        let repeat = seed.saturating_sub(args.seed).is_multiple_of(SEEDS_PER_REPEAT);
        let (run, again) = run(options, repeat);
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
        if let Some(again) = again.filter(|again| *again != run) {
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
        let never =
            if count == 0 { "  <- NEVER MET: these seeds show nothing about it" } else { "" };
        println!("{count:>10}  {what}{never}");
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
