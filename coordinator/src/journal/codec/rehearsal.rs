//! What rehearsals have shown, in records and snapshots.

use scheduler_core::{Recipe, Rehearsal, RehearsalFault, RehearsedSave, Verdict};
use tidegate_model::{Bytes, GpuCount, Span, Timestamp};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::{WireError, parsed};

use super::parts::{fault, fault_number};

pub(in crate::journal) fn message(recipe: Recipe, shown: &Rehearsal) -> wire::Rehearsal {
    let save = shown.save.map(|save| wire::rehearsal::Save {
        step: save.step,
        bytes: save.bytes.0,
        waited_ms: save.waited.0,
        took_ms: save.took.0,
        left_ms: save.left.0,
    });
    wire::Rehearsal {
        recipe: recipe.0.to_be_bytes().to_vec(),
        job: shown.job.to_string(),
        at_ms: shown.at.0,
        gpus: shown.gpus.0,
        nodes: shown.nodes,
        save,
        resumed_step: shown.resumed,
        fault: shown.fault.map_or(0, fault_number),
    }
}

pub(in crate::journal) fn rehearsal(
    message: wire::Rehearsal,
) -> Result<(Recipe, Rehearsal), WireError> {
    let field = "Rehearsal.recipe";
    let recipe = message.recipe.try_into().map_err(|bytes: Vec<u8>| {
        let why = format!("{} bytes; 16 are accepted", bytes.len());
        WireError::Invalid { field, why }
    })?;
    let save = message.save.map(|save| RehearsedSave {
        step: save.step,
        bytes: Bytes(save.bytes),
        waited: Span(save.waited_ms),
        took: Span(save.took_ms),
        left: Span(save.left_ms),
    });
    let passed = message.fault == i32::from(wire::RehearsalFault::Unspecified);
    let failed: Option<RehearsalFault> = if passed { None } else { Some(fault(message.fault)?) };
    let shown = Rehearsal {
        job: parsed(&message.job, "Rehearsal.job")?,
        at: Timestamp(message.at_ms),
        gpus: GpuCount(message.gpus),
        nodes: message.nodes,
        save,
        resumed: message.resumed_step,
        fault: failed,
    };
    Ok((Recipe(u128::from_be_bytes(recipe)), shown))
}

pub(in crate::journal) fn verdict_number(verdict: Option<Verdict>) -> i32 {
    match verdict {
        None => wire::Verdict::Unspecified.into(),
        Some(Verdict::Passed) => wire::Verdict::Passed.into(),
        Some(Verdict::Failed) => wire::Verdict::Failed.into(),
    }
}

pub(in crate::journal) fn verdict(value: i32) -> Result<Option<Verdict>, WireError> {
    match wire::Verdict::try_from(value) {
        Ok(wire::Verdict::Unspecified) => Ok(None),
        Ok(wire::Verdict::Passed) => Ok(Some(Verdict::Passed)),
        Ok(wire::Verdict::Failed) => Ok(Some(Verdict::Failed)),
        Err(_) => Err(WireError::UnknownEnum { field: "Job.judged", value }),
    }
}
