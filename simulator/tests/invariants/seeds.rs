//! Which seeds a run has.

use std::ops::Range;

/// The seeds that `CHAOS_SEEDS=from..to` names, else these.
pub(crate) fn seeds(usual: Range<u64>) -> Range<u64> {
    let given = std::env::var("CHAOS_SEEDS").ok();
    let range = given.as_deref().and_then(|text| text.split_once(".."));
    range.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?)).unwrap_or(usual)
}
