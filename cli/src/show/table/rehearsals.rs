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
        // The verdict says whether it was because it was asked: of that the rest here knows nothing.
        None => {
            let own = newest.map(|commit| format!("step {}, {}", commit.step, about(commit.bytes)));
            facts.push(("committed", own.unwrap_or_else(|| "nothing".to_owned())));
        }
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

#[cfg(test)]
mod tests {
    use tidegate_model::Timestamp;
    use tidegate_proto::v1;

    use super::*;

    fn check(change: impl FnOnce(&mut v1::RehearsalView), expected: &str) {
        let save = v1::RehearsedSaveView {
            step: 120,
            bytes: 71_303_168,
            waited_ms: 0,
            took_ms: 12_345,
            left_ms: 14_000,
        };
        let mut wire = v1::RehearsalView {
            job: "job-7".into(),
            at_ms: 1,
            gpus: 16,
            nodes: 2,
            passed: true,
            why: String::new(),
            told: String::new(),
            save: Some(save),
            resumed_step: Some(121),
        };
        change(&mut wire);
        assert_eq!(rehearsal(&wire.into(), None), expected);
    }

    #[test]
    fn what_was_seen_is_told_in_its_order_with_the_verdict_last() {
        check(
            |_| (),
            "rehearsal  job-7\n\
             ran on     16 GPUs of 2 nodes\n\
             told       0 after the request\n\
             committed  step 120, 68.0MiB, in 12s\n\
             had left   after 14s\n\
             went on    at step 121, its first commit after the new start\n\
             verdict    passed",
        );
        check(
            |wire| {
                (wire.save, wire.resumed_step, wire.passed) = (None, None, false);
                (wire.gpus, wire.nodes) = (1, 1);
                wire.why = "its ranks ignore the signal".into();
            },
            "rehearsal  job-7\n\
             ran on     1 GPU of 1 node\n\
             committed  nothing\n\
             verdict    failed: its ranks ignore the signal",
        );
    }

    #[test]
    fn what_it_committed_is_told_also_where_that_was_not_because_it_was_asked() {
        let wire = v1::RehearsalView {
            job: "job-7".into(),
            gpus: 1,
            nodes: 1,
            why: "it committed, but did not leave by itself".into(),
            ..v1::RehearsalView::default()
        };
        let commit = Commit {
            attempt: "job-7.1".into(),
            step: 40,
            path: "/c/step-40".into(),
            bytes: 71_303_168,
            at_ms: Timestamp(1),
        };
        assert_eq!(
            rehearsal(&wire.into(), Some(&commit)),
            "rehearsal    job-7\n\
             ran on       1 GPU of 1 node\n\
             committed    step 40, 68.0MiB\n\
             left behind  /c/step-40\n\
             verdict      failed: it committed, but did not leave by itself"
        );
    }
}
