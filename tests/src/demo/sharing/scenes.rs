//! What happens in the second act, in order. Waits for conditions only.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use tidegate_model::JobId;
use tidegate_proto::v1;
use v1::AttemptState;
use v1::change_account_request::{Change, SetBudget};

use super::super::stage::{LATER, SOON};
use super::super::workload::Work;
use super::Sharing;
use super::cast::{ACCOUNTS, Cast, Role};
use super::facts::Seen;
use crate::cluster;
use crate::wait::until;

/// Who is who, and what was seen on the way.
#[derive(Debug)]
pub struct Met {
    /// The jobs that filled the cluster.
    pub free: Vec<JobId>,
    /// The gang that displaces them.
    pub first: JobId,
    /// The gang that displaces the first.
    pub second: JobId,
    /// The next of the first's account.
    pub third: JobId,
    /// The debug job.
    pub small: JobId,
    /// What will not be seen any more when all is over.
    pub seen: Seen,
}

/// Plays all scenes; most jobs are still under way when it returns.
///
/// # Errors
/// If something does not happen in time.
pub async fn play(sharing: &mut Sharing, cast: &Cast) -> anyhow::Result<Met> {
    let mut seen = Seen::default();
    open_accounts(sharing).await?;
    let free = fill(sharing, &cast.free).await?;
    let first = displace_free(sharing, &cast.first, &mut seen).await?;
    let second = wait_for_the_promise(sharing, cast, first, &mut seen).await?;
    // Behind the first in its account, and on the same GPUs.
    let third = sharing.submit(&cast.third).await?;
    kill_the_coordinator(sharing, &mut seen).await?;
    displace_the_first(sharing, first, second, &mut seen).await?;
    let small = debug(sharing, &cast.small, &mut seen).await?;
    sharing.screen.say("waiting for all jobs to end");
    Ok(Met { free, first, second, third, small, seen })
}

async fn open_accounts(sharing: &Sharing) -> anyhow::Result<()> {
    for (account, millionths) in ACCOUNTS {
        let size = v1::size::Size::ShareMillionths(millionths);
        let size = Some(v1::Size { size: Some(size) });
        let change = Change::Set(SetBudget { account: account.to_owned(), size, now: true });
        let request = v1::ChangeAccountRequest { change: Some(change) };
        sharing.client.api().change_account(request).await?;
    }
    let shares: Vec<_> = ACCOUNTS.map(|(name, part)| format!("{name} {}%", part / 10_000)).into();
    sharing.screen.say(&format!("budgets: {}", shares.join(", ")));
    Ok(())
}

/// Returns once all run, nothing is idle, and each has a commit to its name.
async fn fill(sharing: &mut Sharing, roles: &[Role]) -> anyhow::Result<Vec<JobId>> {
    let mut jobs = Vec::new();
    for role in roles {
        jobs.push(sharing.submit(role).await?);
    }
    for job in &jobs {
        let safe = |view: &v1::JobView| runs(view) && view.commit.is_some();
        sharing.client.job_until(*job, LATER, "runs and has committed", safe).await?;
    }
    let idle = sharing.full().await?;
    sharing.screen.say(&format!(
        "{} free jobs run and have committed; {idle} simulated GPUs are idle",
        jobs.len()
    ));
    Ok(jobs)
}

async fn displace_free(
    sharing: &mut Sharing,
    role: &Role,
    seen: &mut Seen,
) -> anyhow::Result<JobId> {
    let job = sharing.submit(role).await?;
    sharing.screen.say(&format!("{job}, a funded gang, is submitted to the full cluster"));
    let view = sharing.client.job_until(job, LATER, "runs", runs).await?;
    let promised = view.promised_until_ms.context("a funded gang runs without a promise")?;
    seen.promised_until_ms = promised;
    let now = newest(&view).and_then(|attempt| attempt.running_ms).unwrap_or(promised);
    sharing.screen.say(&format!(
        "free jobs have saved and left; {job} runs, and nothing displaces it for {}",
        seconds(promised.saturating_sub(now))
    ));
    Ok(job)
}

/// The second gang's account is further below its budget, and yet it waits.
async fn wait_for_the_promise(
    sharing: &mut Sharing,
    cast: &Cast,
    first: JobId,
    seen: &mut Seen,
) -> anyhow::Result<JobId> {
    let job = sharing.submit(&cast.second).await?;
    let what = format!("an explanation of {job}");
    let told = until(SOON, &what, async || {
        let request = v1::ExplainRequest { job: job.to_string(), at_ms: None };
        let told = sharing.client.api().explain(request).await;
        let told = told.map_err(|status| status.to_string())?.into_inner();
        // Between the submit and the first view with its turn there is no reason yet.
        if told.lines.is_empty() { Err(told.reason) } else { Ok(told) }
    });
    let told = told.await?;
    seen.said_reason.clone_from(&told.reason);
    seen.said_at_ms = told.numbers.get("at_ms").copied();
    sharing.screen.say(&format!(
        "{job} of another account waits for {first}: {}: {}",
        told.reason,
        told.lines.join("; ")
    ));
    Ok(job)
}

async fn kill_the_coordinator(sharing: &mut Sharing, seen: &mut Seen) -> anyhow::Result<()> {
    let before = sharing.status().await?.epoch;
    let role = cluster::Role::Coordinator;
    let pid = sharing.cluster.pid(role).context("no coordinator")?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    seen.killed_at_ms = u64::try_from(since.as_millis())?;
    sharing.cluster.kill(role)?;
    sharing.cluster.start_role(role)?;
    sharing.cluster.ready(SOON).await?;
    let after = sharing.status().await?.epoch;
    seen.epochs = (before, after);
    sharing.screen.say(&format!(
        "killed the coordinator (pid {pid}) with SIGKILL; it is back in epoch {after}"
    ));
    Ok(())
}

async fn displace_the_first(
    sharing: &Sharing,
    first: JobId,
    second: JobId,
    seen: &mut Seen,
) -> anyhow::Result<()> {
    let view = sharing.client.job_until(second, LATER, "runs", runs).await?;
    let now = newest(&view).and_then(|attempt| attempt.running_ms).unwrap_or(0);
    let left = sharing.client.job(first).await?;
    let why = newest(&left).and_then(|attempt| attempt.save.as_ref()).map(|save| save.why.clone());
    seen.committed_step = left.commit.as_ref().map(|commit| commit.step);
    sharing.screen.say(&format!(
        "{first} has saved step {} and left {} after its promise: {}; it is back in its place",
        seen.committed_step.unwrap_or(0),
        seconds(now.saturating_sub(seen.promised_until_ms)),
        why.unwrap_or_default()
    ));
    Ok(())
}

async fn debug(sharing: &mut Sharing, role: &Role, seen: &mut Seen) -> anyhow::Result<JobId> {
    seen.idle_before_small = sharing.full().await?;
    let job = sharing.submit(role).await?;
    let began = |view: &v1::JobView| newest(view).is_some_and(|one| one.running_ms.is_some());
    let view = sharing.client.job_until(job, LATER, "began", began).await?;
    let at = newest(&view).and_then(|attempt| attempt.running_ms).unwrap_or(0);
    sharing.screen.say(&format!(
        "{job}, a small debug job, runs {} after its submission to the full cluster",
        seconds(at.saturating_sub(view.submitted_ms))
    ));
    Ok(job)
}

impl Sharing {
    async fn submit(&mut self, role: &Role) -> anyhow::Result<JobId> {
        let job = self.client.submit(&role.spec(&self.cluster)?).await?;
        let Work { recipe, .. } = &role.work;
        self.references.ask(recipe)?;
        self.works.insert(job, role.work.clone());
        Ok(job)
    }

    async fn status(&self) -> anyhow::Result<v1::StatusReply> {
        Ok(self.client.api().status(v1::StatusRequest {}).await?.into_inner())
    }

    /// Waits until no GPU is idle.
    async fn full(&self) -> anyhow::Result<u32> {
        until(LATER, "the nodes to be full", async || {
            let idle = self.status().await.map_err(|error| error.to_string())?.gpus_idle;
            if idle == 0 { Ok(idle) } else { Err(format!("{idle} GPUs are idle")) }
        })
        .await
    }
}

fn newest(view: &v1::JobView) -> Option<&v1::AttemptView> {
    view.attempts.last()
}

fn runs(view: &v1::JobView) -> bool {
    newest(view).is_some_and(|attempt| attempt.state() == AttemptState::Running)
}

fn seconds(millis: u64) -> String {
    format!("{:.1} s", Duration::from_millis(millis).as_secs_f64())
}
