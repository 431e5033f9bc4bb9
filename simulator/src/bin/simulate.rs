//! `simulate`: a synthetic week on the real scheduler, and the figures people ask about.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and CI logs")]

use std::process::ExitCode;

use clap::Parser;
use serde_json::json;
use simulator::EPOCH;
use simulator::week::{self, Figures, Kind, Options};
use tidegate_model::Span;

/// Simulate a lab with more work than GPUs, on virtual time.
#[derive(Debug, Parser)]
#[command(name = "simulate", version)]
struct Arguments {
    /// Everything follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long, in days
    #[arg(long, default_value_t = 42)]
    days: u64,
    /// The first days, whose jobs are not counted: the window of seven days fills
    #[arg(long, default_value_t = 7)]
    settle: u64,
    /// GPU-time asked over GPU-time there is, in percent
    #[arg(long, default_value_t = 250)]
    load: u32,
    /// Hold every step against the invariants; slow
    #[arg(long)]
    checked: bool,
    /// One JSON document instead of text
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Arguments { seed, days, settle, load, checked, json } = arguments;
    match week::run(Options { seed, days, counted_from: settle, load, checked }) {
        Ok(figures) => {
            print(&figures, days, json);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("simulate: seed {seed}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(figures: &Figures, days: u64, as_json: bool) {
    let now = EPOCH.plus(Span::hours(days.saturating_mul(24)));
    let kinds = [
        ("debug", Kind::Debug),
        ("eval", Kind::Eval),
        ("fine-tuning", Kind::Tuning),
        ("pretraining", Kind::Pretraining),
        ("whole cluster", Kind::Whole),
    ];
    let (displaced, of_funded) = figures.displaced;
    let apart = figures.waits_apart(Kind::Debug, [50, 90, 99], now);
    let goodput = format!("{}.{:02}", figures.goodput / 10_000, figures.goodput / 100 % 100);
    if as_json {
        let waits = kinds.map(|(name, kind)| {
            let [p50, p90, p99] = figures.waits(kind, [50, 90, 99], now).map(|wait| wait.0);
            let done = figures.median_to_done(kind).0;
            let jobs = figures.count(kind);
            json!({"kind": name, "jobs": jobs, "wait_ms": [p50, p90, p99], "done_ms": done})
        });
        println!(
            "{}",
            json!({
                "waits": waits,
                "debug_apart_wait_ms": apart.map(|wait| wait.0),
                "goodput_percent": goodput,
                "firm_started": figures.firm_started,
                "firm_late": figures.firm_late,
                "firm_moved": figures.firm_moved,
                "displaced": displaced,
                "displaced_funded": of_funded,
            })
        );
        return;
    }
    let [p50, p90, p99, done] = ["wait p50", "p90", "p99", "done p50"];
    println!("{:<14} {:>6} {p50:>12} {p90:>12} {p99:>12} {done:>12}", "", "jobs");
    for (name, kind) in kinds {
        let [p50, p90, p99] = figures.waits(kind, [50, 90, 99], now).map(minutes);
        let (jobs, done) = (figures.count(kind), minutes(figures.median_to_done(kind)));
        println!("{name:<14} {jobs:>6} {p50:>12} {p90:>12} {p99:>12} {done:>12}");
    }
    let [p50, p90, p99] = apart.map(minutes);
    let apart = "no gang of nearly all GPUs being protected when it came";
    println!("debug, {apart}: {p50}, {p90}, {p99}");
    println!("goodput {goodput} %");
    println!(
        "firm instants: {} started, {} late, {} moved",
        figures.firm_started, figures.firm_late, figures.firm_moved
    );
    println!("displaced {displaced}, of them Funded {of_funded}");
}

fn minutes(span: Span) -> String {
    format!("{}.{:02} min", span.0 / 60_000, span.0 % 60_000 / 600)
}
