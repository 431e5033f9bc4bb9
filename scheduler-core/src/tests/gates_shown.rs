//! What people see of a gate: real bytes and rates, who is overdue, who is not heard.

use tidegate_model::{
    Ask, AskSeen, AttemptId, Bandwidth, Bytes, CheckpointOffer, DecisionSeq, JobId, JobSpec, Span,
    StorageName, TaskId, UserId, WriteClass,
};

use super::lab::{Lab, offer};
use crate::{Event, Flow, GateRequest, GateRule, GateStatus, Observation};

const GB: u64 = 1_000_000_000;

fn shared() -> StorageName {
    "shared".parse().unwrap()
}

fn set(lab: &mut Lab, request: GateRequest) {
    lab.apply(&Event::GateRequested { storage: shared(), by: UserId(0), request });
}

/// A node for each of some jobs that run.
fn lab(jobs: u32, rule: GateRule) -> (Lab, Vec<JobId>) {
    let mut lab = Lab::with_nodes(&vec![8; usize::try_from(jobs).unwrap()]);
    set(&mut lab, GateRequest::Set(rule));
    let checkpoint = Some(CheckpointOffer { bytes: Some(Bytes(GB)), ..offer() });
    let jobs = (0..jobs).map(|_| {
        let job = lab.submit_spec(JobSpec { checkpoint: checkpoint.clone(), ..lab.spec(8) });
        lab.run(job);
        job
    });
    let jobs = jobs.collect();
    (lab, jobs)
}

fn task(job: JobId) -> TaskId {
    TaskId { attempt: AttemptId { job, number: 1 }, index: 0 }
}

/// Its task asks to write so much in so many files, or says that it has.
fn ask(lab: &mut Lab, job: JobId, (bytes, files, done): (u64, u32, bool)) {
    let (number, bytes, class) = (1, Bytes(bytes), WriteClass::Periodic);
    let ask = Ask { number, class, bytes, files, patience: None };
    let (waited, written, rated) = (Span::ZERO, Bytes(0), DecisionSeq(0));
    let seen = AskSeen { ask, waited, written, done, rated };
    let event = lab.said(job, vec![], vec![(task(job), seen)]);
    lab.apply(&event);
}

fn writes(lab: &mut Lab, job: JobId, rate: u64) {
    let now = lab.now();
    lab.core.observe(now, &Observation::TaskWrites { task: task(job), rate: Bandwidth(rate) });
}

/// The gate of what is written.
fn gate(lab: &Lab) -> GateStatus {
    let mut gates = lab.core.gates(lab.now()).into_iter();
    gates.find(|gate| gate.flow == Flow::Writes).unwrap()
}

fn one_writes(cap: u64) -> GateRule {
    GateRule { cap: Some(Bandwidth(cap)), writers: Some(1), ..GateRule::default() }
}

#[test]
fn bytes_and_rates_are_shown_as_jobs_know_them_where_files_are_what_takes_time() {
    let (mut lab, jobs) = lab(2, GateRule { files: Some(100), ..one_writes(10 * GB) });
    for job in &jobs {
        ask(&mut lab, *job, (GB, 1000, false));
    }
    let gate = gate(&lab);
    let turn = gate.writers[0].turn.as_ref().unwrap();
    assert_eq!((turn.bytes, turn.rate), (Bytes(GB), Some(Bandwidth(GB / 10))));
    assert_eq!(gate.admitted, Bandwidth(10 * GB), "as it is held against the cap");
    assert_eq!(gate.queue[0].bytes, Bytes(GB));
}

#[test]
fn who_gave_its_permit_back_a_moment_ago_does_not_count_as_one_that_writes_without() {
    let (mut lab, jobs) = lab(1, one_writes(10 * GB));
    ask(&mut lab, jobs[0], (GB, 0, false));
    writes(&mut lab, jobs[0], GB);
    ask(&mut lab, jobs[0], (GB, 0, true));
    // What its node says with that, or at the next heartbeat, was written with the permit.
    writes(&mut lab, jobs[0], GB / 2);
    for _ in 0..3 {
        assert_eq!(gate(&lab).writers, []);
        assert_eq!(gate(&lab).measured, Some(Bandwidth(GB / 2)), "it was written all the same");
        lab.pass_with(Span(3333), &[1]);
    }
    lab.pass_with(Span(1), &[1]);
    let shown = gate(&lab).writers;
    assert_eq!(shown.len(), 1, "it goes on, without a permit");
    assert_eq!((&shown[0].turn, shown[0].measured), (&None, Some(Bandwidth(GB / 2))));
}

#[test]
fn who_is_overdue_is_said_to_be_and_by_how_much_and_when_it_ends_at_the_latest() {
    let (mut lab, jobs) = lab(2, one_writes(GB / 10));
    lab.drain(1);
    ask(&mut lab, jobs[1], (GB, 0, false));
    let overdue = |lab: &Lab| {
        let turn = gate(lab).writers[0].turn.clone().unwrap();
        (turn.overdue(lab.now()), turn.stopped.map(|at| at.since(lab.now())))
    };
    // It was never protected: the grace of free work.
    let grace = lab.core.books().policy.sharing.free_grace;
    assert_eq!(overdue(&lab), (None, Some(grace)));
    lab.pass_with(Span::seconds(14), &[1, 2]);
    let left = Span(grace.0 - 14_000);
    assert_eq!(overdue(&lab), (Some(Span::seconds(4)), Some(left)), "a GB takes 10 s");
    let told = lab.core.explain(lab.now(), jobs[1]).unwrap().lines.join("; ");
    let late = format!("job-1.1 should be done: it is overdue by 4s, and is stopped in {left}");
    assert!(told.contains(&late), "{told}");
}

#[test]
fn a_job_on_a_node_that_is_not_heard_is_shown_with_the_node() {
    let (mut lab, jobs) = lab(2, one_writes(10 * GB));
    for job in &jobs {
        ask(&mut lab, *job, (60 * GB, 0, false));
    }
    let unheard = |lab: &Lab| {
        let GateStatus { writers, queue, .. } = gate(lab);
        assert_eq!((writers.len(), queue.len()), (1, 1));
        let text = |name: &Option<_>| name.as_ref().map(ToString::to_string);
        (text(&writers[0].unheard), text(&queue[0].unheard), queue[0].slot.is_some())
    };
    assert_eq!(unheard(&lab), (None, None, true));
    lab.pass_with(Span::minutes(2), &[1]);
    assert_eq!(unheard(&lab), (None, Some("n2".to_owned()), false));
    let told = lab.core.explain(lab.now(), jobs[1]).unwrap().lines.join("; ");
    assert!(
        told.contains("n2, where it runs, is not heard: nobody is let through there"),
        "{told}"
    );
    lab.pass_with(Span::minutes(2), &[2]);
    let first = &gate(&lab).writers[0];
    assert_eq!((first.attempt.job, first.unheard.clone()), (jobs[0], Some("n1".parse().unwrap())));
}

#[test]
fn a_pause_is_shown_where_it_holds_somebody_back() {
    let rule = GateRule { reads: Some(Bandwidth(GB)), ..one_writes(GB) };
    let (mut lab, _) = lab(1, rule);
    set(&mut lab, GateRequest::Pause { reason: "a disk".to_owned() });
    let gates = lab.core.gates(lab.now());
    let paused: Vec<_> = gates.iter().map(|gate| (gate.flow, gate.gate.paused.is_some())).collect();
    assert_eq!(paused, [(Flow::Writes, true), (Flow::Reads, false)]);
}
