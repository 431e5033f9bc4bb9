//! `tidegate-coordinator`: the scheduler, and the API of a cluster.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tidegate_coordinator::config::Config;

/// The coordinator of a Tidegate cluster: scheduler, journal and API.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Configuration file (TOML). Without it every key has its default.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration and exit.
    #[arg(long)]
    check_config: bool,
}

#[allow(clippy::print_stderr, reason = "what the person who starts it sees")]
fn main() -> ExitCode {
    say_panics_in_one_line();
    let args = Args::parse();
    let loaded = match &args.config {
        Some(path) => Config::load(path).map_err(anyhow::Error::from),
        None => Config::parse("").map_err(anyhow::Error::msg),
    };
    let config = match loaded {
        Ok(config) if args.check_config => {
            // Whoever reads no further has read enough.
            let said = writeln!(std::io::stdout(), "{config}");
            return if said.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(2);
        }
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_unset| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(tidegate_coordinator::run::serve(config)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A panic is a broken invariant, of ours or of a library over a damaged file. The process ends;
/// nothing of the turn was seen by anybody.
#[allow(clippy::print_stderr, reason = "what the person who starts it sees")]
fn say_panics_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        let words = panic.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        eprintln!(
            "error: an invariant is broken: {words}; a restart restores, and if this is said at \
             the start, the store is damaged: put a copy of it back"
        );
    }));
}
