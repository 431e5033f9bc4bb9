//! What design and users hold the scheduler to over long times, watched from outside: by arithmetic
//! of the tests' own, on decisions as they come, never by asking the scheduler whether it was right.
//!
//! Everything follows from seeds; `CHAOS_SEEDS=from..to` names others than the few of a usual run.

#![allow(clippy::indexing_slicing, reason = "what is not there fails the test")]
#![allow(clippy::print_stdout, reason = "what was counted is said with --nocapture")]

mod charges;
mod conserving;
mod cycles;
mod elders;
mod lab;
mod ledger;
mod seeds;
mod shares;
