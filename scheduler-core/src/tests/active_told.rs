//! What is said of an attempt that is under way: what is left of its time, and what its nodes say.

use tidegate_model::{Bandwidth, CheckpointOffer, JobSpec, Span, UserId};

use super::lab::{self, Lab};
use crate::{Event, GateRequest, GateRule};

fn offer(grace: Span) -> CheckpointOffer {
    CheckpointOffer { grace, saved_codes: vec![], ..lab::offer() }
}

#[test]
fn what_is_left_of_the_time_to_save_counts_down_and_is_never_told_shorter_than_it_is() {
    let mut lab = Lab::with_nodes(&[8]);
    let checkpoint = Some(offer(Span::seconds(20)));
    let spec = JobSpec { min_runtime: Span::ZERO, checkpoint, ..lab.spec(8) };
    let job = lab.submit_spec(spec);
    lab.run(job);
    lab.drain(1);
    let ends = lab.now().plus(Span::seconds(20));
    let mut told = |after: Span| {
        lab.pass_with(after, &[1]);
        let explained = lab.core.explain(lab.now(), job).unwrap();
        (explained.lines[0].clone(), explained.numbers.get("leaves_by_ms").copied())
    };
    for (after, left) in [(0, "20s"), (4_500, "16s"), (15_000, "1s")] {
        let (line, by) = told(Span(after));
        assert!(line.contains(&format!("it saves and leaves within {left} (")), "{line}");
        assert_eq!(by, Some(ends.0));
    }
    assert_eq!(told(Span(500)).1, None, "it is stopped");
}

#[test]
fn who_waits_for_its_turn_to_write_is_told_who_is_before_it_and_what_keeps_it() {
    let mut lab = Lab::with_nodes(&[8]);
    let checkpoint = Some(offer(Span::minutes(10)));
    let spec = JobSpec { min_runtime: Span::ZERO, checkpoint, ..lab.spec(4) };
    let jobs = [0, 1].map(|_| {
        let job = lab.submit_spec(spec.clone());
        lab.run(job);
        job
    });
    let set = |lab: &mut Lab, request| {
        let (storage, by) = ("shared".parse().unwrap(), UserId(0));
        lab.apply(&Event::GateRequested { storage, by, request })
    };
    let one = GateRule { writers: Some(1), ..GateRule::default() };
    let cap = Some(Bandwidth(1 << 30));
    set(&mut lab, GateRequest::Set(GateRule { cap, ..one.clone() }));
    lab.drain(1);
    let told = |lab: &Lab| lab.core.explain(lab.now(), jobs[1]).unwrap().lines[1..].join("; ");
    // Four GPUs of which nothing is known: 56 GB.
    let before = "its turn at shared, with 52GiB: job-1.1 is before it (1 of 1 write)";
    let full = "as many write there as may at a time, 1";
    assert_eq!(told(&lab), format!("{before}; it is expected in 52s at 1GiB/s; {full}"));
    let unknown = "when it comes is not known";
    set(&mut lab, GateRequest::Pause { reason: "a disk".to_owned() });
    assert_eq!(told(&lab), format!("{before}; {unknown}; the gate is paused by uid-0: a disk"));
    set(&mut lab, GateRequest::Resume);
    set(&mut lab, GateRequest::Set(one));
    assert_eq!(told(&lab), format!("{before}; {unknown}; {full}"), "without a cap");
}

#[test]
fn what_a_node_says_is_told_of_those_who_wait_for_it() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit(8);
    let told = |lab: &Lab| lab.core.explain(lab.now(), job).unwrap().lines;
    assert_eq!(told(&lab).len(), 1);
    lab.facts.get_mut(&1).unwrap().gpu_note = "takes no new work: its disk is full".to_owned();
    lab.introduce(1);
    assert_eq!(told(&lab)[1], "n1 says: takes no new work: its disk is full");
}
