//! Finding a victim in the wanted state, by looking at the API as fast as it answers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_model::{AttemptId, JobId, TaskId};
use tidegate_proto::v1;
use v1::AttemptState;

use super::blows::{Blow, Kind, Random};
use super::census::{census, of_attempt};
use super::judge::Picture;
use super::stage::{LATER, Stage};
use crate::wait::until_every;

/// Some attempts are in a state for a few milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long a state is awaited that comes by itself. If none comes, a running attempt is hit.
const PATIENCE: Duration = Duration::from_secs(10);
/// The work as it was before a kill is not older than this.
const FRESH: Duration = Duration::from_millis(500);
/// Steps that a victim still has to go, 2 s: it must not end by itself meanwhile.
const STEPS_LEFT: u64 = 50;

/// A larger gang may wait long until as many GPUs are idle together again.
const GPUS_BACK_SOON: u32 = 16;

/// What a kill is aimed at.
#[derive(Debug, Clone)]
pub struct Target {
    /// The attempt in the wanted state.
    pub attempt: AttemptId,
    /// One of its tasks.
    pub task: TaskId,
    /// Where that is, by the node's index.
    pub node: usize,
    /// The attempt's state, as the API told.
    pub state: AttemptState,
    /// How many attempts were in which state at that moment.
    pub states: BTreeMap<String, u32>,
    /// The rank or shim to be killed.
    pub pid: Option<u32>,
}

/// What a victim must be besides its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Of any plain job.
    Any,
    /// Of a plain job, with a save and some way to go.
    WithSave,
    /// This attempt.
    Only(AttemptId),
}

impl Choice {
    /// For a blow; `special` is an attempt that was prepared for it.
    #[must_use]
    pub fn of(blow: Blow, special: Option<AttemptId>) -> Self {
        match (blow.kind, blow.wanted, special) {
            (_, _, Some(attempt)) => Self::Only(attempt),
            (Kind::Rank | Kind::Shim, AttemptState::Running, None) => Self::WithSave,
            _ => Self::Any,
        }
    }
}

impl Stage {
    /// Waits for a victim; if none is seen in time, takes a running one. With the work as it was
    /// shortly before.
    ///
    /// # Errors
    /// If there is none either.
    pub async fn aim(&mut self, blow: Blow, choice: Choice) -> anyhow::Result<(Picture, Target)> {
        let began = Instant::now();
        let Blow { kind, wanted } = blow;
        while began.elapsed() < PATIENCE {
            let before = self.picture().await?;
            if let Ok(target) = self.sight(kind, wanted, choice, FRESH).await {
                return Ok((before, target));
            }
            self.feed().await?;
        }
        let instead = match kind {
            Kind::Rank | Kind::Shim => Choice::WithSave,
            Kind::Starter | Kind::Agent | Kind::Coordinator => Choice::Any,
        };
        let before = self.picture().await?;
        Ok((before, self.sight(kind, AttemptState::Running, instead, LATER).await?))
    }

    async fn sight(
        &mut self,
        kind: Kind,
        wanted: AttemptState,
        choice: Choice,
        within: Duration,
    ) -> anyhow::Result<Target> {
        let what = format!("an attempt that is {wanted:?}");
        let mut random = self.random.clone();
        let found = until_every(LOOK_EVERY, within, &what, async || {
            let views = self.live().await.map_err(|status| status.to_string())?;
            let fit = |view: &&v1::JobView| self.fits(view, wanted, choice);
            let fitting: Vec<_> = views.iter().filter(fit).collect();
            let chosen = random.choose(&fitting).and_then(|view| view.attempts.last());
            let chosen = chosen.ok_or_else(|| format!("{:?}", states(&views)))?;
            let task = self.victim(chosen, kind, &mut random).ok_or("no process of it yet")?;
            target(chosen, task, &views).map_err(|error| format!("{error:#}"))
        });
        let found = found.await;
        self.random = random;
        found
    }

    /// Jobs that have not ended.
    async fn live(&self) -> Result<Vec<v1::JobView>, tonic::Status> {
        let request =
            v1::ListJobsRequest { ended: false, uid: None, after: String::new(), limit: 0 };
        Ok(self.client.api().list_jobs(request).await?.into_inner().jobs)
    }

    fn fits(&self, view: &v1::JobView, wanted: AttemptState, choice: Choice) -> bool {
        let Some(newest) = view.attempts.last().filter(|newest| newest.state() == wanted) else {
            return false;
        };
        let job = view.job.parse::<JobId>().ok();
        let Some(work) = job.and_then(|job| self.works.get(&job)) else { return false };
        let has_save = || {
            let saved = work.checkpoints(&self.cluster).newest_save();
            let goes_on =
                saved.is_some_and(|at| work.recipe.steps.saturating_sub(at) >= STEPS_LEFT);
            goes_on && work.recipe.gpus <= GPUS_BACK_SOON
        };
        match choice {
            Choice::Only(attempt) => newest.attempt == attempt.to_string(),
            Choice::Any => work.is_plain(),
            Choice::WithSave => work.is_plain() && has_save(),
        }
    }

    /// The task that is hit, and the process if it is one of the task's; none if there is none.
    fn victim(
        &self,
        chosen: &v1::AttemptView,
        kind: Kind,
        random: &mut Random,
    ) -> Option<(TaskId, Option<u32>)> {
        let attempt: AttemptId = chosen.attempt.parse().ok()?;
        let pids: Vec<(TaskId, Option<u32>)> = match kind {
            Kind::Starter | Kind::Agent | Kind::Coordinator => {
                // Where something has still to be done, if anywhere.
                let unfinished = chosen.tasks.iter().find(|task| task.state != "running");
                let task = unfinished.or_else(|| chosen.tasks.first())?;
                return Some((task.task.parse().ok()?, None));
            }
            Kind::Rank => {
                let members = census(self.cluster.dir());
                let ranks = of_attempt(&members, attempt).filter(|one| !one.part.launcher);
                ranks.map(|one| (one.part.task, Some(one.pid))).collect()
            }
            Kind::Shim => {
                let shims = self.cluster.shims().into_iter();
                let shims = shims.filter_map(|(pid, command)| {
                    let task: TaskId = command.trim().rsplit('/').next()?.parse().ok()?;
                    (task.attempt == attempt).then_some((task, Some(pid)))
                });
                shims.collect()
            }
        };
        random.choose(&pids).copied()
    }

    /// Waits until an attempt that was aimed at has reached another state, or has passed it and
    /// ended.
    ///
    /// # Errors
    /// If it does neither.
    pub async fn follow(&self, from: &Target, wanted: AttemptState) -> anyhow::Result<Target> {
        let Target { attempt, .. } = from;
        let what = format!("{attempt} to be {wanted:?}");
        let job = attempt.job;
        let state = until_every(LOOK_EVERY, PATIENCE, &what, async || {
            // One job is told faster than all.
            let view = self.client.job(job).await.map_err(|status| status.to_string())?;
            let told = view.attempts.iter().find(|told| told.attempt == attempt.to_string());
            let told = told.ok_or("it is not known")?;
            let state = told.state();
            let reached = state == wanted || told.ended_ms.is_some();
            if reached { Ok(state) } else { Err(format!("{state:?}")) }
        });
        let state = state.await?;
        let mut states = from.states.clone();
        if let Some(count) = states.get_mut(&format!("{:?}", from.state)) {
            *count = count.saturating_sub(1);
        }
        let count = states.entry(format!("{state:?}")).or_insert(0);
        *count = count.saturating_add(1);
        Ok(Target { state, states, pid: None, ..from.clone() })
    }
}

fn states(views: &[v1::JobView]) -> BTreeMap<String, u32> {
    let mut states = BTreeMap::new();
    for newest in views.iter().filter_map(|view| view.attempts.last()) {
        let count = states.entry(format!("{:?}", newest.state())).or_insert(0_u32);
        *count = count.saturating_add(1);
    }
    states
}

fn target(
    chosen: &v1::AttemptView,
    (task, pid): (TaskId, Option<u32>),
    views: &[v1::JobView],
) -> anyhow::Result<Target> {
    let name = task.to_string();
    let placed = chosen.tasks.iter().find(|placed| placed.task == name);
    let node = &placed.with_context(|| format!("{task} is no task of it"))?.node;
    let index = node.strip_prefix("node-").and_then(|index| index.parse().ok());
    Ok(Target {
        attempt: task.attempt,
        task,
        node: index.with_context(|| format!("{node} is no node of the demo"))?,
        state: chosen.state(),
        states: states(views),
        pid,
    })
}
