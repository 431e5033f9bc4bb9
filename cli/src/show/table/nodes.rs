//! Nodes and the cluster.

use tidegate_model::Timestamp;

use super::{Column, LEFT, MAX_JOBS_NAMED, RIGHT, or_dash, pairs, table};
use crate::show::text::counted;
use crate::show::time::rfc3339;
use crate::view::node::{Cluster, Node};

/// The list of nodes.
pub(crate) fn nodes(nodes: &[Node], now: Timestamp) -> String {
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
            node.note(now),
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

/// The nodes that take no new work, and why: as who drains them says, else as they say themselves.
pub(crate) fn reasons(nodes: &[Node]) -> String {
    const COLUMNS: [Column; 5] =
        [("REASON", LEFT), ("USER", LEFT), ("TIMESTAMP", LEFT), ("NODE", LEFT), ("EMPTY-BY", LEFT)];
    let instant = |ms: Option<u64>| ms.map(|ms| rfc3339(Timestamp(ms))).unwrap_or_default();
    let rows = nodes.iter().filter_map(|node| {
        let drain = node.drain.as_ref();
        let said = drain.map(|drain| &drain.reason).or(node.closed.as_ref())?;
        Some([
            said.clone(),
            or_dash(drain.and_then(|drain| drain.owner.clone()).unwrap_or_default()),
            or_dash(instant(drain.and_then(|drain| drain.since_ms))),
            node.node.clone(),
            or_dash(instant(drain.and_then(|drain| drain.empty_by_ms))),
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
