//! Asking real processes to save: who is signalled, how often, and who never is.

use std::fs;

use tidegate_agent::durable;
use tidegate_agent::record::ExitRecord;
use tidegate_agent::saving::SaveRecord;
use tidegate_agent::starter::protocol::Verb;
use tidegate_agent::task_dir::bytes_of;
use tidegate_model::{
    DecisionSeq, Save, SaveDelivery, SaveSeen, SaveSignal, SaveTarget, Span, TaskLayout,
};

use crate::bench::{Bench, task, until};

const T: &str = "job-1.1.0";

/// A launcher that starts two ranks, of which each has a data loader. Whoever is signalled says
/// so. All end when there is a file `go`.
const GANG: &str = r#"
    export member='trap "echo $NAME >>got" USR1; echo $NAME >>ready
                   while [ ! -e go ]; do sleep 0.01; done'
    rank='NAME=loader sh -c "$member" & eval "$member"; wait'
    trap 'echo launcher >>got' USR1
    RANK=0 NAME=zero sh -c "$rank" & RANK=1 NAME=one sh -c "$rank" &
    while [ ! -e go ]; do sleep 0.01; done; wait; wait"#;

fn save(request: u64, target: SaveTarget) -> Save {
    Save {
        request: DecisionSeq(request),
        signal: Some(SaveSignal::Usr1),
        target,
        grace: Span::minutes(10),
        why: "a larger gang waits".into(),
    }
}

fn ask(bench: &mut Bench, save: Save) {
    bench.ask(Verb::Save { task: task(T), save: save.into() }).unwrap();
}

/// Waits until that is said of a request.
fn delivered(bench: &mut Bench, request: u64, delivery: SaveDelivery) {
    let wanted = SaveSeen { request: DecisionSeq(request), delivery };
    bench.wait_line(T, |line| line.clone().facts().1.save.as_ref() == Some(&wanted));
}

fn lines(bench: &Bench, name: &str) -> Vec<String> {
    let mut lines: Vec<_> = bench.text(name).lines().map(ToOwned::to_owned).collect();
    lines.sort();
    lines
}

fn gang() -> Bench {
    let mut bench = Bench::started();
    let mut launch = bench.launch(&["sh", "-c", GANG]);
    launch.layout = TaskLayout::PerNode;
    launch.local_world_size = 2;
    bench.start(T, launch).unwrap();
    until(|| (lines(&bench, "ready") == ["loader", "loader", "one", "zero"]).then_some(()));
    bench.running(T);
    bench
}

/// Lets the gang end, and with it every handler run that has not; who was signalled.
fn signalled(bench: &mut Bench) -> Vec<String> {
    bench.touch("go");
    assert_eq!(bench.ended(T), ExitRecord::Exited(0));
    lines(bench, "got")
}

#[test]
fn every_rank_is_signalled_once_and_no_launcher_or_data_loader() {
    let mut bench = gang();
    ask(&mut bench, save(7, SaveTarget::Ranks));
    delivered(&mut bench, 7, SaveDelivery::Signalled { ranks: 2 });
    let announced: serde_json::Value =
        serde_json::from_slice(&fs::read(bench.task_dir(T).preempt_file()).unwrap()).unwrap();
    assert_eq!(announced["request"], 7);
    assert_eq!(announced["grace_s"], 600);
    assert_eq!(announced["why"], "a larger gang waits");
    assert!(announced["left_s"].as_u64().is_some_and(|left| (590..=600).contains(&left)));
    assert_eq!(signalled(&mut bench), ["one", "zero"]);
}

#[test]
fn a_target_may_be_the_first_rank_or_the_task_itself() {
    for (target, who) in [(SaveTarget::Rank0, "zero"), (SaveTarget::Task, "launcher")] {
        let mut bench = gang();
        ask(&mut bench, save(7, target));
        delivered(&mut bench, 7, SaveDelivery::Signalled { ranks: 1 });
        assert_eq!(signalled(&mut bench), [who]);
    }
}

#[test]
fn a_request_that_is_repeated_replaced_or_older_sends_no_second_signal() {
    let mut bench = gang();
    let both = SaveDelivery::Signalled { ranks: 2 };
    for _ in 0..3 {
        ask(&mut bench, save(7, SaveTarget::Ranks));
    }
    delivered(&mut bench, 7, both);
    bench.kill_starter();
    bench.start_starter();
    bench.connect();
    delivered(&mut bench, 7, both);
    ask(&mut bench, save(9, SaveTarget::Ranks));
    delivered(&mut bench, 9, both);
    ask(&mut bench, save(8, SaveTarget::Ranks));
    ask(&mut bench, save(9, SaveTarget::Ranks));
    assert_eq!(signalled(&mut bench), ["one", "zero"]);
    delivered(&mut bench, 9, both);
}

#[test]
fn a_rank_without_a_handler_is_left_alone_until_it_has_one() {
    let mut bench = Bench::started();
    let script = "while [ ! -e arm ]; do sleep 0.01; done; trap 'exit 85' USR1; \
                  while :; do sleep 0.01; done";
    bench.shell(T, script).unwrap();
    bench.running(T);
    ask(&mut bench, save(7, SaveTarget::Ranks));
    delivered(&mut bench, 7, SaveDelivery::Announced);
    bench.touch("arm");
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
    delivered(&mut bench, 7, SaveDelivery::Signalled { ranks: 1 });
}

#[test]
fn a_rank_that_ignores_the_signal_is_unwilling_until_it_does_not() {
    let mut bench = Bench::started();
    let script = "trap '' USR1; echo $$ >pid; while [ ! -e arm ]; do sleep 0.01; done; \
                  trap 'exit 85' USR1; while :; do sleep 0.01; done";
    bench.shell(T, script).unwrap();
    bench.number("pid");
    ask(&mut bench, save(7, SaveTarget::Ranks));
    delivered(&mut bench, 7, SaveDelivery::Unwilling);
    bench.touch("arm");
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
    delivered(&mut bench, 7, SaveDelivery::Signalled { ranks: 1 });
}

#[test]
fn without_a_signal_a_request_is_announced_only() {
    let mut bench = gang();
    ask(&mut bench, Save { signal: None, ..save(7, SaveTarget::Ranks) });
    delivered(&mut bench, 7, SaveDelivery::Announced);
    assert!(bench.task_dir(T).preempt_file().exists());
    assert!(signalled(&mut bench).is_empty());
}

#[test]
fn a_task_that_is_being_stopped_is_not_asked_to_save() {
    let mut bench = Bench::started();
    let script = "trap 'echo got >>got' USR1; trap '' TERM; echo $$ >pid; \
                  while [ ! -e go ]; do sleep 0.01; done";
    bench.shell(T, script).unwrap();
    bench.number("pid");
    bench.ask(Verb::Stop { task: task(T), decision: 8, grace_ms: 600_000 }).unwrap();
    ask(&mut bench, save(9, SaveTarget::Ranks));
    assert!(signalled(&mut bench).is_empty());
    assert!(!bench.task_dir(T).preempt_file().exists());
}

#[test]
fn a_request_that_a_starter_died_of_is_handed_on_by_the_next_one() {
    let mut bench = Bench::started();
    bench.shell(T, "trap 'exit 85' USR1; echo $$ >pid; while :; do sleep 0.01; done").unwrap();
    bench.number("pid");
    bench.kill_starter();
    let record = SaveRecord::from(save(7, SaveTarget::Ranks));
    durable::replace(&bench.task_dir(T).save(), &bytes_of(&record).unwrap()).unwrap();
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
    delivered(&mut bench, 7, SaveDelivery::Signalled { ranks: 1 });
}
