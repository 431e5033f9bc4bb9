//! Nodes and jobs of a virtual cluster, as plain as they can be.

use tidegate_model::{
    AccountPath, Bytes, CheckpointOffer, Gpu, GpuCount, JobSpec, NodeFacts, NodeName, SaveSignal,
    SaveTarget, Span, TaskLayout, WhileWaiting,
};

/// One node before it is part of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeForm {
    /// Its name.
    pub name: NodeName,
    /// How many GPUs it has.
    pub gpus: u32,
    /// Its block; empty = not labelled.
    pub block: String,
    /// The product its GPUs are; a GPU rule of the policy may name it.
    pub product: String,
}

/// What the node says of itself.
#[must_use]
pub fn facts(form: &NodeForm) -> NodeFacts {
    let gpu = |index| {
        let uuid = format!("GPU-{}-{index}", form.name).parse().ok()?;
        Some(Gpu { uuid, product: form.product.clone(), memory: Bytes(80 << 30) })
    };
    NodeFacts {
        boot_id: "boot".to_owned(),
        gpus: (0..form.gpus).filter_map(gpu).collect(),
        gpu_note: String::new(),
        address: form.name.to_string(),
        block: form.block.clone(),
        memory: Bytes(1 << 40),
        cpus: 64,
        only_user: None,
        closed: String::new(),
    }
}

/// A job of so many GPUs that can save, with a grace of five minutes and three restarts.
///
/// # Errors
/// Never but for a change of what storage names accept.
pub fn job_spec(account: AccountPath, gpus: GpuCount) -> Result<JobSpec, String> {
    let storage = "shared".parse().map_err(|error| format!("{error}"))?;
    let checkpoint = CheckpointOffer {
        asks_within: None,
        signal: Some(SaveSignal::Term),
        target: SaveTarget::Ranks,
        grace: Span::minutes(5),
        bytes: None,
        storage,
        saved_codes: vec![crate::agent::SAVED],
        rehearsal: None,
    };
    Ok(JobSpec { checkpoint: Some(checkpoint), ..plain_job(account, gpus) })
}

/// A job of so many GPUs that asks for nothing else: no protection, no way to save, three restarts. The
/// base of the jobs that tests and figures make.
#[must_use]
pub fn plain_job(account: AccountPath, gpus: GpuCount) -> JobSpec {
    JobSpec {
        name: "job".to_owned(),
        account,
        command: vec!["train".to_owned()],
        working_dir: "/w".to_owned(),
        env: Vec::new(),
        gpus,
        gpus_per_node: None,
        layout: TaskLayout::PerNode,
        min_runtime: Span::ZERO,
        grace: Span::seconds(30),
        max_restarts: 3,
        checkpoint_dir: None,
        log_cap: Bytes(1 << 20),
        gpu_type: None,
        max_blocks: None,
        own_order: 0,
        while_waiting: WhileWaiting::Free,
        checkpoint: None,
        after: Vec::new(),
        notify_url: None,
        pty: false,
        whole_cluster: false,
        array: None,
    }
}
