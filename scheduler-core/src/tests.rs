//! The core as a whole: sentences about what it decides, and properties of random histories.

mod active_told;
mod asks;
mod exits;
mod gates_shown;
mod lab;
mod limits_told;
mod own_times;
mod properties;
mod rehearsals;
mod repeated;
mod roles;
mod rules;
mod sharing;
mod silent_asks;
mod victims;

use tidegate_model::{
    ArrayPlace, AttemptId, GpuCount, Idle, Span, SubmitKey, TaskExit, TaskId, TaskSeen, UserId,
};

use self::lab::{Lab, ended};
use crate::{AttemptState, JobOutcome, NodeState, Observation, Outcome, Reason, Refusal};

#[test]
fn a_gang_starts_only_when_all_its_tasks_are_verified_free() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let job = lab.submit(16);
    assert_eq!(lab.state(job), AttemptState::Planned);
    lab.report_prepared(job, 0);
    assert_eq!(lab.state(job), AttemptState::Planned, "one of two is prepared");
    lab.report_prepared(job, 1);
    assert_eq!(lab.state(job), AttemptState::Granted);
    lab.report_running(job, 0);
    assert_eq!(lab.state(job), AttemptState::Starting);
    lab.report_running(job, 1);
    assert_eq!(lab.state(job), AttemptState::Running);
    lab.report_ended(job, 0, TaskExit::Exited(0));
    assert_eq!(lab.state(job), AttemptState::Running);
    lab.report_ended(job, 1, TaskExit::Exited(0));
    assert_eq!(lab.state(job), AttemptState::Ended(Outcome::Done));
    assert_eq!(lab.outcome(job), Some(JobOutcome::Done));
}

#[test]
fn a_gang_that_loses_a_task_stops_as_a_whole_and_is_placed_again_at_once() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let job = lab.submit_running(16);
    lab.report_ended(job, 1, TaskExit::Lost("its shim died".into()));
    assert_eq!(lab.state(job), AttemptState::Stopping);
    lab.report_ended(job, 0, TaskExit::Signaled(15));
    assert_eq!(lab.attempts(job), 2, "lost hardware is no fault of the job");
    assert_eq!(lab.state(job), AttemptState::Planned);
    assert_eq!(lab.job(job).failures, 0);
}

#[test]
fn a_lost_task_is_to_blame_though_its_peers_failed_first() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let job = lab.submit_running(16);
    lab.report_ended(job, 0, TaskExit::Exited(1));
    lab.report_ended(job, 1, TaskExit::Lost("its shim died".into()));
    assert_eq!(lab.job(job).attempts[0].state(), AttemptState::Ended(Outcome::Lost));
    assert_eq!(lab.job(job).failures, 0);
}

#[test]
fn a_job_that_fails_by_itself_waits_longer_each_time_and_ends_at_its_limit() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit(1);
    let mut pauses = Vec::new();
    for _ in 0..3 {
        lab.run(job);
        let before = lab.now();
        lab.report_ended(job, 0, TaskExit::Exited(1));
        assert_eq!(lab.reason(job), Reason::AwaitingRestart);
        let due = lab.core.next_deadline(before).unwrap();
        pauses.push(due.since(before).to_string());
        lab.pass(due.since(before));
    }
    assert_eq!(pauses, ["1s", "2s", "4s"]);
    lab.run(job);
    lab.report_ended(job, 0, TaskExit::Exited(1));
    assert_eq!(lab.outcome(job), Some(JobOutcome::Failed));
}

#[test]
fn free_work_takes_whatever_is_idle_and_yields_it_to_protected_work() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let running = lab.submit_running(4);
    let gang = lab.submit(16);
    let small = lab.submit_running(1);
    assert_eq!(lab.reason(gang), Reason::AwaitingNodes);
    let mut protected = lab.spec(16);
    protected.min_runtime = Span::hours(1);
    let protected = lab.submit_spec(protected);
    assert_eq!(lab.reason(protected), Reason::AwaitingCheckpoint);
    for victim in [running, small] {
        assert_eq!(lab.state(victim), AttemptState::Stopping, "it has no way to save");
        lab.report_ended(victim, 0, TaskExit::Signaled(15));
    }
    lab.run(protected);
    assert_eq!(lab.reason(running), Reason::AwaitingNodes, "back in its place, the first");
    assert_eq!(lab.reason(small), Reason::AwaitingTurn);
}

#[test]
fn who_has_idle_gpus_is_told_for_how_long_and_what_follows() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit_running(4);
    let attempt = AttemptId { job, number: 1 };
    let task = TaskId { attempt, index: 0 };
    let began = lab.now();
    let told = |lab: &Lab| lab.core.explain(lab.now(), job).unwrap().lines.join("\n");
    let observe = |lab: &mut Lab, since| {
        let now = lab.now();
        lab.core.observe(now, &Observation::TaskIdle { task, since });
    };
    assert!(!told(&lab).contains("idle"));
    observe(&mut lab, Some(began));
    lab.pass(Span::minutes(20));
    let words = "its GPUs have been idle for 20m (under 5 % busy): from 30m on it gives way before \
                 others";
    assert!(told(&lab).contains(words), "{}", told(&lab));
    let numbers = lab.core.explain(lab.now(), job).unwrap().numbers;
    assert_eq!(numbers.get("idle_since_ms"), Some(&began.0));
    lab.pass(Span::minutes(22));
    let words = "its GPUs have been idle for 42m (under 5 % busy): it gives way before others";
    assert!(told(&lab).contains(words), "{}", told(&lab));
    observe(&mut lab, None);
    assert!(!told(&lab).contains("idle"));
    // What no book knows is not kept.
    let stranger = TaskId { index: 9, ..task };
    let now = lab.now();
    lab.core.observe(now, &Observation::TaskIdle { task: stranger, since: Some(began) });
    assert!(!told(&lab).contains("idle"));
}

#[test]
fn how_long_gpus_were_idle_is_kept_with_the_end_and_only_then() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit_running(4);
    let idle = Idle { idle: Span::minutes(3), of: Span::minutes(9) };
    let task = |lab: &Lab| lab.job(job).attempts[0].tasks[0].clone();
    assert_eq!(task(&lab).idle, None);
    let exit = TaskExit::Exited(0);
    let end = TaskSeen::Ended { exit, released: false, ran: Span::minutes(10), idle: Some(idle) };
    lab.report(1, &[(job, 1, 0, end)]);
    assert_eq!(task(&lab).idle, Some(idle));
    // A later word of the same end changes nothing: its agent may have forgotten some.
    lab.report(1, &[(job, 1, 0, ended(TaskExit::Exited(0)))]);
    assert_eq!((task(&lab).idle, task(&lab).released), (Some(idle), true));
}

#[test]
fn a_job_that_needs_a_drained_node_back_holds_nobody_up() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    lab.drain(1);
    let gang = lab.submit(16);
    let small = lab.submit(1);
    assert_eq!(lab.reason(gang), Reason::AwaitingNodes);
    assert_eq!(lab.state(small), AttemptState::Planned);
    lab.resume(1);
    assert_eq!(lab.reason(gang), Reason::AwaitingNodes);
}

#[test]
fn small_jobs_go_where_they_fit_best_and_gangs_into_one_block() {
    let mut lab = Lab::with_blocks(&[(8, "a"), (8, "b"), (8, "b"), (8, "b")]);
    let first = lab.submit(2);
    let second = lab.submit(6);
    assert_eq!(lab.nodes_of(first), lab.nodes_of(second), "the rest of the same node");
    let gang = lab.submit(16);
    assert_eq!(lab.nodes_of(gang), [2, 3], "not the node of block a");
}

#[test]
fn a_draining_node_keeps_protected_work_and_takes_no_more() {
    let mut lab = Lab::with_nodes(&[8]);
    let mut spec = lab.spec(4);
    spec.min_runtime = Span::hours(1);
    let job = lab.submit_spec(spec);
    lab.run(job);
    lab.drain(1);
    assert_eq!(lab.node_state(1), NodeState::Draining);
    let second = lab.submit(4);
    assert_eq!(lab.attempts(second), 0);
    lab.report_ended(job, 0, TaskExit::Exited(0));
    assert_eq!(lab.node_state(1), NodeState::Drained);
    lab.resume(1);
    assert_eq!(lab.state(second), AttemptState::Planned);
}

#[test]
fn silence_is_not_loss() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit_running(8);
    lab.pass(Span::hours(100));
    assert_eq!(lab.node_state(1), NodeState::Unreachable);
    assert_eq!(lab.state(job), AttemptState::Running);
    assert_eq!(lab.attempts(job), 1);
    lab.declare_lost(1);
    assert_eq!(lab.state(job), AttemptState::Ended(Outcome::Lost));
    assert_eq!(lab.reason(job), Reason::AwaitingNodes);
}

#[test]
fn a_broken_gang_does_not_wait_for_a_silent_node_and_the_rest_is_stopped_when_it_returns() {
    let mut lab = Lab::with_nodes(&[8, 8, 8]);
    let job = lab.submit_running(16);
    lab.pass_with(Span::minutes(1), &[1, 3]);
    assert_eq!(lab.node_state(2), NodeState::Unreachable);
    lab.report_ended(job, 0, TaskExit::Exited(1));
    lab.pass_with(Span::seconds(1), &[1, 3]);
    assert_eq!(lab.attempts(job), 2, "placed on the nodes that answer");
    assert_eq!(lab.nodes_of(job), [1, 3]);
    assert_eq!(lab.wanted_on(2), ["job-1.1.1 stop"]);
    lab.report(2, &[(job, 1, 1, ended(TaskExit::Signaled(9)))]);
    assert_eq!(lab.wanted_on(2), ["job-1.1.1 forget"]);
}

#[test]
fn an_attempt_that_a_silent_node_may_still_run_commits_nothing_once_the_next_has_its_gpus() {
    let mut lab = Lab::with_nodes(&[8, 8, 8]);
    let job = lab.submit_running(16);
    let task = |number, index| TaskId { attempt: AttemptId { job, number }, index };
    let committed = |lab: &Lab| {
        let commit = lab.job(job).commit();
        commit.map(|commit| (commit.attempt.number, commit.step))
    };
    lab.pass_with(Span::minutes(1), &[1, 3]);
    lab.report_ended(job, 0, TaskExit::Exited(1));
    lab.pass_with(Span::seconds(1), &[1, 3]);
    lab.commit(task(1, 1), 10);
    assert_eq!(committed(&lab), Some((1, 10)), "the next is planned and has nothing yet");
    lab.run(job);
    lab.commit(task(1, 1), 30);
    assert_eq!(committed(&lab), Some((1, 10)), "it would destroy what the second builds on");
    let lines = lab.core.explain(lab.now(), job).unwrap().lines.join("\n");
    let told = "job-1.1 may still run on a node that is silent, and what it commits does not count";
    assert!(lines.contains(told), "{lines}");
    lab.commit(task(2, 0), 20);
    assert_eq!(committed(&lab), Some((2, 20)));
}

#[test]
fn an_attempt_keeps_the_name_of_its_node_though_that_was_removed_and_another_has_it() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let job = lab.submit_running(16);
    lab.pass_with(Span::minutes(1), &[1]);
    lab.declare_lost(2);
    lab.report_ended(job, 0, TaskExit::Signaled(15));
    lab.remove(2);
    let why = |lab: &Lab| lab.job(job).attempts[0].why_over(lab.core.books()).unwrap();
    let told = why(&lab);
    assert!(told.starts_with("job-1.1.1 on n2 ended"), "{told}");
    lab.introduce(2);
    let nodes = &lab.core.books().nodes;
    assert_eq!(nodes.keys().map(|id| id.0).collect::<Vec<_>>(), [1, 3], "it has another number");
    assert_eq!(why(&lab), told);
}

#[test]
fn of_an_array_so_many_run_at_a_time_however_they_start() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let mut spec = lab.spec(2);
    spec.array = Some(Box::new(ArrayPlace { key: SubmitKey(7), at_a_time: 2 }));
    let free: Vec<_> = (0..3).map(|_| lab.submit_spec(spec.clone())).collect();
    spec.min_runtime = Span::hours(2);
    let protected = lab.submit_spec(spec.clone());
    let active = |lab: &Lab| {
        let all = free.iter().chain([&protected]);
        all.filter(|job| lab.job(**job).active_attempt().is_some()).count()
    };
    assert_eq!(active(&lab), 2);
    let told = lab.core.explain(lab.now(), protected).unwrap().lines;
    assert_eq!(told, ["its array runs 2 at a time, and 2 of it have their turn"]);
    let others = lab.submit_as(UserId(7), spec).unwrap();
    assert!(lab.job(others).active_attempt().is_some(), "another user's is another array");
    lab.run(free[0]);
    lab.report_ended(free[0], 0, TaskExit::Exited(0));
    assert!(lab.job(protected).active_attempt().is_some(), "protected demand first");
    assert_eq!(active(&lab), 2);
}

#[test]
fn each_start_of_an_array_counts_before_the_next_of_the_same_pass() {
    let mut lab = Lab::with_nodes(&[8]);
    let mut spec = lab.spec(1);
    spec.array = Some(Box::new(ArrayPlace { key: SubmitKey(8), at_a_time: 3 }));
    lab.drain(1);
    let all: Vec<_> = (0..6).map(|_| lab.submit_spec(spec.clone())).collect();
    lab.resume(1);
    assert_eq!(all.iter().filter(|job| lab.job(**job).active_attempt().is_some()).count(), 3);
}

#[test]
fn another_boot_id_means_that_what_ran_there_is_lost() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit_running(8);
    lab.reboot(1);
    assert_eq!(lab.attempts(job), 2);
    assert_eq!(lab.job(job).attempts[0].state(), AttemptState::Ended(Outcome::Lost));
}

#[test]
fn an_agent_without_its_records_loses_nothing_that_may_still_run() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit_running(8);
    lab.report_missing(job, 0);
    assert_eq!(lab.state(job), AttemptState::Running);
    let lines = lab.core.explain(lab.now(), job).unwrap().lines;
    assert!(lines.iter().any(|line| line.contains("has no record of job-1.1.0")), "{lines:?}");
    lab.pass(Span::minutes(1));
    lab.declare_lost(1);
    assert_eq!(lab.state(job), AttemptState::Ended(Outcome::Lost));
}

#[test]
fn a_cancelled_job_is_stopped_and_ends_when_its_gpus_are_free() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit_running(8);
    lab.cancel(job);
    assert_eq!(lab.state(job), AttemptState::Stopping);
    assert_eq!(lab.wanted_on(1), ["job-1.1.0 stop"]);
    assert_eq!(lab.outcome(job), None);
    lab.report_ended(job, 0, TaskExit::Exited(75));
    assert_eq!(lab.outcome(job), Some(JobOutcome::Cancelled));
    let pending = lab.submit(8);
    let waiting = lab.submit(8);
    lab.cancel(waiting);
    assert_eq!(lab.outcome(waiting), Some(JobOutcome::Cancelled));
    assert_eq!(lab.outcome(pending), None);
}

#[test]
fn a_gang_that_does_not_start_in_time_is_stopped_and_placed_again() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit(8);
    lab.pass_with(Span::minutes(10), &[1]);
    assert_eq!(lab.state(job), AttemptState::Stopping);
    lab.report_missing(job, 0);
    assert_eq!(lab.attempts(job), 2);
    assert_eq!(lab.job(job).failures, 0);
}

#[test]
fn the_same_key_and_user_answers_the_same_job_and_another_spec_is_refused() {
    let mut lab = Lab::with_nodes(&[8]);
    let first = lab.submit_with_key(7, 1);
    assert_eq!(lab.try_submit(7, 1), Ok((first, true)));
    assert_eq!(lab.try_submit(7, 2), Err(Refusal::KeyReused { job: first }));
    assert_eq!(lab.core.books().jobs.len(), 1);
}

#[test]
fn what_no_gang_can_serve_is_refused_with_what_would_be_accepted() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    let refusal = lab.try_submit(1, 24).unwrap_err().to_string();
    assert!(refusal.contains("multiples of 8 up to 16"), "{refusal}");
    let refusal = lab.try_submit(2, 12).unwrap_err().to_string();
    assert!(refusal.contains("12 GPUs asked"), "{refusal}");
    let mut spec = lab.spec(12);
    spec.gpus_per_node = Some(GpuCount(6));
    assert!(lab.try_submit_spec(3, spec).is_ok());
    assert_eq!(Lab::with_nodes(&[]).try_submit(1, 1), Err(Refusal::NoGpusYet));
}

#[test]
fn a_node_that_runs_the_tasks_of_one_user_gets_no_others() {
    let mut lab = Lab::with_nodes(&[8, 8]);
    lab.facts.get_mut(&1).unwrap().only_user = Some(UserId(1));
    lab.introduce(1);
    let gang = lab.try_submit(1, 16).unwrap_err().to_string();
    assert!(gang.contains("multiples of 8 up to 8"), "{gang}");
    let job = lab.submit(8);
    assert_eq!(lab.nodes_of(job), [2]);
    lab.facts.get_mut(&2).unwrap().only_user = Some(UserId(1));
    lab.introduce(2);
    let refusal = lab.try_submit(2, 1).unwrap_err().to_string();
    assert!(refusal.starts_with("no node can run tasks of uid-1000"), "{refusal}");
}

#[test]
fn an_ended_job_is_forgotten_with_its_key_after_seven_days() {
    let mut lab = Lab::with_nodes(&[8]);
    let job = lab.submit_with_key(7, 1);
    lab.run(job);
    lab.report_ended(job, 0, TaskExit::Exited(0));
    lab.pass(Span::hours(7 * 24 - 1));
    assert_eq!(lab.try_submit(7, 1), Ok((job, true)));
    lab.pass(Span::hours(1));
    assert!(!lab.core.books().jobs.contains_key(&job));
    assert_ne!(lab.submit_with_key(7, 1), job, "an id is never reused");
}

#[test]
fn after_a_restart_no_node_takes_work_before_it_has_reported() {
    let mut lab = Lab::with_nodes(&[8]);
    let running = lab.submit_running(4);
    lab.restart();
    assert_eq!(lab.node_state(1), NodeState::Unconfirmed);
    let job = lab.submit(4);
    assert_eq!(lab.attempts(job), 0);
    assert_eq!(lab.state(running), AttemptState::Running, "nothing is fenced");
    lab.introduce(1);
    assert_eq!(lab.state(job), AttemptState::Planned);
}
