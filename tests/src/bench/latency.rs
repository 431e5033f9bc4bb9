//! From a submit until the job runs, one job at a time on a cluster with nothing else to do.

use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_model::{JobSpec, Span};
use tidegate_proto::v1;

use super::HEARTBEAT;
use super::load::running;
use super::report::{Figure, Goal, percentiles};
use crate::binaries::Binaries;
use crate::client::Client;
use crate::cluster::{Cluster, Plan};

const AGENTS: usize = 4;
const JOBS: usize = 200;
/// Jobs before those that count: connections and caches are cold.
const WARM_UP: usize = 5;

/// Samples of one job, in the order of its life.
#[derive(Debug, Default)]
struct Samples {
    /// From just before the submit until its answer is here.
    accepted: Vec<Duration>,
    /// From just before the submit until a client that looks every millisecond sees it run.
    seen: Vec<Duration>,
    /// From submitted to running by the coordinator's own stamps, in whole milliseconds.
    stamped: Vec<Duration>,
    /// From just before the cancel until a client that looks every 5 ms sees its end.
    ended: Vec<Duration>,
}

/// Measures.
///
/// # Errors
/// If something does not start or does not happen in time.
pub async fn measure(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    let plan = Plan { heartbeat: HEARTBEAT.to_owned(), ..Plan::nodes(AGENTS, 2) };
    let cluster = Cluster::start(binaries.clone(), &plan).await?;
    let client = cluster.client()?;
    let command = vec!["/bin/sleep".to_owned(), "1000".to_owned()];
    let spec = JobSpec { command, grace: Span::seconds(5), ..cluster.job("latency", 1) };
    let mut warm = Samples::default();
    for _ in 0..WARM_UP {
        sample(&client, &spec, &mut warm).await?;
    }
    let mut samples = Samples::default();
    for _ in 0..JOBS {
        sample(&client, &spec, &mut samples).await?;
    }
    let Samples { accepted, seen, stamped, ended } = samples;
    let (p50, p99) = (Goal::AtMost(50.0), Goal::AtMost(250.0));
    let figures = [
        percentiles("submit to its durable answer", &accepted, Goal::None, Goal::None),
        percentiles("submit to running, as a client sees it", &seen, p50, p99),
        percentiles("submit to running, by the coordinator's stamps", &stamped, p50, p99),
        percentiles("cancel to ended, as a client sees it", &ended, Goal::None, Goal::None),
    ];
    Ok(figures.into_iter().flatten().collect())
}

async fn sample(client: &Client, spec: &JobSpec, samples: &mut Samples) -> anyhow::Result<()> {
    let began = Instant::now();
    let job = client.submit(spec).await?;
    samples.accepted.push(began.elapsed());
    let view = running(client, job).await?;
    samples.seen.push(began.elapsed());
    let running_ms = view.attempts.last().and_then(|attempt| attempt.running_ms);
    let running_ms = running_ms.context("a running attempt says since when")?;
    samples.stamped.push(Duration::from_millis(running_ms.saturating_sub(view.submitted_ms)));
    let began = Instant::now();
    client.api().cancel(v1::CancelRequest { job: job.to_string() }).await?;
    client.job_ended(job, Duration::from_secs(30)).await?;
    samples.ended.push(began.elapsed());
    Ok(())
}
