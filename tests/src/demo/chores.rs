//! What people do to a cluster that is at work: drain a node, resume it, cancel a job.

use anyhow::Context;
use tidegate_model::AttemptId;
use tidegate_proto::v1;
use v1::NodeState;

use super::stage::{LATER, SOON, Stage};
use super::tally::Promise;
use crate::wait::until;

const REASON: &str = "demo: fan 3 is loud";

/// Drains the busiest node until something has begun elsewhere, then resumes it.
///
/// # Errors
/// If nothing begins elsewhere, or the node does not come back.
pub async fn drain_and_resume(stage: &mut Stage) -> anyhow::Result<()> {
    stage.feed().await?;
    let nodes = stage.client.nodes().await?;
    let busiest = nodes.iter().max_by_key(|node| node.tasks.len()).context("no nodes")?;
    let node = busiest.node.clone();
    let before = stage.picture().await?;
    let reason = REASON.to_owned();
    let request = v1::DrainRequest { node: node.clone(), reason, wanted_by_ms: None };
    let left = stage.client.api().drain(request).await?.into_inner().tasks_left;
    stage.screen.say(&format!("drained {node} ({REASON:?}): {left} tasks on it run on"));
    // Something that has to be placed now.
    if let Some(work) = stage.playbill.later() {
        stage.submit(work).await?;
    }
    let drained = seen(stage, &node).await?;
    let since = drained.since_ms.context("a drain without a start")?;
    let mut wrong = Vec::new();
    let draining = matches!(drained.state(), NodeState::Draining | NodeState::Drained);
    if !draining || drained.reason != REASON {
        wrong.push(format!("{node} is {:?} for {:?}", drained.state(), drained.reason));
    }
    let elsewhere = until(LATER, "work to begin on another node", async || {
        let views = stage.client.jobs().await.map_err(|status| status.to_string())?;
        let mut begun = begun_since(&views, since);
        begun.next().map(|attempt| attempt.attempt.clone()).ok_or_else(|| "none".to_owned())
    });
    let elsewhere = elsewhere.await?;
    let views = stage.client.jobs().await?;
    let on_it = begun_since(&views, since)
        .filter(|attempt| attempt.tasks.iter().any(|task| task.node == node));
    wrong.extend(on_it.map(|attempt| format!("{} was placed on {node}", attempt.attempt)));
    stage.tally.note(Promise::DrainKeepsWork, wrong);
    stage.explained.broken.extend(withdrawn(&views, &node)?);
    let untouched = stage.check_untouched(&before, Promise::DrainKeepsWork).await?;
    stage.client.api().resume(v1::ResumeRequest { node: node.clone() }).await?;
    until(SOON, &format!("{node} to take work again"), async || {
        let state = seen(stage, &node).await.map_err(|error| format!("{error:#}"))?.state();
        if state == NodeState::Ready { Ok(()) } else { Err(format!("{state:?}")) }
    })
    .await?;
    stage
        .screen
        .say(&format!("resumed {node}; meanwhile {elsewhere} began elsewhere; {untouched}"));
    Ok(())
}

/// Cancels the job that takes no notice of TERM: it is killed after its grace.
///
/// # Errors
/// If it does not run first, or does not end.
pub async fn cancel(stage: &mut Stage) -> anyhow::Result<()> {
    let attempt = stage.stubborn_runs().await?;
    let before = stage.picture().await?;
    stage.cancel(attempt.job).await?;
    stage.check_cancelled(attempt.job).await?;
    let untouched = stage.check_untouched(&before, Promise::CancelLeavesNothing).await?;
    stage.screen.say(&format!(
        "cancelled {}, which takes no notice of TERM: after its grace no process of it is left; \
         {untouched}",
        attempt.job
    ));
    Ok(())
}

async fn seen(stage: &Stage, node: &str) -> anyhow::Result<v1::NodeView> {
    let nodes = stage.client.nodes().await?;
    nodes.into_iter().find(|view| view.node == node).with_context(|| format!("{node} is gone"))
}

/// Attempts that were planned on the node and not granted yet when it was drained: nothing of them had
/// begun, and the job is placed elsewhere.
fn withdrawn(views: &[v1::JobView], node: &str) -> anyhow::Result<Vec<AttemptId>> {
    let attempts = views.iter().flat_map(|view| &view.attempts);
    let withdrawn = attempts.filter(|attempt| {
        let on_it = attempt.tasks.iter().any(|task| task.node == node);
        on_it && attempt.granted_ms.is_none() && attempt.ended_ms.is_some()
    });
    withdrawn.map(|attempt| attempt.attempt.parse().context("an attempt's id")).collect()
}

/// Attempts planned after an instant: those of the same millisecond may have been planned before.
fn begun_since(
    views: &[v1::JobView],
    since_ms: u64,
) -> impl Iterator<Item = &v1::AttemptView> + '_ {
    let attempts = views.iter().flat_map(|view| &view.attempts);
    attempts.filter(move |attempt| attempt.planned_ms > since_ms)
}
