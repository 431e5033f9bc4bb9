//! Whether a job asks far more protection than its owner's runs take, and who may change a policy.

use tidegate_model::{DecisionSeq, JobId, JobSpec, Span, TaskExit, TaskSeen, UserId};

use super::lab::{Lab, USER};
use crate::{Author, Decision, Event, LongAsk, PolicyChange, Refusal};

fn long_ask(lab: &Lab, user: UserId, gpus: u32, min_runtime: Span) -> Option<LongAsk> {
    let spec = JobSpec { min_runtime, ..lab.spec(gpus) };
    LongAsk::of(lab.core.books(), user, &spec)
}

/// A job of one task that ran so long and ended by itself, or was cancelled.
fn run(lab: &mut Lab, gpus: u32, ran: Span, cancel: bool) -> JobId {
    let job = lab.submit(gpus);
    lab.report_prepared(job, 0);
    lab.report_running(job, 0);
    if cancel {
        lab.apply(&Event::CancelRequested { job, by: USER });
    }
    let exit = if cancel { TaskExit::Signaled(15) } else { TaskExit::Exited(0) };
    lab.report_newest(job, 0, TaskSeen::Ended { exit, released: true, ran, idle: None });
    job
}

#[test]
fn more_than_twice_the_p90_of_ones_own_runs_of_a_shape_is_told_with_the_numbers() {
    let mut lab = Lab::with_nodes(&[8]);
    let minutes = Span::minutes;
    for ran in 1..=9 {
        run(&mut lab, 2, minutes(ran), false);
    }
    run(&mut lab, 2, minutes(60), true);
    run(&mut lab, 4, minutes(1), false);
    assert_eq!(long_ask(&lab, USER, 2, minutes(18)), None, "just twice");
    let told = long_ask(&lab, USER, 2, minutes(19)).unwrap();
    assert_eq!(told, LongAsk { asked: minutes(19), p90: minutes(9), runs: 10 });
    let expected = "min_runtime 19m is more than twice what your own runs of this shape take: of the \
                    last 10, nine in ten were over after 9m; what is more costs pledge and a later \
                    start";
    assert_eq!(told.to_string(), expected);
    assert_eq!(long_ask(&lab, USER, 4, minutes(60)), None, "one run tells little");
    assert_eq!(long_ask(&lab, UserId(7), 2, minutes(60)), None, "another's runs tell nothing");
    assert_eq!(long_ask(&lab, USER, 2, Span::ZERO), None);
}

#[test]
fn a_policy_is_changed_by_an_admin_from_the_version_that_is_in_force() {
    let mut lab = Lab::with_nodes(&[8]);
    let version = lab.core.books().policy_edit.unwrap().record;
    let change = |lab: &mut Lab, slack, by, read: DecisionSeq| {
        let mut policy = lab.core.books().policy.clone();
        policy.sharing.slack = slack;
        let (by, read) = (Author::User(UserId(by)), Some(read));
        lab.apply(&Event::PolicyChanged(PolicyChange { policy, by, read })).pop()
    };
    let refused = change(&mut lab, 1, 7, version);
    assert_eq!(refused, Some(Decision::Refused(Refusal::AdminOnly)));
    assert!(matches!(change(&mut lab, 1, 0, version), Some(Decision::PolicySet { .. })));
    let edit = lab.core.books().policy_edit.unwrap();
    assert_eq!((edit.by, edit.at), (Author::User(UserId(0)), lab.now()));
    let refused = change(&mut lab, 2, 0, version);
    let (by, record) = (edit.by, edit.record);
    assert_eq!(refused, Some(Decision::Refused(Refusal::PolicyMoved { by, record })));
    assert_eq!(change(&mut lab, 1, 0, version), None, "it is so already");
}
