//! Rehearsals: what they are kept under. How they are led is in the scenarios.

use tidegate_model::{
    AskAfter, AttemptId, Bytes, CheckpointOffer, GpuCount, JobSpec, SaveSignal, Span, TaskExit,
    TaskId, TaskLayout,
};

use super::lab::{Lab, ended, offer};
use crate::rehearsal::Recipe;

fn spec() -> JobSpec {
    let checkpoint = Some(CheckpointOffer {
        signal: Some(SaveSignal::Usr1),
        grace: Span::minutes(5),
        bytes: Some(Bytes(7)),
        ..offer()
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

#[test]
fn what_a_silent_node_says_too_late_of_a_rehearsal_is_not_what_the_next_attempt_goes_on_from() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let mut job = spec();
    job.checkpoint.as_mut().unwrap().rehearsal = AskAfter::of(Span::minutes(1));
    let job = lab.submit_spec(job);
    lab.run(job);
    let (first, heard) = (lab.nodes_of(job)[0], [1, 2]);
    let other = 3 - first;
    lab.pass_with(Span::minutes(1), &heard);
    assert!(lab.job(job).attempts[0].save.is_some(), "it is asked");
    // Its grace is over while its node is silent: it is told to stop, and started again elsewhere.
    lab.pass_with(Span::minutes(5), &[other]);
    lab.pass_with(Span::minutes(5), &[other]);
    assert!(lab.job(job).attempts[0].stop.is_some(), "it is stopped");
    assert_eq!(lab.attempts(job), 2);
    let task = |number| TaskId { attempt: AttemptId { job, number }, index: 0 };
    // It had saved at its first step, which tells nothing, and is judged by nobody.
    lab.commit(task(1), 1);
    lab.report(first, &[(job, 1, 0, ended(TaskExit::Exited(85)))]);
    lab.report_prepared(job, 0);
    lab.report_running(job, 0);
    lab.commit(task(2), 1);
    assert_eq!(lab.job(job).judged, None, "it began again");
}

#[test]
fn a_rehearsal_tells_what_it_has_shown_also_after_a_later_one_of_its_recipe() {
    let mut lab = Lab::with_nodes(&[8]);
    let mut rehearse = |seconds| {
        let mut job = spec();
        job.checkpoint.as_mut().unwrap().rehearsal = AskAfter::of(Span::minutes(1));
        let job = lab.submit_spec(job);
        lab.run(job);
        let told = lab.core.explain(lab.now(), job).unwrap().lines;
        let asked = "it is a rehearsal: it is asked to save when it has committed by itself, in 1m at \
                     the latest";
        assert!(told.iter().any(|line| line == asked), "{told:?}");
        lab.pass_with(Span::seconds(seconds), &[1]);
        lab.report_ended(job, 0, TaskExit::Exited(0));
        let told = lab.core.explain(lab.now(), job).unwrap().lines;
        let over = format!(
            "over: the rehearsal {job} on 8 GPUs of 1 node failed: it ended by itself before it had \
             saved as asked"
        );
        assert_eq!(told, std::slice::from_ref(&over));
        (job, over)
    };
    let (first, over) = rehearse(1);
    let (second, _) = rehearse(2);
    let books = lab.core.books();
    assert_eq!(books.rehearsals.of_job(&spec()).map(|shown| shown.job), Some(second));
    assert_eq!(lab.core.explain(lab.now(), first).unwrap().lines, [over]);
}
