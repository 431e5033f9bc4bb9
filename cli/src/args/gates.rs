//! Arguments of what is done with write gates.

use std::fmt;
use std::str::FromStr;

use clap::{ArgGroup, Args, Subcommand};
use tidegate_model::{Bandwidth, StorageName};
use tidegate_proto::v1;

use super::bounds;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct GateArgs {
    /// Only this storage target, with who writes and who waits
    pub(crate) storage: Option<StorageName>,
    #[command(subcommand)]
    pub(crate) command: Option<GateCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GateCommand {
    /// Say what a storage target may carry; only an admin may
    #[command(
        after_help = "Examples:\n  tidegate gate set shared --cap 80GiB/s\n  tidegate gate set \
                      shared --cap 80GiB/s --node 10GiB/s --writers 8\n  tidegate gate set shared \
                      --hours 22:00-06:00=160GiB/s\n\nWhat is not named stays. Measure the target \
                      first: four fifths of what it writes is a good cap."
    )]
    Set(SetGateArgs),
    /// Let nobody write who does not yet; who writes goes on, and who is to leave trains on
    #[command(after_help = "Example:\n  tidegate gate pause shared --reason \"rebuild of a disk\"")]
    Pause(PauseArgs),
    /// Let them write again
    #[command(after_help = "Example:\n  tidegate gate resume shared")]
    Resume(StorageArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StorageArgs {
    /// The storage target
    pub(crate) storage: StorageName,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// The storage target
    pub(crate) storage: StorageName,
    /// Why; shown to everybody
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("limits").required(true).multiple(true))]
pub(crate) struct SetGateArgs {
    /// The storage target, as jobs name it
    pub(crate) storage: StorageName,
    /// What checkpoints may write there in a second, or none
    #[arg(long, value_name = "RATE", group = "limits")]
    pub(crate) cap: Option<Limit<Bandwidth>>,
    /// What restores may read there in a second, or none
    #[arg(long, value_name = "RATE", group = "limits")]
    pub(crate) reads: Option<Limit<Bandwidth>>,
    /// The most that one node can write, or read, in a second, or none
    #[arg(long, value_name = "RATE", group = "limits")]
    pub(crate) node: Option<Limit<Bandwidth>>,
    /// The cap follows what the target proves to carry, down to this, or none for a fixed cap
    #[arg(long, value_name = "RATE", group = "limits")]
    pub(crate) floor: Option<Limit<Bandwidth>>,
    /// Most jobs that write at a time, or none for as many as the policy lets
    #[arg(long, value_name = "N", group = "limits")]
    pub(crate) writers: Option<Limit<Count>>,
    /// Most files that may be made in a second, or none
    #[arg(long, value_name = "N", group = "limits")]
    pub(crate) files: Option<Limit<Count>>,
    /// Another cap at these hours (UTC), or none for the same at all hours; may be repeated
    #[arg(long, value_name = "FROM-UNTIL=RATE", group = "limits")]
    pub(crate) hours: Vec<Limit<Hours>>,
}

/// A limit, or that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit<T> {
    None,
    Some(T),
}

impl<T> Limit<T> {
    pub(crate) fn value(self) -> Option<T> {
        match self {
            Self::None => None,
            Self::Some(value) => Some(value),
        }
    }
}

impl<T: FromStr<Err: fmt::Display>> FromStr for Limit<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        text.parse().map(Self::Some).map_err(|why| format!("{why}, or none"))
    }
}

/// A whole number above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) u32);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        bounds::count(1, u32::MAX)(text).map(Self)
    }
}

/// `22:00-06:00=160GiB/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hours(pub(crate) v1::CapHours);

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hours = || {
            let (span, cap) = text.split_once('=')?;
            let (from, until) = span.split_once('-')?;
            let cap: Bandwidth = cap.parse().ok()?;
            let (from_minute, until_minute) = (minute(from)?, minute(until)?);
            Some(v1::CapHours { from_minute, until_minute, cap_bytes_per_s: cap.0 })
        };
        hours().map(Self).ok_or_else(|| {
            let given: String = text.chars().take(64).collect();
            format!("{given:?} are no hours: expected a form like 22:00-06:00=160GiB/s")
        })
    }
}

/// Of a day; 24:00 is its end.
fn minute(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let minute = hours.checked_mul(60)?.checked_add(minutes)?;
    (minutes < 60 && minute <= 24 * 60).then_some(minute)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::Cli;

    fn check(line: &str, expected: &str) {
        let told = Cli::try_parse_from(line.split(' ')).map(|_| "accepted".to_owned());
        let told = told.unwrap_or_else(|error| error.to_string());
        assert_eq!(told.lines().next(), Some(expected));
    }

    #[test]
    fn limits_of_a_gate_are_refused_with_what_is_accepted() {
        check("tidegate gate", "accepted");
        check("tidegate gate shared", "accepted");
        check("tidegate gate set shared --cap 80GiB/s --node none --writers 4", "accepted");
        check("tidegate gate set shared --hours 22:00-06:00=160GiB/s --hours none", "accepted");
        check("tidegate gate pause shared --reason x", "accepted");
        check(
            "tidegate gate set shared --cap 80",
            "error: invalid value '80' for '--cap <RATE>': \"80\" is not a rate: expected a form \
             like 512KiB/s, 64MiB/s or 10GiB/s, or none",
        );
        check(
            "tidegate gate set shared --writers 0",
            "error: invalid value '0' for '--writers <N>': a whole number from 1 to 4294967295 is \
             accepted, or none",
        );
        check(
            "tidegate gate set shared --hours 22-6=1GiB",
            "error: invalid value '22-6=1GiB' for '--hours <FROM-UNTIL=RATE>': \"22-6=1GiB\" are \
             no hours: expected a form like 22:00-06:00=160GiB/s, or none",
        );
        check(
            "tidegate gate set shared",
            "error: the following required arguments were not provided:",
        );
    }
}
