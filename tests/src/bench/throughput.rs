//! Jobs per second through 16 agents, each job with its starter, shim and process, and what a job
//! costs the coordinator.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tidegate_coordinator::journal::Journal;
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_model::{ClusterId, DecisionSeq};
use tidegate_proto::v1;

use super::HEARTBEAT;
use super::load::{drained, status, submit};
use super::report::{Figure, Goal, number, percentiles};
use super::usage::written_bytes;
use crate::binaries::Binaries;
use crate::cluster::{Cluster, Plan, Role};
use crate::processes::{Daemon, cpu_ms};

const AGENTS: usize = 16;
const GPUS: u32 = 8;
const JOBS: u32 = 2_000;
/// Jobs of the run under strace, which is slower: only its fsyncs are counted.
const TRACED_JOBS: u32 = 500;
/// For all jobs to end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures.
///
/// # Errors
/// If something does not start, a job does not end well, or not in time.
pub async fn measure(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    let mut figures = untraced(binaries).await?;
    figures.extend(fsyncs(binaries).await?);
    Ok(figures)
}

fn plan() -> Plan {
    Plan { heartbeat: HEARTBEAT.to_owned(), ..Plan::nodes(AGENTS, GPUS) }
}

async fn untraced(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    let mut cluster = Cluster::start(binaries.clone(), &plan()).await?;
    let client = cluster.client()?;
    let coordinator = cluster.pid(Role::Coordinator).context("the coordinator")?;
    let store = cluster.dir().join("store/store.redb");
    let (seq, file) = (status(&client).await?.journal_seq, std::fs::metadata(&store)?.len());
    let (cpu, written) = (cpu_ms(coordinator), written_bytes(coordinator));
    let began = Instant::now();
    let submits = submit(&cluster, &cluster.job("throughput", 1), JOBS).await?;
    drained(&client, PATIENCE).await?;
    let took = began.elapsed();
    let cpu = cpu_ms(coordinator).zip(cpu).map(|(after, before)| after.saturating_sub(before));
    let written = written_bytes(coordinator).zip(written);
    let written = written.map(|(after, before)| after.saturating_sub(before));
    let grown = std::fs::metadata(&store)?.len().saturating_sub(file);
    let cpu = cpu.context("the coordinator's CPU time")?;
    let written = written.context("what the coordinator has written")?;
    for view in client.jobs().await? {
        ensure!(view.state() == v1::JobState::Done, "{}: {}", view.job, view.reason);
    }
    cluster.kill(Role::Coordinator)?;
    let (records, bytes) = journaled(&store, seq)?;

    let jobs = f64::from(JOBS);
    let n = submits.len();
    let figure = |what: &str, value: f64, unit, goal| {
        let what = what.to_owned();
        Figure { what, value, unit, n, goal }
    };
    let mut figures = vec![
        figure("jobs", jobs / took.as_secs_f64(), "jobs/s", Goal::AtLeast(100.0)),
        figure("coordinator CPU per 1,000 jobs", number(cpu) / jobs, "s", Goal::AtMost(0.6)),
        figure("records per job", number(records) / jobs, "", Goal::None),
        figure("bytes of records per job", number(bytes) / jobs, "B", Goal::None),
        figure("growth of the store per job", number(grown) / jobs, "B", Goal::None),
        figure("written to disk per job", number(written) / jobs / 1024.0, "KiB", Goal::None),
    ];
    let what = "submit to its durable answer, 8 clients at once";
    figures.extend(percentiles(what, &submits, Goal::None, Goal::None));
    Ok(figures)
}

/// Records after `seq` and their bytes.
fn journaled(store: &Path, seq: u64) -> anyhow::Result<(u64, u64)> {
    let journal = RedbJournal::open(store, ClusterId(0))?;
    let (mut records, mut bytes) = (0_u64, 0_u64);
    journal.read(DecisionSeq(seq.saturating_add(1)), &mut |_, record| {
        records = records.saturating_add(1);
        bytes = bytes.saturating_add(u64::try_from(record.len()).unwrap_or(u64::MAX));
        Ok(())
    })?;
    Ok((records, bytes))
}

/// Fsyncs of the coordinator per job, counted by strace; nothing where there is no strace.
async fn fsyncs(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    if Command::new("strace").arg("--version").output().is_err() {
        return Ok(Vec::new());
    }
    let mut cluster = Cluster::stopped(binaries.clone(), &plan())?;
    let trace = cluster.dir().join("strace.txt");
    let mut command = Command::new("strace");
    // The tracer is a grandchild, so that the child is the coordinator itself.
    command.args(["-D", "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-o"]);
    command.arg(&trace).arg(binaries.path("tidegate-coordinator"));
    command.arg("--config").arg(cluster.dir().join("coordinator.toml"));
    let coordinator = Daemon::start(command, &cluster.dir().join("coordinator.log"))?;
    for node in 0..AGENTS {
        cluster.start_role(Role::Starter(node))?;
        cluster.start_role(Role::Agent(node))?;
    }
    cluster.ready(Duration::from_secs(60)).await?;
    let before = lines(&trace)?;
    submit(&cluster, &cluster.job("traced", 1), TRACED_JOBS).await?;
    drained(&cluster.client()?, PATIENCE).await?;
    let fsyncs = lines(&trace)?.saturating_sub(before);
    drop(coordinator);
    let what = "fsyncs of the coordinator per job, under strace".to_owned();
    let value = number(fsyncs) / f64::from(TRACED_JOBS);
    let n = usize::try_from(TRACED_JOBS)?;
    Ok(vec![Figure { what, value, unit: "", n, goal: Goal::None }])
}

fn lines(file: &Path) -> anyhow::Result<u64> {
    Ok(u64::try_from(std::fs::read_to_string(file)?.lines().count())?)
}
