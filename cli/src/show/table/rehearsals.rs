//! What a rehearsal has shown.

use super::pairs;
use crate::show::text::{about, counted};
use crate::show::time::rounded;
use crate::view::job::Commit;
use crate::view::rehearsal::Rehearsal;

/// What was seen, in the order in which it came, and the verdict.
pub(crate) fn rehearsal(shown: &Rehearsal, newest: Option<&Commit>) -> String {
    let (gpus, nodes) = (counted(shown.gpus, "GPU"), counted(shown.nodes, "node"));
    let mut facts =
        vec![("rehearsal", shown.job.clone()), ("ran on", format!("{gpus} of {nodes}"))];
    match &shown.save {
        Some(save) => facts.extend([
            ("told", format!("{} after the request", rounded(save.waited))),
            (
                "committed",
                format!("step {}, {}, in {}", save.step, about(save.bytes), rounded(save.took)),
            ),
            ("had left", format!("after {}", rounded(save.left))),
        ]),
        None => facts.push(("committed", "nothing when it was asked".to_owned())),
    }
    if let Some(step) = shown.resumed_step {
        facts.push(("went on", format!("at step {step}, its first commit after the new start")));
    }
    // Nobody else removes it.
    facts.extend(newest.map(|commit| ("left behind", commit.path.clone())));
    let verdict = shown.why.as_ref().map(|why| format!("failed: {why}"));
    facts.push(("verdict", verdict.unwrap_or_else(|| "passed".to_owned())));
    pairs(facts)
}
