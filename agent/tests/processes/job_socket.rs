//! The job's socket, spoken to by a process of the task, and by others.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_agent::job_protocol::MAX_JOB_LINE;
use tidegate_agent::record::ExitRecord;
use tidegate_agent::starter::protocol::Verb;
use tidegate_model::{Bytes, Commit, DecisionSeq, Save, SaveTarget, Span};
use tidegate_proto::link::Launch;

use crate::bench::{Bench, task, until};

const T: &str = "job-1.1.0";

/// Passes bytes on between the job's socket and the test: a connection for each of the test's.
const RELAY: &str = "
import os, socket, threading
door = socket.socket(socket.AF_UNIX)
door.bind('relay.new')
door.listen()
os.rename('relay.new', 'relay')
def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)
def serve(test):
    job = socket.socket(socket.AF_UNIX)
    job.connect(os.environ['TIDEGATE_SOCKET'])
    threading.Thread(target=pump, args=(test, job), daemon=True).start()
    pump(job, test)
while True:
    threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()
";

/// One connection to the job's socket.
pub(crate) struct Client(BufReader<UnixStream>);

impl Client {
    /// Through a relay that runs in the task.
    pub(crate) fn of(bench: &Bench) -> Self {
        let path = bench.dir.path().join("relay");
        let stream = until(|| UnixStream::connect(&path).ok());
        // Nobody waits for ever for what does not come.
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// None at the end.
    pub(crate) fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    pub(crate) fn ask(&mut self, message: &Value) -> Value {
        self.send(format!("{message}\n").as_bytes());
        self.hear().unwrap()
    }

    pub(crate) fn check_refused(&mut self, message: &Value, why: &str) {
        assert_eq!(self.ask(message), json!({"refused": {"why": why}}));
    }
}

/// A task that is a Python program. Where Python is, the test's own environment says.
pub(crate) fn python(bench: &Bench, arguments: &[&str]) -> Launch {
    let mut launch = bench.launch(&[&["python3", "-c"], arguments].concat());
    launch.env.push(("PATH".into(), std::env::var("PATH").unwrap()));
    launch
}

/// A task that passes on what [`Client`] says.
pub(crate) fn relay(bench: &Bench) -> Launch {
    python(bench, &[RELAY])
}

fn served() -> (Bench, Client) {
    let mut bench = Bench::started();
    let launch = relay(&bench);
    bench.start(T, launch).unwrap();
    let client = Client::of(&bench);
    (bench, client)
}

/// Makes a checkpoint of one file; the message that commits it.
pub(crate) fn checkpoint(bench: &Bench, step: u64) -> Value {
    let dir = bench.dir.path().join(format!("step-{step}"));
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("a"), "abc").unwrap();
    json!({"commit": {"step": step, "path": dir, "files": [{"path": "a", "bytes": 3}]}})
}

fn commit(bench: &Bench, step: u64, request: Option<u64>) -> Commit {
    let path = bench.dir.path().join(format!("step-{step}")).display().to_string();
    Commit { step, path, bytes: Bytes(3), request: request.map(DecisionSeq) }
}

fn committed(bench: &mut Bench, wanted: &Commit) {
    bench.wait_line(T, |line| line.clone().facts().1.commit.as_ref() == Some(wanted));
}

#[test]
fn a_job_hears_who_it_is_and_that_it_is_to_save() {
    let (mut bench, mut client) = served();
    let identity = json!({"job": "job-1", "attempt": 1, "task": T, "request": null});
    assert_eq!(client.ask(&json!({"hello": {}})), json!({ "hello": identity }));
    let save = Save {
        request: DecisionSeq(7),
        signal: None,
        target: SaveTarget::Ranks,
        grace: Span(600_001),
        why: "why".into(),
    };
    bench.ask(Verb::Save { task: task(T), save: save.into() }).unwrap();
    let told = client.hear().unwrap();
    assert_eq!((&told["save"]["request"], &told["save"]["grace_s"]), (&json!(7), &json!(601)));
    let asked = client.ask(&json!({"hello": {"of": "a later version"}}));
    assert_eq!(asked["hello"]["request"]["request"], 7);
    assert_eq!(asked["hello"]["request"]["why"], "why");
    let message = checkpoint(&bench, 5);
    assert_eq!(client.ask(&message), json!({"committed": {"step": 5}}));
    let wanted = commit(&bench, 5, Some(7));
    committed(&mut bench, &wanted);
}

#[test]
fn a_checkpoint_that_counts_is_known_to_every_later_starter_and_after_the_end() {
    let (mut bench, mut client) = served();
    for step in [5, 9] {
        let message = checkpoint(&bench, step);
        assert_eq!(client.ask(&message), json!({"committed": {"step": step}}));
    }
    let wanted = commit(&bench, 9, None);
    committed(&mut bench, &wanted);
    for _ in 0..2 {
        bench.kill_starter();
        bench.start_starter();
        bench.connect();
        committed(&mut bench, &wanted);
        bench.ask(Verb::Stop { task: task(T), decision: 1, grace_ms: 600_000 }).unwrap();
        assert_eq!(bench.ended(T), ExitRecord::Signaled(15));
        committed(&mut bench, &wanted);
    }
}

#[test]
fn a_checkpoint_that_is_not_as_it_is_said_to_be_does_not_count() {
    let (mut bench, mut client) = served();
    let first = checkpoint(&bench, 5);
    assert_eq!(client.ask(&first), json!({"committed": {"step": 5}}));
    let mut wrong = checkpoint(&bench, 6);
    wrong["commit"]["files"][0]["bytes"] = json!(4);
    client.check_refused(&wrong, "files: a has 3 bytes, not 4");
    wrong["commit"]["files"][0] = json!({"path": "../step-5/a", "bytes": 3});
    let why = "files: ../step-5/a leads out of the checkpoint's directory";
    client.check_refused(&wrong, why);
    wrong["commit"]["path"] = json!("step-6");
    client.check_refused(&wrong, "path: give an absolute path");
    client.check_refused(&first, "step: 5 is not above 5, which is committed");
    let older = checkpoint(&bench, 4);
    client.check_refused(&older, "step: 4 is not above 5, which is committed");
    let wanted = commit(&bench, 5, None);
    committed(&mut bench, &wanted);
}

#[test]
fn what_is_no_message_is_refused_in_words_and_the_connection_is_kept() {
    let (_bench, mut client) = served();
    for wrong in [json!({"dance": {}}), json!({"ask": {"bytes": 1}}), json!([]), json!("hello")] {
        let told = client.ask(&wrong);
        let why = told["refused"]["why"].as_str().unwrap().to_owned();
        assert!(why.starts_with("not a message: "), "{why}");
    }
    client.send(b"{\n");
    assert!(client.hear().unwrap()["refused"].is_object());
    assert!(client.ask(&json!({"hello": {}}))["hello"].is_object());
}

#[test]
fn a_message_that_is_too_long_ends_its_connection_and_no_more() {
    let (mut bench, mut client) = served();
    client.send(&vec![b'x'; MAX_JOB_LINE + 1]);
    let why = "the message is longer than 1048576 bytes";
    assert_eq!(client.hear(), Some(json!({"refused": {"why": why}})));
    assert_eq!(client.hear(), None);
    bench.running(T);
}

#[test]
fn a_process_that_is_not_of_the_task_is_not_heard() {
    let mut bench = Bench::started();
    bench.shell(T, "exec sleep 1000").unwrap();
    bench.running(T);
    let mut stranger = UnixStream::connect(bench.task_dir(T).socket()).unwrap();
    let mut told = String::new();
    stranger.read_to_string(&mut told).unwrap();
    let why = "only processes of this task are heard here";
    assert_eq!(told, format!("{}\n", json!({"refused": {"why": why}})));
}

#[test]
fn of_too_many_connections_the_last_is_refused() {
    let mut bench = Bench::started();
    let script = r#"
import os, socket
def connected():
    client = socket.socket(socket.AF_UNIX)
    client.connect(os.environ['TIDEGATE_SOCKET'])
    return client, client.makefile()
kept = [connected() for _ in range(16)]
for client, answers in kept:
    client.sendall(b'{"hello":{}}\n')
    assert 'job-1.1.0' in answers.readline()
print(connected()[1].read(), end='')
"#;
    let launch = python(&bench, &[script]);
    bench.start(T, launch).unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(0), "{}", bench.output(T, "stderr"));
    let why = "16 connections are open, the most there can be";
    assert_eq!(bench.output(T, "stdout"), format!("{}\n", json!({"refused": {"why": why}})));
}

#[test]
fn a_checkpoint_that_a_job_told_of_with_its_last_words_counts() {
    let mut bench = Bench::started();
    let message = checkpoint(&bench, 5).to_string();
    let script = r"
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(os.environ['TIDEGATE_SOCKET'])
client.sendall(sys.argv[1].encode() + b'\n')
os._exit(85)
";
    let launch = python(&bench, &[script, &message]);
    bench.start(T, launch).unwrap();
    assert_eq!(bench.ended(T), ExitRecord::Exited(85));
    let wanted = commit(&bench, 5, None);
    committed(&mut bench, &wanted);
}
