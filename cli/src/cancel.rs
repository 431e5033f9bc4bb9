//! `cancel`. It names an end state: whoever asks again, because an answer was lost, is told since
//! when it is so.

use serde::Serialize;
use tidegate_model::{JobId, Timestamp};
use tidegate_proto::v1;

use crate::args::CancelArgs;
use crate::connect::Api;
use crate::exit::Failure;
use crate::show::out::{json, remark, say};
use crate::show::time;
use crate::view::as_text;
use crate::view::state::{JobState, job_state};
use crate::view::users::Users;

/// What became of one job that was to be cancelled.
#[derive(Debug, Serialize)]
struct Cancelled {
    #[serde(serialize_with = "as_text")]
    job: JobId,
    /// What follows is null if it could not be cancelled.
    already_ended: Option<bool>,
    /// How it is now; null if the coordinator is older and does not say.
    state: Option<JobState>,
    ended_ms: Option<u64>,
    /// Since when and by whom it is cancelled.
    cancelled_ms: Option<u64>,
    cancelled_by: Option<String>,
    /// Why it could not be.
    error: Option<String>,
    #[serde(skip)]
    changed: bool,
}

/// Cancels every job that can be cancelled, whatever becomes of the others.
///
/// # Errors
/// The first failure, once all have been tried.
pub(crate) async fn cancel(api: &Api, args: CancelArgs, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Jobs {
        jobs: Vec<Cancelled>,
    }
    let (mut jobs, mut failures) = (Vec::new(), Vec::new());
    let mut users = Users::default();
    for job in args.jobs {
        let request = v1::CancelRequest { job: job.to_string() };
        let reply = api.read(async |mut client| client.cancel(request.clone()).await).await;
        let reply = reply.map_err(|failure| {
            let error = failure.to_string();
            failures.push(failure);
            error
        });
        jobs.push(Cancelled::read(job, reply, &mut users));
    }
    if as_json {
        json(&Jobs { jobs })?;
    } else {
        tell(&jobs)?;
    }
    match failures.into_iter().next() {
        None => Ok(()),
        Some(failure) => Err(failure),
    }
}

/// Cancels a job that the caller speaks of itself.
///
/// # Errors
/// If it cannot be.
pub(crate) async fn cancel_quietly(api: &Api, job: JobId) -> Result<(), Failure> {
    let request = v1::CancelRequest { job: job.to_string() };
    api.read(async |mut client| client.cancel(request.clone()).await).await.map(drop)
}

fn tell(jobs: &[Cancelled]) -> Result<(), Failure> {
    for one in jobs {
        match &one.error {
            None => say(&one.told(time::now()))?,
            // With one job, the failure itself is told at the end.
            Some(error) if jobs.len() > 1 => remark(&format!("{}: {error}", one.job)),
            Some(_) => {}
        }
    }
    Ok(())
}

impl Cancelled {
    fn read(job: JobId, reply: Result<v1::CancelReply, String>, users: &mut Users) -> Self {
        let (reply, error) = match reply {
            Ok(reply) => (Some(reply), None),
            Err(error) => (None, Some(error)),
        };
        let said = reply.filter(|reply| reply.state() != v1::JobState::Unspecified);
        let by = said.and_then(|said| said.cancelled_by_uid);
        Self {
            job,
            already_ended: reply.map(|reply| reply.already_ended),
            state: said.map(|said| job_state(said.state)),
            ended_ms: said.and_then(|said| said.ended_ms),
            cancelled_ms: said.and_then(|said| said.cancelled_ms),
            cancelled_by: by.map(|uid| users.name(uid)),
            error,
            changed: said.is_some_and(|said| said.changed),
        }
    }

    fn told(&self, now: Timestamp) -> String {
        let job = self.job;
        let since = |ms: Option<u64>| ms.map(|ms| time::ago(Timestamp(ms), now));
        let by = || {
            let when = since(self.cancelled_ms).map(|ago| format!(" {ago}")).unwrap_or_default();
            let by = self.cancelled_by.as_deref().unwrap_or("somebody");
            format!("{when} by {by}")
        };
        match (self.state, self.already_ended) {
            (Some(JobState::Cancelled), _) if !self.changed => {
                format!("{job} is cancelled already,{}", by())
            }
            (Some(JobState::Cancelled), _) => format!("{job} is cancelled"),
            (Some(state), Some(true)) => {
                let ago = since(self.ended_ms).map(|ago| format!(", {ago}")).unwrap_or_default();
                format!("{job} had already ended: {}{ago}", state.word())
            }
            (Some(_), _) if !self.changed => format!("{job} is being cancelled already,{}", by()),
            (None, Some(true)) => format!("{job} had already ended"),
            (_, _) => format!("{job} is being cancelled"),
        }
    }
}
