//! The second act: a full cluster of **simulated** GPUs is shared by budgets, while the coordinator
//! is killed.
//!
//! `cast` says who submits what, `scenes` what happens in which order, `facts` what is kept of it
//! and read from the command line, `verdict` what the facts must say.

pub mod cast;
pub mod facts;
pub mod scenes;
pub mod verdict;

use std::collections::BTreeMap;

use anyhow::Context;
use tidegate_model::JobId;

use super::census::Watchman;
use super::finale;
use super::screen::Screen;
use super::tally::{Ends, Promise, Tally};
use super::workload::{References, Work};
use crate::binaries::Binaries;
use crate::client::Client;
use crate::cluster::{Cluster, Plan};
use cast::Cast;
use facts::{Facts, read_accounts, read_job};

/// Nodes of the cluster that is shared.
const NODES: usize = 4;
/// Simulated GPUs of one of them.
const GPUS_PER_NODE: u32 = 4;
/// Simulated GPUs of all.
pub const GPUS: u32 = 16;

/// Budgets are of a week and the act lasts for seconds, so what is usually a margin against noise
/// would decide everything: no slack, no headroom, no caps, and short spans.
const POLICY: &str = "restart_backoff = \"0\"\nslack = \"0 %\"\nheadroom = \"0 %\"\n\
                      gang_cap = \"100 %\"\nprotected_cap = \"100 %\"\nfree_grace = \"20s\"\n\
                      verify_limit = \"1s\"\npass_every = \"1s\"\ngate_width = 8\n";

/// What the scenes share.
#[derive(Debug)]
pub struct Sharing {
    cluster: Cluster,
    client: Client,
    screen: Screen,
    works: BTreeMap<JobId, Work>,
    references: References,
    watchman: Watchman,
}

/// Plays the act on a cluster of its own, which has ended when this returns, and notes what was
/// found.
///
/// # Errors
/// If something does not start or does not happen in time; the daemons' logs are kept then.
pub async fn act(
    screen: &Screen,
    seed: u64,
    tally: &mut Tally,
    ends: &mut Ends,
) -> anyhow::Result<Facts> {
    screen.say(&format!(
        "second act: a cluster of {NODES} nodes with {GPUS_PER_NODE} SIMULATED GPUs each is \
         shared by budgets"
    ));
    let mut plan = Plan::nodes(NODES, GPUS_PER_NODE);
    plan.policy = POLICY.to_owned();
    let cluster = Cluster::start(Binaries::beside_me()?, &plan).await?;
    let client = cluster.client()?;
    let mut sharing = Sharing {
        references: References::by(cluster.binaries().path("trainer")),
        watchman: Watchman::on_watch(cluster.dir().to_owned()),
        client,
        screen: screen.clone(),
        works: BTreeMap::new(),
        cluster,
    };
    let following = screen.follow(sharing.client.clone(), GPUS);
    let played = played(&mut sharing, &Cast::new(seed)).await;
    drop(following);
    screen.close();
    let facts = match played {
        Ok(facts) => facts,
        Err(error) => {
            super::keep_logs(screen, sharing.cluster.dir());
            return Err(error);
        }
    };
    let cluster = settle(sharing, &facts, (tally, ends))?;
    if !tally.is_kept() {
        super::keep_logs(screen, cluster.dir());
    }
    Ok(facts)
}

async fn played(sharing: &mut Sharing, cast: &Cast) -> anyhow::Result<Facts> {
    let met = scenes::play(sharing, cast).await?;
    finale::all_ended(&sharing.client).await?;
    let (tidegate, socket) =
        (sharing.cluster.binaries().path("tidegate"), sharing.cluster.socket());
    let ask = |job: JobId| read_job(&tidegate, &socket, job);
    let free = met.free.iter().map(|job| ask(*job)).collect::<anyhow::Result<_>>()?;
    Ok(Facts {
        gpus_simulated: true,
        gpus: GPUS,
        free,
        first: ask(met.first)?,
        second: ask(met.second)?,
        third: ask(met.third)?,
        small: ask(met.small)?,
        accounts: read_accounts(&tidegate, &socket)?,
        seen: met.seen,
        resumed_from: resumed_from(sharing, met.first),
    })
}

/// The step after which the first gang's second run began, as it noted itself.
fn resumed_from(sharing: &Sharing, job: JobId) -> Option<u64> {
    let begun = sharing.works.get(&job)?.checkpoints(&sharing.cluster).begun();
    begun.iter().find(|begun| begun.attempt == 2).map(|begun| begun.resumed_from)
}

/// Judges the facts and compares the digests; returns the cluster, which still runs.
fn settle(
    sharing: Sharing,
    facts: &Facts,
    (tally, ends): (&mut Tally, &mut Ends),
) -> anyhow::Result<Cluster> {
    let Sharing { cluster, screen, works, references, watchman, client: _ } = sharing;
    facts.lines().iter().for_each(|line| screen.say(line));
    for (promise, wrong) in verdict::judge(facts) {
        tally.note(promise, wrong);
    }
    let twice = watchman.report().twice();
    ends.run_twice = ends.run_twice.saturating_add(twice.len());
    tally.note(Promise::NoRankTwice, twice);
    let references = references.answers()?;
    let mut wrong = Vec::new();
    for (id, work) in &works {
        let view = facts.job(&id.to_string()).context("a job is gone")?;
        ends.attempts = ends.attempts.saturating_add(view.attempts.len());
        if view.state != "done" {
            wrong.push(format!("{id} ({}) ended {}", work.name, view.state));
            continue;
        }
        let (digest, reference) = finale::compared(work, &work.checkpoints(&cluster), &references)?;
        ends.digests = ends.digests.saturating_add(1);
        if digest != reference {
            ends.digests_equal = false;
            let name = &work.name;
            let how = format!("the digest of {id} ({name}) is {digest}, it should be {reference}");
            wrong.push(how);
        }
    }
    ends.jobs = ends.jobs.saturating_add(works.len());
    ends.lost = ends.lost.saturating_add(wrong.len());
    tally.note(Promise::JobsEndRight, wrong);
    Ok(cluster)
}
