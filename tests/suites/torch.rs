//! A real framework on the line: `PyTorch`'s DDP under torchrun saves when it is asked, and resumes;
//! with a permit it writes at its rate.
//!
//! Ignored by default: it needs Debian's python3-torch, 645 MB. `.ci/full` installs it.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper may fail as the test itself does"
)]

use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::client::Client;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::example::{displace, final_line, outcomes, said, submit, text};
use tidegate_model::JobId;
use tidegate_proto::v1;

/// Four ranks import torch on two cores, twice.
const PATIENCE: Duration = Duration::from_secs(120);

/// What may be written in a second: a checkpoint of 2.2 MB takes some four.
const CAP: u32 = 500_000;

/// The arguments in the example's job file, and others with which a checkpoint has 2.2 MB.
const SMALL: &str = "\"--steps\", \"200\"";
const WIDE: &str = "\"--steps\", \"200\", \"--save-every\", \"100\", \"--width\", \"8192\"";

fn start(cluster: &Cluster, name: &str, arguments: &str) -> JobId {
    let job_file = text("examples/torch_ddp/job.toml").unwrap();
    assert!(job_file.contains(SMALL), "{job_file}");
    let files = ["examples/torch_ddp/train.py", "examples/client.py"];
    submit(cluster, name, &files, &job_file.replace(SMALL, arguments)).unwrap()
}

async fn cluster() -> (Cluster, Client) {
    let plan = Plan::nodes(1, 4);
    let cluster = Cluster::start(Binaries::built().unwrap(), &plan).await.unwrap();
    let client = cluster.client().unwrap();
    (cluster, client)
}

/// Has a job displaced once it has committed by itself: its outputs, after it has ended like an
/// undisturbed one.
async fn displaced(cluster: &Cluster, arguments: &str, expected: &str) -> (JobId, [String; 2]) {
    let client = cluster.client().unwrap();
    let job = start(cluster, "displaced", arguments);
    let committed = |view: &v1::JobView| view.commit.is_some();
    client.job_until(job, PATIENCE, "has committed", committed).await.unwrap();
    displace(cluster, 4, PATIENCE).await.unwrap();
    assert_eq!(final_line(&client, job, 2, PATIENCE).await.unwrap(), expected);
    let view = client.job(job).await.unwrap();
    assert_eq!(outcomes(&view), [v1::AttemptState::Saved, v1::AttemptState::Done], "{view:#?}");
    let first = client.output(job, 1, 0).await.unwrap();
    let outputs = [first, client.output(job, 2, 0).await.unwrap()];
    let from = said(&outputs[1], "begins after step ").next().unwrap();
    assert_ne!(from, "0", "{outputs:?}");
    assert!(outputs[0].ends_with(&format!("committed step {from}\n")), "{}", outputs[0]);
    let stream = v1::LogStream::Stderr.into();
    let named = job.to_string();
    let read =
        v1::ReadLogRequest { job: named, attempt: 1, task: 0, stream, offset: 0, limit: 1 << 20 };
    let complaints = client.api().read_log(read).await.unwrap().into_inner().bytes;
    let complaints = String::from_utf8(complaints).unwrap();
    assert!(complaints.contains("exitcode  : 85"), "torchrun says how ranks left: {complaints}");
    (job, outputs)
}

#[tokio::test]
#[ignore = "needs python3-torch: .ci/full installs it"]
async fn a_ddp_run_that_is_displaced_resumes_and_ends_with_the_loss_of_an_undisturbed_one() {
    let (cluster, client) = cluster().await;
    let undisturbed = start(&cluster, "undisturbed", SMALL);
    let expected = final_line(&client, undisturbed, 1, PATIENCE).await.unwrap();
    let (_, [first, _]) = displaced(&cluster, SMALL, &expected).await;
    let mut wrote = said(&first, "wrote ").map(Wrote::of);
    assert!(wrote.all(|one| one.rate.is_none()), "without a cap, without a limit");
}

/// A line of the example: `step=… kind=… bytes=… rate=… took=…`.
#[derive(Debug)]
struct Wrote {
    kind: String,
    bytes: f64,
    rate: Option<f64>,
    took: f64,
}

impl Wrote {
    fn of(line: &str) -> Self {
        let word = |key: &str| {
            let words = line.split(' ').filter_map(|word| word.split_once('='));
            words
                .filter(|(name, _)| *name == key)
                .map(|(_, value)| value.to_owned())
                .next()
                .unwrap()
        };
        Self {
            kind: word("kind"),
            bytes: word("bytes").parse().unwrap(),
            rate: word("rate").parse().ok(),
            took: word("took").parse().unwrap(),
        }
    }
}

#[tokio::test]
#[ignore = "needs python3-torch: .ci/full installs it"]
async fn ranks_to_which_a_permit_is_handed_on_write_together_at_its_rate_and_resume() {
    let (cluster, client) = cluster().await;
    let undisturbed = start(&cluster, "undisturbed", WIDE);
    let expected = final_line(&client, undisturbed, 1, PATIENCE).await.unwrap();
    let rule = v1::GateRule { cap_bytes_per_s: Some(CAP.into()), ..v1::GateRule::default() };
    client.set_gate("shared", rule).await.unwrap();

    let (job, outputs) = displaced(&cluster, WIDE, &expected).await;
    let wrote = outputs.iter().flat_map(|output| said(output, "wrote ")).map(Wrote::of);
    let wrote: Vec<_> = wrote.collect();
    let kinds: Vec<_> = wrote.iter().map(|one| one.kind.as_str()).collect();
    assert_eq!(kinds, ["periodic", "preemption", "final"], "{outputs:?}");
    for one in &wrote {
        let rate = one.rate.unwrap();
        assert!(0.0 < rate && rate <= CAP.into(), "{one:?}");
        // Noise of a busy machine: it may be slower, and once somewhat faster.
        let part = one.bytes / one.took / rate;
        assert!(one.took > 1.0 && 0.3 < part && part < 1.3, "{part} of the rate: {one:?}");
    }

    // The same by the coordinator's clock.
    let attempt = &client.job(job).await.unwrap().attempts[0];
    let saved = attempt.committed_ms.unwrap() - attempt.save.as_ref().unwrap().admitted_ms.unwrap();
    let asked = &wrote[1];
    let least = asked.bytes / asked.rate.unwrap() / 1.3;
    assert!(Duration::from_millis(saved).as_secs_f64() > least, "{saved} ms: {asked:?}");
}
