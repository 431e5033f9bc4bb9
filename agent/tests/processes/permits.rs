//! Permits to write, from the job's side of its socket and the starter's.

use serde_json::{Value, json};
use tidegate_agent::permits::{AskRecord, PermitRecord};
use tidegate_agent::record::ExitRecord;
use tidegate_agent::since_boot::SinceBoot;
use tidegate_agent::starter::protocol::Verb;
use tidegate_model::{Span, WriteClass};

use crate::bench::{Bench, kill, task, until};
use crate::job_socket::{Client, relay};

const T: &str = "job-1.1.0";

fn served() -> (Bench, Client) {
    let mut bench = Bench::started();
    let launch = relay(&bench);
    bench.start(T, launch).unwrap();
    bench.running(T);
    let client = Client::of(&bench);
    (bench, client)
}

/// Waits until that is said of the task's ask.
fn said(bench: &mut Bench, wanted: impl Fn(&AskRecord) -> bool) -> AskRecord {
    bench.wait_line(T, |line| line.ask.as_ref().is_some_and(&wanted)).ask.unwrap()
}

fn answer(bench: &mut Bench, permit: PermitRecord) {
    bench.ask(Verb::Permit { task: task(T), permit }).unwrap();
}

fn granted(ask: u64, rate: u64, length: Span) -> PermitRecord {
    let until_ms = SinceBoot::now().plus(length);
    let (bytes_per_s, after_bytes_per_s, rated) = (Some(rate), Some(7), rate);
    PermitRecord::Granted { ask, bytes_per_s, after_bytes_per_s, until_ms, rated }
}

/// A periodic save of a hundred bytes; its number.
fn ask(client: &mut Client) -> Value {
    let answer = client.ask(&json!({"ask": {"bytes": 100, "class": "periodic"}}));
    let number = answer["wait"]["ask"].clone();
    let waits = json!({"wait": {"ask": number, "position": null, "expected_s": null}});
    assert_eq!(answer, waits, "at once, whoever is away");
    number
}

/// A permit that is held.
fn holding() -> (Bench, Client) {
    let (mut bench, mut client) = served();
    assert_eq!(ask(&mut client), 1);
    answer(&mut bench, granted(1, 50, Span::minutes(10)));
    assert_eq!(client.hear().unwrap()["grant"]["bytes_per_s"], 50);
    (bench, client)
}

#[test]
fn a_job_asks_is_told_how_long_it_waits_and_then_that_it_may() {
    let (mut bench, mut client) = served();
    let wish = json!({"ask": {"bytes": 100, "class": "final", "files": 3, "wait_s": 60}});
    assert_eq!(client.ask(&wish)["wait"]["ask"], 1);
    let seen = said(&mut bench, |ask| ask.number == 1);
    assert_eq!((seen.class, seen.bytes, seen.files), (WriteClass::Final, 100, 3));
    assert_eq!((seen.patience_ms, seen.written, seen.done), (Some(60_000), 0, false));
    assert!(seen.asked_ms <= SinceBoot::now());
    answer(&mut bench, PermitRecord::Waits { ask: 1, position: 3, expected_ms: 39_001 });
    let waits = json!({"wait": {"ask": 1, "position": 3, "expected_s": 40}});
    assert_eq!(client.hear(), Some(waits.clone()));
    assert_eq!(client.ask(&json!({"renew": {"permit": 1}})), waits);
    answer(&mut bench, granted(1, 50, Span::minutes(10)));
    let told = client.hear().unwrap()["grant"].clone();
    assert!(told["until_s"].as_u64().is_some_and(|left| (590..=600).contains(&left)), "{told}");
    assert_eq!((&told["permit"], &told["bytes_per_s"]), (&json!(1), &json!(50)));
    assert_eq!((&told["after_bytes_per_s"], told.get("lapsed")), (&json!(7), None));
    client.send(b"{\"progress\":{\"permit\":1,\"bytes\":40}}\n");
    said(&mut bench, |ask| ask.written == 40);
    let done = client.ask(&json!({"done": {"permit": 1, "bytes": 99}}));
    assert_eq!(done, json!({"done": {"permit": 1}}));
    assert_eq!(said(&mut bench, |ask| ask.done).written, 99);
    client.check_refused(&json!({"done": {"permit": 1}}), "permit: 1 is not held; ask for one");
    assert_eq!(ask(&mut client), 2, "numbers grow");
    said(&mut bench, |ask| ask.number == 2 && !ask.done);
}

#[test]
fn who_holds_a_permit_is_told_of_another_rate_and_not_that_it_was_renewed() {
    let (mut bench, mut client) = holding();
    answer(&mut bench, granted(1, 50, Span::minutes(20)));
    answer(&mut bench, granted(1, 60, Span::minutes(30)));
    let told = client.hear().unwrap()["grant"].clone();
    assert_eq!(told["bytes_per_s"], 60);
    let told = client.ask(&json!({"renew": {"permit": 1}}))["grant"].clone();
    assert_eq!(told["bytes_per_s"], 60);
    assert!(told["until_s"].as_u64().is_some_and(|left| left >= 1790), "{told}");
}

#[test]
fn a_permit_that_is_not_renewed_lapses_and_may_be_renewed_later() {
    let (mut bench, mut client) = served();
    ask(&mut client);
    answer(&mut bench, granted(1, 50, Span(200)));
    let told = client.hear().unwrap();
    assert_eq!(told["grant"]["bytes_per_s"], 50);
    let lapsed = json!({"grant": {
        "permit": 1, "bytes_per_s": 7, "until_s": 0, "after_bytes_per_s": 7, "lapsed": true,
    }});
    assert_eq!(client.hear(), Some(lapsed.clone()));
    assert_eq!(client.ask(&json!({"renew": {"permit": 1}})), lapsed);
    answer(&mut bench, granted(1, 50, Span::minutes(10)));
    let told = client.hear().unwrap();
    assert_eq!((&told["grant"]["bytes_per_s"], told["grant"].get("lapsed")), (&json!(50), None));
}

#[test]
fn an_ask_that_makes_no_sense_is_refused_with_what_is_accepted() {
    let (mut bench, mut client) = served();
    let wish = |bytes: u64, class: &str, wait: u64| json!({"ask": {"bytes": bytes, "class": class, "wait_s": wait}});
    for bytes in [0, (1 << 50) + 1] {
        let why = format!(
            "bytes: {bytes} given; what the whole gang will write is accepted, 1 to \
             1125899906842624"
        );
        client.check_refused(&wish(bytes, "final", 1), &why);
    }
    for files in [10_000_001, 4_000_000_000, 5_000_000_000_u64] {
        let why = format!(
            "files: {files} given; what the whole gang will create is accepted, 0 to 10000000"
        );
        let wish = json!({"ask": {"bytes": 1, "class": "final", "files": files}});
        client.check_refused(&wish, &why);
    }
    let why = "class: \"urgent\" is no class of writes: preemption, final, periodic or restore is \
               accepted";
    client.check_refused(&wish(1, "urgent", 1), why);
    let why = "wait_s: 86401 given; 0 to 86400 is accepted";
    client.check_refused(&wish(1, "final", 86_401), why);
    client.check_refused(&json!({"renew": {"permit": 1}}), "permit: 1 is not held; ask for one");
    assert_eq!(ask(&mut client), 1);
    let why = "permit: 9 is over; 1 is asked for or held";
    client.check_refused(&json!({"progress": {"permit": 9, "bytes": 1}}), why);
    answer(
        &mut bench,
        PermitRecord::Denied { ask: 1, why: "why".into(), retry_after_ms: Some(8_001) },
    );
    let deny = json!({"deny": {"ask": 1, "why": "why", "retry_after_s": 9}});
    assert_eq!(client.hear(), Some(deny));
    said(&mut bench, |ask| ask.done);
}

#[test]
fn a_permit_is_over_when_the_connection_that_asked_for_it_is() {
    let (mut bench, client) = holding();
    let mut other = Client::of(&bench);
    other.send(b"{\"progress\":{\"permit\":1,\"bytes\":40}}\n");
    said(&mut bench, |ask| ask.written == 40);
    drop(client);
    said(&mut bench, |ask| ask.done);
}

#[test]
fn a_second_ask_of_a_task_takes_the_place_of_the_first() {
    let (mut bench, mut client) = holding();
    let mut other = Client::of(&bench);
    assert_eq!(ask(&mut other), 2);
    let why = "a later ask of this task has taken its place";
    let deny = json!({"deny": {"ask": 1, "why": why, "retry_after_s": null}});
    assert_eq!(client.hear(), Some(deny));
    answer(&mut bench, granted(1, 50, Span::minutes(10)));
    answer(&mut bench, granted(2, 60, Span::minutes(10)));
    assert_eq!(
        other.hear().unwrap()["grant"]["bytes_per_s"],
        60,
        "the answer to the first is void"
    );
    drop(client);
    assert_eq!(ask(&mut other), 3);
    said(&mut bench, |ask| ask.number == 3 && !ask.done);
}

/// A task that notes that it is to end, and does not.
fn stopped(grant: bool) -> (Bench, Client) {
    let mut bench = Bench::started();
    let mut launch = relay(&bench);
    let note = "import signal; signal.signal(15, lambda *_: open('stopped', 'w'))";
    launch.command[2] = format!("{note}\n{}", launch.command[2]);
    bench.start(T, launch).unwrap();
    bench.running(T);
    let mut client = Client::of(&bench);
    ask(&mut client);
    if grant {
        answer(&mut bench, granted(1, 50, Span::minutes(10)));
        assert_eq!(client.hear().unwrap()["grant"]["permit"], 1);
    }
    stop(&mut bench, 600_000);
    until(|| bench.dir.path().join("stopped").exists().then_some(()));
    (bench, client)
}

fn stop(bench: &mut Bench, grace_ms: u64) {
    bench.ask(Verb::Stop { task: task(T), decision: 1, grace_ms }).unwrap();
}

#[test]
fn a_task_that_is_stopped_may_use_its_permit_to_its_end_and_gets_no_other() {
    let (mut bench, mut client) = stopped(true);
    let refused = client.ask(&json!({"ask": {"bytes": 1, "class": "final"}}));
    assert_eq!(refused["refused"]["why"], "the task is being stopped");
    assert_eq!(client.ask(&json!({"renew": {"permit": 1}}))["grant"]["bytes_per_s"], 50);
    stop(&mut bench, 0);
    assert_eq!(bench.ended(T), ExitRecord::Signaled(9));
    said(&mut bench, |ask| ask.done);
}

#[test]
fn a_stop_denies_who_waits() {
    let (mut bench, mut client) = stopped(false);
    let why = "the task is being stopped";
    let deny = json!({"deny": {"ask": 1, "why": why, "retry_after_s": null}});
    assert_eq!(client.hear(), Some(deny));
    said(&mut bench, |ask| ask.done);
}

#[test]
fn an_ask_outlives_its_starter_and_not_its_shim() {
    let (mut bench, mut client) = holding();
    bench.kill_starter();
    client.send(b"{\"progress\":{\"permit\":1,\"bytes\":40}}\n");
    bench.start_starter();
    bench.connect();
    assert!(!said(&mut bench, |ask| ask.written == 40).done);
    let known = bench.wait_line(T, |line| line.permit.is_some()).permit.unwrap();
    assert_eq!(known.ask(), 1);
    let state = bench.running(T);
    kill(state.shim.pid);
    bench.ended(T);
    said(&mut bench, |ask| ask.done);
}
