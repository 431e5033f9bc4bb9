//! `jobs`, `job`.

use serde::Serialize;
use tidegate_model::JobId;
use tidegate_proto::{WireError, v1};

use crate::args::{JobArgs, JobsArgs};
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::retry::Patience;
use crate::show::out::{json, say};
use crate::show::{table, time};
use crate::view::job::Job;
use crate::view::users::{Users, own_uid, uid};

/// Jobs asked for at once. Usual ones are 1 KiB, so a page stays far below the largest message;
/// where they are so large that it does not, fewer are asked for.
const PAGE: u32 = 500;

/// Lists jobs.
///
/// # Errors
/// If the coordinator does not answer, or `--user` names nobody.
pub(crate) async fn list(api: &Api, args: JobsArgs, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Jobs {
        jobs: Vec<Job>,
    }
    let of = match &args.user {
        Some(user) => Some(uid(user)?),
        None => args.mine.then(own_uid),
    };
    let jobs = all_pages(api, args.all, of).await?;
    if as_json { json(&Jobs { jobs }) } else { say(&table::jobs(&jobs, time::now())) }
}

async fn all_pages(api: &Api, ended: bool, of: Option<u32>) -> Result<Vec<Job>, Failure> {
    let mut users = Users::default();
    let mut jobs: Vec<Job> = Vec::new();
    let mut limit = PAGE;
    loop {
        let after = jobs.last().map(|job| job.job.to_string()).unwrap_or_default();
        let request = v1::ListJobsRequest { ended, uid: of, after, limit };
        let page = api.read(async |mut client| client.list_jobs(request.clone()).await).await;
        let page = match page {
            Ok(page) => page,
            // The reply is over the largest message.
            Err(failure) if failure.exit() == Exit::Refused && limit > 1 => {
                limit /= 2;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let seen = jobs.len();
        for job in page.jobs {
            jobs.push(Job::read(job, &mut users).map_err(|error| broken(&error))?);
        }
        // A page without a job would be asked for again for ever.
        if !page.more || jobs.len() == seen {
            return Ok(jobs);
        }
    }
}

/// Shows one job.
///
/// # Errors
/// If there is no such job, or the coordinator does not answer.
pub(crate) async fn show(api: &Api, args: &JobArgs, as_json: bool) -> Result<(), Failure> {
    let job = view(api, &Patience::of_reads(), args.job).await?;
    if as_json { json(&job) } else { say(&table::job(&job, time::now())) }
}

/// One job as it is now.
///
/// # Errors
/// As [`show`].
pub(crate) async fn view(api: &Api, patience: &Patience, job: JobId) -> Result<Job, Failure> {
    let request = v1::GetJobRequest { job: job.to_string() };
    let answer =
        api.ask(patience, async |mut client| client.get_job(request.clone()).await).await?;
    Job::read(answer.value, &mut Users::default()).map_err(|error| broken(&error))
}

/// A reply that is not what the protocol says.
pub(crate) fn broken(error: &WireError) -> Failure {
    Failure::new(Exit::Broken, format!("the coordinator's answer cannot be read: {error}"))
}
