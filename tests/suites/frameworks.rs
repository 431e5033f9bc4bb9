//! Programs that behave as frameworks do which are too large to be had here, with the presets of those:
//! each is displaced, saves exactly once, is placed again and resumes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper may fail as the test itself does"
)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::client::Client;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::example::{displace, final_line, heir, outcomes, says, submit};
use tidegate_model::JobId;
use tidegate_proto::v1;

const MINUTE: Duration = Duration::from_secs(60);

/// What Lightning reads of Slurm's environment, from Tidegate's.
const AS_SLURM: &str = "SLURM_JOB_ID=${TIDEGATE_JOB_ID#job-} SLURM_NTASKS=$WORLD_SIZE \
                        SLURM_NTASKS_PER_NODE=$LOCAL_WORLD_SIZE SLURM_PROCID=$RANK \
                        SLURM_LOCALID=$LOCAL_RANK SLURM_NODEID=$NODE_RANK";

async fn cluster(gpus: u32) -> Cluster {
    let plan = Plan { heartbeat: "200ms".to_owned(), ..Plan::nodes(1, gpus) };
    Cluster::start(Binaries::built().unwrap(), &plan).await.unwrap()
}

/// Submits a stand-in, as a job that one process for each GPU runs.
fn start(cluster: &Cluster, preset: &str, gpus: u32, script: &str, keys: &str) -> JobId {
    let path = std::env::var("PATH").unwrap();
    let job_file = format!(
        "name = {preset:?}\ncommand = [\"sh\", \"-c\", {script:?}]\ngpus = {gpus}\n\
         tasks = \"per-gpu\"\ngrace = \"2s\"\ncheckpoint_dir = \"checkpoints\"\n\
         [checkpoint]\npreset = {preset:?}\n{keys}\n[env]\nPATH = {path:?}\n"
    );
    let program = format!("tests/data/frameworks/{preset}.py");
    submit(cluster, preset, &[&program, "examples/client.py"], &job_file).unwrap()
}

/// Ends a job that has resumed: the step from which it went on.
async fn resumed(cluster: &Cluster, preset: &str, job: JobId) -> u64 {
    let client = cluster.client().unwrap();
    let from = says(&client, (job, 2, 0), "begins after step ", MINUTE).await.unwrap();
    fs::write(cluster.dir().join(preset).join("finish"), "").unwrap();
    let last = final_line(&client, job, 2, MINUTE).await.unwrap();
    let (step, weight) = last.split_once(" weight=").unwrap();
    let step: u64 = step.strip_prefix("step=").unwrap().parse().unwrap();
    assert_eq!(weight.parse::<u64>().unwrap(), step * (step + 1) / 2, "of every step once: {last}");
    let view = client.job(job).await.unwrap();
    assert_eq!(outcomes(&view), [v1::AttemptState::Saved, v1::AttemptState::Done], "{view:#?}");
    let from = from.parse().unwrap();
    assert_eq!(view.commit.as_ref().map(|commit| commit.step), Some(from), "{view:#?}");
    assert!(10 <= from && from < step, "{last}");
    from
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

async fn output(client: &Client, job: JobId, task: u32) -> String {
    client.output(job, 1, task).await.unwrap()
}

#[tokio::test]
async fn what_saves_in_its_handler_on_every_rank_and_never_leaves_is_ended_after_its_commit() {
    let cluster = cluster(2).await;
    let client = cluster.client().unwrap();
    let script = format!("{AS_SLURM} exec python3 lightning.py");
    let job = start(&cluster, "lightning", 2, &script, "grace = \"6s\"");
    for rank in 0..2 {
        says(&client, (job, 1, rank), "trained step 10", MINUTE).await.unwrap();
    }
    displace(&cluster, 2, MINUTE).await.unwrap();
    resumed(&cluster, "lightning", job).await;

    for rank in 0..2 {
        let output = output(&client, job, rank).await;
        let asked = output.matches("Handling auto-requeue signal: 10\n").count();
        let stopped = output.matches("Bypassing SIGTERM: 15\n").count();
        assert_eq!((asked, stopped), (1, 1), "rank {rank}: {output}");
    }
    let checkpoints = names(&cluster.dir().join("lightning/checkpoints"));
    let saved: Vec<_> = checkpoints.iter().filter(|name| name.starts_with("hpc_ckpt")).collect();
    assert_eq!(saved, ["hpc_ckpt_1.ckpt"], "saved exactly once");
}

#[tokio::test]
async fn what_waits_before_it_saves_at_its_next_step_and_leaves_with_0_hears_no_second_term() {
    let mut cluster = cluster(1).await;
    let client = cluster.client().unwrap();
    let job = start(&cluster, "hf", 1, "exec python3 hf.py", "grace = \"30s\"");
    says(&client, (job, 1, 0), "trained step 10", MINUTE).await.unwrap();
    let heir = client.submit(&heir(&cluster, 1)).await.unwrap();
    says(&client, (job, 1, 0), "SIGTERM received", MINUTE).await.unwrap();
    // While its timer runs.
    for role in [Role::Agent(0), Role::Starter(0), Role::Coordinator] {
        cluster.kill(role).unwrap();
        cluster.start_role(role).unwrap();
    }
    let view = client.job_ended(heir, MINUTE).await.unwrap();
    assert_eq!(view.state(), v1::JobState::Done, "{view:#?}");
    let from = resumed(&cluster, "hf", job).await;

    let output = output(&client, job, 0).await;
    assert_eq!(output.matches("SIGTERM received").count(), 1, "{output}");
    assert_eq!(output.matches("Saving JIT checkpoint").count(), 1, "{output}");
    let kept = cluster.dir().join("hf/checkpoints");
    let whole = format!("checkpoint-{from}");
    assert_eq!(names(&kept), [whole.as_str()], "saved exactly once");
    assert_eq!(names(&kept.join(whole)), ["trainer_state.json"], "and whole");
}
