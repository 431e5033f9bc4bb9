//! Tables for people: no borders, columns two spaces apart, numbers to the right.

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};
use tidegate_model::Timestamp;

use crate::show::text::{counted, plain};
use crate::show::time::{age, ago, rfc3339, rounded};
use crate::view::job::{Attempt, Job};
use crate::view::node::{Cluster, Node};

/// A column's heading and how its cells are aligned.
type Column = (&'static str, CellAlignment);

const LEFT: CellAlignment = CellAlignment::Left;
const RIGHT: CellAlignment = CellAlignment::Right;

/// Most jobs of a node that a table names; more are counted.
const MAX_JOBS_NAMED: usize = 3;

/// The list of jobs.
pub(crate) fn jobs(jobs: &[Job], now: Timestamp) -> String {
    const COLUMNS: [Column; 10] = [
        ("JOB", LEFT),
        ("NAME", LEFT),
        ("USER", LEFT),
        ("ACCOUNT", LEFT),
        ("GPUS", RIGHT),
        ("MIN-RUNTIME", RIGHT),
        ("STATE", LEFT),
        ("ATTEMPT", LEFT),
        ("AGE", RIGHT),
        ("WHY", LEFT),
    ];
    let row = |job: &Job| {
        [
            job.job.to_string(),
            job.spec.name.clone(),
            job.user.clone(),
            job.spec.account.clone(),
            job.spec.gpus.to_string(),
            job.spec.min_runtime.to_string(),
            job.state.word().to_owned(),
            newest_attempt(job),
            age(job.submitted_ms, now),
            job.reason.clone(),
        ]
    };
    table(&COLUMNS, jobs.iter().map(row))
}

fn newest_attempt(job: &Job) -> String {
    let told = |attempt: &Attempt| format!("{} {}", attempt.attempt.number, attempt.state.word());
    job.newest().map_or_else(|| "-".to_owned(), told)
}

/// One job with its attempts and tasks.
pub(crate) fn job(job: &Job, now: Timestamp) -> String {
    let spec = &job.spec;
    let asked = match spec.gpus_per_node {
        Some(per_node) => format!("{}, {per_node} on each node", spec.gpus),
        None => spec.gpus.to_string(),
    };
    let mut facts = vec![
        ("job", job.job.to_string()),
        ("name", spec.name.clone()),
        ("state", job.state.word().to_owned()),
        ("why", job.reason.clone()),
        ("user", job.user.clone()),
        ("account", spec.account.clone()),
        ("GPUs", asked),
        ("tasks", spec.tasks.to_owned()),
        ("min runtime", spec.min_runtime.to_string()),
        ("grace", spec.grace.to_string()),
        ("restarts", format!("at most {}", spec.max_restarts)),
        ("command", argv(&spec.command)),
        ("directory", spec.working_dir.clone()),
    ];
    facts.extend(spec.checkpoint_dir.clone().map(|dir| ("checkpoints", dir)));
    facts.push(("submitted", ago(job.submitted_ms, now)));
    facts.extend(job.ended_ms.map(|at| ("ended", ago(at, now))));
    if job.cancel_requested && !job.state.is_ended() {
        facts.push(("cancel", "requested".to_owned()));
    }
    let mut text = pairs(facts);
    if !job.attempts.is_empty() {
        text.push_str("\n\n");
        text.push_str(&attempts(&job.attempts, now));
    }
    if let Some(newest) = job.newest().filter(|newest| !newest.tasks.is_empty()) {
        text.push_str("\n\n");
        text.push_str(&tasks(newest));
    }
    text
}

fn attempts(attempts: &[Attempt], now: Timestamp) -> String {
    const COLUMNS: [Column; 5] =
        [("ATTEMPT", LEFT), ("STATE", LEFT), ("PLANNED", RIGHT), ("RAN", RIGHT), ("WHY", LEFT)];
    let row = |attempt: &Attempt| {
        let ran = |start: Timestamp| rounded(attempt.ended_ms.unwrap_or(now).since(start));
        [
            attempt.attempt.to_string(),
            attempt.state.word().to_owned(),
            ago(attempt.planned_ms, now),
            attempt.running_ms.map_or_else(|| "-".to_owned(), ran),
            attempt.why.clone(),
        ]
    };
    table(&COLUMNS, attempts.iter().map(row))
}

fn tasks(attempt: &Attempt) -> String {
    const COLUMNS: [Column; 4] = [("TASK", LEFT), ("NODE", LEFT), ("GPUS", RIGHT), ("STATE", LEFT)];
    let rows = attempt.tasks.iter().map(|task| {
        [task.task.clone(), task.node.clone(), task.gpus.len().to_string(), task.state.clone()]
    });
    table(&COLUMNS, rows)
}

/// Arguments with quotes where their ends would not be seen. To be read, not to be run.
fn argv(command: &[String]) -> String {
    let clear = |word: &&String| {
        !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c == '"' || c == '\'')
    };
    let quoted = |word: &String| match Some(word).filter(clear) {
        Some(word) => word.clone(),
        None => format!("{word:?}"),
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// The list of nodes.
pub(crate) fn nodes(nodes: &[Node]) -> String {
    const COLUMNS: [Column; 7] = [
        ("NODE", LEFT),
        ("STATE", LEFT),
        ("GPUS", RIGHT),
        ("IDLE", RIGHT),
        ("JOBS", LEFT),
        ("BLOCK", LEFT),
        ("NOTE", LEFT),
    ];
    let row = |node: &Node| {
        [
            node.node.clone(),
            node.state.word().to_owned(),
            node.gpus.len().to_string(),
            node.gpus_idle.to_string(),
            or_dash(few(&node.jobs())),
            or_dash(node.block.clone()),
            node.note(),
        ]
    };
    table(&COLUMNS, nodes.iter().map(row))
}

fn few(jobs: &[String]) -> String {
    let named = jobs.iter().take(MAX_JOBS_NAMED).cloned().collect::<Vec<_>>().join(",");
    match jobs.len().saturating_sub(MAX_JOBS_NAMED) {
        0 => named,
        rest => format!("{named},+{rest}"),
    }
}

/// The nodes that somebody or something drains, and why.
pub(crate) fn reasons(nodes: &[Node]) -> String {
    const COLUMNS: [Column; 4] =
        [("REASON", LEFT), ("USER", LEFT), ("TIMESTAMP", LEFT), ("NODE", LEFT)];
    let rows = nodes.iter().filter_map(|node| {
        let drain = node.drain.as_ref()?;
        let since = drain.since_ms.map(|ms| rfc3339(Timestamp(ms)));
        Some([
            drain.reason.clone(),
            or_dash(drain.owner.clone().unwrap_or_default()),
            or_dash(since.unwrap_or_default()),
            node.node.clone(),
        ])
    });
    table(&COLUMNS, rows)
}

/// The cluster as a whole.
pub(crate) fn cluster(cluster: &Cluster) -> String {
    let new_work = match &cluster.closed {
        Some(why) => format!("answered \"unavailable\": {why}"),
        None => "accepted".to_owned(),
    };
    let Cluster { nodes, nodes_ready, gpus, gpus_idle, .. } = cluster;
    pairs(vec![
        ("cluster", cluster.cluster.clone()),
        ("coordinator", cluster.coordinator_version.clone()),
        ("epoch", cluster.epoch.to_string()),
        ("journal", counted(cluster.journal_seq, "record")),
        ("nodes", format!("{nodes_ready} of {nodes} ready")),
        ("GPUs", format!("{gpus_idle} of {gpus} idle")),
        ("jobs", format!("{} active, {} pending", cluster.jobs_active, cluster.jobs_pending)),
        ("new work", new_work),
    ])
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Names and values, one pair a line.
fn pairs(facts: Vec<(&'static str, String)>) -> String {
    let mut table = bare();
    for (name, value) in facts {
        table.add_row([name.to_owned(), plain(&value)]);
    }
    spaced(&mut table);
    table.trim_fmt()
}

fn table<const N: usize>(columns: &[Column; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = bare();
    table.set_header(columns.map(|(heading, _)| heading));
    for row in rows {
        table.add_row(row.map(|cell| plain(&cell)));
    }
    spaced(&mut table);
    for (column, (_, alignment)) in table.column_iter_mut().zip(columns) {
        column.set_cell_alignment(*alignment);
    }
    table.trim_fmt()
}

fn bare() -> Table {
    let mut table = Table::new();
    // A row stays one line, whatever the terminal's width: rows are searched with grep.
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn spaced(table: &mut Table) {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
}

#[cfg(test)]
mod tests;
