//! How the jobs of tests and figures offer to save.

use tidegate_model::{CheckpointOffer, SaveTarget, Span};

/// An offer of a job that is asked by its file and its socket alone, writes to `shared` and exits with
/// 85 once it has saved; it has so long to leave. What is particular to a job is written around it.
///
/// # Panics
/// Never but for a change of what storage names accept.
#[must_use]
pub fn offer(grace: Span) -> CheckpointOffer {
    CheckpointOffer {
        asks_within: None,
        signal: None,
        target: SaveTarget::Ranks,
        grace,
        bytes: None,
        storage: "shared".parse().unwrap_or_else(|_| unreachable!("a valid name")),
        saved_codes: vec![85],
        rehearsal: None,
    }
}
