//! GPUs that do nothing: seen by the agent, told while it lasts, and summed up in the report.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::fs;
use std::process::Command;
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::wait::until;
use tidegate_model::{JobId, JobSpec, Span};
use tidegate_proto::v1;

const MINUTE: Duration = Duration::from_secs(60);

/// One node with an idle GPU and a busy one; an agent that looks ten times a second.
async fn cluster() -> Cluster {
    let plan = Plan { heartbeat: "100ms".to_owned(), ..Plan::nodes(1, 2) };
    let cluster = Cluster::stopped(Binaries::built().unwrap(), &plan).unwrap();
    started(cluster, [0, 97]).await
}

async fn started(mut cluster: Cluster, busy: [u32; 2]) -> Cluster {
    set_busy(&cluster, busy);
    for role in [Role::Coordinator, Role::Starter(0), Role::Agent(0)] {
        cluster.start_role(role).unwrap();
    }
    cluster.ready(MINUTE).await.unwrap();
    cluster
}

/// Read by the simulated driver when the agent starts.
fn set_busy(cluster: &Cluster, [a, b]: [u32; 2]) {
    let gpus = format!(
        "{{\"gpus\":[{{\"uuid\":\"GPU-a\",\"utilization\":{a}}},\
         {{\"uuid\":\"GPU-b\",\"utilization\":{b}}}]}}"
    );
    fs::write(cluster.dir().join("node-0.gpus.json"), gpus).unwrap();
}

fn tidegate(cluster: &Cluster, arguments: &[&str]) -> String {
    let mut command = Command::new(cluster.binaries().path("tidegate"));
    let out = command.arg("--socket").arg(cluster.socket()).args(arguments).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// A job that is planned protected, and ends when the file `NAME.end` is there.
fn sleeper(cluster: &Cluster, name: &str, gpus: u32) -> JobSpec {
    let script = format!("until [ -e {name}.end ]; do sleep 0.05; done");
    JobSpec {
        command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
        min_runtime: Span::minutes(10),
        ..cluster.job(name, gpus)
    }
}

async fn is_idle(cluster: &Cluster, job: JobId, expected: bool) -> v1::JobView {
    let what = if expected { "is idle" } else { "is busy" };
    let holds = |view: &v1::JobView| {
        let runs = view.attempts.last().is_some_and(|a| a.state() == v1::AttemptState::Running);
        runs && view.idle_since_ms.is_some() == expected
    };
    cluster.client().unwrap().job_until(job, MINUTE, what, holds).await.unwrap()
}

#[tokio::test]
async fn a_job_with_idle_gpus_is_told_so_and_the_report_sums_it_up() {
    let mut cluster = cluster().await;
    let client = cluster.client().unwrap();
    // The first job has the first GPU, which is idle; the second is busy.
    let idle = client.submit(&sleeper(&cluster, "idle", 1)).await.unwrap();
    let busy = client.submit(&sleeper(&cluster, "busy", 1)).await.unwrap();
    let view = is_idle(&cluster, idle, true).await;
    assert_eq!(view.attempts[0].tasks[0].gpus, ["GPU-a"]);
    let words = tidegate(&cluster, &["explain", "job-1"]);
    assert!(words.contains("its GPUs have been idle for "), "{words}");
    assert!(words.contains("from 30m on it gives way before others"), "{words}");
    let list = tidegate(&cluster, &["jobs"]);
    let row = |name: &str| list.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(row("job-1").contains("idle for "), "{list}");
    assert!(!row("job-2").contains("idle for "), "{list}");
    assert_eq!(is_idle(&cluster, busy, false).await.idle_since_ms, None);
    // A coordinator that has forgotten it is told again; so is one whose agent was away.
    cluster.start_role(Role::Coordinator).unwrap();
    cluster.ready(MINUTE).await.unwrap();
    is_idle(&cluster, idle, true).await;
    assert!(tidegate(&cluster, &["report"]).contains("idle protected time: not measured"));
    for name in ["idle", "busy"] {
        fs::write(cluster.dir().join(format!("{name}.end")), "").unwrap();
    }
    for job in [idle, busy] {
        client.job_ended(job, MINUTE).await.unwrap();
    }
    let report: serde_json::Value =
        serde_json::from_str(&tidegate(&cluster, &["report", "--json"])).unwrap();
    let of = |key: &str| report["usages"][0][key].as_i64().unwrap();
    let [idle, looked_at, ended] = [of("idle_gpu_us"), of("looked_at_gpu_us"), of("ended_gpu_us")];
    assert!(0 < idle && idle < looked_at && looked_at <= ended, "{idle} {looked_at} {ended}");
    let text = tidegate(&cluster, &["report"]);
    assert!(text.contains("idle protected time: measured for "), "{text}");
}

#[tokio::test]
async fn a_job_that_works_again_is_idle_no_more() {
    let mut cluster = cluster().await;
    let client = cluster.client().unwrap();
    let job = client.submit(&sleeper(&cluster, "one", 1)).await.unwrap();
    is_idle(&cluster, job, true).await;
    for (busy, idle) in [(50, false), (4, true)] {
        let patch = format!("{{\"op\":\"patch\",\"gpu\":0,\"set\":{{\"utilization\":{busy}}}}}");
        let answer = cluster.gpus(0, &patch).unwrap();
        assert!(answer.contains("true"), "{answer}");
        is_idle(&cluster, job, idle).await;
    }
    // What the agent before it said is void.
    cluster.kill(Role::Agent(0)).unwrap();
    set_busy(&cluster, [50, 97]);
    cluster.start_role(Role::Agent(0)).unwrap();
    is_idle(&cluster, job, false).await;
}

#[tokio::test]
async fn a_gang_of_which_one_gpu_works_is_not_idle() {
    let cluster = cluster().await;
    let client = cluster.client().unwrap();
    let job = client.submit(&sleeper(&cluster, "pair", 2)).await.unwrap();
    is_idle(&cluster, job, false).await;
    fs::write(cluster.dir().join("pair.end"), "").unwrap();
    client.job_ended(job, MINUTE).await.unwrap();
    let report = until(MINUTE, "a report", async || {
        let text = tidegate(&cluster, &["report", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        Ok(report)
    });
    let report = report.await.unwrap();
    assert_eq!(report["usages"][0]["idle_gpu_us"], 0);
}
