//! Memory of every process, and the CPU time of those that have nothing to do.

use std::time::Duration;

use anyhow::{Context, ensure};
use tidegate_model::JobSpec;

use super::HEARTBEAT;
use super::history;
use super::load::{running, status, submit};
use super::report::{Figure, Goal, number, percentiles};
use super::usage::{cpu_nanos, with_children};
use crate::binaries::Binaries;
use crate::cluster::{Cluster, Plan, Role};
use crate::processes::private_memory;

/// How long idle processes are watched: twelve heartbeats.
const IDLE: Duration = Duration::from_secs(60);
/// The same of the coordinator with its queue full.
const IDLE_FULL: Duration = Duration::from_secs(15);
/// Jobs that wait.
const PENDING: u32 = 10_000;

/// Measures.
///
/// # Errors
/// If something does not start or does not happen in time.
pub async fn measure(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    let plan = Plan { heartbeat: HEARTBEAT.to_owned(), ..Plan::nodes(1, 1) };
    let cluster = Cluster::start(binaries.clone(), &plan).await?;
    let pid = |role| cluster.pid(role).context("a daemon that runs has a pid");
    let coordinator = pid(Role::Coordinator)?;
    let agent = with_children(pid(Role::Agent(0))?);
    let starter = pid(Role::Starter(0))?;
    let mut figures = idle(&agent, starter, coordinator).await;

    let client = cluster.client()?;
    let command = vec!["/bin/sleep".to_owned(), "1000".to_owned()];
    let first = JobSpec { command, ..cluster.job("memory", 1) };
    let first = client.submit(&first).await?;
    running(&client, first).await?;
    let shims = cluster.shims();
    let (shim, _) = shims.first().context("a running job has a shim")?;
    figures.extend([
        megabytes("agent with its GPU worker", &agent, Goal::AtMost(15.0)),
        megabytes("starter", &[starter], Goal::AtMost(3.0)),
        megabytes("shim", &[*shim], Goal::AtMost(1.5)),
        megabytes("coordinator with 1 job", &[coordinator], Goal::None),
    ]);

    let waiting = JobSpec {
        working_dir: cluster.dir().display().to_string(),
        account: "default".parse()?,
        ..history::spec("waiting", 1)?
    };
    let submits = submit(&cluster, &waiting, PENDING).await?;
    let pending = status(&client).await?.jobs_pending;
    ensure!(pending == PENDING, "{pending} jobs wait");
    let goal = Goal::AtMost(60.0);
    figures.push(megabytes("coordinator with 10,000 waiting jobs", &[coordinator], goal));
    let what = "submit to its durable answer, 10,000 from 8 clients";
    figures.extend(percentiles(what, &submits, Goal::None, Goal::None));
    let full = used(&[coordinator], IDLE_FULL).await;
    figures.push(percent("coordinator with 10,000 waiting jobs", full, Goal::None));
    Ok(figures)
}

async fn idle(agent: &[u32], starter: u32, coordinator: u32) -> Vec<Figure> {
    let groups = [agent, &[starter], &[coordinator]];
    let before = groups.map(cpu_nanos);
    tokio::time::sleep(IDLE).await;
    let after = groups.map(cpu_nanos);
    let names = ["agent with its GPU worker", "starter", "coordinator"];
    let goals = [Goal::AtMost(0.1), Goal::None, Goal::None];
    let spans = after.into_iter().zip(before).map(|(after, before)| after.saturating_sub(before));
    let shares = spans.map(|nanos| share(nanos, IDLE));
    names
        .into_iter()
        .zip(shares)
        .zip(goals)
        .map(|((n, share), goal)| percent(n, share, goal))
        .collect()
}

/// The share of one core that the processes use in the next while, in percent.
async fn used(pids: &[u32], while_: Duration) -> f64 {
    let before = cpu_nanos(pids);
    tokio::time::sleep(while_).await;
    share(cpu_nanos(pids).saturating_sub(before), while_)
}

fn share(nanos: u64, while_: Duration) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() / while_.as_secs_f64() * 100.0
}

fn percent(who: &str, value: f64, goal: Goal) -> Figure {
    Figure { what: format!("idle CPU, {who}"), value, unit: "% of a core", n: 1, goal }
}

fn megabytes(who: &str, pids: &[u32], goal: Goal) -> Figure {
    let bytes: Option<u64> = pids.iter().map(|pid| private_memory(*pid)).sum();
    let value = bytes.map_or(f64::NAN, |bytes| number(bytes) / 1e6);
    Figure { what: format!("private memory, {who}"), value, unit: "MB", n: 1, goal }
}
