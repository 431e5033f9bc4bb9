//! How exactly graces are kept, by jobs that use all of theirs: from the signal that asks a job to save
//! to TERM, and from TERM to the last it did before KILL.

use std::time::Duration;

use anyhow::{Context, ensure};
use tidegate_model::{CheckpointOffer, JobId, JobSpec, SaveSignal, Span};
use tidegate_proto::v1;

use super::HEARTBEAT;
use super::load::running;
use super::report::{Figure, Goal, percentiles};
use crate::binaries::Binaries;
use crate::client::Client;
use crate::cluster::{Cluster, Plan, node_name};
use crate::offer::offer;
use crate::wait::until;

/// Each with a job of its own; all are asked at once.
const AGENTS: usize = 32;

/// To save and leave; and from TERM to KILL.
const TO_SAVE: Span = Span::seconds(15);
const TO_STOP: Span = Span::seconds(5);

const STORAGE: &str = "shared";

/// It says when it is asked and when it is told to stop, heeds neither, and says all the time that it
/// is there: every hundredth of a second, without another process.
const HEEDLESS: &str = "trap 'echo asked $EPOCHREALTIME' USR1; trap 'echo told $EPOCHREALTIME' TERM; \
                        exec 3<> <(:); echo ready; \
                        while :; do read -t 0.01 -u 3; echo there $EPOCHREALTIME; done";

/// What one job said, in seconds since 1970.
#[derive(Debug)]
struct Said {
    asked: f64,
    told: f64,
    last: f64,
}

/// Measures.
///
/// # Errors
/// If something does not start or does not happen in time.
pub async fn measure(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    let plan = Plan {
        heartbeat: HEARTBEAT.to_owned(),
        policy: "free_grace = \"30m\"".to_owned(),
        ..Plan::nodes(AGENTS, 1)
    };
    let cluster = Cluster::start(binaries.clone(), &plan).await?;
    let client = cluster.client()?;
    let rule = v1::GateRule { writers: Some(1000), ..v1::GateRule::default() };
    client.set_gate(STORAGE, rule).await?;
    let mut jobs = Vec::new();
    for _ in 0..AGENTS {
        jobs.push(client.submit(&heedless(&cluster)).await?);
    }
    for job in &jobs {
        running(&client, *job).await?;
        until(Duration::from_secs(30), "a job to set its traps", async || {
            let said = client.output(*job, 1, 0).await.map_err(|error| error.to_string())?;
            if said.starts_with("ready") { Ok(()) } else { Err(said) }
        })
        .await?;
    }
    for node in 0..AGENTS {
        let (node, reason) = (node_name(node), "to measure graces".to_owned());
        client.api().drain(v1::DrainRequest { node, reason, wanted_by_ms: None }).await?;
    }
    let (mut saves, mut stops) = (Vec::new(), Vec::new());
    for job in jobs {
        let Said { asked, told, last } = said(&client, job).await?;
        saves.push(error(told - asked, TO_SAVE)?);
        stops.push(error(last - told, TO_STOP)?);
    }
    let most = Goal::AtMost(1000.0);
    let figures = [
        percentiles("error of a grace of 15 s to save, signal to TERM", &saves, most, most),
        percentiles("error of a grace of 5 s to stop, TERM to KILL", &stops, most, most),
    ];
    Ok(figures.into_iter().flatten().collect())
}

fn heedless(cluster: &Cluster) -> JobSpec {
    let command = ["/bin/bash", "-c", HEEDLESS].map(str::to_owned);
    JobSpec {
        command: command.to_vec(),
        grace: TO_STOP,
        checkpoint: Some(CheckpointOffer { signal: Some(SaveSignal::Usr1), ..offer(TO_SAVE) }),
        ..cluster.job("heedless", 1)
    }
}

/// What a job said, once it has been killed.
async fn said(client: &Client, job: JobId) -> anyhow::Result<Said> {
    let over = |view: &v1::JobView| {
        let first = view.attempts.first();
        first.is_some_and(|first| first.ended_ms.is_some())
    };
    client.job_until(job, Duration::from_secs(60), "has left", over).await?;
    let said = client.output(job, 1, 0).await?;
    let at = |line: &str| line.split(' ').nth(1).and_then(|at| at.parse::<f64>().ok());
    let of = |word: &str| said.lines().rev().find(|line| line.starts_with(word)).and_then(at);
    let find = |word: &str| of(word).with_context(|| format!("{job} never said {word:?}"));
    Ok(Said { asked: find("asked")?, told: find("told")?, last: find("there")? })
}

/// By how much it was too long or too short.
fn error(took: f64, grace: Span) -> anyhow::Result<Duration> {
    let error = (took - Duration::from(grace).as_secs_f64()).abs();
    ensure!(error.is_finite(), "{took} s is no time");
    Ok(Duration::from_secs_f64(error))
}
