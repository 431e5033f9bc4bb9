//! The end: what became of every job, in a table, in sentences and in figures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};
use tidegate_model::JobId;
use tidegate_proto::v1;

use super::judge::{self, Explained};
use super::stage::Stage;
use super::tally::{Ends, Promise};
use super::workload::{Checkpoints, Recipe, Work};
use crate::client::Client;
use crate::wait::until;

/// For all that is left to run when the last kill is done.
const LAST_JOBS: Duration = Duration::from_secs(90);

/// Waits until every job has ended.
///
/// # Errors
/// If one does not.
pub async fn all_ended(client: &Client) -> anyhow::Result<Vec<v1::JobView>> {
    until(LAST_JOBS, "every job to end", async || {
        let views = client.jobs().await.map_err(|status| status.to_string())?;
        let left = views.iter().filter(|view| view.ended_ms.is_none());
        let left: Vec<_> = left.map(|view| format!("{} {}", view.job, view.reason)).collect();
        if left.is_empty() { Ok(views) } else { Err(left.join("; ")) }
    })
    .await
}

/// Compares every job with what it should have come to, and prints the table.
///
/// # Errors
/// If the references cannot be computed.
pub fn settle(stage: Stage, views: &[v1::JobView]) -> anyhow::Result<(Ends, Settled)> {
    let Stage { cluster, screen, works, explained, mut tally, references, watchman, .. } = stage;
    let jobs = judge::parsed(views)?;
    let references = references.answers()?;
    let by_id: BTreeMap<JobId, &v1::JobView> =
        views.iter().filter_map(|view| Some((view.job.parse().ok()?, view))).collect();
    let mut table = table();
    let mut wrong_ends = Vec::new();
    let mut wrong_digests = 0_usize;
    let mut digests = 0_usize;
    let mut twice = watchman.report().twice();
    for (id, work) in &works {
        let checkpoints = work.checkpoints(&cluster);
        let view = by_id.get(id).copied();
        let end = judged(view, work, &checkpoints, &references, &explained);
        digests = digests.saturating_add(usize::from(end.compared));
        wrong_digests = wrong_digests.saturating_add(usize::from(end.digest_differs));
        wrong_ends.extend(end.wrong.iter().map(|how| format!("{id} ({}): {how}", work.name)));
        twice.extend(begun_twice(*id, &checkpoints));
        table.add_row(row(*id, work, view, &end));
    }
    let unasked = judge::unasked(&jobs, &explained);
    let ends = Ends {
        jobs: works.len(),
        attempts: jobs.values().map(Vec::len).sum(),
        unasked_stops: unasked.len(),
        lost: wrong_ends.len(),
        run_twice: twice.len(),
        digests,
        digests_equal: wrong_digests == 0,
    };
    tally.note(Promise::NothingElseStops, unasked);
    tally.note(Promise::NoRankTwice, twice);
    tally.note(Promise::JobsEndRight, wrong_ends);
    screen.print(&format!("\n{}\n", table.trim_fmt()));
    Ok((ends, Settled { cluster, tally }))
}

/// What is left of the stage.
#[derive(Debug)]
pub struct Settled {
    /// Still running.
    pub cluster: crate::cluster::Cluster,
    /// What was found, complete.
    pub tally: super::tally::Tally,
}

/// How one job has ended.
#[derive(Debug, Default)]
struct End {
    digest: String,
    compared: bool,
    digest_differs: bool,
    wrong: Option<String>,
}

fn judged(
    view: Option<&v1::JobView>,
    work: &Work,
    checkpoints: &Checkpoints,
    references: &BTreeMap<Recipe, anyhow::Result<String>>,
    explained: &Explained,
) -> End {
    let Some(view) = view else {
        return End { wrong: Some("it is not there any more".to_owned()), ..End::default() };
    };
    let cancelled = view.job.parse().is_ok_and(|id| explained.cancelled.contains(&id));
    let wanted = if cancelled { v1::JobState::Cancelled } else { v1::JobState::Done };
    if view.state() != wanted {
        let how = format!("it ended {:?}: {}", view.state(), view.reason);
        return End { wrong: Some(how), ..End::default() };
    }
    if cancelled {
        return End { digest: "-".to_owned(), ..End::default() };
    }
    match compared(work, checkpoints, references) {
        Ok((digest, reference)) if digest == reference => {
            End { digest: format!("{digest} equal"), compared: true, ..End::default() }
        }
        Ok((digest, reference)) => End {
            wrong: Some(format!("its digest is {digest}, undisturbed it is {reference}")),
            digest: format!("{digest} DIFFERS"),
            compared: true,
            digest_differs: true,
        },
        Err(error) => End { wrong: Some(format!("{error:#}")), ..End::default() },
    }
}

/// The digest that a job ended with, and that of an undisturbed run.
///
/// # Errors
/// If one of them is not there.
pub fn compared(
    work: &Work,
    checkpoints: &Checkpoints,
    references: &BTreeMap<Recipe, anyhow::Result<String>>,
) -> anyhow::Result<(String, String)> {
    let reference = references.get(&work.recipe).context("no reference was computed")?;
    let reference = reference.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
    Ok((checkpoints.digest()?, reference.clone()))
}

/// The trainer notes each start of its gang under the attempt's number: once.
fn begun_twice(job: JobId, checkpoints: &Checkpoints) -> Vec<String> {
    let mut once = BTreeSet::new();
    let begun = checkpoints.begun().into_iter();
    let twice = begun.filter(|begun| !once.insert(begun.attempt));
    twice.map(|begun| format!("the gang of {job}.{} was started twice", begun.attempt)).collect()
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["JOB", "NAME", "GPUS", "LAYOUT", "ATTEMPTS", "END", "DIGEST"]);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        // GPUS and ATTEMPTS are numbers.
        if matches!(at, 2 | 4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn row(id: JobId, work: &Work, view: Option<&v1::JobView>, end: &End) -> [String; 7] {
    let attempts = view.map_or(0, |view| view.attempts.len());
    let state = view.map_or_else(|| "not there".to_owned(), |view| format!("{:?}", view.state()));
    [
        id.to_string(),
        work.name.clone(),
        work.recipe.gpus.to_string(),
        work.layout_word().to_owned(),
        attempts.to_string(),
        state.to_lowercase(),
        end.digest.clone(),
    ]
}
