//! The demo keeps its word: it is run as a person runs it, and its figures are read. The judge of its
//! second act finds every fact that is wrong.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use cluster_tests::binaries::Binaries;
use cluster_tests::demo::sharing::facts::Facts;
use cluster_tests::demo::sharing::verdict::judge;
use cluster_tests::demo::tally::Promise;
use serde_json::{Value, json};

/// Orders the demos: two at once on two cores are too slow for what they promise.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the demo, and returns its figures with what it told.
fn demo(arguments: &[&str]) -> (Value, String) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Binaries::built().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("demo.json");
    let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate-demo"));
    let output = demo.args(arguments).arg("--json").arg(&file).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{complained}");
    (serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap(), told)
}

#[test]
fn the_demo_kills_one_process_of_each_kind_and_every_promise_holds() {
    let (figures, told) = demo(&[]);
    for (key, expected) in [
        ("ok", Value::from(true)),
        ("gpus_simulated", Value::from(true)),
        ("gpus", Value::from(32)),
        ("unasked_stops", Value::from(0)),
        ("lost", Value::from(0)),
        ("run_twice", Value::from(0)),
        ("digests_equal", Value::from(true)),
    ] {
        assert_eq!(figures[key], expected, "{key}\n{told}");
    }
    for kind in ["rank", "shim", "starter", "agent", "coordinator"] {
        assert_eq!(figures["kills"][kind], 1, "{kind}\n{told}");
    }
    assert_eq!(figures["kill_states"].as_array().map(Vec::len), Some(5), "{told}");
    assert!(figures["jobs"].as_u64() >= Some(15), "{told}");
    assert!(figures["attempts"].as_u64() > figures["jobs"].as_u64(), "two gangs began again");
    assert!(figures["seconds"].as_f64() < Some(90.0), "{told}");
    assert_eq!(figures["sharing"]["gpus_simulated"], true, "{told}");
}

#[test]
fn the_second_act_shares_a_cluster_by_budgets_and_charges_once() {
    let (figures, told) = demo(&["--act", "sharing", "--seed", "3"]);
    assert_eq!(figures["ok"], true, "{told}");
    assert_eq!(figures["digests_compared"], 12, "{told}");
    assert_eq!(figures["digests_equal"], true, "{told}");
    let facts: Facts = serde_json::from_value(figures["sharing"].clone()).unwrap();
    assert_eq!(facts.seen.epochs, (1, 2), "{told}");
    assert!(facts.resumed_from > Some(0), "{told}");
}

#[test]
fn the_judge_of_the_second_act_finds_nothing_in_facts_that_are_right() {
    assert_eq!(broken(&right()), []);
}

#[test]
fn the_judge_of_the_second_act_finds_each_fact_that_is_wrong() {
    let check = |at: &str, value: Value, expected: Promise| {
        let mut facts = right();
        *facts.pointer_mut(at).unwrap_or_else(|| panic!("{at} is no fact")) = value;
        assert_eq!(broken(&facts), [expected], "{at}");
    };
    check("/free/0/attempts/0/state", json!("unsaved"), Promise::FreeGivesWay);
    check("/free/0/attempts/0/committed_ms", json!(1399), Promise::FreeGivesWay);
    check("/free/0/attempts/0/ended_ms", json!(1601), Promise::FreeGivesWay);
    check("/free/7/attempts/0/save", another_left(), Promise::FreeGivesWay);
    check("/first/attempts/0/save/at_ms", json!(8599), Promise::ProtectedStays);
    check("/first/attempts/0/save/why", json!("node-0 takes no work"), Promise::ProtectedStays);
    check("/second/attempts/0/planned_ms", json!(8599), Promise::ProtectedStays);
    check("/seen/said_reason", json!("AwaitingTurn"), Promise::ProtectedStays);
    check("/seen/said_at_ms", Value::Null, Promise::ProtectedStays);
    check("/seen/said_at_ms", json!(8599), Promise::ProtectedStays);
    check("/first/attempts/1/state", json!("failed"), Promise::PlaceIsKept);
    check("/resumed_from", json!(0), Promise::PlaceIsKept);
    check("/seen/committed_step", json!(150), Promise::PlaceIsKept);
    check("/third/attempts/0/planned_ms", json!(13_999), Promise::PlaceIsKept);
    check("/seen/idle_before_small", json!(1), Promise::SmallAtOnce);
    check("/small/submitted_ms", json!(0), Promise::SmallAtOnce);
    check("/free/6/attempts/0/save", Value::Null, Promise::SmallAtOnce);
    check("/seen/epochs", json!([1, 1]), Promise::ChargedOnce);
    check("/accounts/1/charged_gpu_us", json!(144_000_001), Promise::ChargedOnce);
    check("/accounts/2/charged_gpu_us", json!(0), Promise::ChargedOnce);
    check("/second/attempts/0/protected_gpu_us", json!(0), Promise::ChargedOnce);
    check("/first/attempts/0/excused_gpu_us", json!(0), Promise::ChargedOnce);
    // Twice in the runs and in the account, so that the sums agree.
    check("/small", twice_charged_small(), Promise::ChargedOnce);
}

/// Promises that the judge finds broken.
fn broken(facts: &Value) -> Vec<Promise> {
    let facts: Facts = serde_json::from_value(facts.clone()).unwrap();
    let broken = judge(&facts).into_iter().filter(|(_, wrong)| !wrong.is_empty());
    broken.map(|(promise, _)| promise).collect()
}

/// What a run of the act comes to, in round numbers. Instants are milliseconds.
fn right() -> Value {
    let left = |job: u32, heir: &str, at: u64| {
        let first = run(job, 1, ("saved", 200, at + 100), Some((at, heir)), [0, 0, 1000, 0]);
        let second = run(job, 2, ("done", 20_000, 24_000), None, [0, 0, 8000, 0]);
        job_of(job, "research", 2, &[first, second])
    };
    let mut free: Vec<Value> = (1..=6).map(|job| left(job, "job-9.1", 1400)).collect();
    free.push(left(7, "job-12.1", 16_000));
    let stays = run(8, 1, ("done", 200, 5200), None, [0, 0, 10_000, 0]);
    free.push(job_of(8, "research", 2, &[stays]));
    let saved = run(9, 1, ("saved", 1600, 8700), Some((8600, "job-10.1")), [84_000, 1200, 0, 1200]);
    let again = run(9, 2, ("done", 14_000, 18_000), None, [48_000, 0, 0, 0]);
    let second = run(10, 1, ("done", 8800, 13_800), None, [48_000, 12_000, 0, 0]);
    let third = run(11, 1, ("done", 18_100, 19_100), None, [12_000, 0, 0, 0]);
    json!({
        "gpus_simulated": true,
        "gpus": 16,
        "free": free,
        "first": job_of(9, "pretrain", 12, &[saved, again]),
        "second": job_of(10, "research", 12, &[second]),
        "third": job_of(11, "pretrain", 12, &[third]),
        "small": job_of(12, "debug", 1, &[run(12, 1, ("done", 16_200, 18_200), None, [2000, 0, 0, 0])]),
        "accounts": [
            { "account": "root", "leaf": false, "charged_gpu_us": 206_000_000, "free_gpu_us": 0 },
            { "account": "pretrain", "leaf": true, "charged_gpu_us": 144_000_000, "free_gpu_us": 0 },
            { "account": "research", "leaf": true, "charged_gpu_us": 60_000_000, "free_gpu_us": 0 },
            { "account": "debug", "leaf": true, "charged_gpu_us": 2_000_000, "free_gpu_us": 0 },
        ],
        "seen": {
            "promised_until_ms": 8600, "said_reason": "AwaitingReservation", "said_at_ms": 8600,
            "epochs": [1, 2], "killed_at_ms": 1700, "committed_step": 166, "idle_before_small": 0,
        },
        "resumed_from": 166,
    })
}

fn another_left() -> Value {
    json!({ "at_ms": 1400, "why": "job-9.1 has its GPUs" })
}

fn twice_charged_small() -> Value {
    job_of(12, "debug", 1, &[run(12, 1, ("done", 16_200, 17_200), None, [2000, 0, 0, 0])])
}

fn job_of(id: u32, account: &str, gpus: u32, attempts: &[Value]) -> Value {
    json!({
        "job": format!("job-{id}"), "state": "done", "submitted_ms": 8500, "account": account,
        "gpus": gpus, "attempts": attempts,
    })
}

/// With what it had protected, funded, free and excused, in GPU-ms.
fn run(
    job: u32,
    number: u32,
    (state, running, ended): (&str, u64, u64),
    save: Option<(u64, &str)>,
    had: [u64; 4],
) -> Value {
    let [protected, funded, free, excused] = had.map(|gpu_ms| gpu_ms * 1000);
    let save = save.map(|(at, heir)| json!({ "at_ms": at, "why": format!("{heir} has its GPUs") }));
    json!({
        "attempt": format!("job-{job}.{number}"), "state": state, "planned_ms": running,
        "running_ms": running, "ended_ms": ended, "committed_ms": ended, "save": save,
        "protected_gpu_us": protected, "funded_gpu_us": funded, "free_gpu_us": free,
        "excused_gpu_us": excused,
    })
}
