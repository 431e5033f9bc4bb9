//! Starts and ends tasks for the agent, and knows of each what became of it. One thread, no async
//! runtime: it must be small enough to run as root one day.
//!
//! What is not here: the network, GPUs, the coordinator's plan (all the agent's), and a task's
//! output and exit (its shim's).

mod adopt;
mod connection;
mod kept_logs;
pub mod protocol;
mod server;
mod spawn;
mod sweep;
mod tasks;
mod told;
mod watch;

pub use server::run;
