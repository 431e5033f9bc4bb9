//! What is said of an attempt that is under way: what is left of its time, and what its nodes say.

use tidegate_model::{CheckpointOffer, JobSpec, SaveTarget, Span};

use super::lab::Lab;

#[test]
fn what_is_left_of_the_time_to_save_counts_down_and_is_never_told_shorter_than_it_is() {
    let mut lab = Lab::with_nodes(&[8]);
    let offer = CheckpointOffer {
        signal: None,
        target: SaveTarget::Ranks,
        grace: Span::seconds(20),
        bytes: None,
        storage: "shared".parse().unwrap(),
        saved_codes: vec![],
    };
    let spec = JobSpec { min_runtime: Span::ZERO, checkpoint: Some(offer), ..lab.spec(8) };
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
fn what_a_node_says_is_told_of_those_who_wait_for_it() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit(8);
    let told = |lab: &Lab| lab.core.explain(lab.now(), job).unwrap().lines;
    assert_eq!(told(&lab).len(), 1);
    lab.facts.get_mut(&1).unwrap().gpu_note = "takes no new work: its disk is full".to_owned();
    lab.introduce(1);
    assert_eq!(told(&lab)[1], "n1 says: takes no new work: its disk is full");
}
