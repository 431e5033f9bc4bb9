//! Every scenario below tests/data/scenarios comes as it is expected. `UPDATE_EXPECT=1` rewrites.

use std::fs;
use std::path::{Path, PathBuf};

use simulator::scenario::{self, difference};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/scenarios").join(name)
}

fn check(name: &str) {
    let entries = fs::read_dir(folder(name)).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "txt"));
    files.sort();
    assert!(!files.is_empty(), "{name} has scenarios");
    let mut wrong = String::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        let told = match scenario::run(&text) {
            Ok(outcome) if std::env::var_os("UPDATE_EXPECT").is_some() => {
                fs::write(&file, outcome.rewritten()).expect("it can be written");
                String::new()
            }
            Ok(outcome) => difference(&outcome.expected, &outcome.got),
            Err(unreadable) => unreadable.to_string(),
        };
        if !told.is_empty() {
            wrong.push_str(&format!("{}\n{told}\n", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_rule_is_kept_to_the_millisecond() {
    check("rules");
}

#[test]
fn what_went_wrong_in_the_field_goes_right_or_the_scenario_says_why_not() {
    check("field");
}

#[test]
fn tables_of_other_schedulers_come_out_where_their_rules_are_ours() {
    check("tables");
}

#[test]
fn a_line_that_cannot_be_read_is_refused_with_its_number() {
    let refused = |text: &str| scenario::run(text).unwrap_err().to_string();
    let unknown = refused("cluster 1x8\n0:00 explode j1\n");
    assert_eq!(unknown, "line 2: \"explode\" is nothing that happens; docs/scenarios.md lists it");
    assert_eq!(refused("1:00 down\n0:00 restart\n"), "line 2: 0:00 is before the line above");
    assert_eq!(refused("cluster 8\n"), "line 1: \"8\": 4x8, a:2x8 or 2x8=h100 is accepted");
}
