//! Arguments of what is done with nodes, and with the cluster as a whole.

use std::str::FromStr;

use clap::{Args, Subcommand};
use clap_complete::Shell;
use tidegate_model::{NodeName, Span, Timestamp};

use crate::show::time;

#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// Only drained nodes, with reason, owner and time
    #[arg(long)]
    pub(crate) reasons: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The node's name
    pub(crate) node: NodeName,
    /// Why; shown to everybody
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
    /// When it is wanted empty: names who is protected beyond it, and breaks nobody
    #[arg(long, value_name = "TIME|SPAN", allow_hyphen_values = true)]
    pub(crate) by: Option<When>,
}

/// No drain is planned further ahead than ten years.
const MAX_AHEAD: Span = Span::hours(3653 * 24);

/// An instant, as a person gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    At(Timestamp),
    /// So much later than now.
    In(Span),
}

impl When {
    pub(crate) fn instant(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::In(span) => now.plus(span),
        }
    }
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = time::from_rfc3339(text).map(Self::At);
        let span = || text.parse().ok().filter(|span| *span <= MAX_AHEAD).map(Self::In);
        at.or_else(span).ok_or_else(|| {
            let given: String = text.chars().take(64).collect();
            format!(
                "{given:?} is no time: expected a span from now like 2h or 1h30m, from 0 to \
                 {MAX_AHEAD}, or an instant like 2026-12-01T08:00:00Z or 2026-12-01T08:00:00+01:00"
            )
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node's name
    pub(crate) node: NodeName,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Its tasks are gone for ever: the machine is off or reinstalled
    #[command(after_help = "Example:\n  tidegate node lost gpu-01\n\nOnly say so of a node whose \
                      processes cannot be running any more: its jobs\nare started again elsewhere.")]
    Lost(NodeArgs),
    /// It will not come back: forget it
    #[command(after_help = "Example:\n  tidegate node remove gpu-01\n\nOnly a silent node on \
                            which nothing is placed can be removed. The whole budget\nshrinks by \
                            its GPUs.")]
    Remove(NodeArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show every rule with its value
    #[command(after_help = "Example:\n  tidegate policy show")]
    Show,
    /// Change rules; only an admin may
    #[command(after_help = "Examples:\n  tidegate policy set slack=2% patience=12h\n  tidegate \
                            policy set admins=ana,1001 gpu_types=h100:H100:2000,a100:A100:1000\n\n\
                            gpu_types are NAME:PRODUCT:WEIGHT, and small_floor is a number of \
                            GPU-hours, such\nas 64h. What is not named stays.")]
    Set {
        /// A rule and its value
        #[arg(value_name = "KEY=VALUE", required = true)]
        pairs: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// For this shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}
