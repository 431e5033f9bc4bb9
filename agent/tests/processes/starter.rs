//! The starter and its shims as real processes, over the starter's socket.

use std::fs;
use std::time::{Duration, Instant};

use tidegate_agent::procs::{ProcessId, Procs};
use tidegate_agent::record::ExitRecord;
use tidegate_agent::starter::protocol::{FromStarter, MAX_LINE_BYTES, StatusRecord, Verb};
use tidegate_agent::task_dir::{Intent, State, bytes_of, load};
use tidegate_model::Bytes;

use crate::bench::{Bench, is_gone, kill, task, until};

const T: &str = "job-1.1.0";

fn stop(id: &str, decision: u64, grace_ms: u64) -> Verb {
    Verb::Stop { task: task(id), decision, grace_ms }
}

fn lost(why: &str) -> ExitRecord {
    ExitRecord::Lost(why.to_owned())
}

#[test]
fn a_task_runs_in_its_own_environment_and_its_exit_code_is_seen() {
    let mut bench = Bench::started();
    bench.shell(T, "echo $GREETING $RANK $TIDEGATE_TASK; echo oops >&2; env >e; exit 7").unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(7));
    assert_eq!(bench.output(T, "stdout"), "hello 0 job-1.1.0\n");
    assert_eq!(bench.output(T, "stderr"), "oops\n");
    let environment = fs::read_to_string(bench.dir.path().join("e")).unwrap();
    assert!(!environment.contains("CARGO"), "nothing of the starter's: {environment}");
    assert!(bench.dir.path().join("ckpt").is_dir(), "made before the start");
}

#[test]
fn a_task_that_is_killed_is_seen_with_its_signal() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    bench.running(T);
    bench.ask(Verb::Signal { task: task(T), signal: 12 }).unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Signaled(12));
    let refused = bench.ask(Verb::Signal { task: task(T), signal: 12 }).unwrap_err();
    assert_eq!(refused, "job-1.1.0 does not run");
}

#[test]
fn a_start_that_is_repeated_starts_nothing() {
    let mut bench = Bench::started();
    for _ in 0..3 {
        bench.shell(T, "echo x >>count; exec sleep 1000").unwrap();
    }
    bench.running(T);
    let counted = bench.dir.path().join("count");
    until(|| fs::read_to_string(&counted).ok().filter(|count| count == "x\n"));
    bench.kill_starter();
    bench.start_starter();
    bench.connect();
    bench.shell(T, "echo x >>count").unwrap();
    bench.ask(stop(T, 1, 600_000)).unwrap();
    bench.ended(T);
    bench.shell(T, "echo x >>count").unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Signaled(15));
    assert_eq!(fs::read_to_string(&counted).unwrap(), "x\n");
}

#[test]
fn a_stop_sends_term_and_takes_the_tasks_own_exit() {
    let mut bench = Bench::started();
    bench
        .shell(T, "trap 'echo saved; exit 3' TERM; echo $$ >pid; while :; do sleep 0.01; done")
        .unwrap();
    bench.number("pid");
    bench.ask(stop(T, 1, 600_000)).unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(3));
    assert_eq!(bench.output(T, "stdout"), "saved\n");
}

#[test]
fn a_task_that_ignores_term_is_killed_after_its_grace_and_not_before() {
    let mut bench = Bench::started();
    bench.shell(T, "trap '' TERM; echo $$ >pid; while :; do sleep 0.01; done").unwrap();
    bench.number("pid");
    let asked = Instant::now();
    bench.ask(stop(T, 1, 300)).unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Signaled(9));
    assert!(asked.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_second_stop_may_shorten_the_grace_and_not_prolong_it() {
    let mut bench = Bench::started();
    bench.shell(T, "trap '' TERM; echo $$ >pid; while :; do sleep 0.01; done").unwrap();
    bench.number("pid");
    bench.ask(stop(T, 1, 600_000)).unwrap();
    bench.ask(stop(T, 2, 100)).unwrap();
    bench.ask(stop(T, 3, 600_000)).unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Signaled(9));
}

#[test]
fn a_task_outlives_its_starter_and_the_next_one_sees_its_exit() {
    let mut bench = Bench::started();
    bench.shell(T, "echo $$ >pid; while [ ! -e go ]; do sleep 0.01; done; exit 5").unwrap();
    let before = bench.running(T);
    bench.kill_starter();
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.running(T), before, "the same process");
    assert!(Procs::default().is_alive(before.main));
    fs::write(bench.dir.path().join("go"), "").unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(5));
}

#[test]
fn a_task_that_ends_while_no_starter_runs_is_seen_by_the_next_one() {
    let mut bench = Bench::started();
    bench.shell(T, "while [ ! -e go ]; do sleep 0.01; done; exit 6").unwrap();
    let state = bench.running(T);
    bench.kill_starter();
    fs::write(bench.dir.path().join("go"), "").unwrap();
    until(|| is_gone(state.shim.pid).then_some(()));
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), ExitRecord::Exited(6));
}

#[test]
fn a_task_whose_shim_is_killed_is_lost_and_nothing_of_it_is_left() {
    let mut bench = Bench::started();
    bench
        .shell(T, "setsid sh -c 'echo $$ >a; exec sleep 1000' & sleep 1000 & echo $! >b; wait")
        .unwrap();
    let (apart, child) = (bench.number("a"), bench.number("b"));
    let state = bench.running(T);
    kill(state.shim.pid);
    assert_eq!(bench.ended(T), lost("its shim died"));
    for pid in [state.main.pid, apart, child] {
        assert!(is_gone(pid), "{pid}");
    }
}

#[test]
fn a_task_whose_shim_dies_while_no_starter_runs_is_cleared_away_by_the_next_one() {
    let mut bench = Bench::started();
    bench.shell(T, "setsid sh -c 'echo $$ >a; exec sleep 1000' & wait").unwrap();
    let apart = bench.number("a");
    let state = bench.running(T);
    bench.kill_starter();
    kill(state.shim.pid);
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), lost("its shim died"));
    assert!(is_gone(apart));
}

#[test]
fn what_a_task_leaves_behind_at_its_normal_end_is_gone_before_it_is_released() {
    let mut bench = Bench::started();
    bench
        .shell(
            T,
            "setsid sh -c 'trap \"\" TERM HUP; echo $$ >a; exec sleep 1000' & \
                   while [ ! -s a ]; do sleep 0.01; done; exit 0",
        )
        .unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(0));
    assert!(is_gone(bench.number("a")));
}

#[test]
fn a_shim_whose_directory_has_gone_does_not_try_to_record_for_ever() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    let state = bench.running(T);
    fs::rename(bench.task_dir(T).path(), bench.dir.path().join("elsewhere")).unwrap();
    kill(state.main.pid);
    until(|| is_gone(state.shim.pid).then_some(()));
}

#[test]
fn of_a_long_output_the_newest_bytes_are_kept_within_the_cap() {
    let mut bench = Bench::started();
    let mut launch = bench.launch(&["sh", "-c", "seq 1 100000"]);
    launch.log_cap = Bytes(64 << 10);
    bench.start(T, launch).unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(0));
    let kept = bench.output(T, "stdout");
    assert!(kept.len() <= 64 << 10 && kept.len() >= 48 << 10, "{}", kept.len());
    assert!(kept.ends_with("99999\n100000\n"));
}

#[test]
fn a_task_that_cannot_start_says_why() {
    let mut bench = Bench::started();
    let missing = bench.launch(&["no-such-program"]);
    let in_path = "the program no-such-program is in none of /usr/local/bin:/usr/bin:/bin";
    let by_path = bench.launch(&["/no/such/program"]);
    let mut nowhere = bench.launch(&["true"]);
    nowhere.working_dir = "/no/such/dir".into();
    let directory = bench.launch(&["/tmp"]);
    for (id, launch, why) in [
        ("job-1.1.0", missing, in_path),
        (
            "job-2.1.0",
            by_path,
            "the program /no/such/program, or the interpreter it names, is not there",
        ),
        ("job-3.1.0", nowhere, "the working directory /no/such/dir is not there"),
        ("job-4.1.0", directory, "/tmp cannot be executed: Permission denied (os error 13)"),
    ] {
        bench.start(id, launch).unwrap();
        assert_eq!(bench.ended(id), ExitRecord::NeverStarted(why.into()));
    }
}

#[test]
fn a_task_of_another_user_is_refused() {
    let mut bench = Bench::started();
    let mut launch = bench.launch(&["true"]);
    launch.user.0 += 1;
    let refused = bench.start(T, launch).unwrap_err();
    assert!(refused.contains("starts no task of uid-"), "{refused}");
    assert!(!bench.task_dir(T).path().exists());
}

#[test]
fn a_malformed_message_is_answered_with_one_clear_line() {
    let mut bench = Bench::started();
    bench.send(b"{\"id\":1,\"verb\":{\"dance\":{}}}\n");
    let Some(FromStarter::Answer { id: 0, refused: Some(why) }) = bench.hear() else { panic!() };
    assert!(why.starts_with("not a request: unknown variant `dance`"), "{why}");
    bench.send(b"{\"id\":1,\"verb\":{\"forget\":{\"task\":\"../x\"}}}\n");
    let Some(FromStarter::Answer { id: 0, refused: Some(why) }) = bench.hear() else { panic!() };
    assert!(why.contains("is not an id"), "{why}");
    bench.shell(T, "exit 0").unwrap();
    bench.ended(T);
}

#[test]
fn an_oversized_message_is_answered_and_ends_the_connection_only() {
    let mut bench = Bench::started();
    bench.send(&vec![b'x'; MAX_LINE_BYTES + 1]);
    let Some(FromStarter::Answer { id: 0, refused: Some(why) }) = bench.hear() else { panic!() };
    assert_eq!(why, "the message is longer than 4194304 bytes");
    assert_eq!(bench.hear(), None);
    bench.connect();
}

#[test]
fn a_new_connection_replaces_the_old_one() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    bench.running(T);
    bench.connect();
    assert_eq!(bench.list(), [(task(T), StatusRecord::Running)].into());
    bench.ask(stop(T, 1, 0)).unwrap();
    bench.ended(T);
}

#[test]
fn only_a_task_of_which_nothing_is_left_is_forgotten() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    bench.running(T);
    let refused = bench.ask(Verb::Forget { task: task(T) }).unwrap_err();
    assert_eq!(refused, "something of job-1.1.0 is left; stop it first");
    bench.ask(stop(T, 1, 0)).unwrap();
    bench.ended(T);
    bench.ask(Verb::Forget { task: task(T) }).unwrap();
    bench.ask(Verb::Forget { task: task(T) }).unwrap();
    assert!(bench.list().is_empty() && !bench.task_dir(T).path().exists());
}

fn intent(bench: &Bench, boot_id: &str) -> Intent {
    Intent {
        task: task(T),
        boot_id: boot_id.into(),
        home: "/".into(),
        user: "a".into(),
        launch: bench.launch(&["touch", "started"]).into(),
    }
}

fn boot_id() -> String {
    Procs::default().boot_id().unwrap()
}

fn plant(bench: &Bench, boot_id: &str) {
    let dir = bench.task_dir(T);
    fs::create_dir_all(dir.path()).unwrap();
    fs::write(dir.intent(), bytes_of(&intent(bench, boot_id)).unwrap()).unwrap();
}

#[test]
fn a_start_that_was_interrupted_before_any_shim_began_goes_on() {
    let mut bench = Bench::new();
    plant(&bench, &boot_id());
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), ExitRecord::Exited(0));
    assert!(bench.dir.path().join("started").exists());
}

#[test]
fn a_task_that_a_shim_had_begun_is_never_started_again() {
    let mut bench = Bench::new();
    plant(&bench, &boot_id());
    fs::write(bench.task_dir(T).begun(), "").unwrap();
    bench.start_starter();
    bench.connect();
    let why = "its shim died before the task ran";
    assert_eq!(bench.ended(T), lost(why));
    bench.shell(T, "touch started").unwrap();
    assert_eq!(bench.ended(T), lost(why));
    bench.kill_starter();
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), lost(why), "durably");
    assert!(!bench.dir.path().join("started").exists());
}

#[test]
fn a_shim_that_comes_too_late_starts_nothing() {
    let mut bench = Bench::new();
    plant(&bench, &boot_id());
    bench.start_starter();
    bench.connect();
    bench.ended(T);
    fs::remove_file(bench.dir.path().join("started")).unwrap();
    // The shim before it holds the task for a moment after it has written its end.
    let said = until(|| {
        let shim = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate-shim"))
            .arg(bench.task_dir(T).path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&shim.stderr).into_owned();
        (!said.contains("holds this task")).then_some(said)
    });
    assert!(said.contains("the task has ended already"), "{said}");
    assert!(!bench.dir.path().join("started").exists());
}

#[test]
fn a_task_of_an_earlier_boot_is_lost() {
    let mut bench = Bench::new();
    plant(&bench, "another boot");
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), lost("its node rebooted"));
}

#[test]
fn a_process_that_has_a_dead_shims_pid_is_neither_adopted_nor_killed() {
    let mut bench = Bench::new();
    plant(&bench, &boot_id());
    // Leads a session, as a task's main process does.
    let mut stranger =
        std::process::Command::new("setsid").args(["sleep", "1000"]).spawn().unwrap();
    let pid = i32::try_from(stranger.id()).unwrap();
    until(|| Procs::default().stat(pid).filter(|stat| stat.session == pid));
    let before = Procs::default().identify(pid).unwrap();
    let other = ProcessId { pid, start: before.start - 1 };
    let state = State { boot_id: boot_id(), shim: other, main: other };
    fs::write(bench.task_dir(T).state(), bytes_of(&state).unwrap()).unwrap();
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), lost("its shim died"));
    assert!(Procs::default().is_alive(before));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_start_that_was_never_recorded_may_be_repeated() {
    let mut bench = Bench::new();
    fs::create_dir_all(bench.task_dir(T).path()).unwrap();
    bench.start_starter();
    bench.connect();
    assert!(bench.list().is_empty());
    bench.shell(T, "exit 4").unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(4));
}

#[test]
fn a_second_starter_for_one_directory_is_refused() {
    let bench = Bench::started();
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate-starter"))
        .arg("--config")
        .arg(bench.dir.path().join("node.toml"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        !second.status.success() && said.contains("a starter serves this state directory already"),
        "{said}"
    );
}

#[test]
fn the_starter_opens_no_network_socket() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    bench.running(T);
    let inodes: Vec<String> = fs::read_dir(format!("/proc/{}/fd", bench.starter_pid()))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.into()))
        .collect();
    let unix = fs::read_to_string("/proc/net/unix").unwrap();
    assert!(!inodes.is_empty());
    for inode in inodes {
        assert!(unix.contains(&format!(" {inode}")), "socket {inode} is not a Unix socket");
    }
    let exit = load::<State>(&bench.task_dir(T).state()).unwrap().unwrap();
    kill(exit.main.pid);
    assert_eq!(bench.ended(T), ExitRecord::Signaled(9));
}

#[test]
fn a_task_whose_intent_is_gone_is_cleared_away_and_not_forgotten_alive() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    let state = bench.running(T);
    bench.kill_starter();
    fs::remove_file(bench.task_dir(T).intent()).unwrap();
    bench.start_starter();
    bench.connect();
    bench.ended(T);
    assert!(is_gone(state.main.pid));
}

#[test]
fn a_task_whose_directory_is_gone_can_still_be_stopped() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    let state = bench.running(T);
    fs::remove_dir_all(bench.task_dir(T).path()).unwrap();
    bench.ask(Verb::Stop { task: task(T), decision: 1, grace_ms: 60_000 }).unwrap();
    bench.ended(T);
    assert!(is_gone(state.main.pid));
}

#[test]
fn the_damaged_end_of_one_task_does_not_keep_a_starter_from_the_others() {
    let mut bench = Bench::started();
    bench.shell("job-2.1.0", "exec sleep 1000").unwrap();
    bench.running("job-2.1.0");
    bench.kill_starter();
    plant(&bench, &boot_id());
    fs::write(bench.task_dir(T).begun(), "").unwrap();
    fs::write(bench.task_dir(T).exit(), "").unwrap();
    bench.start_starter();
    bench.connect();
    assert_eq!(bench.ended(T), lost("its shim died before the task ran"));
    bench.running("job-2.1.0");
    bench.ask(Verb::Stop { task: task("job-2.1.0"), decision: 1, grace_ms: 0 }).unwrap();
    bench.ended("job-2.1.0");
}

#[test]
fn a_starter_does_not_take_the_socket_of_another() {
    let bench = Bench::started();
    let config = fs::read_to_string(bench.dir.path().join("node.toml")).unwrap();
    let other = bench.dir.path().join("other.toml");
    let elsewhere = bench.dir.path().join("elsewhere").display().to_string();
    let state = bench.dir.path().join("state").display().to_string();
    fs::write(&other, config.replace(&state, &elsewhere)).unwrap();
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate-starter"))
        .arg("--config")
        .arg(&other)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("another starter serves"), "{said}");
}
