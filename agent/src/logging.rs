//! What the daemons say to people.

use std::error::Error;
use std::fmt::Display;
use std::io::{Write, stderr, stdout};

use tracing_subscriber::EnvFilter;

/// Log lines go to stderr, from `info` on or as `RUST_LOG` says.
pub fn to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_writer(stderr).init();
}

/// Prints an answer that was asked for on the command line.
///
/// # Errors
/// stdout cannot be written.
pub fn print(answer: &impl Display) -> anyhow::Result<()> {
    writeln!(stdout(), "{answer}")?;
    Ok(())
}

/// Says why the program does not start.
///
/// # Errors
/// stderr cannot be written.
pub fn refuse(error: &impl Error) -> anyhow::Result<()> {
    writeln!(stderr(), "error: {error}")?;
    Ok(())
}
