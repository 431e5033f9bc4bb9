//! What the project says of itself holds: what depends on what, how long files are, where links
//! lead, what documents promise about keys, codes, variables, bounds and units.
//!
//! It reads files and `cargo metadata`. What is not here: formatting and lints, which have tools.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidegate_agent::environment::{Places, environment};
use tidegate_model::{Bytes, TaskLayout, UserId};
use tidegate_proto::link::Launch;

/// Longest Rust file, its tests aside.
const MAX_LINES: usize = 600;

/// Each package with those of this workspace that it may depend on. Absent on purpose: an agent or
/// a command line that knows the scheduler, and a scheduler that knows the wire.
const ARROWS: [(&str, &[&str]); 10] = [
    ("tidegate-model", &[]),
    // Ordered maps that copies share: no IO, no clock.
    ("scheduler-core", &["tidegate-model", "imbl"]),
    ("simulator", &["tidegate-model", "scheduler-core"]),
    // A file of rules, read into types: the only thing of the outside that it knows.
    ("tidegate-health", &["tidegate-model", "serde", "thiserror", "toml"]),
    ("tidegate-proto", &["tidegate-model"]),
    ("tidegate-coordinator", &["tidegate-model", "scheduler-core", "tidegate-proto"]),
    ("tidegate-agent", &["tidegate-model", "tidegate-health", "tidegate-proto"]),
    ("tidegate", &["tidegate-model", "tidegate-proto"]),
    ("trainer", &[]),
    ("nvml-sim", &[]),
];

/// Packages that test others, and may depend on all of them.
const TESTS: [&str; 1] = ["cluster-tests"];

/// Packages that depend on nothing outside this workspace either.
const PURE: [&str; 3] = ["tidegate-model", "scheduler-core", "tidegate-health"];

/// Packages whose bounds are in the table of ARCHITECTURE.md.
const BOUNDED: [&str; 7] =
    ["model", "scheduler-core", "health", "proto", "coordinator", "agent", "cli"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

fn text(path: &str) -> String {
    let file = root().join(path);
    assert!(file.is_file(), "{path} is not there");
    fs::read_to_string(file).expect("a file of the project is text")
}

/// Says all that is wrong at once.
fn nothing_of(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} found:\n{}", wrong.len(), wrong.join("\n"));
}

struct Package {
    name: String,
    version: String,
    /// What it builds with, and what it builds for its tests aside.
    dependencies: BTreeSet<String>,
    binaries: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let output = command.current_dir(root()).output().expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo answers in JSON");
    let all = metadata.get("packages").and_then(Value::as_array).expect("packages");
    all.iter().map(package).collect()
}

fn package(value: &Value) -> Package {
    let word = |value: &Value, key: &str| {
        value.get(key).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
    };
    let list = |key: &str| value.get(key).and_then(Value::as_array).into_iter().flatten();
    let dependencies = list("dependencies").filter(|dependency| word(dependency, "kind") != "dev");
    let is_bin = |target: &&Value| {
        target.get("kind").is_some_and(|kind| kind == &serde_json::json!(["bin"]))
    };
    Package {
        name: word(value, "name"),
        version: word(value, "version"),
        dependencies: dependencies.map(|dependency| word(dependency, "name")).collect(),
        binaries: list("targets").filter(is_bin).map(|target| word(target, "name")).collect(),
    }
}

/// Every file of the project with this ending, by its path from the root.
fn files(ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut places = vec![root().to_path_buf()];
    while let Some(place) = places.pop() {
        for entry in fs::read_dir(&place).expect("a folder of the project").flatten() {
            let path = entry.path();
            let kind = entry.file_type().expect("a kind of file");
            let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
            // In the root only the folders of the project: others may lie in a checkout.
            let is_ours = place != root() || OURS.iter().any(|ours| entry.file_name() == *ours);
            if kind.is_dir() && !is_hidden && is_ours && !path.join("CACHEDIR.TAG").exists() {
                places.push(path);
            } else if kind.is_file() && path.to_string_lossy().ends_with(ending) {
                found.push(path.strip_prefix(root()).expect("below the root").to_path_buf());
            }
        }
    }
    found.sort();
    found
}

const OURS: [&str; 12] = [
    "agent",
    "cli",
    "coordinator",
    "docs",
    "examples",
    "health",
    "model",
    "proto",
    "scheduler-core",
    "simulator",
    "systemd",
    "tests",
];

#[test]
fn every_package_depends_only_on_those_it_may_know() {
    let packages = packages();
    let ours: BTreeSet<&String> = packages.iter().map(|package| &package.name).collect();
    let mut wrong = Vec::new();
    for package in packages.iter().filter(|package| !TESTS.contains(&package.name.as_str())) {
        let Some((name, may)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            wrong.push(format!("{} has no row in ARROWS", package.name));
            continue;
        };
        let pure = PURE.contains(name);
        let all = package.dependencies.iter();
        let others = all.filter(|other| pure || ours.contains(other));
        let not_allowed = others.filter(|other| !may.contains(&other.as_str()));
        wrong.extend(not_allowed.map(|other| format!("{name} may not depend on {other}")));
    }
    nothing_of(&wrong);
}

#[test]
fn no_rust_file_is_longer_than_600_lines_without_its_tests() {
    let mut wrong = Vec::new();
    for path in files(".rs").into_iter().filter(|path| !is_test(path)) {
        let text = text(&path.to_string_lossy());
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines", path.display()));
        }
    }
    nothing_of(&wrong);
}

/// Whether a file holds tests only. The package `tests` itself is a harness.
fn is_test(path: &Path) -> bool {
    let folders = path.components().skip(1).map(|part| part.as_os_str());
    folders.into_iter().any(|part| part == "tests" || part == "suites" || part == "tests.rs")
}

#[test]
fn no_rust_file_leaves_work_for_later() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let mut wrong = Vec::new();
    for path in files(".rs") {
        for (line, number) in text(&path.to_string_lossy()).lines().zip(1..) {
            if marks.iter().any(|mark| line.contains(mark)) {
                wrong.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    nothing_of(&wrong);
}

#[test]
fn every_relative_link_and_every_named_file_of_a_document_exists() {
    let mut wrong = Vec::new();
    for path in files(".md") {
        let text = text(&path.to_string_lossy());
        let dir = path.parent().unwrap_or_else(|| Path::new(""));
        for target in links(&text) {
            let file = target.split('#').next().unwrap_or_default();
            let is_elsewhere = file.contains("://") || file.starts_with("mailto:");
            if !file.is_empty() && !is_elsewhere && !root().join(dir).join(file).exists() {
                wrong.push(format!("{}: {target} is not there", path.display()));
            }
        }
        for named in quoted(&text).filter(|name| is_source(name)) {
            if !root().join(named).exists() {
                wrong.push(format!("{}: `{named}` is not there", path.display()));
            }
        }
    }
    nothing_of(&wrong);
}

/// Targets of links, outside of code.
fn links(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    let prose: String = prose.split('`').step_by(2).collect();
    let ends = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    ends.map(|(target, _)| target.to_owned()).collect()
}

/// What stands between single backquotes, line by line.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Whether a quoted word names a source file by its path from the root.
fn is_source(word: &str) -> bool {
    let has_place = word.split('/').next().is_some_and(|first| OURS.contains(&first));
    let endings = [".rs", ".proto", ".service", ".conf", ".txt"];
    has_place && !word.contains([' ', '*', '<']) && endings.iter().any(|end| word.ends_with(end))
}

#[test]
fn every_test_that_is_said_to_hold_an_invariant_is_there() {
    let document = text("docs/testing.md");
    let rows = document.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`"));
    let (mut wrong, mut found) = (Vec::new(), 0);
    for row in rows {
        let mut file = "";
        for word in quoted(row) {
            if word.contains(['/', '.']) {
                file = word;
            } else {
                found += 1;
                if !file.ends_with(".rs") || !text(file).contains(&format!("fn {word}(")) {
                    wrong.push(format!("docs/testing.md: {file} has no `{word}`"));
                }
            }
        }
    }
    assert!(found > 10, "`file`: `test` in the rows of docs/testing.md");
    nothing_of(&wrong);
}

#[test]
fn every_field_scenario_has_a_row_with_its_number() {
    let place = "tests/data/scenarios/field";
    let document = text(&format!("{place}/README.md"));
    let scenarios = files(".txt").into_iter().filter(|path| path.starts_with(place));
    let names: Vec<String> =
        scenarios.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
    assert!(names.len() > 10, "scenarios in {place}");
    let row = |name: &&String| {
        let number = name.split('-').next().unwrap_or_default().trim_start_matches('0');
        let ends = format!("| [{name}]({name}.txt) |");
        let has = |line: &str| line.starts_with(&format!("| {number} |")) && line.ends_with(&ends);
        document.lines().any(has)
    };
    let missing = names.iter().filter(|name| !row(name));
    nothing_of(&missing.map(|name| format!("{place}/README.md lacks {name}")).collect::<Vec<_>>());
}

#[test]
fn readme_begins_with_two_commands_and_the_ci_runs_both() {
    let (readme, ci) = (text("README.md"), text(".ci/run"));
    let (demo, tests) = ("cargo run --release --bin tidegate -- demo", "cargo test --workspace");
    let commands: Vec<&str> = readme.split("```").nth(1).unwrap_or_default().lines().collect();
    let commands: Vec<&str> = commands.into_iter().filter(|l| l.starts_with("cargo ")).collect();
    let first: Vec<&str> =
        commands.iter().filter_map(|l| l.split('#').next()).map(str::trim).collect();
    assert_eq!(first, [demo, tests], "the first code block of README.md");
    assert!(ci.lines().any(|line| line.ends_with(&format!(" {tests}"))), "{tests} in .ci/run");
    // The CI has a debug build at hand; the rest is the same.
    let debug = demo.replace("--release ", "");
    assert!(ci.contains(&format!("{debug} --json")), "{debug} in .ci/run");
}

#[test]
fn readme_lists_every_variable_of_a_task() {
    let launch = Launch {
        user: UserId(1000),
        command: vec!["true".to_owned()],
        working_dir: "/".to_owned(),
        env: Vec::new(),
        gpus: Vec::new(),
        layout: TaskLayout::PerNode,
        rank: 0,
        local_rank: 0,
        world_size: 1,
        local_world_size: 1,
        node_rank: 0,
        nodes: 1,
        master_addr: "localhost".to_owned(),
        master_port: 1,
        checkpoint_dir: "/".to_owned(),
        log_cap: Bytes(1),
        save: None,
        permit: None,
        pty: false,
    };
    let here = Path::new("/");
    let places = Places { preempt_file: here, socket: Some(here), home: "/", user: "a" };
    let variables = environment("job-1.1.0".parse().expect("an id"), &launch, places);
    let readme = text("README.md");
    let missing = variables.keys().filter(|name| !quoted(&readme).any(|word| word == *name));
    nothing_of(
        &missing.map(|name| format!("README.md does not list `{name}`")).collect::<Vec<_>>(),
    );
}

#[test]
fn readme_lists_every_exit_code_with_its_meaning() {
    let source = text("cli/src/exit.rs");
    let table = source.split("const TABLE").nth(1).and_then(|rest| rest.split("];").next());
    let rows = table.unwrap_or_default().split("(Exit::").skip(1);
    let rows: Vec<(&str, &str)> = rows.filter_map(exit_row).collect();
    assert!(rows.len() > 1, "rows of the table in cli/src/exit.rs");
    let readme = text("README.md");
    let told = |(code, meaning): &(&str, &str)| readme.contains(&format!("| {code} | {meaning} |"));
    let missing = rows.iter().filter(|row| !told(row));
    nothing_of(
        &missing.map(|(code, meaning)| format!("| {code} | {meaning} |")).collect::<Vec<_>>(),
    );
}

/// Code and meaning, from `Done, 0, "done as asked"),`.
fn exit_row(row: &str) -> Option<(&str, &str)> {
    let (_, rest) = row.split_once(',')?;
    let (code, rest) = rest.split_once(',')?;
    let meaning = rest.split('"').nth(1)?;
    Some((code.trim(), meaning))
}

#[test]
fn the_documents_of_files_name_every_key() {
    let coordinator = tidegate_coordinator::config::Config::parse("store_limit = \"1GiB\"");
    let around = tidegate_agent::config::Surroundings {
        hostname: "a".to_owned(),
        state_home: Some("/home/a/.local/state".into()),
        ..Default::default()
    };
    let node = "[gpu]\nlibrary = \"/lib.so\"";
    let node = tidegate_agent::config::Config::parse(node, &around).expect("a configuration");
    let document = text("docs/configuration.md");
    let printed = [coordinator.expect("a configuration").to_string(), node.to_string()];
    let keys = printed.iter().flat_map(|printed| keys_of(printed));
    let missing = keys.filter(|key| !quoted(&document).any(|word| word == key));
    nothing_of(
        &missing.map(|key| format!("docs/configuration.md lacks `{key}`")).collect::<Vec<_>>(),
    );

    let source = text("cli/src/jobfile.rs");
    let example = source.split("r#\"").nth(1).and_then(|rest| rest.split("\"#").next());
    let example = example.expect("the example in cli/src/jobfile.rs").trim();
    assert!(text("docs/job-file.md").contains(example), "docs/job-file.md lacks:\n{example}");
}

/// The keys of a TOML file, each with its table.
fn keys_of(file: &str) -> Vec<String> {
    let mut table = String::new();
    let mut keys = Vec::new();
    for line in file.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            table = format!("{name}.");
        } else if let Some((key, _)) = line.split_once(" = ") {
            keys.push(format!("{table}{key}"));
        }
    }
    keys
}

#[test]
fn every_bound_of_architecture_is_in_the_code_and_every_bound_of_the_code_in_architecture() {
    let architecture = text("ARCHITECTURE.md");
    let table: BTreeSet<(String, String)> = architecture.lines().filter_map(bound_row).collect();
    assert!(table.len() > 10, "rows `NAME` | value | `file` in ARCHITECTURE.md");
    let mut wrong = Vec::new();
    for (name, path) in &table {
        if !text(path).contains(&format!("const {name}: ")) {
            wrong.push(format!("{path} has no {name}"));
        }
    }
    for path in files(".rs").iter().filter(|path| is_bounded(path)) {
        let path = path.to_string_lossy();
        let text = text(&path);
        let names = text.lines().filter_map(|line| line.trim().split_once("const MAX_"));
        for name in names.filter_map(|(_, rest)| rest.split_once(':')).map(|(name, _)| name) {
            if !table.contains(&(format!("MAX_{name}"), path.to_string())) {
                wrong.push(format!("ARCHITECTURE.md lacks MAX_{name} of {path}"));
            }
        }
    }
    nothing_of(&wrong);
}

fn is_bounded(path: &Path) -> bool {
    BOUNDED.iter().any(|package| path.starts_with(package)) && !is_test(path)
}

/// Name and file of a row of the table of bounds: `| `NAME` | value | `file` | reason |`.
fn bound_row(line: &str) -> Option<(String, String)> {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let quoted = |at: usize| cells.get(at)?.strip_prefix('`')?.strip_suffix('`');
    let (name, path) = (quoted(1)?, quoted(3)?);
    let is_name = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    (is_name && path.ends_with(".rs")).then(|| (name.to_owned(), path.to_owned()))
}

#[test]
fn every_unit_starts_a_binary_of_the_workspace() {
    let packages = packages();
    let binaries: BTreeSet<&String> = packages.iter().flat_map(|p| &p.binaries).collect();
    let mut wrong = Vec::new();
    let units = files(".service");
    assert!(!units.is_empty(), "units in systemd/");
    for path in units {
        let text = text(&path.to_string_lossy());
        let started = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/"));
        let name = started.and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned();
        if !binaries.contains(&name) {
            wrong.push(format!("{}: ExecStart= names {name:?}", path.display()));
        }
    }
    nothing_of(&wrong);
}

#[test]
fn the_starters_unit_puts_its_tasks_into_no_sandbox_and_lets_them_outlive_it() {
    let unit = text("systemd/tidegate-starter.service");
    let inherited = [
        "NoNewPrivileges",
        "Protect",
        "Private",
        "Restrict",
        "SystemCall",
        "Capability",
        "Device",
        "IPAddress",
        "ReadOnly",
        "ReadWrite",
        "Inaccessible",
        "LockPersonality",
        "MemoryDeny",
        "UMask",
        "OOMScoreAdjust",
        "Nice",
    ];
    let is_inherited = |line: &&str| inherited.iter().any(|key| line.starts_with(key));
    nothing_of(&unit.lines().filter(is_inherited).map(str::to_owned).collect::<Vec<_>>());
    for line in ["KillMode=process", "Delegate=yes"] {
        assert!(unit.lines().any(|given| given == line), "{line}");
    }
}

#[test]
fn the_changelog_has_the_version_that_is_built() {
    let version = packages().into_iter().find(|package| package.name == "tidegate");
    let heading = format!("## {}", version.expect("the command line").version);
    assert!(text("CHANGELOG.md").lines().any(|line| line.starts_with(&heading)), "{heading}");
}

#[test]
fn every_decision_says_what_was_given_up_and_how_to_know_that_it_was_wrong() {
    let headings =
        ["## Context", "## Choice", "## What we gave up", "## How we would know it was wrong"];
    let mut wrong = Vec::new();
    let decisions = files(".md").into_iter().filter(|path| path.starts_with("docs/decisions"));
    for (path, number) in decisions.zip(1..) {
        let text = text(&path.to_string_lossy());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(&format!("{number:04}-")) {
            wrong.push(format!("{}: expected number {number:04}", path.display()));
        }
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        if found != headings {
            wrong.push(format!("{}: has {found:?}", path.display()));
        }
    }
    nothing_of(&wrong);
}
