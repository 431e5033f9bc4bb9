//! 1,024 jobs that ask for a permit to write at once: how long until each has its grant, or its
//! place in the line.

use std::time::{Duration, Instant};

use tidegate_model::{CheckpointOffer, GpuCount, JobId, JobSpec, SaveTarget, Span};
use tidegate_proto::v1;

use super::super::report::{Figure, Goal, millis, percentiles};
use super::fleet::{Fleet, GPUS_PER_NODE, Order};
use super::{AGENTS, all_of};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::figures::percentile;
use crate::offer::offer;

/// Rounds that count; one before them warms up.
const ROUNDS: usize = 10;

/// What may be written in a second: 80 of the asks fit at once.
const CAP: u64 = 80_000_000_000;
const OF_A_NODE: u64 = 1_000_000_000;

const STORAGE: &str = "shared";

/// Measures.
///
/// # Errors
/// If something does not happen in time.
pub(super) async fn measure(
    cluster: &Cluster,
    client: &Client,
    fleet: &mut Fleet,
) -> anyhow::Result<Vec<Figure>> {
    let rule = v1::GateRule {
        cap_bytes_per_s: Some(CAP),
        node_bytes_per_s: Some(OF_A_NODE),
        writers: Some(10_000),
        ..v1::GateRule::default()
    };
    client.set_gate(STORAGE, rule).await?;
    let jobs = run_all(cluster, client, fleet).await?;
    let is_meant = |job: JobId| jobs.contains(&job);
    let mut answered: Vec<Duration> = Vec::new();
    for round in 0..=ROUNDS {
        let began = Instant::now();
        fleet.ask();
        let answers = all_of(fleet, is_meant, Order::Permit).await?;
        if round > 0 {
            answered.extend(answers.iter().map(|at| at.saturating_duration_since(began)));
        }
    }
    let what = "1,024 asks at once, to a grant or a place in the line";
    let mut figures = percentiles(what, &answered, Goal::None, Goal::AtMost(150.0));
    let firsts: Vec<_> = answered.chunks(AGENTS).filter_map(|r| r.iter().min().copied()).collect();
    let value = percentile(&firsts, 50).map_or(f64::NAN, millis);
    let what = "the same, the first answer, median round".to_owned();
    figures.push(Figure { what, value, unit: "ms", n: firsts.len(), goal: Goal::None });
    Ok(figures)
}

/// A job on each node.
async fn run_all(
    cluster: &Cluster,
    client: &Client,
    fleet: &mut Fleet,
) -> anyhow::Result<Vec<JobId>> {
    let offer = CheckpointOffer { target: SaveTarget::Task, ..offer(Span::minutes(1)) };
    let gpus = GpuCount(GPUS_PER_NODE);
    let spec = JobSpec { gpus, checkpoint: Some(offer), ..cluster.job("asks", 1) };
    let mut jobs = Vec::new();
    for _ in 0..AGENTS {
        jobs.push(client.submit(&spec).await?);
    }
    let is_meant = |job: JobId| jobs.contains(&job);
    all_of(fleet, is_meant, Order::Prepare).await?;
    fleet.answer(jobs.last().copied().unwrap_or(JobId(0)));
    all_of(fleet, is_meant, Order::Run).await?;
    Ok(jobs)
}
