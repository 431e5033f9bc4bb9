//! `checkpoints`.

use tidegate_proto::v1;

use crate::args::JobArgs;
use crate::connect::Api;
use crate::exit::Failure;
use crate::jobs::broken;
use crate::show::out::{json, say};
use crate::show::{table, time};
use crate::view::checkpoints::Checkpoints;

/// Shows what is known of a job's checkpoints.
///
/// # Errors
/// If there is no such job, or the coordinator does not answer.
pub(crate) async fn list(api: &Api, args: &JobArgs, as_json: bool) -> Result<(), Failure> {
    let request = v1::ListCheckpointsRequest { job: args.job.to_string() };
    let ask =
        async |mut client: crate::connect::Client| client.list_checkpoints(request.clone()).await;
    let known = Checkpoints::read(api.read(ask).await?).map_err(|error| broken(&error))?;
    if as_json { json(&known) } else { say(&table::checkpoints(&known, time::now())) }
}
