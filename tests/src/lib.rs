//! The harness: whole clusters of real processes on one machine, with simulated GPUs.
//!
//! `binaries` finds or builds what is started, `cluster` starts, kills and restarts it, `example` submits jobs of frameworks, `offer`
//! says how a job saves, `wait` waits for conditions, `screen` is a person at a terminal, `figures` reduces measurements. The suites are in `suites/`, the demo in
//! `demo`, what measures against the goals in `bench`.

pub mod bench;
pub mod binaries;
pub mod client;
pub mod cluster;
pub mod demo;
pub mod example;
pub mod figures;
pub mod fixture;
pub mod history;
pub mod offer;
pub mod processes;
pub mod screen;
pub mod sim;
pub mod storm;
pub mod wait;
