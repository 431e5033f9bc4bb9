//! Who waits for a permit on a node that nobody hears.

use tidegate_model::{AskSeen, Bandwidth, JobId, Permit, Span, TaskSeen};

use super::asks::{GB, asked, lab, permit, task};
use super::lab::Lab;
use crate::{Event, GateRule, NodeState};

/// The job's node says all that it knows: that it runs, and has asked so long ago.
fn says(lab: &mut Lab, job: JobId, seen: AskSeen, waited: Span) {
    let Event::NodeReported { node, saves, commits, .. } = lab.said(job, vec![], vec![]) else {
        unreachable!("it is a report")
    };
    let facts = lab.facts.get(&lab.nodes_of(job)[0]).cloned();
    let tasks = vec![(task(job), TaskSeen::Running)];
    let asks = vec![(task(job), AskSeen { waited, ..seen })];
    lab.apply(&Event::NodeReported { node, complete: true, facts, tasks, saves, commits, asks });
}

fn granted(lab: &Lab, jobs: &[JobId]) -> Vec<bool> {
    let is = |job: &JobId| matches!(permit(lab, *job), Some(Permit::Granted { .. }));
    jobs.iter().map(is).collect()
}

#[test]
fn who_waits_on_a_silent_node_is_not_let_through_and_keeps_its_place_until_it_is_heard() {
    let rule = GateRule { cap: Some(Bandwidth(GB)), writers: Some(1), ..GateRule::default() };
    let (mut lab, jobs) = lab(4, rule);
    let ask = asked(1, 60 * GB, 0);
    // The first writes; the second asks before the third.
    for job in &jobs[..3] {
        says(&mut lab, *job, ask, Span::ZERO);
        lab.pass_with(Span::seconds(1), &[1, 2, 3, 4]);
    }
    lab.pass_with(Span::seconds(20), &[1, 3, 4]);
    assert_eq!(lab.node_state(2), NodeState::Unreachable);
    assert_eq!(granted(&lab, &jobs), [true, false, false, false]);
    says(&mut lab, jobs[0], AskSeen { done: true, ..ask }, Span::ZERO);
    assert_eq!(
        granted(&lab, &jobs),
        [false, false, true, false],
        "the second would not hear of it"
    );
    // The last asks while nobody hears the second.
    says(&mut lab, jobs[3], ask, Span::ZERO);
    lab.pass_with(Span::seconds(30), &[1, 3, 4]);
    says(&mut lab, jobs[1], ask, Span::seconds(52));
    assert_eq!(granted(&lab, &jobs), [false, false, true, false], "it waits for its turn");
    says(&mut lab, jobs[2], AskSeen { done: true, ..ask }, Span::ZERO);
    assert_eq!(granted(&lab, &jobs), [false, true, false, false], "it is before the last");
}

#[test]
fn of_those_on_silent_nodes_nobody_is_let_through_though_nobody_else_waits() {
    let rule = GateRule { cap: Some(Bandwidth(GB)), writers: Some(1), ..GateRule::default() };
    let (mut lab, jobs) = lab(2, rule);
    let ask = asked(1, 60 * GB, 0);
    for job in &jobs {
        says(&mut lab, *job, ask, Span::ZERO);
    }
    lab.pass_with(Span::seconds(20), &[1]);
    says(&mut lab, jobs[0], AskSeen { done: true, ..ask }, Span::ZERO);
    lab.pass_with(Span::hours(1), &[1]);
    assert_eq!(granted(&lab, &jobs), [false, false], "the patience of the gate changes nothing");
    // A leadership that has not heard the node yet knows no more.
    lab.restart();
    says(&mut lab, jobs[0], AskSeen { done: true, ..ask }, Span::ZERO);
    assert_eq!(granted(&lab, &jobs), [false, false]);
    says(&mut lab, jobs[1], ask, Span::hours(1));
    assert_eq!(granted(&lab, &jobs), [false, true]);
}
