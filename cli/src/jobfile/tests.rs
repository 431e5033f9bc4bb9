use tidegate_model::{Dependency, SaveSignal, TaskLayout};

use super::*;

fn read(text: &str) -> Result<JobSpec, JobFileError> {
    parse(text, Dirs { current: Path::new("/home/ana"), of_file: Path::new("/data/jobs") })
}

fn check(text: &str, expected: &str) {
    let told = read(text).map(|_| "accepted".to_owned());
    let told = told.unwrap_or_else(|error| error.to_string());
    assert_eq!(told, expected, "{text}");
    assert_eq!(told.lines().count(), 1, "one line: {told}");
}

/// A job file that is accepted but for this line.
fn check_line(line: &str, expected: &str) {
    check(&format!("command = [\"true\"]\n{line}"), expected);
}

#[test]
fn a_job_file_with_only_a_command_gets_the_documented_defaults() {
    let spec = read("command = [\"/usr/bin/python3\", \"a b.py\"]").unwrap();
    assert_eq!(spec.name, "python3");
    assert_eq!(spec.account.as_str(), "default");
    assert_eq!(spec.working_dir, "/home/ana");
    assert_eq!((spec.gpus, spec.gpus_per_node), (GpuCount(1), None));
    assert_eq!(spec.layout, TaskLayout::PerNode);
    assert_eq!((spec.min_runtime, spec.grace), (Span::ZERO, Span::seconds(30)));
    assert_eq!((spec.max_restarts, spec.log_cap), (3, Bytes(64 << 20)));
    assert_eq!((spec.env, spec.checkpoint_dir), (Vec::new(), None));
    assert_eq!((spec.gpu_type, spec.max_blocks, spec.own_order), (None, None, 0));
    assert_eq!((spec.while_waiting, spec.checkpoint), (WhileWaiting::Free, None));
    assert_eq!((spec.after, spec.whole_cluster), (vec![], false));
}

#[test]
fn only_true_or_false_lifts_the_limit_of_a_gang() {
    let lifted = read("command = [\"true\"]\nwhole_cluster = true").unwrap();
    assert!(lifted.whole_cluster);
    let told = read("command = [\"true\"]\nwhole_cluster = 1").unwrap_err().to_string();
    let expected = "whole_cluster: the number 1 was given; true or false, true for admins only is \
                    accepted";
    assert_eq!(told, expected);
}

#[test]
fn the_example_of_the_help_names_every_key_and_is_accepted() {
    let spec = read(EXAMPLE).unwrap();
    let table: Table = EXAMPLE.parse().unwrap();
    for key in key_names() {
        assert!(table.contains_key(key), "{key}");
        assert!(help().contains(&format!("\n  {key} ")), "{key}");
    }
    assert_eq!(spec.min_runtime, Span::hours(2));
    assert_eq!(spec.env, [("SEED".to_owned(), "7".to_owned())]);
    assert_eq!(spec.gpu_type.map(|kind| kind.to_string()).as_deref(), Some("h100"));
    assert_eq!((spec.max_blocks, spec.own_order), (Some(2), -1));
    let after = |job: &str, success| Dependency { job: job.parse().unwrap(), success };
    assert_eq!(spec.after, [after("job-3", false), after("job-4", true)]);
    let offer = spec.checkpoint.unwrap();
    assert_eq!((offer.signal, offer.bytes), (Some(SaveSignal::Term), Some(Bytes(1 << 40))));
}

#[test]
fn relative_directories_are_taken_from_the_job_files_and_absolute_ones_kept() {
    let text = "command = [\"true\"]\nworking_dir = \"./run/../x\"\ncheckpoint_dir = \"/ckpt\"";
    let spec = read(text).unwrap();
    assert_eq!(spec.working_dir, "/data/jobs/run/../x");
    assert_eq!(spec.checkpoint_dir.as_deref(), Some("/ckpt"));
    let spec = read("command = [\"true\"]\nworking_dir = \".\"").unwrap();
    assert_eq!(spec.working_dir, "/data/jobs");
}

#[test]
fn a_command_is_an_array_and_never_a_shell_string() {
    check(
        "command = \"python train.py\"",
        "command: a string was given; program and arguments as an array are accepted, such as \
         [\"python\", \"train.py\"]: no shell reads it",
    );
    check("", "command: missing; give program and arguments such as [\"python\", \"train.py\"]");
    check("command = []", "command: empty; give a program and its arguments");
    check("command = [\"a\", 2]", "command[1]: the number 2 was given; a string is accepted");
    check(
        "command = 7",
        "command: the number 7 was given; an array of strings such as [\"python\", \"train.py\"] \
         is accepted",
    );
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_and_all_valid_ones() {
    const ALL: &str = "the keys are name, account, command, working_dir, checkpoint, env, gpus, \
                       gpus_per_node, gpu_type, max_blocks, tasks, min_runtime, while_waiting, \
                       order, after, grace, max_restarts, checkpoint_dir, log_cap, whole_cluster, \
                       notify_url";
    check_line("gpu = 8", &format!("unknown key \"gpu\" (did you mean \"gpus\"?); {ALL}"));
    check_line(
        "min-runtime = \"2h\"",
        &format!("unknown key \"min-runtime\" (did you mean \"min_runtime\"?); {ALL}"),
    );
    check_line("[priority]", &format!("unknown key \"priority\"; {ALL}"));
}

#[test]
fn a_value_of_another_type_is_refused_with_what_is_accepted() {
    check_line(
        "gpus = \"8\"",
        "gpus: the string \"8\" was given; a whole number of GPUs from 1 to 4294967295 is accepted",
    );
    check_line(
        "gpus = -1",
        "gpus: the number -1 was given; a whole number of GPUs from 1 to 4294967295 is accepted",
    );
    check_line(
        "gpus_per_node = 1.5",
        "gpus_per_node: the number 1.5 was given; a whole number of GPUs that divides gpus is \
         accepted",
    );
    check_line(
        "min_runtime = 7200",
        "min_runtime: the number 7200 was given; a span of time such as \"90s\", \"30m\" or \
         \"2h\", at most \"8h\" is accepted",
    );
    check_line("name = true", "name: true was given; a string is accepted");
    check_line("name = 2026-01-01", "name: a date was given; a string is accepted");
    check_line("env = [\"A=1\"]", "env: an array was given; a table of strings is accepted");
    check_line("env = { SEED = 7 }", "env.SEED: the number 7 was given; a string is accepted");
    check_line(
        "tasks = \"per-host\"",
        "tasks: the string \"per-host\" was given; \"per-node\" or \"per-gpu\" is accepted",
    );
    check_line(
        "max_restarts = []",
        "max_restarts: an array was given; a whole number from 0 to 1000 is accepted",
    );
    check_line(
        "checkpoint_dir = {}",
        "checkpoint_dir: a table was given; a string with a directory is accepted",
    );
}

#[test]
fn a_text_that_does_not_parse_is_refused_with_its_form() {
    check_line(
        "grace = \"5\"",
        "grace: the string \"5\" was given; a span of time such as \"30s\", at most \"30m\" is accepted",
    );
    check_line(
        "log_cap = \"64MB\"",
        "log_cap: the string \"64MB\" was given; a size such as \"64MiB\", \"64KiB\" to \"16GiB\" is accepted",
    );
    check_line(
        "account = \"A B\"",
        "account: \"A B\" is not a name: expected at most 8 labels of a-z 0-9 - _ joined by slashes",
    );
}

#[test]
fn the_limits_of_a_job_are_told_by_their_keys() {
    check_line("gpus = 0", "gpus: 0 asked; a job has at least 1 GPU");
    check_line("min_runtime = \"9h\"", "min_runtime: 9h asked; 0 to 8h is accepted");
    check_line("env = { RANK = \"0\" }", "env: RANK is set by Tidegate; choose another name");
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line() {
    check_line("gpus = ", "line 2: string values must be quoted, expected literal string");
    check_line("command = [\"again\"]", "line 2: duplicate key");
    let range = "line 2: a number out of range was given; -9223372036854775808 to \
                 9223372036854775807 are accepted";
    check_line("gpus = 9223372036854775808", range);
    check_line("order = -9223372036854775809", range);
    check_line("gpus = 999999999999999999999999", range);
}

#[test]
fn what_a_job_waits_for_is_refused_with_its_form() {
    check_line(
        "after = \"job-3\"",
        "after: the string \"job-3\" was given; an array of jobs such as [\"job-3\", \
         \"job-4:success\"] is accepted",
    );
    check_line(
        "after = [\"job-3\", \"job-4:done\"]",
        "after[1]: the string \"job-4:done\" was given; a job such as \"job-3\" or \
         \"job-3:success\" is accepted",
    );
    check_line("after = [\"3\"]", "after: \"3\" is not an id: expected the form job-7");
}

#[test]
fn what_a_job_does_while_it_waits_is_refused_where_it_cannot_be() {
    check_line(
        "while_waiting = \"idle\"",
        "while_waiting: the string \"idle\" was given; \"free\" or \"wait\" is accepted",
    );
    check_line(
        "while_waiting = \"wait\"",
        "while_waiting: \"wait\" asked; a job without a min_runtime always runs free: give one",
    );
    check_line(
        "while_waiting = \"free\"\nmin_runtime = \"1h\"",
        "while_waiting: \"free\" asked; a job that runs free must be able to save and leave: give \
         a [checkpoint]",
    );
    check_line("while_waiting = \"wait\"\nmin_runtime = \"1h\"", "accepted");
    check_line("while_waiting = \"free\"\nmin_runtime = \"1h\"\n[checkpoint]", "accepted");
}

#[test]
fn a_shape_that_is_none_is_refused() {
    check_line(
        "gpu_type = \"H100\"",
        "gpu_type: \"H100\" is not a name: expected 1 to 63 of a-z 0-9 - _",
    );
    check_line("max_blocks = 0", "max_blocks: 0 asked; 1 to 65536 is accepted");
    check_line(
        "order = 0.5",
        "order: the number 0.5 was given; a whole number from -2147483648 to 2147483647, smallest first \
         among your own jobs is accepted",
    );
    check_line(
        "checkpoint = \"hf\"",
        "checkpoint: the string \"hf\" was given; a table is accepted",
    );
    check_line(
        "checkpoint = { grace = \"1h\" }",
        "checkpoint.grace: 1h asked; more than 0 and up to 30m is accepted",
    );
}
