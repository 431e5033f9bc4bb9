//! One kill: aim, hit, bring a daemon back, and look at what it did to the work.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;
use tidegate_model::AttemptId;
use tidegate_proto::v1;
use tokio::time::sleep;
use v1::AttemptState;

use super::aim::{Choice, Target};
use super::blows::{Blow, Kind};
use super::stage::{LATER, SOON, Stage};
use super::tally::{KillState, Promise};
use super::workload::Begun;
use crate::cluster::{Role, node_name};
use crate::processes::signal;
use crate::wait::until;

/// A daemon is away for so long, and for up to as long again: a service manager restarts one in
/// a tenth of a second, a person sees what runs on meanwhile.
const AWAY_MS: u64 = 300;
/// A running attempt is hit after a pause of up to this, so that the moments differ.
const MOMENTS_MS: u64 = 400;

/// Kills once, or twice if the second kill is to hit what the first leaves behind.
///
/// # Errors
/// If something does not come back.
pub async fn strike(stage: &mut Stage, blow: Blow, then: Option<Blow>) -> anyhow::Result<()> {
    stage.feed().await?;
    let special = if blow.wanted == AttemptState::Stopping {
        let attempt = stage.stubborn_runs().await?;
        stage.cancel(attempt.job).await?;
        Some(attempt)
    } else if then.is_some() {
        Some(stage.straying_runs().await?)
    } else {
        None
    };
    if blow.wanted == AttemptState::Running && special.is_none() {
        // Time alone: a moment is meant, no condition.
        sleep(Duration::from_millis(stage.random.below(MOMENTS_MS))).await;
    }
    let choice = Choice::of(blow, special);
    let (before, target) = stage.aim(blow, choice).await?;
    let save = newest_save(stage, &target);
    let mut hit = hit(stage, blow, &target)?;
    if let Some(daemon) = then {
        let next = stage.follow(&target, daemon.wanted).await?;
        let second = self::hit(stage, daemon, &next)?;
        hit = format!("{hit}, then {second}");
        return_of(stage, daemon.kind, &next).await?;
    } else if !matches!(blow.kind, Kind::Rank | Kind::Shim) {
        return_of(stage, blow.kind, &target).await?;
    }
    let went_on = check_carried_on(stage, &target, save).await?;
    let untouched = stage.check_untouched(&before, Promise::NothingElseStops).await?;
    stage.screen.say(&format!("killed {hit}; {went_on}; {untouched}"));
    Ok(())
}

/// The process is gone when this returns. Says what it was.
fn hit(stage: &mut Stage, blow: Blow, target: &Target) -> anyhow::Result<String> {
    let (role, node) = match blow.kind {
        Kind::Rank | Kind::Shim => (None, Some(target.node)),
        Kind::Starter => (Some(Role::Starter(target.node)), Some(target.node)),
        Kind::Agent => (Some(Role::Agent(target.node)), Some(target.node)),
        Kind::Coordinator => (Some(Role::Coordinator), None),
    };
    let at_ms = u64::try_from(stage.screen.elapsed().as_millis()).unwrap_or(u64::MAX);
    stage.tally.kills.push(KillState {
        kind: blow.kind,
        wanted: format!("{:?}", blow.wanted),
        state: format!("{:?}", target.state),
        attempt: target.attempt.to_string(),
        node: node.map(node_name),
        attempt_states: target.states.clone(),
        at_ms,
    });
    let pid = match role {
        Some(role) => {
            let pid = stage.cluster.pid(role).context("it does not run")?;
            stage.cluster.kill(role)?;
            pid
        }
        None => {
            let pid = target.pid.context("no process was found")?;
            if !stage.explained.cancelled.contains(&target.attempt.job) {
                stage.explained.broken.insert(target.attempt);
            }
            signal(pid, Signal::SIGKILL)?;
            pid
        }
    };
    let place = node.map(|node| format!(" on {}", node_name(node))).unwrap_or_default();
    let (noun, state) = (blow.kind.with_article(), format!("{:?}", target.state));
    Ok(format!("{noun}{place} (pid {pid}) while {} was {state}", target.attempt))
}

/// Starts a killed daemon again.
async fn return_of(stage: &mut Stage, kind: Kind, target: &Target) -> anyhow::Result<()> {
    let away = AWAY_MS.saturating_add(stage.random.below(AWAY_MS));
    let away = Duration::from_millis(away);
    match kind {
        Kind::Rank | Kind::Shim => Ok(()),
        Kind::Starter => {
            sleep(away).await;
            stage.cluster.start_role(Role::Starter(target.node))
        }
        Kind::Agent => {
            sleep(away).await;
            stage.cluster.start_role(Role::Agent(target.node))
        }
        Kind::Coordinator => return_of_coordinator(stage, away).await,
    }
}

/// A user submits meanwhile; the client repeats the submit, under its key, until it is answered.
async fn return_of_coordinator(stage: &mut Stage, away: Duration) -> anyhow::Result<()> {
    let nth = stage.tally.kills.len();
    let work = stage.playbill.while_away(nth);
    let (key, spec) = (ulid::Ulid::generate().to_string(), work.spec(&stage.cluster));
    let client = stage.client.clone();
    let cluster = &mut stage.cluster;
    let back = async {
        sleep(away).await;
        cluster.start_role(Role::Coordinator)?;
        cluster.ready(SOON).await
    };
    let (sent, back) = tokio::join!(client.submit_as(&key, &spec), back);
    back?;
    let (job, _) = sent?;
    let (again, repeated) = stage.client.submit_as(&key, &spec).await?;
    let views = stage.client.jobs().await?;
    let named = |view: &&v1::JobView| view.spec.as_ref().is_some_and(|s| s.name == work.name);
    let jobs = views.iter().filter(named).count();
    let once = again == job && repeated && jobs == 1;
    let told = format!("one key was answered {job} and {again}, and there are {jobs} such jobs");
    stage.tally.note(Promise::KeyIsOneJob, if once { vec![] } else { vec![told] });
    let missing = stage.works.iter().filter(|(id, work)| {
        let id = id.to_string();
        let name = |view: &v1::JobView| view.spec.as_ref().map(|spec| spec.name.clone());
        !views.iter().any(|view| view.job == id && name(view).as_ref() == Some(&work.name))
    });
    let missing: Vec<_> =
        missing.map(|(id, work)| format!("{id} ({}) is not there any more", work.name)).collect();
    stage.tally.note(Promise::JobsSurvive, missing);
    stage.accepted(job, work)
}

/// Waits until what was hit has gone on as it should, and says how.
async fn check_carried_on(
    stage: &mut Stage,
    target: &Target,
    save: Option<u64>,
) -> anyhow::Result<String> {
    let Target { attempt, .. } = target;
    if stage.explained.cancelled.contains(&attempt.job) {
        stage.check_cancelled(attempt.job).await?;
        return Ok(format!("{} ended cancelled", attempt.job));
    }
    if stage.explained.broken.contains(attempt) {
        return check_resumed(stage, *attempt, save.unwrap_or(0)).await;
    }
    let view = stage.client.job_until(attempt.job, LATER, "runs or has ended", |view| {
        let told = view.attempts.iter().find(|told| told.attempt == attempt.to_string());
        told.is_some_and(|told| told.running_ms.is_some() || told.ended_ms.is_some())
    });
    let view = view.await?;
    let newest = view.attempts.last().map(|newest| newest.attempt.clone()).unwrap_or_default();
    let wrong = (newest != attempt.to_string()).then(|| format!("{attempt} became {newest}"));
    stage.tally.note(Promise::WorkGoesOn, wrong.into_iter().collect());
    Ok(format!("{newest} went on"))
}

/// Of a gang whose rank or shim was killed: one more attempt, from the last save or a later one.
async fn check_resumed(stage: &mut Stage, broken: AttemptId, save: u64) -> anyhow::Result<String> {
    let work = stage.works.get(&broken.job).context("a job of the demo")?;
    let next = broken.number.saturating_add(1);
    let what = format!("{} to be restarted and resumed", broken.job);
    let resumed = until(LATER, &what, async || {
        let begun = work.checkpoints(&stage.cluster).begun();
        let found = begun.into_iter().find(|begun| begun.attempt == next);
        found.ok_or_else(|| "it has not begun again".to_owned())
    });
    let Begun { resumed_from, .. } = resumed.await?;
    let attempts = stage.client.job(broken.job).await?.attempts.len();
    let mut wrong = Vec::new();
    if resumed_from < save {
        wrong.push(format!("{} resumed from {resumed_from}, but had saved {save}", broken.job));
    }
    if attempts != usize::try_from(next)? {
        wrong.push(format!("{} has {attempts} attempts after the kill of {broken}", broken.job));
    }
    stage.tally.note(Promise::GangResumes, wrong);
    Ok(format!("{}.{next} resumed from step {resumed_from}", broken.job))
}

fn newest_save(stage: &Stage, target: &Target) -> Option<u64> {
    let work = stage.works.get(&target.attempt.job)?;
    work.checkpoints(&stage.cluster).newest_save()
}
