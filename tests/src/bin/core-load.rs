//! A fixed load on the scheduler alone, for profilers and instruction counts: the same events for
//! the same arguments, on every machine.

#![allow(clippy::print_stdout, reason = "a program for people and CI logs")]

use clap::Parser;
use cluster_tests::bench::core::{Size, load};

/// Put a fixed load on the scheduler alone, and say what it decided.
#[derive(Debug, Parser)]
#[command(name = "core-load", version)]
struct Arguments {
    /// Nodes of 8 GPUs
    #[arg(long, default_value_t = 128)]
    nodes: u32,
    /// Jobs in the queue
    #[arg(long, default_value_t = 10_000)]
    waiting: u64,
    /// Events before those that are measured
    #[arg(long, default_value_t = 2_000)]
    warm_up: usize,
    /// Events that are measured
    #[arg(long, default_value_t = 6_000)]
    events: usize,
}

fn main() -> anyhow::Result<()> {
    let Arguments { nodes, waiting, warm_up, events } = Arguments::parse();
    println!("{}", load(Size { nodes, waiting }, warm_up, events)?);
    Ok(())
}
