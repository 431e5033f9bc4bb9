//! What jobs use to talk to their socket: `tidegate-agent job`, and the clients in `examples`.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_agent::permits::PermitRecord;
use tidegate_agent::record::ExitRecord;
use tidegate_agent::since_boot::SinceBoot;
use tidegate_agent::starter::protocol::Verb;
use tidegate_model::{Span, WriteClass};

use crate::bench::{Bench, task};
use crate::job_socket::python;

const T: &str = "job-1.1.0";

/// A task that runs a script, in which `job` is the command.
fn scripted(script: &str) -> Bench {
    let mut bench = Bench::started();
    let script =
        format!("job() {{ {} job \"$@\"; }}\n{script}", env!("CARGO_BIN_EXE_tidegate-agent"));
    bench.shell(T, &script).unwrap();
    bench
}

/// Waits for the script's ask, and answers it.
fn answer(bench: &mut Bench, permit: impl Fn(u64) -> PermitRecord) {
    let line = bench.wait_line(T, |line| line.ask.is_some_and(|ask| !ask.done));
    let permit = permit(line.ask.unwrap().number);
    bench.ask(Verb::Permit { task: task(T), permit }).unwrap();
}

fn granted(ask: u64, bytes_per_s: Option<u64>) -> PermitRecord {
    let until_ms = SinceBoot::now().plus(Span::minutes(10));
    PermitRecord::Granted { ask, bytes_per_s, after_bytes_per_s: None, until_ms, rated: 1 }
}

fn check_output(bench: &mut Bench, exit: u8, stdout: &str, stderr: &str) {
    assert_eq!(bench.ended(T), ExitRecord::Exited(exit), "{}", bench.output(T, "stderr"));
    assert_eq!(bench.output(T, "stdout"), stdout);
    assert_eq!(bench.output(T, "stderr"), stderr);
}

#[test]
fn a_script_writes_with_a_permit_that_is_given_back_when_its_command_ends() {
    let mut bench = scripted(
        "job write --bytes 10MiB --class final --files 3 --wait 90s -- \
         sh -c 'echo $TIDEGATE_BYTES_PER_S $TIDEGATE_PERMIT; exit 7'; code=$?; \
         until [ -e go ]; do sleep 0.01; done; exit $code",
    );
    let line = bench.wait_line(T, |line| line.ask.is_some());
    let ask = line.ask.unwrap();
    assert_eq!((ask.class, ask.bytes, ask.files), (WriteClass::Final, 10 << 20, 3));
    assert_eq!(ask.patience_ms, Some(90_000));
    answer(&mut bench, |ask| granted(ask, Some(5000)));
    bench.wait_line(T, |line| line.ask.is_some_and(|ask| ask.done));
    bench.touch("go");
    check_output(&mut bench, 7, "5000 1\n", "");
}

#[test]
fn what_is_to_be_written_is_written_without_a_permit_too() {
    let mut bench =
        scripted("TIDEGATE_BYTES_PER_S=9 job write --bytes 1 -- env | grep -c BYTES_PER");
    let retry_after_ms = Some(9000);
    answer(&mut bench, |ask| PermitRecord::Denied { ask, why: "why".into(), retry_after_ms });
    let why = "tidegate-agent job: writing without a permit: denied: why; asking again is of use in \
               9s\n";
    check_output(&mut bench, 1, "0\n", why);
    let mut bench = scripted("unset TIDEGATE_SOCKET; job write --bytes 1 -- echo written");
    let why = "tidegate-agent job: writing without a permit: TIDEGATE_SOCKET is not set: this is \
               no task of Tidegate's\n";
    check_output(&mut bench, 0, "written\n", why);
}

#[test]
fn a_command_below_a_permit_says_how_far_it_is_and_asks_how_the_permit_stands() {
    let agent = env!("CARGO_BIN_EXE_tidegate-agent");
    let script = format!(
        "{agent} job write --bytes 100 -- sh -c '{agent} job progress --bytes 40 && \
         {agent} job renew && {agent} job done'"
    );
    let mut bench = scripted(&script);
    answer(&mut bench, |ask| granted(ask, None));
    assert_eq!(bench.ended(T), ExitRecord::Exited(0), "{}", bench.output(T, "stderr"));
    let told = bench.output(T, "stdout");
    assert!(told.starts_with("{\"after_bytes_per_s\":null,\"bytes_per_s\":null,"), "{told}");
    assert!(told.ends_with("}\n{\"permit\":1}\n"), "{told}");
    let line = bench.wait_line(T, |line| line.ask.is_some_and(|ask| ask.done));
    assert_eq!(line.ask.unwrap().written, 40);
}

#[test]
fn a_script_says_hello_asks_and_commits() {
    let mut bench = scripted(
        "job hello && job ask --bytes 5 --class restore && mkdir -p c/d && printf abc >c/d/a && \
         job commit --step 4 c && job commit --step 4 c; job ask --bytes 1 --class urgent",
    );
    answer(&mut bench, |ask| granted(ask, None));
    let exit = bench.ended(T);
    let (said, complained) = (bench.output(T, "stdout"), bench.output(T, "stderr"));
    assert_eq!(exit, ExitRecord::Exited(2), "{complained}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines[0].contains("\"job\":\"job-1\"") && lines[1].contains("\"permit\":1"), "{said}");
    assert_eq!(lines[2], "{\"step\":4}");
    let refused = "refused: step: 4 is not above 4, which is committed";
    assert!(complained.contains(refused) && complained.contains("is no class"), "{complained}");
    let line = bench.wait_line(T, |line| line.commit.is_some());
    assert_eq!(line.commit.unwrap().bytes, 3);
    assert!(fs::exists(bench.dir.path().join("c/d/a")).unwrap());
}

/// Writes 20,000 bytes at 40,000 in a second; how long that took.
fn paced(bench: &mut Bench) -> Duration {
    answer(bench, |ask| granted(ask, Some(40_000)));
    let began = Instant::now();
    let line = bench.wait_line(T, |line| line.ask.is_some_and(|ask| ask.done));
    let took = began.elapsed();
    assert_eq!(bench.ended(T), ExitRecord::Exited(0), "{}", bench.output(T, "stderr"));
    assert_eq!(line.ask.unwrap().bytes, 20_000);
    assert_eq!(fs::read(bench.dir.path().join("model")).unwrap(), vec![0; 20_000]);
    took
}

#[test]
fn the_example_clients_keep_to_the_rate_they_are_granted() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let program = "
import sys
sys.path.insert(0, sys.argv[1])
import client, os
job = client.Job()
with job.permit(bytes=20000, kind='final'):
    with open('model', 'wb') as file:
        job.write(file, bytes(20000))
os.mkdir('checkpoint')
os.rename('model', 'checkpoint/model')
job.commit(3, 'checkpoint')
os.link('checkpoint/model', 'model')
assert job.asked_to_save() is None and job.identity['task'] == 'job-1.1.0'
";
    let mut bench = Bench::started();
    let launch = python(&bench, &[program, examples]);
    bench.start(T, launch).unwrap();
    let took = paced(&mut bench);
    assert!(took >= Duration::from_millis(450), "{took:?}");
    bench.wait_line(T, |line| line.commit.as_ref().is_some_and(|commit| commit.bytes == 20_000));
    let mut bench = Bench::started();
    let client = bench.dir.path().join("client");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "-o"]).arg(&client).arg(format!("{examples}/client.rs"));
    assert!(rustc.status().unwrap().success(), "it needs nothing but the standard library");
    for (arguments, words) in [
        (
            vec!["model", "20000"],
            "client: TIDEGATE_SOCKET is not set: run it in a task of Tidegate",
        ),
        (vec!["model"], "client: expected: client FILE BYTES"),
        (vec!["model", "0"], "client: BYTES: \"0\" given; a whole number from 1 is accepted"),
    ] {
        let told = Command::new(&client).args(&arguments).env_remove("TIDEGATE_SOCKET").output();
        let told = told.unwrap();
        let words = format!("{words}\n");
        assert_eq!((told.status.code(), told.stderr), (Some(2), words.into_bytes()));
    }
    let launch = bench.launch(&[&client.display().to_string(), "model", "20000"]);
    bench.start(T, launch).unwrap();
    let took = paced(&mut bench);
    assert!(took >= Duration::from_millis(450), "{took:?}");
}
