//! The node side of Tidegate: what the agent, the starter and the shim are made of.
//!
//! [`node`], [`reconcile`] and [`ledger`] are pure: no IO, no clock. The agent's shell feeds them
//! and does what they say; a simulation can do the same.
//! What is not here: which job runs where and when (the coordinator decides it), and cgroups.

mod backoff;
pub mod classify;
pub mod config;
pub mod daemon;
pub mod durable;
pub mod environment;
mod frames;
pub mod idle;
pub mod job_client;
pub mod job_protocol;
pub mod ledger;
mod ledger_file;
mod lines;
mod link;
mod logging;
mod logs;
pub mod node;
mod orders;
pub mod permits;
pub mod ports;
pub mod procs;
pub mod reconcile;
pub mod record;
mod renewals;
mod reporting;
pub mod saving;
mod sense;
pub mod shell;
pub mod shim;
mod signals;
pub mod since_boot;
pub mod starter;
mod starter_link;
mod sys;
pub mod task_dir;
mod terminal;
mod text;
