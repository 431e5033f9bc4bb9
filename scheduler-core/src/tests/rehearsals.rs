//! Rehearsals: what they are kept under. How they are led is in the scenarios.

use tidegate_model::{
    AskAfter, Bytes, CheckpointOffer, GpuCount, JobSpec, SaveSignal, SaveTarget, Span, TaskLayout,
};

use super::lab::Lab;
use crate::rehearsal::Recipe;

fn spec() -> JobSpec {
    let checkpoint = Some(CheckpointOffer {
        asks_within: None,
        signal: Some(SaveSignal::Usr1),
        target: SaveTarget::Ranks,
        grace: Span::minutes(5),
        bytes: Some(Bytes(7)),
        storage: "shared".parse().unwrap(),
        saved_codes: vec![85],
        rehearsal: None,
    });
    JobSpec { checkpoint, ..Lab::with_nodes(&[8]).spec(8) }
}

fn check(change: impl FnOnce(&mut JobSpec), alike: bool) {
    let mut changed = spec();
    change(&mut changed);
    assert_eq!(Recipe::of(&changed) == Recipe::of(&spec()), alike, "{changed:?}");
}

#[test]
fn a_recipe_is_what_a_job_does_and_not_where_for_whom_or_how_long() {
    check(|s| s.name = "other".into(), true);
    check(|s| s.account = "a/b".parse().unwrap(), true);
    check(|s| s.min_runtime = Span::hours(8), true);
    check(|s| (s.gpus, s.gpus_per_node) = (GpuCount(1024), Some(GpuCount(8))), true);
    check(|s| s.checkpoint_dir = Some("/c".into()), true);
    check(|s| s.checkpoint.as_mut().unwrap().bytes = None, true);
    check(|s| s.checkpoint.as_mut().unwrap().rehearsal = AskAfter::of(Span::minutes(2)), true);
    check(|s| s.env.push(("ARRAY_INDEX".into(), "7".into())), true);
    check(|s| s.command.push("--lr=1".into()), false);
    check(|s| s.command = vec!["x ".into()], false);
    check(|s| s.env.push(("A".into(), "1".into())), false);
    check(|s| s.working_dir.push('2'), false);
    check(|s| s.layout = TaskLayout::PerGpu, false);
    check(|s| s.checkpoint.as_mut().unwrap().signal = None, false);
    check(|s| s.checkpoint.as_mut().unwrap().grace = Span::minutes(4), false);
    check(|s| s.checkpoint = None, false);
}
