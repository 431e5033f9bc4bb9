//! `park`, `release`, `elder`, `reservation drop`: what people change about a job that waits.

use serde::Serialize;
use tidegate_model::JobId;
use tidegate_proto::v1;

use crate::args::JobArgs;
use crate::connect::{Api, Client};
use crate::exit::Failure;
use crate::retry::Patience;
use crate::show::out::{json, say};

/// Keeps a job from starting.
///
/// # Errors
/// If there is no such job, it is not allowed, or the coordinator does not answer.
pub(crate) async fn park(api: &Api, args: &JobArgs, as_json: bool) -> Result<(), Failure> {
    let job = args.job;
    let changed = change(api, job, v1::JobChange::Park, as_json).await?;
    tell(as_json, changed, || {
        format!("{job} is parked; `tidegate release {job}` lets it start again")
    })
}

/// Lets a parked job start.
///
/// # Errors
/// As [`park`].
pub(crate) async fn release(api: &Api, args: &JobArgs, as_json: bool) -> Result<(), Failure> {
    let job = args.job;
    let changed = change(api, job, v1::JobChange::Release, as_json).await?;
    tell(as_json, changed, || format!("{job} is released: it waits for its turn"))
}

/// Lets a job become an elder that is too large to become one by itself.
///
/// # Errors
/// As [`park`].
pub(crate) async fn allow_elder(api: &Api, args: &JobArgs, as_json: bool) -> Result<(), Failure> {
    let job = args.job;
    let changed = change(api, job, v1::JobChange::AllowElder, as_json).await?;
    tell(as_json, changed, || format!("{job} may become its account's elder"))
}

/// Ends a firm reservation.
///
/// # Errors
/// As [`park`].
pub(crate) async fn drop_reservation(
    api: &Api,
    args: &JobArgs,
    as_json: bool,
) -> Result<(), Failure> {
    let job = args.job;
    let changed = change(api, job, v1::JobChange::DropReservation, as_json).await?;
    tell(as_json, changed, || format!("{job} has no firm reservation any more"))
}

/// Each change names an end state: it may be asked twice.
async fn change(
    api: &Api,
    job: JobId,
    change: v1::JobChange,
    as_json: bool,
) -> Result<bool, Failure> {
    #[derive(Serialize)]
    struct Changed {
        #[serde(serialize_with = "crate::view::as_text")]
        job: JobId,
        changed: bool,
    }
    let request = v1::ChangeJobRequest { job: job.to_string(), change: change.into() };
    let ask = async |mut client: Client| client.change_job(request.clone()).await;
    let answer = api.ask(&Patience::of_reads(), ask).await?;
    // That a repeated one was made is what was asked for: its first answer was lost.
    let changed = answer.value.changed || answer.tries > 1;
    if as_json {
        json(&Changed { job, changed })?;
    }
    Ok(changed)
}

fn tell(as_json: bool, changed: bool, words: impl FnOnce() -> String) -> Result<(), Failure> {
    let was_so = if changed { "" } else { " (it was so already)" };
    if as_json { Ok(()) } else { say(&format!("{}{was_so}", words())) }
}
