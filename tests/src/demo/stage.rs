//! The cluster, its jobs and what is known of them: what the scenes of the demo share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::{Context, ensure};
use tidegate_model::{AttemptId, JobId};
use tidegate_proto::v1;
use v1::AttemptState;

use super::blows::Random;
use super::census::{Watchman, census};
use super::judge::{self, Explained, Jobs, Picture, Verdict, compare};
use super::screen::Screen;
use super::tally::{Promise, Tally, counted};
use super::workload::{Manner, Playbill, References, Work};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::wait::until;

/// Jobs that wait while kills are still to come: so that something begins often.
const QUEUE: usize = 3;
/// Jobs that never end by themselves, at once.
const STUBBORN: usize = 3;
/// For an answer of a coordinator that is there.
pub const SOON: Duration = Duration::from_secs(20);
/// For what takes a place in the queue first.
pub const LATER: Duration = Duration::from_secs(45);

/// What the scenes share.
#[derive(Debug)]
pub struct Stage {
    /// Its processes.
    pub cluster: Cluster,
    /// Of its API.
    pub client: Client,
    /// Where it is told.
    pub screen: Screen,
    /// Chooses victims and moments.
    pub random: Random,
    /// What is submitted next.
    pub playbill: Playbill,
    /// Every job that was accepted.
    pub works: BTreeMap<JobId, Work>,
    /// Jobs that are there to be cancelled, the next one first.
    pub stubborn: VecDeque<JobId>,
    /// How many more are to be cancelled.
    pub to_cancel: usize,
    /// The ends that the demo itself has brought about.
    pub explained: Explained,
    /// What was found.
    pub tally: Tally,
    /// What the jobs should end with.
    pub references: References,
    /// Looks for ranks that run twice.
    pub watchman: Watchman,
}

impl Stage {
    /// Around a cluster that is ready.
    ///
    /// # Errors
    /// If it has no API.
    pub fn new(cluster: Cluster, screen: Screen, seed: u64) -> anyhow::Result<Self> {
        Ok(Self {
            client: cluster.client()?,
            screen,
            random: Random::new(seed),
            playbill: Playbill::new(seed),
            works: BTreeMap::new(),
            stubborn: VecDeque::new(),
            to_cancel: 0,
            explained: Explained::default(),
            tally: Tally::default(),
            references: References::by(cluster.binaries().path("trainer")),
            watchman: Watchman::on_watch(cluster.dir().to_owned()),
            cluster,
        })
    }

    /// Submits a job and notes it.
    ///
    /// # Errors
    /// If it is not accepted.
    pub async fn submit(&mut self, work: Work) -> anyhow::Result<JobId> {
        let job = self.client.submit(&work.spec(&self.cluster)).await?;
        self.accepted(job, work)?;
        Ok(job)
    }

    /// Notes a job that was accepted.
    ///
    /// # Errors
    /// If no digest can be computed for it.
    pub fn accepted(&mut self, job: JobId, work: Work) -> anyhow::Result<()> {
        if work.manner != Manner::Stubborn {
            self.references.ask(&work.recipe)?;
        }
        self.works.insert(job, work);
        Ok(())
    }

    /// Submits more until a few jobs wait.
    ///
    /// # Errors
    /// If one is not accepted.
    pub async fn feed(&mut self) -> anyhow::Result<()> {
        let views = self.client.jobs().await?;
        let waiting = views.iter().filter(|job| job.state() == v1::JobState::Pending).count();
        for _ in waiting..QUEUE {
            let Some(work) = self.playbill.later() else { break };
            self.submit(work).await?;
        }
        self.feed_stubborn().await
    }

    /// Submits jobs that are there to be cancelled: each takes a GPU for good.
    ///
    /// # Errors
    /// If one is not accepted.
    pub async fn feed_stubborn(&mut self) -> anyhow::Result<()> {
        while self.stubborn.len() < self.to_cancel.min(STUBBORN) {
            let work = self.playbill.stubborn();
            let job = self.submit(work).await?;
            self.stubborn.push_back(job);
        }
        Ok(())
    }

    /// All jobs as the API shows them.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn jobs(&self) -> anyhow::Result<Jobs> {
        judge::parsed(&self.client.jobs().await?)
    }

    /// Jobs and processes as they are now.
    ///
    /// # Errors
    /// If the API does not answer.
    pub async fn picture(&self) -> anyhow::Result<Picture> {
        // The processes last: what begins in between is no process that vanishes later.
        let jobs = self.jobs().await?;
        Ok(Picture { jobs, members: census(self.cluster.dir()) })
    }

    /// Notes whether the work is untouched but for what the demo has ended itself, and says how
    /// many of its processes are still the same ones. Waits for attempts that are just finishing.
    ///
    /// # Errors
    /// If the API does not answer, or an attempt neither goes on nor ends.
    pub async fn check_untouched(
        &mut self,
        before: &Picture,
        promise: Promise,
    ) -> anyhow::Result<String> {
        let looked = until(SOON, "attempts that lost a process to end", async || {
            let after = self.picture().await.map_err(|error| format!("{error:#}"))?;
            let verdict = compare(before, &after, &self.explained);
            if verdict.undecided.is_empty() { Ok(verdict) } else { Err(listed(&verdict.undecided)) }
        });
        let Verdict { wrong, untouched, undecided: _ } = looked.await?;
        wrong.iter().for_each(|how| self.screen.say(&format!("BROKEN: {how}")));
        self.tally.note(promise, wrong);
        let processes: u32 = untouched.values().sum();
        let gangs = u32::try_from(untouched.len())?;
        let (processes, gangs) = (counted(processes, "process"), counted(gangs, "gang"));
        Ok(format!("{processes} of {gangs} untouched"))
    }

    /// The attempt of the job to be cancelled next, once it runs.
    ///
    /// # Errors
    /// If it does not.
    pub async fn stubborn_runs(&self) -> anyhow::Result<AttemptId> {
        let job = *self.stubborn.front().context("no job to be cancelled")?;
        let view = self.client.job_until(job, LATER, "runs", |view| {
            view.attempts.last().is_some_and(|newest| newest.state() == AttemptState::Running)
        });
        let view = view.await?;
        Ok(view.attempts.last().context("no attempt")?.attempt.parse()?)
    }

    /// A new job that leaves processes behind: its attempt, once it has saved.
    ///
    /// # Errors
    /// If it does not.
    pub async fn straying_runs(&mut self) -> anyhow::Result<AttemptId> {
        let work = self.playbill.straying();
        let checkpoints = work.checkpoints(&self.cluster);
        let job = self.submit(work).await?;
        let what = format!("{job} to save");
        let saved = until(LATER, &what, async || {
            checkpoints.newest_save().ok_or_else(|| "no save".to_owned())
        });
        saved.await?;
        let view = self.client.job(job).await?;
        Ok(view.attempts.last().context("no attempt")?.attempt.parse()?)
    }

    /// Cancels a job; its end is no surprise from then on.
    ///
    /// # Errors
    /// If it has ended already.
    pub async fn cancel(&mut self, job: JobId) -> anyhow::Result<()> {
        let request = v1::CancelRequest { job: job.to_string() };
        let reply = self.client.api().cancel(request).await?.into_inner();
        ensure!(!reply.already_ended, "{job} had ended before it was cancelled");
        self.explained.cancelled.insert(job);
        self.stubborn.retain(|stubborn| *stubborn != job);
        self.to_cancel = self.to_cancel.saturating_sub(1);
        Ok(())
    }

    /// Waits until a cancelled job has ended and notes whether anything of it is left.
    ///
    /// # Errors
    /// If it does not end.
    pub async fn check_cancelled(&mut self, job: JobId) -> anyhow::Result<()> {
        let view = self.client.job_ended(job, SOON).await?;
        let tasks = view.attempts.iter().flat_map(|attempt| &attempt.tasks);
        let left = tasks.flat_map(|task| self.cluster.task_processes(&task.task));
        let left = left.map(|(pid, command)| format!("pid {pid} of {job} is left: {command}"));
        let mut wrong: Vec<_> = left.collect();
        if view.state() != v1::JobState::Cancelled {
            wrong.push(format!("{job} was cancelled and ended {:?}", view.state()));
        }
        self.tally.note(Promise::CancelLeavesNothing, wrong);
        Ok(())
    }
}

fn listed(attempts: &BTreeSet<AttemptId>) -> String {
    attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
