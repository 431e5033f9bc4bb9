//! What an end means: commits decide, and an exit code alone only says whether a job that nobody had asked
//! is done.

use tidegate_model::{
    Ask, AskSeen, Bytes, CheckpointOffer, DecisionSeq, JobId, JobSpec, SaveDelivery, SaveSeen,
    Span, TaskExit, TaskId, WriteClass,
};

use super::lab::{Lab, offer};
use crate::books::{AttemptState, JobState};
use crate::decision::{JobOutcome, Outcome};

/// What had happened before it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nobody asked it to leave.
    Nothing,
    /// It was asked, and its node has not signalled its ranks: none had a handler.
    Unwilling,
    /// Its ranks were signalled.
    Told,
    /// Likewise, and it has committed since.
    Committed,
    /// Likewise, and it has asked to write what it is done with.
    Final,
}

fn running(lab: &mut Lab) -> (JobId, TaskId) {
    let checkpoint = Some(CheckpointOffer { bytes: Some(Bytes(1)), ..offer() });
    let spec = JobSpec { checkpoint, max_restarts: 1, ..lab.spec(8) };
    let job = lab.submit_spec(spec);
    lab.run(job);
    (job, lab.job(job).attempts[0].tasks().next().unwrap().0)
}

/// How an attempt of one task ends, and what becomes of its job.
fn end(before: Before, exit: TaskExit) -> (Outcome, Option<JobOutcome>, u32) {
    let mut lab = Lab::with_nodes(&[8]);
    let (job, task) = running(&mut lab);
    if before != Before::Nothing {
        lab.drain(1);
        let request = lab.job(job).attempts[0].save.unwrap().decision;
        let delivery = if before == Before::Unwilling {
            SaveDelivery::Unwilling
        } else {
            SaveDelivery::Signalled { ranks: 8 }
        };
        let said = lab.said(job, vec![(task, SaveSeen { request, delivery })], vec![]);
        lab.apply(&said);
    }
    match before {
        Before::Committed => lab.commit(task, 7),
        Before::Final => {
            let class = WriteClass::Final;
            let ask = Ask { number: 1, class, bytes: Bytes(1), files: 0, patience: None };
            let (waited, written, rated) = (Span::ZERO, Bytes(1), DecisionSeq(0));
            let seen = AskSeen { ask, waited, written, done: true, rated };
            let said = lab.said(job, vec![], vec![(task, seen)]);
            lab.apply(&said);
        }
        Before::Nothing | Before::Unwilling | Before::Told => {}
    }
    lab.report_ended(job, 0, exit);
    let AttemptState::Ended(outcome) = lab.state(job) else { panic!("not over") };
    let entry = lab.job(job);
    let over = match entry.state {
        JobState::Ended { outcome, .. } => Some(outcome),
        JobState::Pending { .. } | JobState::Active { .. } => None,
    };
    (outcome, over, entry.failures)
}

#[test]
fn commits_decide_and_an_exit_code_alone_says_little() {
    let exits = |code| TaskExit::Exited(code);
    let killed = || TaskExit::Signaled(9);
    let done = Some(JobOutcome::Done);
    // Before, exit; the attempt, the end of the job (none: it is started again), its own failures.
    let table = [
        (Before::Nothing, exits(0), Outcome::Done, done, 0),
        (Before::Nothing, exits(85), Outcome::Failed, None, 1),
        (Before::Nothing, killed(), Outcome::Failed, None, 1),
        // Nobody told it, so that it was done by itself.
        (Before::Unwilling, exits(0), Outcome::Done, done, 0),
        (Before::Unwilling, exits(1), Outcome::Unsaved, None, 0),
        // A wrapper eats what its rank says: 0 is no word of a checkpoint, nor of an end.
        (Before::Told, exits(0), Outcome::Unknown, None, 0),
        (Before::Told, exits(85), Outcome::Unknown, None, 0),
        (Before::Told, exits(143), Outcome::Unsaved, None, 0),
        (Before::Told, exits(1), Outcome::Unsaved, None, 0),
        (Before::Told, killed(), Outcome::Unsaved, None, 0),
        // Launchers say 1, 130, 143 or die of the signal, and have saved.
        (Before::Committed, exits(0), Outcome::Saved, None, 0),
        (Before::Committed, exits(1), Outcome::Saved, None, 0),
        (Before::Committed, exits(85), Outcome::Saved, None, 0),
        (Before::Committed, exits(130), Outcome::Saved, None, 0),
        (Before::Committed, exits(143), Outcome::Saved, None, 0),
        (Before::Committed, killed(), Outcome::Saved, None, 0),
        // Asked to leave in its last step: it has said that it is done after this.
        (Before::Final, exits(0), Outcome::Done, done, 0),
        (Before::Final, exits(1), Outcome::Unsaved, None, 0),
    ];
    for (before, exit, outcome, over, failures) in table {
        let found = end(before, exit.clone());
        assert_eq!(found, (outcome, over, failures), "{before:?}, then {exit:?}");
    }
}
