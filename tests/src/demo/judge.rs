//! What a kill has done to the work it should not have touched. Pure: views and censuses in,
//! sentences out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use tidegate_model::{AttemptId, JobId};
use tidegate_proto::v1;
use v1::AttemptState;

use super::census::Member;

/// The jobs' attempts, parsed.
pub type Jobs = BTreeMap<JobId, Vec<Attempt>>;

/// One attempt as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Which.
    pub id: AttemptId,
    /// Where it is.
    pub state: AttemptState,
    /// How it ended, if somebody said.
    pub why: String,
}

impl Attempt {
    /// Whether it has not ended.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match self.state {
            AttemptState::Done
            | AttemptState::Failed
            | AttemptState::Unsaved
            | AttemptState::Lost
            | AttemptState::Saved
            | AttemptState::Unknown => false,
            AttemptState::Unspecified
            | AttemptState::Planned
            | AttemptState::Granted
            | AttemptState::Starting
            | AttemptState::Running
            | AttemptState::Paced
            | AttemptState::Saving
            | AttemptState::Stopping
            | AttemptState::Verifying => true,
        }
    }
}

/// Reads what the API says.
///
/// # Errors
/// If an id is none.
pub fn parsed(views: &[v1::JobView]) -> anyhow::Result<Jobs> {
    let attempts = |view: &v1::JobView| -> anyhow::Result<Vec<Attempt>> {
        let attempt = |view: &v1::AttemptView| {
            let id = view.attempt.parse().context("an attempt's id")?;
            Ok(Attempt { id, state: view.state(), why: view.why.clone() })
        };
        view.attempts.iter().map(attempt).collect()
    };
    let job = |view: &v1::JobView| Ok((view.job.parse().context("a job's id")?, attempts(view)?));
    views.iter().map(job).collect()
}

/// The ends that the demo itself has brought about.
#[derive(Debug, Default, Clone)]
pub struct Explained {
    /// Attempts whose rank or shim it has killed.
    pub broken: BTreeSet<AttemptId>,
    /// Jobs it has cancelled.
    pub cancelled: BTreeSet<JobId>,
}

impl Explained {
    /// Whether the attempt may end in another way than done.
    #[must_use]
    pub fn covers(&self, attempt: AttemptId) -> bool {
        self.broken.contains(&attempt) || self.cancelled.contains(&attempt.job)
    }
}

/// A cluster's work at one moment.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Of jobs that have not ended, and of others.
    pub jobs: Jobs,
    /// The tasks' processes.
    pub members: BTreeSet<Member>,
}

/// What became of the work.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What was stopped or started though nobody asked for it.
    pub wrong: Vec<String>,
    /// Attempts that have lost a process and have not ended: they may just be finishing.
    pub undecided: BTreeSet<AttemptId>,
    /// Processes that live on, the very same ones, by attempt.
    pub untouched: BTreeMap<AttemptId, u32>,
}

/// Compares the work before and after.
#[must_use]
pub fn compare(before: &Picture, after: &Picture, explained: &Explained) -> Verdict {
    let mut verdict = Verdict::default();
    let mut gone = BTreeSet::new();
    for member in &before.members {
        let attempt = member.part.task.attempt;
        if after.members.contains(member) {
            let count = verdict.untouched.entry(attempt).or_default();
            *count = count.saturating_add(1);
        } else {
            gone.insert(attempt);
        }
    }
    for attempt in gone.into_iter().filter(|attempt| !explained.covers(*attempt)) {
        let known = after.jobs.get(&attempt.job).into_iter().flatten();
        match known.clone().find(|known| known.id == attempt) {
            Some(known) if known.is_live() => {
                verdict.undecided.insert(attempt);
            }
            Some(known) if known.state == AttemptState::Done => {}
            Some(known) => verdict.wrong.push(format!("{attempt} was ended: {}", known.why)),
            None => verdict.wrong.push(format!("{attempt} is not known any more")),
        }
    }
    for (job, attempts) in &before.jobs {
        let Some(now) = after.jobs.get(job) else {
            verdict.wrong.push(format!("{job} is not known any more"));
            continue;
        };
        verdict.wrong.extend(extra_attempts(*job, attempts, now, explained));
    }
    verdict
}

/// A waiting job may have begun, and one whose attempt was broken on purpose may have begun
/// again.
fn extra_attempts(
    job: JobId,
    before: &[Attempt],
    after: &[Attempt],
    explained: &Explained,
) -> Option<String> {
    let waited = before.last().is_none_or(|newest| !newest.is_live());
    let broken = explained.broken.iter().filter(|attempt| attempt.job == job);
    let broken = broken.filter(|attempt| {
        let live = before.last().filter(|newest| newest.is_live());
        live.is_none_or(|live| attempt.number >= live.id.number)
    });
    let allowed = before.len().saturating_add(usize::from(waited)).saturating_add(broken.count());
    (after.len() > allowed)
        .then(|| format!("{job} has {} attempts; {allowed} were to be expected", after.len()))
}

/// At the end of a run: attempts that did not do what they were started for, and whose end
/// nothing explains.
#[must_use]
pub fn unasked(jobs: &Jobs, explained: &Explained) -> Vec<String> {
    let all = jobs.values().flatten();
    let ended = all.filter(|one| one.state != AttemptState::Done && !explained.covers(one.id));
    ended.map(|one| format!("{} ended {:?}: {}", one.id, one.state, one.why)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::census::Part;
    use super::*;

    /// `job-1.1 Running` and so on.
    fn jobs(lines: &[(&str, AttemptState)], waiting: &[u64]) -> Jobs {
        let mut jobs: Jobs = waiting.iter().map(|id| (JobId(*id), Vec::new())).collect();
        for (id, state) in lines {
            let id: AttemptId = id.parse().unwrap();
            let attempt = Attempt { id, state: *state, why: "of that".into() };
            jobs.entry(id.job).or_default().push(attempt);
        }
        jobs
    }

    fn members(tasks: &[(&str, u32)]) -> BTreeSet<Member> {
        let member = |(task, pid): &(&str, u32)| {
            let task = task.parse().unwrap();
            let part = Part { task, rank: "0".into(), launcher: false };
            Member { part, pid: *pid, start: 1 }
        };
        tasks.iter().map(member).collect()
    }

    const RUNNING: AttemptState = AttemptState::Running;
    const DONE: AttemptState = AttemptState::Done;
    const LOST: AttemptState = AttemptState::Lost;

    /// Attempts and, of their tasks, pids.
    type Work<'a> = (&'a [(&'a str, AttemptState)], &'a [(&'a str, u32)]);

    fn check(after: Work<'_>, broken: &[&str], expected: &[&str]) {
        let before = Picture {
            jobs: jobs(&[("job-1.1", RUNNING), ("job-2.1", RUNNING)], &[3]),
            members: members(&[("job-1.1.0", 11), ("job-2.1.0", 21)]),
        };
        let after = Picture { jobs: jobs(after.0, &[3]), members: members(after.1) };
        let broken = broken.iter().map(|id| id.parse().unwrap()).collect();
        let explained = Explained { broken, cancelled: BTreeSet::new() };
        assert_eq!(compare(&before, &after, &explained).wrong, expected);
    }

    #[test]
    fn what_runs_on_finishes_or_begins_is_right() {
        let same: Work<'_> = (
            &[("job-1.1", RUNNING), ("job-2.1", RUNNING)],
            &[("job-1.1.0", 11), ("job-2.1.0", 21)],
        );
        check(same, &[], &[]);
        let later: Work<'_> = (
            &[("job-1.1", DONE), ("job-2.1", RUNNING), ("job-3.1", RUNNING)],
            &[("job-2.1.0", 21), ("job-3.1.0", 31)],
        );
        check(later, &[], &[]);
    }

    #[test]
    fn a_stop_or_a_second_attempt_that_nothing_explains_is_wrong() {
        let lost: Work<'_> = (
            &[("job-1.1", LOST), ("job-1.2", RUNNING), ("job-2.1", RUNNING)],
            &[("job-1.2.0", 12), ("job-2.1.0", 21)],
        );
        let told = ["job-1.1 was ended: of that", "job-1 has 2 attempts; 1 were to be expected"];
        check(lost, &[], &told);
        check(lost, &["job-1.1"], &[]);
        check(lost, &["job-2.1"], &told);
    }

    #[test]
    fn a_process_gone_from_a_live_attempt_is_not_judged_yet() {
        let before = Picture {
            jobs: jobs(&[("job-1.1", RUNNING)], &[]),
            members: members(&[("job-1.1.0", 11)]),
        };
        let after = Picture { jobs: before.jobs.clone(), members: BTreeSet::new() };
        let verdict = compare(&before, &after, &Explained::default());
        assert_eq!(verdict.undecided, ["job-1.1".parse().unwrap()].into());
        assert!(verdict.wrong.is_empty());
    }

    #[test]
    fn an_end_is_unasked_unless_done_broken_or_cancelled() {
        let all = jobs(
            &[("job-1.1", LOST), ("job-1.2", DONE), ("job-2.1", LOST), ("job-3.1", LOST)],
            &[],
        );
        let explained =
            Explained { broken: ["job-1.1".parse().unwrap()].into(), cancelled: [JobId(2)].into() };
        assert_eq!(unasked(&all, &explained), ["job-3.1 ended Lost: of that"]);
    }
}
