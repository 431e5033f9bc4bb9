//! Agent, starter and shims as real processes.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    clippy::indexing_slicing,
    reason = "a test's helpers fail as its body does"
)]

mod agent;
mod bench;
mod field;
mod job_command;
mod job_socket;
mod permits;
mod saving;
mod starter;
