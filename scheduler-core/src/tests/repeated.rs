//! What is asked again because its answer was lost: it is as it was, and nothing is made twice.

use tidegate_model::{Span, SubmitKey, UserId};

use super::lab::Lab;
use crate::{AccountRequest, Decision, Event, Refusal, Size};

const ROOT: UserId = UserId(0);
const ANA: UserId = UserId(7);

/// What an account's request came to.
fn ask(lab: &mut Lab, by: UserId, request: &AccountRequest) -> Vec<Decision> {
    lab.apply(&Event::AccountRequested { by, request: request.clone() })
}

fn wish(percent: u32) -> AccountRequest {
    let account = "default".parse().unwrap();
    let size = Size::Share(percent * 10_000);
    AccountRequest::Ask { account, size, reason: "more".to_owned() }
}

fn answer(grant: bool) -> AccountRequest {
    let account = "default".parse().unwrap();
    AccountRequest::Answer { account, asked_by: ANA, grant, size: Some(Size::Share(500_000)) }
}

#[test]
fn a_wish_and_its_answer_are_made_once_however_often_they_are_asked() {
    for grant in [true, false] {
        let mut lab = Lab::with_nodes(&[8]);
        assert_eq!(ask(&mut lab, ANA, &wish(50)).len(), 1);
        assert_eq!(ask(&mut lab, ANA, &wish(50)), [], "it takes no place of its own");
        assert!(!ask(&mut lab, ROOT, &answer(grant)).is_empty());
        assert_eq!(ask(&mut lab, ROOT, &answer(grant)), []);
        let otherwise = ask(&mut lab, ROOT, &answer(!grant));
        assert!(matches!(otherwise.as_slice(), [Decision::Refused(_)]), "{otherwise:?}");
        lab.pass(Span::hours(1));
        ask(&mut lab, UserId(8), &wish(40));
        let other = AccountRequest::Answer {
            account: "default".parse().unwrap(),
            asked_by: UserId(8),
            grant: false,
            size: None,
        };
        ask(&mut lab, ROOT, &other);
        let late = ask(&mut lab, ROOT, &answer(grant));
        assert!(matches!(late.as_slice(), [Decision::Refused(_)]), "an hour later: {late:?}");
    }
}

#[test]
fn a_node_is_removed_once_however_often_it_is_asked() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    lab.pass_with(Span::hours(1), &[1]);
    let mut remove = |node: &str| {
        let node = node.parse().unwrap();
        lab.apply(&Event::NodeRemovalRequested { node, by: ROOT })
    };
    assert!(!remove("n2").is_empty());
    assert_eq!(remove("n2"), []);
    let unknown = Refusal::NoSuchNode("n3".parse().unwrap());
    assert_eq!(remove("n3"), [Decision::Refused(unknown)]);
}

#[test]
fn a_job_is_cancelled_once_and_by_whom_and_when_is_kept_over_its_end() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit(8);
    lab.run(job);
    let at = lab.now();
    let cancel = |lab: &mut Lab, by| lab.apply(&Event::CancelRequested { job, by });
    assert!(!cancel(&mut lab, super::lab::USER).is_empty());
    lab.pass(Span::seconds(3));
    assert_eq!(cancel(&mut lab, ROOT), [], "the first stands");
    let known = &lab.core.books().jobs[&job];
    let cancelled = known.cancelled.as_deref().map(|one| (one.by, one.at));
    assert_eq!(cancelled, Some((super::lab::USER, Some(at))));
}

#[test]
fn a_dry_run_is_of_no_job_whatever_keys_its_user_has() {
    let mut lab = Lab::with_nodes(&[8]);
    let mut spec = lab.spec(1);
    for key in [u128::MAX, u128::MAX - 1] {
        let (key, user, spec) = (SubmitKey(key), super::lab::USER, Box::new(spec.clone()));
        lab.apply(&Event::JobSubmitted { key, user, spec });
    }
    spec.name = "another".to_owned();
    let runs = lab.core.dry_run(lab.now(), super::lab::USER, &spec).unwrap();
    assert!(runs.iter().all(|run| run.why.is_ok()), "{runs:?}");
}
