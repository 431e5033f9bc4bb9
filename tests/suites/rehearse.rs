//! `tidegate rehearse` by the real command line at real clusters, with the trainer of the examples: as it
//! is meant, and with what a job can do wrong.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper may fail as the test itself does"
)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::wait::until;
use serde_json::{Value, json};
use tidegate_model::JobId;
use tidegate_proto::v1;

const MINUTE: Duration = Duration::from_secs(60);

/// What the command line ended with: its exit code, its output, and its remarks.
type Ran = (Option<i32>, String, String);

async fn cluster() -> Cluster {
    let plan = Plan { heartbeat: "200ms".to_owned(), ..Plan::nodes(1, 2) };
    Cluster::start(Binaries::built().unwrap(), &plan).await.unwrap()
}

fn start(cluster: &Cluster, line: &str) -> Child {
    let mut command = Command::new(cluster.binaries().path("tidegate"));
    command.arg("--socket").arg(cluster.socket()).args(line.split(' ')).current_dir(cluster.dir());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn ended(child: Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn tidegate(cluster: &Cluster, line: &str) -> Ran {
    ended(start(cluster, line))
}

/// A job file of the trainer with two ranks, or of another command.
fn job_file(cluster: &Cluster, words: &[&str], keys: &str, offer: &str) {
    let trainer = cluster.binaries().path("trainer").display().to_string();
    let command: Vec<_> = match words {
        [program, ..] if Path::new(program).is_absolute() => words.to_vec(),
        _ => [trainer.as_str()].into_iter().chain(words.iter().copied()).collect(),
    };
    let text = format!(
        "command = {command:?}\ngpus = 2\ntasks = \"per-gpu\"\n{keys}\n[checkpoint]\n{offer}\n"
    );
    fs::write(cluster.dir().join("job.toml"), text).unwrap();
}

const BY_SIGNAL: &str = "signal = \"USR1\"\ngrace = \"30s\"\nsaved_codes = [85]";

fn document(ran: &Ran) -> Value {
    serde_json::from_str(&ran.1).map_err(|error| format!("{error}: {ran:?}")).unwrap()
}

#[tokio::test]
async fn a_recipe_that_passed_is_accepted_where_rehearsals_are_required_and_explain_shows_it() {
    let cluster = cluster().await;
    let keys = "min_runtime = \"1h\"\ncheckpoint_dir = \"ckpt\"";
    job_file(&cluster, &["--steps", "100000", "--save-every", "20"], keys, BY_SIGNAL);
    let (code, told, _) = tidegate(&cluster, "policy set require_rehearsal=1");
    assert_eq!((code, told.as_str()), (Some(0), "require_rehearsal is 1, and was off\n"));
    for line in ["submit job.toml", "submit --dry-run job.toml"] {
        let (code, _, remarks) = tidegate(&cluster, line);
        assert!(
            code == Some(2) && remarks.contains("above 1 GPU a protected job"),
            "{line}: {remarks}"
        );
        assert!(remarks.contains("`tidegate rehearse job.toml` makes one"), "{line}: {remarks}");
    }
    let ran = tidegate(&cluster, "rehearse job.toml --json");
    let (shown, remarks) = (document(&ran), &ran.2);
    assert_eq!((ran.0, &shown["passed"], &shown["state"]), (Some(0), &json!(true), &json!("done")));
    let shown = &shown["rehearsal"];
    let (step, resumed) = (shown["save"]["step"].as_u64(), shown["resumed_step"].as_u64());
    assert!(step >= Some(20) && resumed >= step, "{shown}");
    assert_eq!((&shown["gpus"], &shown["nodes"]), (&json!(2), &json!(1)));
    for word in [
        "job-1.1 runs on 2 GPUs",
        "job-1.1 is asked to save",
        "job-1.1 committed",
        "job-1.1 has left: saved",
        "job-1.2 runs",
    ] {
        assert!(remarks.contains(word), "{word}: {remarks}");
    }
    let kept = fs::read_dir(cluster.dir().join("ckpt")).unwrap();
    let kept: Vec<_> = kept.map(|one| one.unwrap().file_name()).collect();
    assert_eq!(kept, ["rehearsals"], "what the real job keeps is its own");
    let (code, job, remarks) = tidegate(&cluster, "submit job.toml");
    assert_eq!(code, Some(0), "{remarks}");
    let (_, told, _) = tidegate(&cluster, &format!("explain {}", job.trim()));
    assert!(told.contains("job-1 on 2 GPUs of 1 node passed"), "{told}");
    let (_, told, _) = tidegate(&cluster, "job job-1");
    assert!(told.contains("has shown") && told.contains("started again, it committed"), "{told}");
}

#[tokio::test]
async fn a_job_that_ignores_its_signal_or_commits_nothing_or_begins_again_fails_with_the_reason() {
    let cluster = cluster().await;
    let check = |words: &[&str], offer: &str, expected: &str| {
        job_file(&cluster, words, "", offer);
        let ran = tidegate(&cluster, "rehearse job.toml --ask-after 1s");
        assert_eq!(ran.0, Some(7), "{words:?}: {ran:?}");
        assert!(ran.1.contains(&format!("failed: {expected}")), "{words:?}: {ran:?}");
        assert!(ran.2.contains(expected), "{words:?}: {ran:?}");
    };
    let short = BY_SIGNAL.replace("30s", "2s");
    check(&["--steps", "100000", "--ignore-save"], &short, "its ranks ignore the signal");
    check(&["/bin/sleep", "100000"], &short, "no rank had a handler for the signal");
    let by_file = "grace = \"1s\"";
    check(&["/bin/sleep", "100000"], by_file, "it was asked to save, and committed nothing");
    check(&["/bin/true"], by_file, "it ended by itself before it had saved");
    let began = "it did not go on from what it had saved: it began again";
    check(&["--steps", "100000", "--save-every", "0", "--begin-anew"], BY_SIGNAL, began);
    check(&["--steps", "100000", "--save-every", "20", "--begin-anew"], BY_SIGNAL, began);
}

async fn saves(cluster: &Cluster) -> JobId {
    let client = cluster.client().unwrap();
    let look = async || {
        let jobs = client.jobs().await.map_err(|status| status.to_string())?;
        let asked = |job: &&v1::JobView| job.attempts.iter().any(|one| one.save.is_some());
        jobs.iter().find(asked).map(|job| job.job.clone()).ok_or_else(|| format!("{jobs:?}"))
    };
    until(MINUTE, "a request to save", look).await.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_rehearsal_outlives_a_kill_of_the_coordinator_and_whoever_looks_on_sees_its_end() {
    let mut cluster = cluster().await;
    let words = ["--steps", "100000", "--save-every", "0", "--save-seconds", "2"];
    job_file(&cluster, &words, "", BY_SIGNAL);
    let child = start(&cluster, "rehearse job.toml --ask-after 2s --json");
    let job = saves(&cluster).await;
    cluster.kill(Role::Coordinator).unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    let ran = ended(child);
    assert_eq!((ran.0, &document(&ran)["passed"]), (Some(0), &json!(true)), "{ran:?}");
    let view = cluster.client().unwrap().job(job).await.unwrap();
    assert_eq!((view.attempts.len(), view.state()), (2, v1::JobState::Done));
}

#[tokio::test]
async fn a_rehearsal_that_is_cancelled_comes_to_no_verdict_and_says_so() {
    let cluster = cluster().await;
    let words = ["--steps", "100000", "--save-every", "0", "--save-seconds", "20"];
    job_file(&cluster, &words, "", BY_SIGNAL);
    let child = start(&cluster, "rehearse job.toml --ask-after 1s --json");
    let job = saves(&cluster).await;
    assert_eq!(tidegate(&cluster, &format!("cancel {job}")).0, Some(0));
    let ran = ended(child);
    let shown = document(&ran);
    assert_eq!((ran.0, &shown["passed"]), (Some(1), &Value::Null), "{ran:?}");
    assert!(ran.2.contains("without a verdict"), "{ran:?}");
    let ran = tidegate(&cluster, "rehearse job.toml --timeout 1s");
    assert!(
        ran.0 == Some(1) && ran.2.contains("no verdict in time; job-2 is cancelled"),
        "{ran:?}"
    );
    let ended =
        cluster.client().unwrap().job_ended("job-2".parse().unwrap(), MINUTE).await.unwrap();
    assert_eq!(ended.state(), v1::JobState::Cancelled);
    job_file(&cluster, &words, "", BY_SIGNAL);
    let path = cluster.dir().join("job.toml");
    let without = fs::read_to_string(&path).unwrap();
    fs::write(&path, without.split("[checkpoint]").next().unwrap()).unwrap();
    let ran = tidegate(&cluster, "rehearse job.toml");
    assert!(ran.0 == Some(2) && ran.2.contains("checkpoint: none given"), "{ran:?}");
}
