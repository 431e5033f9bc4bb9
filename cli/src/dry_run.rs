//! `--dry-run`: what would happen to a job if it were submitted now.

use serde::Serialize;
use tidegate_model::JobSpec;
use tidegate_proto::v1;

use crate::connect::Api;
use crate::exit::Failure;
use crate::jobs::broken;
use crate::show::out::{json, say};
use crate::show::{table, time};
use crate::view::dry_run::DryRun;
use crate::view::warning::{MinRuntime, Warning};

/// Tells what several min runtimes would bring. Nothing is submitted.
///
/// # Errors
/// If the job would be refused as it asks, or the coordinator does not answer.
pub(crate) async fn dry_run(
    api: &Api,
    spec: JobSpec,
    min_runtime: MinRuntime,
    as_json: bool,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Runs {
        runs: Vec<DryRun>,
        warnings: Vec<Warning>,
    }
    let asked = spec.min_runtime;
    let request = v1::DryRunRequest { spec: Some(spec.into()) };
    let reply = api.read(async |mut client| client.dry_run(request.clone()).await).await?;
    let warnings = min_runtime.worth_saying(reply.warnings);
    let runs = reply.runs.into_iter().map(|run| DryRun::read(run, asked));
    let runs: Vec<_> = runs.collect::<Result<_, _>>().map_err(|error| broken(&error))?;
    let refused = runs.iter().find(|run| run.own).and_then(|run| run.refused.clone());
    if as_json {
        json(&Runs { runs, warnings })?;
    } else {
        say(&table::dry_runs(&runs, time::now()))?;
        warnings.iter().for_each(Warning::remark);
    }
    refused.map_or(Ok(()), |why| Err(Failure::refused(why)))
}
