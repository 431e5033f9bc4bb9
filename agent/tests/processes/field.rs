//! How jobs of the field are asked to save and are ended: each test is a case that went wrong for
//! others, by its number in the list of them in docs/testing.md.

use tidegate_agent::record::ExitRecord;
use tidegate_agent::starter::protocol::Verb;
use tidegate_model::{
    DecisionSeq, Save, SaveDelivery, SaveSeen, SaveSignal, SaveTarget, Span, TaskLayout,
};

use crate::bench::{Bench, task, until};
use crate::job_socket::python;

const T: &str = "job-1.1.0";

/// A rank that notes the signals it gets and looks at them when there is a file `step`.
const RANK: &str = "
import os, signal, sys, time
got = []
def note(number, _):
    got.append(number)
    open('got', 'a').write('%d\\n' % number)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), note)
open('ready', 'a').write('%d\\n' % os.getpid())
while not os.path.exists('step'): time.sleep(0.01)
sys.exit(85 if got else 42)
";

/// A task of one process for the node; `rank` is a command in it.
fn scripted(script: &str) -> Bench {
    let mut bench = Bench::started();
    let mut launch = python(&bench, &[]);
    launch.env.push(("PROGRAM".into(), RANK.into()));
    let script = format!("rank() {{ python3 -c \"$PROGRAM\" \"$@\"; }}\n{script}");
    launch.command = vec!["sh".into(), "-c".into(), script];
    launch.layout = TaskLayout::PerNode;
    bench.start(T, launch).unwrap();
    bench.running(T);
    bench
}

/// So many ranks have their handlers.
fn ready(bench: &Bench, count: usize) {
    until(|| (bench.text("ready").lines().count() == count).then_some(()));
}

fn ask(bench: &mut Bench, request: u64, signal: SaveSignal) {
    let save = Save {
        request: DecisionSeq(request),
        signal: Some(signal),
        target: SaveTarget::Ranks,
        grace: Span::minutes(10),
        why: "why".into(),
    };
    bench.ask(Verb::Save { task: task(T), save: save.into() }).unwrap();
}

fn delivered(bench: &mut Bench, request: u64, delivery: SaveDelivery) {
    let wanted = SaveSeen { request: DecisionSeq(request), delivery };
    bench.wait_line(T, |line| line.clone().facts().1.save.as_ref() == Some(&wanted));
}

fn stop(bench: &mut Bench, grace_ms: u64) {
    bench.ask(Verb::Stop { task: task(T), decision: 1, grace_ms }).unwrap();
}

const ONE: SaveDelivery = SaveDelivery::Signalled { ranks: 1 };

#[test]
fn case_1_a_launcher_that_would_kill_its_ranks_at_the_signal_sees_none() {
    let mut bench = scripted(
        "trap 'echo launcher >>got; kill -KILL $a $b' TERM\n\
         RANK=0 TORCHELASTIC_RUN_ID=x rank SIGTERM & a=$!\n\
         RANK=1 TORCHELASTIC_RUN_ID=x rank SIGTERM & b=$!\n\
         wait $a; one=$?; wait $b; [ $one = $? ] && exit $one",
    );
    ready(&bench, 2);
    ask(&mut bench, 7, SaveSignal::Term);
    delivered(&mut bench, 7, SaveDelivery::Signalled { ranks: 2 });
    until(|| (bench.text("got") == "15\n15\n").then_some(()));
    bench.touch("step");
    assert_eq!(bench.ended(T), ExitRecord::Exited(85), "both saved, in their own time");
}

#[test]
fn case_2_a_launcher_without_a_handler_is_not_ended_by_the_signal() {
    let mut bench =
        scripted("RANK=0 TORCHELASTIC_RUN_ID=x rank SIGUSR1 & RANK=1 sleep 1000 & wait $!");
    ready(&bench, 1);
    ask(&mut bench, 7, SaveSignal::Usr1);
    delivered(&mut bench, 7, ONE);
    until(|| (bench.text("got") == "10\n").then_some(()));
    bench.running(T);
}

#[test]
fn case_3_a_rank_that_takes_no_notice_of_one_signal_is_asked_by_the_one_of_its_preset() {
    let mut bench = scripted("trap '' TERM; rank SIGUSR1 SIGUSR2");
    ready(&bench, 1);
    ask(&mut bench, 7, SaveSignal::Term);
    delivered(&mut bench, 7, SaveDelivery::Unwilling);
    ask(&mut bench, 8, SaveSignal::Usr2);
    delivered(&mut bench, 8, ONE);
    until(|| (bench.text("got") == "12\n").then_some(()));
    bench.touch("step");
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
}

#[test]
fn case_7_a_rank_that_looks_at_its_flag_only_between_steps_is_not_signalled_again() {
    let mut bench = scripted("exec python3 -c \"$PROGRAM\" SIGTERM");
    ready(&bench, 1);
    for request in [7, 7, 8] {
        ask(&mut bench, request, SaveSignal::Term);
        delivered(&mut bench, request, ONE);
    }
    bench.touch("step");
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
    assert_eq!(bench.text("got"), "15\n");
}

#[test]
fn case_8_a_rank_that_swallows_the_signal_is_killed_when_its_grace_is_over() {
    let mut bench = scripted("exec python3 -c \"$PROGRAM\" SIGTERM");
    ready(&bench, 1);
    ask(&mut bench, 7, SaveSignal::Term);
    delivered(&mut bench, 7, ONE);
    until(|| (bench.text("got") == "15\n").then_some(()));
    stop(&mut bench, 100);
    assert_eq!(bench.ended(T), ExitRecord::Signaled(9));
    assert!(bench.wait_line(T, |line| line.save.is_some()).commit.is_none(), "unsaved");
}

#[test]
fn case_9_a_signal_reaches_the_rank_behind_a_shell_that_ignores_or_drops_it() {
    for wrapper in ["trap '' TERM; rank SIGTERM; exit $?", "rank SIGTERM; exit $?"] {
        let mut bench = scripted(wrapper);
        ready(&bench, 1);
        ask(&mut bench, 7, SaveSignal::Term);
        delivered(&mut bench, 7, ONE);
        until(|| (bench.text("got") == "15\n").then_some(()));
        bench.touch("step");
        assert_eq!(bench.ended(T), ExitRecord::Exited(85), "{wrapper}");
    }
}

#[test]
fn case_9_the_first_process_of_a_pid_namespace_is_asked_once_it_has_a_handler() {
    let can = std::process::Command::new("unshare").args(["-p", "-f", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        // Not as this user, or not on this machine.
        return;
    }
    let program = "'until [ -e arm ]; do sleep 0.01; done; exec python3 -c \"$PROGRAM\" SIGTERM'";
    let mut bench = scripted(&format!("exec unshare -p -f sh -c {program}"));
    ask(&mut bench, 7, SaveSignal::Term);
    delivered(&mut bench, 7, SaveDelivery::Announced);
    bench.touch("arm");
    delivered(&mut bench, 7, ONE);
    assert_eq!(bench.text("ready"), "1\n", "it is the first of its namespace");
    until(|| (bench.text("got") == "15\n").then_some(()));
    bench.touch("step");
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
}

#[test]
fn a_rank_that_drops_its_handler_after_the_first_signal_gets_no_second() {
    let mut bench = scripted(
        "trap 'echo got >>got; trap - TERM' TERM\nwhile [ ! -e step ]; do sleep 0.01; done; exit 85",
    );
    ask(&mut bench, 7, SaveSignal::Term);
    delivered(&mut bench, 7, ONE);
    until(|| (bench.text("got") == "got\n").then_some(()));
    for request in [7, 8] {
        ask(&mut bench, request, SaveSignal::Term);
        delivered(&mut bench, request, ONE);
    }
    bench.touch("step");
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
}

#[test]
fn a_data_loader_that_has_its_ranks_handler_is_never_signalled() {
    let mut bench = scripted(
        "exec python3 -c \"import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: open('got', 'a').write('%s\\n' % name))
name = 'rank' if os.fork() else 'loader'
open('ready', 'a').write('x\\n')
while not os.path.exists('step'): time.sleep(0.01)
\"",
    );
    ready(&bench, 2);
    ask(&mut bench, 7, SaveSignal::Term);
    delivered(&mut bench, 7, ONE);
    until(|| (bench.text("got") == "rank\n").then_some(()));
    bench.touch("step");
    assert_eq!(bench.ended(T), ExitRecord::Exited(0));
    assert_eq!(bench.text("got"), "rank\n");
}

#[test]
fn case_19_a_wrapper_that_eats_the_ranks_exit_code_makes_no_commit_of_it() {
    let mut bench = scripted("rank SIGTERM | cat; echo over");
    ready(&bench, 1);
    bench.touch("step");
    assert_eq!(bench.ended(T), ExitRecord::Exited(0));
    assert_eq!(bench.wait_line(T, |_| true).commit, None, "0 is no word of a checkpoint");
}

#[test]
fn case_21_a_stop_is_for_the_main_process_and_not_for_its_group() {
    let mut bench = scripted(
        "trap 'echo main >>got; touch step; wait $rank; exit $?' TERM\n\
         rank SIGTERM & rank=$!; wait $rank; exit 1",
    );
    ready(&bench, 1);
    stop(&mut bench, 600_000);
    assert_eq!(bench.ended(T), ExitRecord::Exited(42), "the rank heard nothing");
    assert_eq!(bench.text("got"), "main\n");
}
