//! What is known of the second act: what was seen while it was played, and what the command line
//! says of jobs and accounts when all is over.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_model::JobId;

/// All of it, as it is judged and written for programs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// Always: there is no GPU in this demo.
    pub gpus_simulated: bool,
    /// How many there are of them.
    pub gpus: u32,
    /// The jobs that filled the cluster.
    pub free: Vec<Job>,
    /// The funded gang that displaced free work.
    pub first: Job,
    /// The gang that displaced the first.
    pub second: Job,
    /// The next of the first's account.
    pub third: Job,
    /// The debug job.
    pub small: Job,
    /// All accounts.
    pub accounts: Vec<Account>,
    /// What only could be seen on the way.
    pub seen: Seen,
    /// The step after which the first gang's second run began, as the gang itself noted.
    pub resumed_from: Option<u64>,
}

/// What was seen on the way.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Until when the first gang's time was promised.
    pub promised_until_ms: u64,
    /// What `explain` gave as the second gang's reason meanwhile, and for when.
    pub said_reason: String,
    /// The instant that it named.
    pub said_at_ms: Option<u64>,
    /// The coordinator's epochs before it was killed and after.
    pub epochs: (u64, u64),
    /// When it was killed, by the host's clock.
    pub killed_at_ms: u64,
    /// The step of the first gang's last commit when it had been displaced.
    pub committed_step: Option<u64>,
    /// GPUs that were idle when the debug job was submitted.
    pub idle_before_small: u32,
}

/// A job as `tidegate job --json` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub job: String,
    /// In one word.
    pub state: String,
    /// By the coordinator's clock.
    pub submitted_ms: u64,
    /// The path of the account that it is charged to.
    pub account: String,
    /// Of the whole gang.
    pub gpus: u32,
    /// Its runs.
    pub attempts: Vec<Attempt>,
}

/// One run of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Attempt {
    /// Its id.
    pub attempt: String,
    /// In one word.
    pub state: String,
    /// When its GPUs were chosen.
    pub planned_ms: u64,
    /// When its last task ran.
    pub running_ms: Option<u64>,
    /// When it was over.
    pub ended_ms: Option<u64>,
    /// When its last commit counted.
    pub committed_ms: Option<u64>,
    /// The request to save and leave.
    pub save: Option<Save>,
    /// GPU-time in microseconds, by how it stood.
    pub protected_gpu_us: i64,
    /// Past its min runtime.
    pub funded_gpu_us: i64,
    /// Charged to nobody.
    pub free_gpu_us: i64,
    /// What of the first two is not charged after all.
    pub excused_gpu_us: i64,
}

/// A request to save and leave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Save {
    /// When it was decided.
    pub at_ms: u64,
    /// Who has its GPUs, by which rule.
    pub why: String,
}

/// An account as `tidegate accounts --json` shows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Account {
    /// Its path.
    pub account: String,
    /// Whether jobs run under it.
    pub leaf: bool,
    /// In the last window: more than the demo.
    pub charged_gpu_us: i64,
    /// Had free.
    pub free_gpu_us: i64,
}

#[derive(Debug, Deserialize)]
struct Accounts {
    accounts: Vec<Account>,
}

impl Facts {
    /// Every job.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.free.iter().chain([&self.first, &self.second, &self.third, &self.small])
    }

    /// One of them.
    #[must_use]
    pub fn job(&self, id: &str) -> Option<&Job> {
        self.jobs().find(|job| job.job == id)
    }

    /// Runs of free jobs that had to leave for a run, in the words of the request.
    pub fn left_for<'facts>(
        &'facts self,
        run: &'facts str,
    ) -> impl Iterator<Item = &'facts Attempt> {
        let runs = self.free.iter().flat_map(|job| &job.attempts);
        runs.filter(move |attempt| attempt.save.as_ref().is_some_and(|save| save.is_for(run)))
    }

    /// Where the first gang went on, what every account was charged and what its jobs' runs add up
    /// to, for the screen.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |account: &Account| {
            let (had, excused) = self.recount(&account.account);
            format!(
                "{}: charged {} GPU-s and excused {}; its runs had {} inside the budget",
                account.account,
                seconds(account.charged_gpu_us),
                seconds(excused),
                seconds(had)
            )
        };
        let from = self.resumed_from.map_or_else(String::new, |step| {
            format!("{} went on from step {step}, in its second run", self.first.job)
        });
        let leaves = self.accounts.iter().filter(|account| account.leaf);
        [from].into_iter().chain(leaves.map(line)).filter(|line| !line.is_empty()).collect()
    }

    /// GPU-time inside the budget that the runs of an account's jobs had, and what of it is
    /// excused.
    #[must_use]
    pub fn recount(&self, account: &str) -> (i64, i64) {
        let jobs = self.jobs().filter(|job| job.account == account);
        jobs.flat_map(|job| &job.attempts).fold((0, 0), |(had, excused), one| {
            let more = one.protected_gpu_us.saturating_add(one.funded_gpu_us);
            // A free run that saved is excused too, of what nobody was charged.
            let less = one.excused_gpu_us.min(more);
            (had.saturating_add(more), excused.saturating_add(less))
        })
    }
}

/// Exact: a figure that is rounded shows no second charge of a millisecond.
fn seconds(gpu_us: i64) -> String {
    let micros = gpu_us.unsigned_abs();
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

impl Save {
    /// Whether it makes way for that run.
    #[must_use]
    pub fn is_for(&self, run: &str) -> bool {
        self.why.split_whitespace().next() == Some(run)
    }
}

/// Asks the command line for a job.
///
/// # Errors
/// If it fails, or says something else than is known here.
pub fn read_job(tidegate: &Path, socket: &Path, job: JobId) -> anyhow::Result<Job> {
    read(tidegate, socket, &["job", &job.to_string()])
}

/// Asks the command line for all accounts.
///
/// # Errors
/// If it fails, or says something else than is known here.
pub fn read_accounts(tidegate: &Path, socket: &Path) -> anyhow::Result<Vec<Account>> {
    let Accounts { accounts } = read(tidegate, socket, &["accounts"])?;
    Ok(accounts)
}

fn read<T: DeserializeOwned>(
    tidegate: &Path,
    socket: &Path,
    arguments: &[&str],
) -> anyhow::Result<T> {
    let mut command = Command::new(tidegate);
    command.args(arguments).arg("--json").env("TIDEGATE_API", socket);
    let output = command.output().with_context(|| tidegate.display().to_string())?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tidegate {}: {complaint}", arguments.join(" "));
    let told = String::from_utf8_lossy(&output.stdout);
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("tidegate {} said {told}", arguments.join(" ")))
}
