//! Plans to 1,024 agents, and the price of their heartbeats. The coordinator is real; the agents
//! live in this process, each with its own connection to its node's own socket.
//!
//! Sender and receivers share the machine: a figure holds the time in which this process reads
//! 1,024 plans, and is an upper bound.

mod asks;
mod fleet;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tidegate_model::{GpuCount, JobId, JobSpec};
use tidegate_proto::v1;

use self::fleet::{Fleet, GPUS_PER_NODE, Order, Told};
use super::HEARTBEAT;
use super::load::status;
use super::report::{Figure, Goal, length, millis, number, percentiles};
use super::usage::cpu_nanos;
use crate::binaries::Binaries;
use crate::client::Client;
use crate::cluster::{Cluster, Plan, Role};
use crate::figures::percentile;
use crate::processes::{cpu_ms, private_memory};
use crate::wait::until_every;

/// Agents, each with 8 GPUs.
const AGENTS: usize = 1_024;
/// Rounds that count; one before them warms up.
const ROUNDS: usize = 10;
/// How long heartbeats are watched: twelve from each agent.
const BEATS: Duration = Duration::from_secs(60);
/// For one round, or for all agents to connect.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures.
///
/// # Errors
/// If something does not start or does not happen in time.
pub async fn measure(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    let gpus = vec![GPUS_PER_NODE; AGENTS];
    let mut plan = Plan { gpus, heartbeat: HEARTBEAT.to_owned(), ..Plan::nodes(1, 1) };
    // The gang is to have every node; by default some of a large cluster are kept for small jobs.
    plan.policy.push_str("\nheadroom = \"0 %\"");
    let mut cluster = Cluster::stopped(binaries.clone(), &plan)?;
    cluster.start_role(Role::Coordinator)?;
    let coordinator = cluster.pid(Role::Coordinator).context("the coordinator")?;
    let client = cluster.client()?;
    until_every(Duration::from_millis(20), PATIENCE, "the coordinator", async || {
        status(&client).await.map_err(|error| format!("{error:#}"))
    })
    .await?;
    let began = Instant::now();
    let mut fleet = Fleet::connect(&cluster, AGENTS)?;
    cluster.ready(PATIENCE).await.with_context(|| last_words(&cluster))?;
    let connected = began.elapsed();
    let mut figures = rounds(&cluster, &client, &mut fleet).await?;
    figures.extend(heartbeats(coordinator, &fleet.beats).await?);
    figures.extend(asks::measure(&cluster, &client, &mut fleet).await?);
    let figure = |what: &str, value, unit| {
        let what = what.to_owned();
        Figure { what, value, unit, n: 1, goal: Goal::None }
    };
    let memory = private_memory(coordinator).map_or(f64::NAN, |bytes| number(bytes) / 1e6);
    figures.push(figure("private memory, coordinator with 1,024 agents", memory, "MB"));
    figures.push(figure("1,024 agents at once, until all are ready", millis(connected), "ms"));
    Ok(figures)
}

/// What the coordinator said last: it may have run out of file descriptors.
fn last_words(cluster: &Cluster) -> String {
    let log = std::fs::read_to_string(cluster.dir().join("coordinator.log")).unwrap_or_default();
    log.lines().last().unwrap_or("the coordinator said nothing").to_owned()
}

/// Of a gang over all nodes, over all rounds.
#[derive(Debug, Default)]
struct Samples {
    /// From just before the submit until its answer is here.
    accepted: Vec<Duration>,
    /// From the same until an agent has the plan with the order to prepare.
    prepare: Vec<Duration>,
    /// From when all begin to answer until an agent has the plan with the order to run.
    run: Vec<Duration>,
    /// CPU time of the coordinator, and of this process, until all have the order to prepare.
    cpu: [u64; 2],
}

async fn rounds(
    cluster: &Cluster,
    client: &Client,
    fleet: &mut Fleet,
) -> anyhow::Result<Vec<Figure>> {
    let coordinator = cluster.pid(Role::Coordinator).context("the coordinator")?;
    let pids = [coordinator, std::process::id()];
    let agents = u32::try_from(AGENTS)?;
    let gpus = GpuCount(agents.saturating_mul(GPUS_PER_NODE));
    let spec = JobSpec { gpus, ..cluster.job("gang", 1) };
    let mut warm = Samples::default();
    round(client, fleet, &spec, pids, &mut warm).await.context("the first round")?;
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        round(client, fleet, &spec, pids, &mut samples).await?;
    }
    Ok(reduced(&samples))
}

fn reduced(samples: &Samples) -> Vec<Figure> {
    let last = |what: &str, samples: &[Duration]| {
        let value = samples.iter().max().copied().map_or(f64::NAN, millis);
        let what = format!("{what}, slowest");
        Figure { what, value, unit: "ms", n: samples.len(), goal: Goal::None }
    };
    let Samples { accepted, prepare, run, cpu } = samples;
    let what = "submit of a 1,024-node gang to its durable answer";
    let mut figures = percentiles(what, accepted, Goal::None, Goal::None);
    let what = "submit to the order to prepare at an agent";
    figures.extend(percentiles(what, prepare, Goal::None, Goal::AtMost(50.0)));
    figures.push(last(what, prepare));
    let firsts: Vec<_> = prepare.chunks(AGENTS).filter_map(|r| r.iter().min().copied()).collect();
    let value = percentile(&firsts, 50).map_or(f64::NAN, millis);
    let what = "submit to the order to prepare at the first agent, median round".to_owned();
    figures.push(Figure { what, value, unit: "ms", n: firsts.len(), goal: Goal::None });
    let who = ["the coordinator", "this process"];
    for (who, nanos) in who.into_iter().zip(cpu) {
        let what = format!("CPU of {who} per order to prepare");
        let value = number(*nanos) / 1e3 / length(prepare.len());
        figures.push(Figure { what, value, unit: "us", n: prepare.len(), goal: Goal::None });
    }
    let what = "1,024 answers to the order to run at an agent";
    figures.extend(percentiles(what, run, Goal::None, Goal::None));
    figures.push(last(what, run));
    figures
}

async fn round(
    client: &Client,
    fleet: &mut Fleet,
    spec: &JobSpec,
    pids: [u32; 2],
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let cpu = pids.map(|pid| cpu_nanos(&[pid]));
    let began = Instant::now();
    let job = client.submit(spec).await?;
    samples.accepted.push(began.elapsed());
    let prepare = all(fleet, job, Order::Prepare).await?;
    for ((sum, pid), before) in samples.cpu.iter_mut().zip(pids).zip(cpu) {
        *sum = sum.saturating_add(cpu_nanos(&[pid]).saturating_sub(before));
    }
    samples.prepare.extend(prepare.iter().map(|at| at.saturating_duration_since(began)));
    let began = Instant::now();
    fleet.answer(job);
    let run = all(fleet, job, Order::Run).await?;
    samples.run.extend(run.iter().map(|at| at.saturating_duration_since(began)));
    client.api().cancel(v1::CancelRequest { job: job.to_string() }).await?;
    idle(client, spec.gpus).await
}

async fn idle(client: &Client, gpus: GpuCount) -> anyhow::Result<()> {
    until_every(Duration::from_millis(20), PATIENCE, "all GPUs to be idle", async || {
        let status = status(client).await.map_err(|error| format!("{error:#}"))?;
        let all = status.gpus_idle == gpus.0;
        if all { Ok(()) } else { Err(format!("{} are idle", status.gpus_idle)) }
    })
    .await
}

/// When each agent had this order for a task of the job.
async fn all(fleet: &mut Fleet, job: JobId, wanted: Order) -> anyhow::Result<Vec<Instant>> {
    all_of(fleet, |of| of == job, wanted).await
}

/// The same for a task of any of some jobs.
async fn all_of(
    fleet: &mut Fleet,
    is_meant: impl Fn(JobId) -> bool,
    wanted: Order,
) -> anyhow::Result<Vec<Instant>> {
    let told = async {
        let mut told = Vec::new();
        while told.len() < AGENTS {
            match fleet.told.recv().await.context("every agent has ended")? {
                Told::Ordered { task, at, order }
                    if is_meant(task.attempt.job) && order == wanted =>
                {
                    told.push(at);
                }
                Told::Ordered { task, order, .. } => bail!("{order:?} of {task} was not awaited"),
                Told::Broken(why) => bail!("{why}"),
            }
        }
        Ok(told)
    };
    tokio::time::timeout(PATIENCE, told).await.context("not every agent was told in time")?
}

async fn heartbeats(coordinator: u32, beats: &Arc<AtomicU64>) -> anyhow::Result<Vec<Figure>> {
    let (cpu, sent) = (cpu_ms(coordinator), beats.load(Ordering::Relaxed));
    tokio::time::sleep(BEATS).await;
    let cpu = cpu_ms(coordinator).zip(cpu).context("the coordinator's CPU time")?;
    let n = usize::try_from(beats.load(Ordering::Relaxed).saturating_sub(sent))?;
    ensure!(n >= AGENTS, "{n} heartbeats in {BEATS:?}");
    let micros = number(cpu.0.saturating_sub(cpu.1)) * 1e3;
    let figure = |what: &str, value, unit, goal| {
        let what = what.to_owned();
        Figure { what, value, unit, n, goal }
    };
    let share = micros / 1e6 / BEATS.as_secs_f64() * 100.0;
    Ok(vec![
        figure("coordinator CPU per heartbeat", micros / length(n), "us", Goal::AtMost(40.0)),
        figure("coordinator CPU, 1,024 idle agents", share, "% of a core", Goal::None),
    ])
}
