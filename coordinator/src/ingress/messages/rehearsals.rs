//! What rehearsals have shown.

use std::collections::HashMap;

use scheduler_core::{Books, Job, Rehearsal, RehearsedSave};
use tidegate_model::rfc3339_ms;
use tidegate_proto::v1;

pub(in crate::ingress) fn view(shown: &Rehearsal) -> v1::RehearsalView {
    let save = |save: RehearsedSave| v1::RehearsedSaveView {
        step: save.step,
        bytes: save.bytes.0,
        waited_ms: save.waited.0,
        took_ms: save.took.0,
        left_ms: save.left.0,
    };
    v1::RehearsalView {
        job: shown.job.to_string(),
        at_ms: shown.at.0,
        gpus: shown.gpus.0,
        nodes: shown.nodes,
        passed: shown.passed(),
        why: shown.fault.map(|fault| fault.to_string()).unwrap_or_default(),
        told: shown.to_string(),
        save: shown.save.map(save),
        resumed_step: shown.resumed,
    }
}

/// What is known of a job's recipe, as `explain` tells it: sentences, and the numbers of the result that
/// decides on such a job.
pub(in crate::ingress) fn explained(
    books: &Books,
    job: &Job,
) -> Option<(Vec<String>, HashMap<String, u64>)> {
    let (newest, counting) = job.rehearsed(books)?;
    let told = |shown: &Rehearsal| format!("rehearsed at {}: {shown}", rfc3339_ms(shown.at));
    let mut lines = vec![told(newest)];
    if counting != Some(newest) {
        lines.push("that was on one node, and says nothing of a job on several".to_owned());
        lines.extend(counting.map(told));
    }
    let shown = counting.unwrap_or(newest);
    let mut numbers = HashMap::from([
        ("rehearsed_ms".to_owned(), shown.at.0),
        ("rehearsed_gpus".to_owned(), shown.gpus.0.into()),
        ("rehearsed_nodes".to_owned(), shown.nodes.into()),
        ("rehearsal_passed".to_owned(), shown.passed().into()),
    ]);
    if let Some(save) = shown.save {
        numbers.insert("rehearsed_step".to_owned(), save.step);
    }
    if let Some(step) = shown.resumed {
        numbers.insert("rehearsed_resumed_step".to_owned(), step);
    }
    Some((lines, numbers))
}
