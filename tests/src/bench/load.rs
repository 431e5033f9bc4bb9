//! Many jobs from many clients at once.

use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_model::{JobId, JobSpec};
use tidegate_proto::v1;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::wait::until_every;

/// Clients, each with its own connection, that submit one job after the other.
pub const CLIENTS: u32 = 8;

/// Submits `jobs` times the same spec; answers how long each submit took.
///
/// # Errors
/// If one was refused, or the coordinator is away.
pub async fn submit(cluster: &Cluster, spec: &JobSpec, jobs: u32) -> anyhow::Result<Vec<Duration>> {
    let mut clients = JoinSet::new();
    for index in 0..CLIENTS {
        let client = cluster.client()?;
        let spec: v1::JobSpec = spec.clone().into();
        let more = u32::from(index < jobs % CLIENTS);
        clients.spawn(submit_in_turn(client, spec, (jobs / CLIENTS).saturating_add(more)));
    }
    let mut took = Vec::new();
    while let Some(client) = clients.join_next().await {
        took.extend(client??);
    }
    Ok(took)
}

async fn submit_in_turn(
    client: Client,
    spec: v1::JobSpec,
    jobs: u32,
) -> anyhow::Result<Vec<Duration>> {
    let mut api = client.api();
    let mut took = Vec::new();
    for _ in 0..jobs {
        let key = ulid::Ulid::generate().to_string();
        let request = v1::SubmitRequest { key, spec: Some(spec.clone()) };
        let began = Instant::now();
        api.submit(request).await.context("a submit")?;
        took.push(began.elapsed());
    }
    Ok(took)
}

/// Waits until no job is alive.
///
/// # Errors
/// If one still is in time.
pub async fn drained(client: &Client, within: Duration) -> anyhow::Result<()> {
    // Each look makes a view: not more often than 50 times a second.
    until_every(Duration::from_millis(20), within, "every job to end", async || {
        let status = status(client).await.map_err(|error| format!("{error:#}"))?;
        let left = status.jobs_pending.saturating_add(status.jobs_active);
        if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
    })
    .await
}

/// The cluster in numbers.
///
/// # Errors
/// If the coordinator is away.
pub async fn status(client: &Client) -> anyhow::Result<v1::StatusReply> {
    Ok(client.api().status(v1::StatusRequest {}).await?.into_inner())
}

/// Waits until the job runs. A look every millisecond: the wait itself is measured.
///
/// # Errors
/// If it does not in time.
pub async fn running(client: &Client, job: JobId) -> anyhow::Result<v1::JobView> {
    let within = Duration::from_secs(30);
    until_every(Duration::from_millis(1), within, "the job to run", async || {
        let view = client.job(job).await.map_err(|status| status.to_string())?;
        let last = view.attempts.last().map(v1::AttemptView::state);
        match last == Some(v1::AttemptState::Running) {
            true => Ok(view),
            false => Err(format!("{:?}: {}", view.state(), view.reason)),
        }
    })
    .await
}
