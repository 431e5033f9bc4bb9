//! Working in a job: the real command line in a terminal, with a real coordinator, agent, starter
//! and shim, each of which is killed while somebody works.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::processes::signal;
use cluster_tests::screen::Screen;
use cluster_tests::wait::until;
use nix::sys::signal::Signal;
use tidegate_model::{GpuCount, JobId, JobSpec, Span, TaskExit};
use tidegate_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};
use v1::attach_reply::Message as Reply;
use v1::attach_request::{Message as Ask, Open};

const MINUTE: Duration = Duration::from_secs(60);

async fn cluster() -> Cluster {
    Cluster::start(Binaries::built().unwrap(), &Plan::nodes(1, 2)).await.unwrap()
}

/// A person who runs the command line.
fn person(cluster: &Cluster, arguments: &[&str]) -> Screen {
    let socket = cluster.socket().display().to_string();
    let arguments: Vec<&str> = ["--socket", &socket].iter().chain(arguments).copied().collect();
    Screen::start(&cluster.binaries().path("tidegate"), &arguments).unwrap()
}

/// A shell whose prompt no output looks like.
async fn shell(cluster: &Cluster) -> Screen {
    let dir = cluster.dir().display().to_string();
    let arguments = ["run", "--pty", "--workdir", &dir, "--env", "PS1=ready> ", "--", "sh"];
    let mut screen = person(cluster, &arguments);
    screen.shows("ready> ", MINUTE).await.unwrap();
    screen
}

/// Types a command and waits for its output, which the command itself does not look like.
async fn says(screen: &mut Screen, command: &str, expected: &str) {
    screen.send(&format!("{command}\r")).unwrap();
    screen.shows(expected, MINUTE).await.unwrap();
    screen.shows("ready> ", MINUTE).await.unwrap();
}

#[tokio::test]
async fn a_shell_is_worked_in_and_its_exit_code_is_the_command_lines() {
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    assert!(screen.is_raw().unwrap());
    says(&mut screen, "tty; echo a$((20 + 3))b", "a23b").await;
    assert!(screen.all().contains("/dev/pts/"), "{}", screen.all());
    says(&mut screen, "stty size", "30 100").await;
    screen.resize(41, 132).unwrap();
    says(&mut screen, "while [ \"$(stty size)\" != '41 132' ]; do :; done; stty size", "41 132")
        .await;
    // Its GPU is its own, and Ctrl-C is for what runs in it.
    says(&mut screen, "echo gpu=${CUDA_VISIBLE_DEVICES%%-*}", "gpu=GPU").await;
    screen.send("echo under; sleep 1000\r").unwrap();
    screen.shows("under\r\n", MINUTE).await.unwrap();
    screen.send("\x03").unwrap();
    screen.shows("ready> ", MINUTE).await.unwrap();
    screen.send("exit 23\r").unwrap();
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(23), "{}", screen.all());
    assert!(!screen.is_raw().unwrap(), "the terminal is as it was");
    // What was printed is in the log as that of any job.
    let client = cluster.client().unwrap();
    let job: JobId = "job-1".parse().unwrap();
    let view = client.job_ended(job, MINUTE).await.unwrap();
    assert_eq!((view.state(), view.attempts.len()), (v1::JobState::Failed, 1));
    assert!(client.output(job, 1, 0).await.unwrap().contains("a23b"));
    let spec = view.spec.unwrap();
    assert_eq!((spec.gpus, spec.min_runtime_ms, spec.max_restarts), (1, 3_600_000, 0));
}

#[tokio::test]
async fn who_leaves_comes_back_to_what_was_last_on_the_screen() {
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    says(&mut screen, "echo first-$((1 + 1))", "first-2").await;
    screen.send(&format!("{} echo in-the-dark-$((2 + 2))\r", UNTIL_GO)).unwrap();
    screen.send("\x1dd").unwrap();
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(0));
    assert!(screen.all().contains("job-1 goes on"), "{}", screen.all());
    fs::write(cluster.dir().join("go"), "").unwrap();
    let mut back = person(&cluster, &["attach", "job-1"]);
    let seen = back.shows("in-the-dark-4", MINUTE).await.unwrap();
    assert!(seen.contains("first-2"), "{seen}");
    back.shows("ready> ", MINUTE).await.unwrap();
    // Who comes from elsewhere takes it over.
    let mut elsewhere = person(&cluster, &["attach", "job-1"]);
    elsewhere.shows("in-the-dark-4", MINUTE).await.unwrap();
    elsewhere.shows("ready> ", MINUTE).await.unwrap();
    assert_eq!(back.ended(MINUTE).await.unwrap().code(), Some(1));
    assert!(back.all().contains("job-1 is attached elsewhere"), "{}", back.all());
    elsewhere.send("exit\r").unwrap();
    assert_eq!(elsewhere.ended(MINUTE).await.unwrap().code(), Some(0));
    // Who comes too late is told how it ended.
    let mut late = person(&cluster, &["attach", "job-1"]);
    assert_eq!(late.ended(MINUTE).await.unwrap().code(), Some(0), "{}", late.all());
    assert!(late.all().contains("job-1 has ended: exit 0"), "{}", late.all());
}

#[tokio::test]
async fn what_a_command_prints_is_seen_though_it_is_over_at_once() {
    let cluster = cluster().await;
    for number in 1..=5 {
        let command = format!("echo mark-$((40 + {number})); exit {number}");
        let mut screen = person(&cluster, &["run", "--pty", "--", "sh", "-c", &command]);
        let ended = screen.ended(MINUTE).await.unwrap();
        assert_eq!(ended.code(), Some(number), "{}", screen.all());
        let mark = format!("mark-{}", 40 + number);
        assert_eq!(screen.all().matches(&mark).count(), 1, "{}", screen.all());
        assert!(!screen.all().contains("was lost"), "{}", screen.all());
    }
}

#[tokio::test]
async fn the_log_of_a_removed_node_is_not_found_with_words() {
    let mut cluster = cluster().await;
    let client = cluster.client().unwrap();
    let job = JobSpec { command: vec!["true".to_owned()], ..cluster.job("short", 1) };
    let job = client.submit(&job).await.unwrap();
    client.job_ended(job, MINUTE).await.unwrap();
    let node = client.nodes().await.unwrap().remove(0).node;
    cluster.kill(Role::Agent(0)).unwrap();
    until(MINUTE, "the node to be removed", async || {
        let remove = v1::RemoveNodeRequest { node: node.clone() };
        client.api().remove_node(remove).await.map_err(|status| status.to_string())
    })
    .await
    .unwrap();
    let mut screen = person(&cluster, &["logs", "job-1"]);
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(3), "{}", screen.all());
    let expected = format!("{node}, on which job-1.1.0 ran, has been removed; its logs were there");
    assert!(screen.all().contains(&expected), "{}", screen.all());
}

#[tokio::test]
async fn a_job_nobody_looks_at_is_not_held_up_by_what_it_prints() {
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    // Ten times what a terminal and all that is between hold.
    screen.send(&format!("({UNTIL_GO} seq 1 1000000; touch printed) &\r")).unwrap();
    screen.shows("ready> ", MINUTE).await.unwrap();
    screen.kill().unwrap();
    fs::write(cluster.dir().join("go"), "").unwrap();
    all_is_printed(&cluster).await;
}

#[tokio::test]
async fn who_does_not_read_is_dropped_with_a_reason_and_comes_back_to_what_was_printed_last() {
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    prints_a_lot_to_a_stopped(&cluster, &mut screen).await;
    signal(screen.pid(), Signal::SIGCONT).unwrap();
    screen.shows("was lost (what the job prints was not read for 5 s)", MINUTE).await.unwrap();
    screen.shows("connected to job-1 again", MINUTE).await.unwrap();
    screen.shows("1000000\r\n", MINUTE).await.unwrap();
    says(&mut screen, "echo still-$((1 + 1))", "still-2").await;
}

#[tokio::test]
async fn who_did_not_read_does_not_take_the_terminal_back_from_who_came_after() {
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    prints_a_lot_to_a_stopped(&cluster, &mut screen).await;
    let mut newer = person(&cluster, &["attach", "job-1"]);
    newer.shows("1000000\r\n", MINUTE).await.unwrap();
    signal(screen.pid(), Signal::SIGCONT).unwrap();
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(1), "{}", screen.all());
    assert!(screen.all().contains("job-1 is attached elsewhere"), "{}", screen.all());
    says(&mut newer, "echo still-$((1 + 1))", "still-2").await;
}

/// Its command line is stopped, the job prints more than all buffers hold, and comes to its end.
async fn prints_a_lot_to_a_stopped(cluster: &Cluster, screen: &mut Screen) {
    screen.send(&format!("({UNTIL_GO} seq 1 1000000; touch printed) &\r")).unwrap();
    screen.shows("ready> ", MINUTE).await.unwrap();
    signal(screen.pid(), Signal::SIGSTOP).unwrap();
    fs::write(cluster.dir().join("go"), "").unwrap();
    all_is_printed(cluster).await;
}

async fn all_is_printed(cluster: &Cluster) {
    until(MINUTE, "all to be printed", async || {
        let printed = cluster.dir().join("printed").exists();
        if printed { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
}

/// For a shell: until the test says so.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.01; done;";

#[tokio::test]
async fn all_that_is_printed_arrives_however_slowly_it_is_read() {
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    // More than all the buffers on its way: the job has to wait for the reader.
    screen.send("seq 1 200000\r").unwrap();
    screen.shows("seq 1 200000\r\n", MINUTE).await.unwrap();
    let shown = screen.shows("ready> ", MINUTE).await.unwrap();
    let lines: Vec<&str> = shown.split("\r\n").collect();
    assert_eq!(lines.len(), 200_001, "{:?}", lines.last());
    let mut numbers = (1_u32..).zip(&lines).take(200_000);
    assert!(numbers.all(|(number, line)| *line == number.to_string()));
}

async fn check_goes_on(role: Role) {
    let mut cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    says(&mut screen, "before=$((40 + 2))", "").await;
    cluster.kill(role).unwrap();
    screen.shows("the connection to job-1 was lost", MINUTE).await.unwrap();
    cluster.start_role(role).unwrap();
    screen.shows("connected to job-1 again", MINUTE).await.unwrap();
    says(&mut screen, "echo still-$before", "still-42").await;
    let times = screen.all().matches("ready> ").count();
    assert_eq!(times, 3, "nothing is shown twice: {}", screen.all());
    screen.send("exit 7\r").unwrap();
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(7), "{}", screen.all());
}

#[tokio::test]
async fn a_killed_coordinator_is_come_back_from() {
    check_goes_on(Role::Coordinator).await;
}

#[tokio::test]
async fn a_killed_agent_is_come_back_from() {
    check_goes_on(Role::Agent(0)).await;
}

#[tokio::test]
async fn a_killed_command_line_hangs_nothing_up() {
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    says(&mut screen, "trap 'echo hung-$((1 + 1))-up' HUP; before=here", "").await;
    screen.kill().unwrap();
    let mut back = person(&cluster, &["attach", "job-1"]);
    back.shows("ready> ", MINUTE).await.unwrap();
    says(&mut back, "echo still-$before", "still-here").await;
    assert!(!back.all().contains("hung-2-up"), "{}", back.all());
    // A shell heeds no TERM; its grace is half a minute, and it does not take that long.
    says(&mut back, "trap - HUP", "").await;
    let client = cluster.client().unwrap();
    client.api().cancel(v1::CancelRequest { job: "job-1".to_owned() }).await.unwrap();
    let ended = back.ended(Duration::from_secs(20)).await.unwrap();
    assert_eq!(ended.code(), Some(129), "{}", back.all());
}

#[tokio::test]
async fn a_job_that_waits_says_why_and_ctrl_c_cancels_it() {
    let cluster = cluster().await;
    let client = cluster.client().unwrap();
    fill(&cluster).await;
    // Free work displaces nobody.
    let mut screen = person(&cluster, &["run", "--pty", "--min-runtime", "0", "--", "sh"]);
    screen.shows("job-2 is pending: Awaiting", MINUTE).await.unwrap();
    screen.send("\x03").unwrap();
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(1), "{}", screen.all());
    let view = client.job_ended("job-2".parse().unwrap(), MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Cancelled);
}

/// Takes both GPUs until it is cancelled.
async fn fill(cluster: &Cluster) -> JobId {
    let client = cluster.client().unwrap();
    let filling = JobSpec {
        command: vec!["sleep".to_owned(), "1000".to_owned()],
        ..cluster.job("filling", 2)
    };
    let filling = client.submit(&filling).await.unwrap();
    let runs = |view: &v1::JobView| {
        view.attempts.last().is_some_and(|a| a.state() == v1::AttemptState::Running)
    };
    client.job_until(filling, MINUTE, "runs", runs).await.unwrap();
    filling
}

#[tokio::test]
async fn who_leaves_while_the_job_waits_leaves_it_waiting() {
    let cluster = cluster().await;
    fill(&cluster).await;
    let free = ["run", "--pty", "--min-runtime", "0", "--", "sh"];
    for arguments in [&free[..], &["attach", "job-2"]] {
        let mut screen = person(&cluster, arguments);
        screen.shows("job-2 is pending: Awaiting", MINUTE).await.unwrap();
        screen.send("\x1dd").unwrap();
        assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(0), "{}", screen.all());
        let expected = "job-2 goes on; `tidegate attach job-2` comes back to it";
        assert!(screen.all().contains(expected), "{}", screen.all());
        assert!(!screen.is_raw().unwrap(), "the terminal is as it was");
    }
    let mut interrupted = person(&cluster, &["attach", "job-2"]);
    interrupted.shows("job-2 is pending: Awaiting", MINUTE).await.unwrap();
    interrupted.send("\x03").unwrap();
    assert_eq!(interrupted.ended(MINUTE).await.unwrap().code(), Some(130));
    let view = cluster.client().unwrap().job("job-2".parse().unwrap()).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Pending);
}

#[tokio::test]
async fn who_waits_for_a_job_that_is_over_at_once_sees_its_log_and_ends_as_it_did() {
    let cluster = cluster().await;
    let client = cluster.client().unwrap();
    let filling = fill(&cluster).await;
    let quick = JobSpec {
        command: ["sh", "-c", "echo quick-$((1 + 1)); exit 5"].map(str::to_owned).to_vec(),
        gpus_per_node: Some(GpuCount(1)),
        max_restarts: 0,
        pty: true,
        ..cluster.job("quick", 1)
    };
    let quick = client.submit(&quick).await.unwrap();
    let mut screen = person(&cluster, &["attach", &quick.to_string()]);
    screen.shows("job-2 is pending: Awaiting", MINUTE).await.unwrap();
    // It neither asks nor hears while the job runs.
    signal(screen.pid(), Signal::SIGSTOP).unwrap();
    let cancel = async |job: JobId| {
        client.api().cancel(v1::CancelRequest { job: job.to_string() }).await.unwrap();
    };
    cancel(filling).await;
    client.job_ended(quick, MINUTE).await.unwrap();
    signal(screen.pid(), Signal::SIGCONT).unwrap();
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(5), "{}", screen.all());
    assert!(screen.all().contains("quick-2"), "{}", screen.all());
    // Of one that never started there is nothing to see.
    fill(&cluster).await;
    let never = JobSpec { pty: true, gpus_per_node: Some(GpuCount(1)), ..cluster.job("never", 1) };
    let never = client.submit(&never).await.unwrap();
    let mut screen = person(&cluster, &["attach", &never.to_string()]);
    screen.shows("is pending: Awaiting", MINUTE).await.unwrap();
    cancel(never).await;
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(1), "{}", screen.all());
    assert!(screen.all().contains("has ended without having started"), "{}", screen.all());
}

#[tokio::test]
async fn who_works_in_a_job_that_has_to_leave_is_told_why_and_what_becomes_of_it() {
    let cluster = cluster().await;
    let client = cluster.client().unwrap();
    let free = ["run", "--pty", "--min-runtime", "0", "--env", "PS1=ready> ", "--", "sh"];
    let mut screen = person(&cluster, &free);
    screen.shows("ready> ", MINUTE).await.unwrap();
    let protected = JobSpec {
        command: vec!["sleep".to_owned(), "1000".to_owned()],
        min_runtime: Span::hours(1),
        ..cluster.job("protected", 2)
    };
    client.submit(&protected).await.unwrap();
    let ended = screen.ended(MINUTE).await.unwrap();
    assert_eq!(ended.code(), Some(129), "{}", screen.all());
    assert!(screen.all().contains("job-1: job-1.1 is stopped because "), "{}", screen.all());
    let expected = "job-1 starts again; `tidegate attach job-1` to look";
    assert!(screen.all().contains(expected), "{}", screen.all());
}

#[tokio::test]
async fn who_ends_a_shell_that_starts_again_is_told_so() {
    let cluster = cluster().await;
    let restarts = ["run", "--pty", "--max-restarts", "1", "--env", "PS1=ready> ", "--", "sh"];
    let mut screen = person(&cluster, &restarts);
    screen.shows("ready> ", MINUTE).await.unwrap();
    screen.send("exit 4\r").unwrap();
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(4), "{}", screen.all());
    let expected = "job-1 starts again; `tidegate attach job-1` to look, `tidegate cancel job-1`";
    assert!(screen.all().contains(expected), "{}", screen.all());
    let mut back = person(&cluster, &["attach", "job-1"]);
    back.shows("ready> ", MINUTE).await.unwrap();
    back.send("exit 6\r").unwrap();
    assert_eq!(back.ended(MINUTE).await.unwrap().code(), Some(6), "{}", back.all());
    assert!(!back.all().contains("starts again"), "{}", back.all());
}

#[tokio::test]
async fn a_table_is_no_wider_than_the_window_and_whole_where_there_is_none() {
    let cluster = cluster().await;
    let name = "a-long-name-of-a-job-that-nobody-needs-to-see-whole".to_owned();
    let long = JobSpec { min_runtime: Span::hours(1), name, ..cluster.job("long", 1) };
    cluster.client().unwrap().submit(&long).await.unwrap();
    let mut screen = person(&cluster, &["jobs", "--all"]);
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(0));
    let shown = screen.all().to_owned();
    let longest = shown.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 100 && shown.contains("WHY") && !shown.contains("MIN-RUNTIME"), "{shown}");
    let mut piped = std::process::Command::new(cluster.binaries().path("tidegate"));
    piped.arg("--socket").arg(cluster.socket()).args(["jobs", "--all"]).env("COLUMNS", "40");
    let piped = String::from_utf8(piped.output().unwrap().stdout).unwrap();
    assert_eq!(piped.lines().count(), 2, "{piped}");
    assert!(piped.contains(&long.name) && piped.contains("MIN-RUNTIME"), "{piped}");
}

/// A stream to a terminal, and one from it.
type Ends = (mpsc::Sender<v1::AttachRequest>, Streaming<v1::AttachReply>);

/// Asks for a terminal as a program of any client would.
async fn attach(cluster: &Cluster, job: JobId) -> Result<Ends, tonic::Status> {
    let (send, asks) = mpsc::channel(1);
    let view = Some(v1::TerminalView::default());
    let open = Open { job: job.to_string(), view, ..Open::default() };
    send.send(v1::AttachRequest { message: Some(Ask::Open(open)) }).await.unwrap();
    let mut api = cluster.client().unwrap().api();
    Ok((send, api.attach(ReceiverStream::new(asks)).await?.into_inner()))
}

#[tokio::test]
async fn a_job_without_a_terminal_and_one_of_many_tasks_are_refused_with_words() {
    let cluster = cluster().await;
    let client = cluster.client().unwrap();
    let plain =
        JobSpec { command: vec!["sleep".to_owned(), "1000".to_owned()], ..cluster.job("plain", 1) };
    let plain = client.submit(&plain).await.unwrap();
    let refused = attach(&cluster, plain).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(
        refused.message(),
        "job-1 has no terminal; `tidegate run --pty` submits jobs that have"
    );
    let many = JobSpec { pty: true, ..cluster.job("many", 2) };
    let refused = client.submit(&many).await.unwrap_err().to_string();
    assert!(refused.contains("a terminal belongs to one task"), "{refused}");
    let mut screen = person(&cluster, &["attach", "job-9"]);
    assert_eq!(screen.ended(MINUTE).await.unwrap().code(), Some(3), "{}", screen.all());
}

/// Needs root, to become another user; elsewhere nobody can be anybody else.
#[tokio::test]
async fn nobody_but_its_owner_may_attach_to_a_job() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let cluster = cluster().await;
    let mut screen = shell(&cluster).await;
    for place in [cluster.dir().to_owned(), cluster.dir().join("run")] {
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let program = cluster.binaries().path("tidegate").display().to_string();
    let socket = cluster.socket().display().to_string();
    let arguments = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", &program];
    let arguments = arguments.into_iter().chain(["--socket", &socket, "attach", "job-1"]);
    let arguments: Vec<&str> = arguments.collect();
    let mut other = Screen::start(Path::new("setpriv"), &arguments).unwrap();
    assert_eq!(other.ended(MINUTE).await.unwrap().code(), Some(4), "{}", other.all());
    let expected = "job-1 belongs to another user; only its owner may attach to it";
    assert!(other.all().contains(expected), "{}", other.all());
    says(&mut screen, "echo still-$((1 + 1))", "still-2").await;
}

#[tokio::test]
async fn an_answer_begins_with_the_task_and_ends_with_its_end() {
    let cluster = cluster().await;
    let client = cluster.client().unwrap();
    let one = JobSpec {
        command: ["sh", "-c", "stty -echo; echo hello; read line; echo bye; exit 3"]
            .map(str::to_owned)
            .to_vec(),
        gpus_per_node: Some(GpuCount(1)),
        max_restarts: 0,
        pty: true,
        ..cluster.job("one", 1)
    };
    let job = client.submit(&one).await.unwrap();
    let stream = until(MINUTE, "the terminal", async || {
        attach(&cluster, job).await.map_err(|status| status.to_string())
    });
    let (send, mut stream) = stream.await.unwrap();
    let mut said = async || stream.message().await.unwrap().unwrap().message.unwrap();
    assert_eq!(said().await, Reply::Opened("job-1.1.0".to_owned()));
    let Reply::Output(v1::TerminalOutput { offset: 0, bytes }) = said().await else { panic!() };
    let mut text = bytes;
    let mut typed = false;
    let exit = loop {
        if !typed && text.ends_with(b"hello\r\n") {
            let line = v1::AttachRequest { message: Some(Ask::Input(b"line\n".to_vec())) };
            send.send(line).await.unwrap();
            typed = true;
        }
        match said().await {
            Reply::Output(output) => {
                assert_eq!(output.offset, u64::try_from(text.len()).unwrap());
                text.extend(output.bytes);
            }
            Reply::Exit(exit) => break exit,
            Reply::Opened(_) | Reply::Taken(_) => panic!("said once"),
        }
    };
    assert_eq!(String::from_utf8(text).unwrap(), "hello\r\nbye\r\n");
    assert_eq!(TaskExit::try_from(exit).unwrap(), TaskExit::Exited(3));
    // Who asks again afterwards is told the same by the books.
    client.job_ended(job, MINUTE).await.unwrap();
    let (_send, mut stream) = attach(&cluster, job).await.unwrap();
    let last = stream.message().await.unwrap().unwrap().message.unwrap();
    assert_eq!(last, Reply::Exit(TaskExit::Exited(3).into()));
}
