//! How both daemons begin and end: configuration, log, exit code.

use std::path::Path;
use std::process::ExitCode;

use crate::config::Config;
use crate::logging;

/// Reads the configuration and serves with it, or only prints it. Exit code 2: the configuration
/// is refused, as wrong arguments are, and starting again would not help.
pub fn run(
    config: Option<&Path>,
    check_only: bool,
    serve: impl FnOnce(&Config) -> anyhow::Result<()>,
) -> ExitCode {
    let config = match Config::load(config) {
        Ok(config) => config,
        Err(error) => return logging::refuse(&error.into(), ExitCode::from(2)),
    };
    if check_only {
        return logging::print(&config);
    }
    logging::to_stderr();
    match serve(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => logging::refuse(&error, ExitCode::FAILURE),
    }
}
