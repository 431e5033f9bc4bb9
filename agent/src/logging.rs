//! What the daemons say to people.

use std::fmt::Display;
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// Log lines go to stderr, from `info` on or as `RUST_LOG` says.
pub(crate) fn to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_writer(stderr).init();
}

/// Prints an answer that was asked for on the command line.
#[must_use]
pub(crate) fn print(answer: &impl Display) -> ExitCode {
    match writeln!(stdout(), "{answer}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_closed) => ExitCode::FAILURE,
    }
}

/// Says in one line why the program ends, and ends it with this code.
#[must_use]
pub(crate) fn refuse(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    // Where stderr is closed there is nobody to tell.
    drop(writeln!(stderr(), "error: {error:#}"));
    code
}
