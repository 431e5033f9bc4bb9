//! The demo keeps its word: it is run as a person runs it, and its figures are read.

use std::process::Command;

use cluster_tests::binaries::Binaries;
use serde_json::Value;

#[test]
fn the_demo_kills_one_process_of_each_kind_and_every_promise_holds() {
    Binaries::built().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("demo.json");
    let mut demo = Command::new(env!("CARGO_BIN_EXE_tidegate-demo"));
    let output = demo.arg("--json").arg(&file).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{complained}");
    let figures: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
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
}
