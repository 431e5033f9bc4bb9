//! Who submits what in the second act.

use tidegate_model::{CheckpointOffer, JobSpec, SaveSignal, Span, TaskLayout, WhileWaiting};

use super::super::workload::{Manner, Recipe, Work};
use crate::cluster::Cluster;
use crate::offer::offer;

/// Accounts and their millionths of the root's budget. The first exists already, with all of it.
pub const ACCOUNTS: [(&str, u32); 4] =
    [("default", 50_000), ("pretrain", 400_000), ("research", 400_000), ("debug", 100_000)];

/// Free jobs: together they fill the cluster.
const FREE: [(&str, &str); 8] = [
    ("free-a", "pretrain"),
    ("free-b", "research"),
    ("free-c", "pretrain"),
    ("free-d", "research"),
    ("free-e", "pretrain"),
    ("free-f", "research"),
    ("free-g", "pretrain"),
    ("free-h", "research"),
];
/// GPUs of one of them.
pub const FREE_GPUS: u32 = 2;
/// Three of four nodes: too many for a small job, and a node is left for free work.
pub const GANG_GPUS: u32 = 12;
/// Long enough for a second gang to come and for the coordinator to be killed and to return.
const FIRST_PROTECTED: Span = Span::seconds(7);
/// Less than the first's, so that it stays further below its budget than the first when it asks.
const SECOND_PROTECTED: Span = Span::seconds(4);
/// Nobody waits for the last two: they only need to be protected.
const SHORTLY_PROTECTED: Span = Span::seconds(2);
/// From the request to save to the end.
pub const GRACE: Span = Span::seconds(20);

/// A job and on whose account it runs.
#[derive(Debug, Clone)]
pub struct Role {
    /// What it trains.
    pub work: Work,
    account: &'static str,
    min_runtime: Span,
}

/// All jobs of the act.
#[derive(Debug)]
pub struct Cast {
    /// They fill the cluster.
    pub free: Vec<Role>,
    /// The funded gang that displaces free work.
    pub first: Role,
    /// The gang of another account that displaces the first.
    pub second: Role,
    /// The next of the first's account: it may not overtake the first.
    pub third: Role,
    /// A debug job.
    pub small: Role,
}

impl Cast {
    /// Jobs whose data depend on the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let role = |name: &str, account, (gpus, steps), layout, min_runtime| {
            // Jobs of one seed train alike where they are alike: that is no harm.
            let recipe = Recipe { steps, gpus, seed: seed.wrapping_mul(10_000).wrapping_add(7) };
            let work = Work { name: name.to_owned(), recipe, layout, manner: Manner::Plain };
            Role { work, account, min_runtime }
        };
        let (node, gpu) = (TaskLayout::PerNode, TaskLayout::PerGpu);
        let free = |(name, account)| role(name, account, (FREE_GPUS, 150), node, Span::ZERO);
        Self {
            free: FREE.into_iter().map(free).collect(),
            first: role("gang-1", "pretrain", (GANG_GPUS, 275), node, FIRST_PROTECTED),
            second: role("gang-2", "research", (GANG_GPUS, 125), gpu, SECOND_PROTECTED),
            third: role("gang-3", "pretrain", (GANG_GPUS, 25), node, SHORTLY_PROTECTED),
            small: role("debug", "debug", (1, 50), node, SHORTLY_PROTECTED),
        }
    }
}

impl Role {
    /// As it is submitted.
    ///
    /// # Errors
    /// If its account's name is none.
    pub fn spec(&self, cluster: &Cluster) -> anyhow::Result<JobSpec> {
        let offer = CheckpointOffer { signal: Some(SaveSignal::Usr1), ..offer(GRACE) };
        Ok(JobSpec {
            account: self.account.parse()?,
            min_runtime: self.min_runtime,
            checkpoint: Some(offer),
            // A gang that ran free while it waits would not show when its time begins.
            while_waiting: WhileWaiting::Wait,
            ..self.work.spec(cluster)
        })
    }
}
