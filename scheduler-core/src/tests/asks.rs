//! Tasks that ask before they write: what they are granted, and when they are told of their turns.

use tidegate_model::{
    Ask, AskSeen, AsksWithin, AttemptId, Bandwidth, Bytes, CheckpointOffer, DecisionSeq, JobId,
    JobSpec, NodeId, Order, Permit, SaveDelivery, SaveSeen, Span, TaskExit, TaskId, TaskLayout,
    UserId, WriteClass,
};

use super::lab::{Lab, offer};
use crate::{Event, GateRequest, GateRule, Observation};

pub(super) const GB: u64 = 1_000_000_000;

/// A node for each of some jobs that run, and limits of the target that they save to.
pub(super) fn lab(jobs: u32, rule: GateRule) -> (Lab, Vec<JobId>) {
    lab_of(jobs, rule, None)
}

/// Likewise, of jobs that ask so soon.
fn lab_of(jobs: u32, rule: GateRule, asks_within: Option<AsksWithin>) -> (Lab, Vec<JobId>) {
    let nodes = vec![8; usize::try_from(jobs).unwrap()];
    let mut lab = Lab::with_nodes(&nodes);
    let (storage, by) = ("shared".parse().unwrap(), UserId(0));
    lab.apply(&Event::GateRequested { storage, by, request: GateRequest::Set(rule) });
    let offer = CheckpointOffer { asks_within, bytes: Some(Bytes(GB)), ..offer() };
    let jobs = (0..jobs).map(|_| {
        let spec = JobSpec { checkpoint: Some(offer.clone()), ..lab.spec(8) };
        let job = lab.submit_spec(spec);
        lab.run(job);
        job
    });
    let jobs = jobs.collect();
    (lab, jobs)
}

pub(super) fn task(job: JobId) -> TaskId {
    TaskId { attempt: AttemptId { job, number: 1 }, index: 0 }
}

/// Its task asks to write so much in so many files.
fn ask(lab: &mut Lab, job: JobId, bytes: u64, files: u32) {
    let event = lab.said(job, vec![], vec![(task(job), asked(1, bytes, files))]);
    lab.apply(&event);
}

pub(super) fn asked(number: u64, bytes: u64, files: u32) -> AskSeen {
    let (bytes, class) = (Bytes(bytes), WriteClass::Periodic);
    let ask = Ask { number, class, bytes, files, patience: None };
    AskSeen { ask, waited: Span::ZERO, written: Bytes(0), done: false, rated: DecisionSeq(0) }
}

/// The node's agent has told the ranks.
fn signalled(lab: &mut Lab, job: JobId) {
    let request = lab.job(job).attempts[0].save.unwrap().decision;
    let save = SaveSeen { request, delivery: SaveDelivery::Signalled { ranks: 1 } };
    let event = lab.said(job, vec![(task(job), save)], vec![]);
    lab.apply(&event);
}

pub(super) fn permit(lab: &Lab, job: JobId) -> Option<Permit> {
    let node = lab.nodes_of(job).first().copied().unwrap();
    match lab.core.wanted_of(NodeId(node)).remove(&task(job))? {
        Order::Run(launch) => launch.permit,
        Order::Prepare(_) | Order::Stop(_) | Order::Forget => None,
    }
}

#[test]
fn who_was_told_to_save_and_then_asks_is_held_to_the_files_a_second_too() {
    let cap = Bandwidth(10 * GB);
    let rule = GateRule { cap: Some(cap), files: Some(100), ..GateRule::default() };
    let (mut lab, jobs) = lab(1, rule);
    let job = jobs[0];
    lab.drain(1);
    let given = lab.job(job).attempts[0].writing.unwrap().rate.unwrap();
    // A thousand files take ten seconds, in which the target could write a hundred times the bytes.
    ask(&mut lab, job, GB, 1000);
    let writing = lab.job(job).attempts[0].writing.unwrap();
    assert!(writing.permit.is_some(), "its ask is taken up");
    assert_eq!(writing.bytes, Bytes(100 * GB));
    let Some(Permit::Granted { rate, .. }) = permit(&lab, job) else { panic!("not granted") };
    assert_eq!(rate, Some(Bandwidth(given.0 / 100)));
}

#[test]
fn those_who_ask_in_one_turn_are_told_of_their_turns_together_and_once() {
    let rule = GateRule { cap: Some(Bandwidth(GB)), writers: Some(1), ..GateRule::default() };
    let (mut lab, jobs) = lab(4, rule);
    for job in &jobs {
        ask(&mut lab, *job, 60 * GB, 0);
    }
    let waits = |lab: &Lab| {
        let position = |job: &JobId| match permit(lab, *job) {
            Some(Permit::Waits { position, .. }) => Some(position),
            Some(Permit::Granted { .. } | Permit::Denied { .. }) | None => None,
        };
        jobs.iter().map(position).collect::<Vec<_>>()
    };
    assert_eq!(waits(&lab), [None; 4], "before the turn is over");
    let now = lab.now();
    let told = lab.core.tell(now);
    assert_eq!(told.len(), 3, "all but the one that writes");
    assert_eq!(waits(&lab), [None, Some(1), Some(2), Some(3)]);
    assert_eq!(lab.core.tell(now).len(), 0, "nothing is news");
}

#[test]
fn of_those_who_ask_at_one_instant_all_are_noted_before_the_gate_is_looked_at() {
    let rule = GateRule { cap: Some(Bandwidth(GB)), writers: Some(1), ..GateRule::default() };
    let (mut lab, jobs) = lab(3, rule);
    // The second has the fewest bytes: it goes first, though the first was heard before it.
    let asks = [50, 10, 60].map(|size| asked(1, size * GB, 0));
    let now = lab.now();
    for (job, seen) in jobs.iter().zip(asks).take(2) {
        let event = lab.said(*job, vec![], vec![(task(*job), seen)]);
        assert!(lab.core.only_asks(now, &event));
        lab.core.note_asks(now, &event);
    }
    assert_eq!(jobs.iter().filter(|job| permit(&lab, **job).is_some()).count(), 0);
    let last = lab.said(jobs[2], vec![], vec![(task(jobs[2]), asks[2])]);
    lab.apply(&last);
    let granted = |job| matches!(permit(&lab, job), Some(Permit::Granted { .. }));
    assert_eq!([granted(jobs[0]), granted(jobs[1]), granted(jobs[2])], [false, true, false]);
}

#[test]
fn a_second_rank_that_asks_is_told_when_the_first_is_done_as_soon_as_that_is_known() {
    let cap = Some(Bandwidth(GB));
    let (mut lab, _) = lab(2, GateRule { cap, ..GateRule::default() });
    let layout = TaskLayout::PerGpu;
    let spec =
        JobSpec { layout, checkpoint: lab.job(JobId(1)).spec.checkpoint.clone(), ..lab.spec(2) };
    for job in [JobId(1), JobId(2)] {
        lab.cancel(job);
        lab.report_ended(job, 0, TaskExit::Exited(0));
    }
    let job = lab.submit_spec(spec);
    lab.run(job);
    let rank = |index| TaskId { index, ..task(job) };
    for index in [0, 1] {
        let event = lab.said(job, vec![], vec![(rank(index), asked(1, 60 * GB, 0))]);
        lab.apply(&event);
    }
    let node = lab.nodes_of(job)[0];
    let Some(Order::Run(launch)) = lab.core.wanted_of(NodeId(node)).remove(&rank(1)) else {
        panic!("it runs");
    };
    let Some(Permit::Denied { why, retry_after, .. }) = launch.permit else {
        panic!("{:?}", launch.permit);
    };
    assert!(why.starts_with("another task of this gang has asked"), "{why}");
    assert_eq!(retry_after, Some(Span::seconds(60)));
}

#[test]
fn who_has_a_rate_has_no_more_when_its_permit_is_over_although_there_is_no_cap_any_more() {
    let cap = Bandwidth(10 * GB);
    let (mut lab, jobs) = lab(1, GateRule { cap: Some(cap), ..GateRule::default() });
    ask(&mut lab, jobs[0], 5 * GB, 0);
    let (storage, by) = ("shared".parse().unwrap(), UserId(0));
    let request = GateRequest::Set(GateRule::default());
    lab.apply(&Event::GateRequested { storage, by, request });
    let Some(Permit::Granted { rate, after, .. }) = permit(&lab, jobs[0]) else {
        panic!("{:?}", permit(&lab, jobs[0]));
    };
    let share = Bandwidth(cap.0 / 10);
    assert_eq!((rate, after), (Some(cap), Some(share)), "as it was told before");
}

/// Two jobs that say that they ask within five seconds and would write for ten; both are to leave.
fn two_that_said() -> (Lab, Vec<JobId>) {
    let rule = GateRule { cap: Some(Bandwidth(GB / 10)), ..GateRule::default() };
    let (mut lab, jobs) = lab_of(2, rule, AsksWithin::of(Span::seconds(5)));
    lab.drain(1);
    lab.drain(2);
    (lab, jobs)
}

fn writes(lab: &Lab, job: JobId) -> bool {
    lab.job(job).attempts[0].writing.is_some()
}

fn told(lab: &Lab, job: JobId) -> String {
    lab.core.explain(lab.now(), job).unwrap().lines[1..].join("; ")
}

#[test]
fn who_said_that_it_asks_and_did_not_keeps_its_turn_for_as_long_as_it_would_write() {
    let (mut lab, jobs) = two_that_said();
    signalled(&mut lab, jobs[0]);
    assert_eq!(told(&lab, jobs[0]), "", "it has time to ask");
    lab.pass_with(Span::seconds(10), &[1, 2]);
    assert_eq!(
        told(&lab, jobs[0]),
        "it said that it asks within 5s, and has not asked: its turn at shared is kept for 20s, in \
         which it could write without asking"
    );
    lab.pass_with(Span(19_999), &[1, 2]);
    assert_eq!((writes(&lab, jobs[0]), writes(&lab, jobs[1])), (true, false));
    assert_eq!(lab.core.next_deadline(lab.now()), Some(lab.now().plus(Span(1))));
    lab.pass_with(Span(1), &[1, 2]);
    assert_eq!((writes(&lab, jobs[0]), writes(&lab, jobs[1])), (false, true));
    assert_eq!(
        told(&lab, jobs[0]),
        "it said that it asks within 5s, and it neither asked nor was seen to write: its turn at \
         shared is given back, and it waits for another when it asks"
    );
    // It waits like everybody that asks.
    ask(&mut lab, jobs[0], GB, 0);
    let waits = told(&lab, jobs[0]);
    let asked =
        "it has asked for a permit to save, by itself, and train on, and stands still until";
    assert!(waits.starts_with(asked), "{waits}");
    assert!(lab.job(jobs[0]).attempts[0].stop.is_none(), "its grace is its own");
}

#[test]
fn who_was_seen_to_write_without_asking_is_reckoned_until_it_is_gone_and_again_if_it_comes_late() {
    let (mut lab, jobs) = two_that_said();
    let seen_to_write = |lab: &mut Lab| lab.apply(&Event::WritingSeen { task: task(jobs[0]) });
    signalled(&mut lab, jobs[0]);
    seen_to_write(&mut lab);
    lab.pass_with(Span::seconds(300), &[1, 2]);
    assert_eq!((writes(&lab, jobs[0]), writes(&lab, jobs[1])), (true, false));
    assert_eq!(lab.core.next_deadline(lab.now()).map(|at| at > lab.now()), Some(true));
    let (mut late, jobs) = two_that_said();
    signalled(&mut late, jobs[0]);
    late.pass_with(Span::seconds(30), &[1, 2]);
    assert!(!writes(&late, jobs[0]));
    seen_to_write(&mut late);
    let again = late.job(jobs[0]).attempts[0].writing.unwrap();
    assert_eq!((again.rate, again.since), (Some(Bandwidth(GB / 10)), late.now()));
}

#[test]
fn who_is_not_known_to_write_nothing_keeps_its_turn() {
    let (mut lab, jobs) = two_that_said();
    lab.pass_with(Span::seconds(300), &[1, 2]);
    assert!(writes(&lab, jobs[0]), "its agent has not said that it was told, and may not measure");
    let (mut lab, jobs) = two_that_said();
    signalled(&mut lab, jobs[0]);
    lab.pass_with(Span::seconds(300), &[2]);
    assert!(writes(&lab, jobs[0]), "its node is silent");
    lab.pass_with(Span::seconds(1), &[1, 2]);
    assert!(!writes(&lab, jobs[0]), "and is heard again");
}

/// Its node measures that.
fn measured(lab: &mut Lab, job: JobId, rate: Bandwidth) {
    let (now, task) = (lab.now(), task(job));
    lab.core.observe(now, &Observation::TaskWrites { task, rate });
    lab.apply(&Event::DeadlineReached);
}

fn rate(lab: &Lab, job: JobId) -> Option<Bandwidth> {
    lab.job(job).attempts[0].writing?.rate
}

#[test]
fn who_writes_nothing_under_its_permit_keeps_its_share_until_it_writes() {
    let cap = Bandwidth(GB);
    let (mut lab, jobs) = lab(2, GateRule { cap: Some(cap), ..GateRule::default() });
    ask(&mut lab, jobs[0], 60 * GB, 0);
    ask(&mut lab, jobs[1], 60 * GB, 0);
    lab.pass_with(Span::seconds(179), &[1, 2]);
    assert_eq!(rate(&lab, jobs[0]), Some(cap));
    assert_eq!(
        told(&lab, jobs[0]),
        "it has had a permit for 2m59s, to save, by itself, and train on: 56GiB at shared, at \
         954MiB/s"
    );
    lab.pass_with(Span::seconds(1), &[1, 2]);
    let share = Bandwidth(cap.0 / 10 / 2);
    assert_eq!(rate(&lab, jobs[0]), Some(share));
    assert_eq!(rate(&lab, jobs[1]), None, "the other has what is left when the job was told");
    assert_eq!(
        told(&lab, jobs[0]),
        "it has had a permit for 3m, to save, by itself, and train on, and nothing is seen to be \
         written by it at shared: until it writes or says that it is done, it keeps to 48MiB/s, its \
         share of what is kept back"
    );
    let Some(Permit::Granted { rated, .. }) = permit(&lab, jobs[0]) else { panic!("it has one") };
    let heard = AskSeen { rated, ..asked(1, 60 * GB, 0) };
    let event = lab.said(jobs[0], vec![], vec![(task(jobs[0]), heard)]);
    lab.apply(&event);
    assert_eq!(rate(&lab, jobs[1]), Some(Bandwidth(cap.0 - share.0)));
    // The other is done, and it writes.
    let done = AskSeen { done: true, ..asked(1, 60 * GB, 0) };
    let event = lab.said(jobs[1], vec![], vec![(task(jobs[1]), done)]);
    lab.apply(&event);
    assert_eq!(rate(&lab, jobs[0]), Some(share));
    measured(&mut lab, jobs[0], Bandwidth(1));
    assert_eq!(rate(&lab, jobs[0]), Some(cap));
}

#[test]
fn who_says_that_it_writes_or_is_not_heard_or_is_to_leave_is_not_taken_for_one_that_writes_nothing()
{
    let cap = Bandwidth(GB);
    let (mut lab, jobs) = lab(3, GateRule { cap: Some(cap), ..GateRule::default() });
    ask(&mut lab, jobs[0], 60 * GB, 0);
    measured(&mut lab, jobs[0], Bandwidth(0));
    let wrote = AskSeen { written: Bytes(GB), ..asked(1, 60 * GB, 0) };
    let event = lab.said(jobs[0], vec![], vec![(task(jobs[0]), wrote)]);
    lab.apply(&event);
    lab.pass_with(Span::seconds(1000), &[1, 2, 3]);
    assert_eq!(rate(&lab, jobs[0]), Some(cap), "what it says counts");
    ask(&mut lab, jobs[0], 60 * GB, 0);
    lab.drain(1);
    lab.pass_with(Span::seconds(100), &[1, 2, 3]);
    assert_eq!(rate(&lab, jobs[0]), Some(cap), "its grace ends it");
}
