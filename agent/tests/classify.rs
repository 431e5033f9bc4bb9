//! `tidegate-agent classify` as people and programs run it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails as it likes")]

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A program's fault with what follows a kill; then, after a silence, a GPU that is lost, whose link's end fails
/// with it.
const LOG: &str = "\
6,100,1000000,-;usb 1-1: new device
4,101,2000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python3, MMU Fault: ENGINE GRAPHICS
4,102,3000000,-;NVRM: Xid (PCI:0000:3b:00): 45, pid=77, name=python3, Ch 00000001
4,103,900000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=python3, GPU has fallen off the bus.
4,104,901000000,-;nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 28 LTSSM Fault Up
4,105,902000000,-;NVRM: Xid of a kind that is new (PCI:0000:3b:00): words
4,106,903000000,-;NVRM: Xid (PCI:0000:3b:00) 79 words
";

fn classify(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-agent"));
    let command = command.arg("classify").args(arguments);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Who does not read all of it has a reason that it says.
    let _closed = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn told(arguments: &[&str], input: &[u8]) -> String {
    let output = classify(arguments, input);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn objects(arguments: &[&str], input: &[u8]) -> Vec<Value> {
    let text = told(arguments, input);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_line_about_gpus_is_explained_and_what_belongs_together_is_judged() {
    let all = objects(&["--json", "-"], LOG.as_bytes());
    let lines: Vec<_> = all.iter().filter(|one| one.get("line").is_some()).collect();
    let of =
        |key: &str| lines.iter().map(|one| one[key].as_str().unwrap_or("-")).collect::<Vec<_>>();
    assert_eq!(of("class"), ["application", "application", "fatal", "fatal", "unknown"]);
    assert_eq!(of("scope"), ["-", "-", "node", "node", "-"]);
    assert_eq!(of("action")[2], "reboot");
    assert!(of("source").iter().all(|source| !source.is_empty()));
    let incidents: Vec<_> = all.iter().filter(|one| one.get("incident").is_some()).collect();
    assert_eq!(incidents.len(), 2);
    let verdicts = |incident: usize| incidents[incident]["verdicts"].as_array().unwrap().clone();
    assert_eq!(verdicts(0)[0]["class"], "application");
    assert_eq!(verdicts(0)[0]["target"], "0000:3b:00");
    let lost = &verdicts(1)[0];
    assert_eq!((&lost["class"], &lost["target"]), (&"fatal".into(), &"the node".into()));
    assert!(lost["evidence"].as_str().unwrap().contains("fallen off the bus"));
}

#[test]
fn people_read_what_would_follow_and_from_where_that_is_known() {
    let words = told(&["-"], LOG.as_bytes());
    for part in [
        "line 4: Xid 79 of 0000:3b:00: fatal, scope node, action reboot",
        "NVSentinel#1494",
        "incident 2: 3 lines in 3s",
        "the node: fatal, out at once; action reboot",
    ] {
        assert!(words.contains(part), "{part} is not in\n{words}");
    }
    assert_eq!(told(&["-"], b"nothing here\n"), "");
}

#[test]
fn the_driver_s_version_decides_which_bits_of_a_link_s_word_count() {
    let line = b"NVRM: Xid (PCI:0000:3b:00): 146, x Fatal Link 1 (0x00000143 0x00000004)\n";
    let rule = |driver: &str| {
        objects(&["--json", "--driver", driver, "-"], line)[0]["rule"].as_str().unwrap().to_owned()
    };
    assert_eq!(rule("570.86.15"), "TLW_RX, pipe 0");
    assert_ne!(rule("580"), "TLW_RX, pipe 0");
}

#[test]
fn a_log_of_anything_is_read_to_its_end() {
    let mut log = vec![b'x'; 200_000];
    log.extend(b" NVRM: Xid (PCI:0000:3b:00): 79, far behind\n\xff\xfe\x00\n");
    log.extend(LOG.as_bytes());
    let all = objects(&["--json", "-"], &log);
    assert_eq!(all.iter().filter(|one| one.get("line").is_some()).count(), 5);
}

#[test]
fn what_cannot_be_read_or_is_no_policy_is_said_in_words() {
    let said = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let missing = classify(&["/nowhere/at/all"], b"");
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing).contains("/nowhere/at/all"), "{missing:?}");
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    fs::write(&policy, "[[xid]]\ncodes = [79]\ncolour = 1\n").unwrap();
    let wrong = classify(&["--policy", policy.to_str().unwrap(), "-"], b"");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("unknown field `colour`"), "{wrong:?}");
    let version = classify(&["--driver", "new", "-"], b"");
    assert_eq!(version.status.code(), Some(2));
    assert!(said(&version).contains("no driver version, such as 570"), "{version:?}");
}
