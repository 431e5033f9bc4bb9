//! `tidegate-demo`: a cluster of real processes with **simulated** GPUs is at work while its
//! processes are killed one after the other, and every promise is checked. In a second act another
//! one is shared by budgets.
//!
//! `blows` says what is killed when, `aim` finds the victim, `strike` kills and looks at the work,
//! `judge` compares, `census` watches the processes, `chores` drains and cancels, `finale` settles;
//! `sharing` is the second act.

pub mod aim;
pub mod blows;
pub mod census;
pub mod chores;
pub mod finale;
pub mod judge;
pub mod screen;
pub mod sharing;
pub mod stage;
pub mod strike;
pub mod tally;
pub mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::Signal;
use tidegate_proto::v1;

use crate::binaries::Binaries;
use crate::cluster::{Cluster, Plan, Role, node_name};
use crate::processes::{marked, signal};
use crate::wait::until;
use blows::{Blow, schedule};
use finale::Settled;
use screen::Screen;
use stage::{SOON, Stage};
use tally::{Ends, Figures, Tally, counted};

/// Nodes of the demo's cluster.
pub const NODES: usize = 4;
/// Simulated GPUs of one node.
const GPUS_PER_NODE: u32 = 8;
/// Simulated GPUs of all.
pub const GPUS: u32 = 32;
/// Marks the directory of a cluster that was kept.
const KEPT: &str = "kept-by-demo";
/// Looks for processes that are still there, 50 ms apart, when a kept cluster is ended.
const ENDING_LOOKS: u32 = 40;

/// What is asked of one run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Chooses victims and moments.
    pub seed: u64,
    /// Processes to be killed; five are one of each kind.
    pub kills: usize,
    /// Leave the cluster of the first act running.
    pub keep: bool,
    /// What is played.
    pub acts: Acts,
}

/// What is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Acts {
    /// Both acts.
    All,
    /// Processes are killed while the cluster works.
    Kills,
    /// The cluster is shared by budgets.
    Sharing,
}

/// Runs the demo and tells it on standard output. When it returns, or is dropped, every process
/// has ended, unless the cluster is kept.
///
/// # Errors
/// If something does not start or does not happen in time.
pub async fn run(options: &Options, screen: &Screen) -> anyhow::Result<Figures> {
    let (mut ends, mut tally) = (Ends::of_nothing(), Tally::default());
    let mut first_cluster = None;
    if options.acts != Acts::Sharing {
        let (came_to, settled) = kills(options, screen).await?;
        (ends, tally) = (came_to, settled.tally);
        // It ends here unless it is kept: two clusters at work are more than a small machine can do.
        first_cluster = Some(settled.cluster).filter(|_| options.keep);
    }
    let shared = match options.acts {
        Acts::Kills => None,
        Acts::All | Acts::Sharing => {
            Some(sharing::act(screen, options.seed, &mut tally, &mut ends).await)
        }
    };
    let took = screen.elapsed();
    tally.lines().iter().for_each(|line| screen.print(line));
    if let Some(cluster) = first_cluster {
        tell_how_to_look(screen, cluster)?;
    }
    let mut figures = Figures::of(&tally, &ends, options.seed, took);
    figures.sharing = shared.transpose()?;
    Ok(figures)
}

/// The first act.
async fn kills(options: &Options, screen: &Screen) -> anyhow::Result<(Ends, Settled)> {
    let cluster = begin(screen).await?;
    let mut stage = Stage::new(cluster, screen.clone(), options.seed)?;
    let following = screen.follow(stage.client.clone(), GPUS);
    let played = play(&mut stage, options).await;
    drop(following);
    screen.close();
    let views = match played {
        Ok(views) => views,
        Err(error) => {
            keep_logs(screen, stage.cluster.dir());
            if options.keep {
                tell_how_to_look(screen, stage.cluster)?;
            }
            return Err(error);
        }
    };
    let (ends, settled) = finale::settle(stage, &views)?;
    if !settled.tally.is_kept() {
        keep_logs(screen, settled.cluster.dir());
    }
    Ok((ends, settled))
}

async fn begin(screen: &Screen) -> anyhow::Result<Cluster> {
    screen.say(&format!(
        "starting a coordinator and {NODES} nodes with {GPUS_PER_NODE} SIMULATED GPUs each"
    ));
    let binaries = Binaries::beside_me()?;
    let mut plan = Plan::nodes(NODES, GPUS_PER_NODE);
    // Without a pause a broken gang keeps its turn; with one its GPUs go to the next in line, and
    // it waits for as long as those run.
    plan.policy = "restart_backoff = \"0\"".to_owned();
    let cluster = Cluster::start(binaries, &plan).await?;
    let told = |role| cluster.pid(role).map(|pid| pid.to_string()).unwrap_or_default();
    screen.say(&format!("they run in {}", cluster.dir().display()));
    screen.say(&format!("coordinator: pid {}", told(Role::Coordinator)));
    for node in 0..cluster.nodes() {
        let (starter, agent) = (told(Role::Starter(node)), told(Role::Agent(node)));
        screen.say(&format!("{}: starter pid {starter}, agent pid {agent}", node_name(node)));
    }
    Ok(cluster)
}

/// Everything from the first submit to the last job's end.
async fn play(stage: &mut Stage, options: &Options) -> anyhow::Result<Vec<v1::JobView>> {
    let blows = schedule(options.seed, options.kills);
    let stopping = blows.iter().filter(|blow| blow.wanted == v1::AttemptState::Stopping);
    // And one without a kill.
    stage.to_cancel = stopping.count().saturating_add(1);
    submit(stage).await?;
    let all = u32::try_from(blows.len()).unwrap_or(u32::MAX);
    stage.screen.say(&format!("{} to come (seed {})", counted(all, "kill"), options.seed));
    let mut blows = blows.into_iter().peekable();
    while let Some(blow) = blows.next() {
        let then = blows.next_if(Blow::follows_at_once);
        strike::strike(stage, blow, then).await?;
    }
    chores::drain_and_resume(stage).await?;
    chores::cancel(stage).await?;
    stage.screen.say("waiting for all jobs to end");
    finale::all_ended(&stage.client).await
}

/// More than fits at once: the rest waits.
async fn submit(stage: &mut Stage) -> anyhow::Result<()> {
    stage.feed_stubborn().await?;
    for work in stage.playbill.first() {
        stage.submit(work).await?;
    }
    let gpus: u32 = stage.works.values().map(|work| work.recipe.gpus).sum();
    stage.screen.say(&format!(
        "submitted {} jobs that ask for {gpus} GPUs together; there are {GPUS}",
        stage.works.len()
    ));
    until(SOON, "the nodes to be full", async || {
        let request = v1::StatusRequest {};
        let status = stage.client.api().status(request).await.map_err(|error| error.to_string())?;
        let idle = status.into_inner().gpus_idle;
        if idle == 0 { Ok(()) } else { Err(format!("{idle} GPUs are idle")) }
    })
    .await
    .context("the first jobs")
}

/// The cluster's directory goes with it; what its daemons said of a failure must not.
fn keep_logs(screen: &Screen, dir: &Path) {
    let kept = std::env::temp_dir().join(format!("tidegate-demo-logs-{}", std::process::id()));
    let copied = fs::create_dir_all(&kept).and_then(|()| {
        for entry in fs::read_dir(dir)?.flatten() {
            if entry.path().extension().is_some_and(|end| end == "log") {
                fs::copy(entry.path(), kept.join(entry.file_name()))?;
            }
        }
        Ok(())
    });
    match copied {
        Ok(()) => screen.say(&format!("the daemons' logs are kept in {}", kept.display())),
        Err(error) => screen.say(&format!("the daemons' logs could not be kept: {error}")),
    }
}

/// Ends a cluster that was kept, and removes its directory.
///
/// # Errors
/// If it is not the directory of such a cluster.
pub fn end(dir: &Path) -> anyhow::Result<()> {
    let dir = dir.canonicalize().with_context(|| dir.display().to_string())?;
    ensure!(dir.join(KEPT).is_file(), "{} holds no cluster that a demo has kept", dir.display());
    let mark = dir.display().to_string();
    // What is being started while it is looked for is found by the next look.
    for _ in 0..ENDING_LOOKS {
        let me = std::process::id();
        let found: Vec<_> = marked(&mark).into_iter().filter(|(pid, _)| *pid != me).collect();
        if found.is_empty() {
            break;
        }
        found.iter().for_each(|(pid, _)| drop(signal(*pid, Signal::SIGKILL)));
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::remove_dir_all(&dir).with_context(|| mark)
}

fn tell_how_to_look(screen: &Screen, cluster: Cluster) -> anyhow::Result<()> {
    fs::write(cluster.dir().join(KEPT), "")?;
    let tidegate = cluster.binaries().path("tidegate");
    let socket = cluster.socket();
    let dir: PathBuf = cluster.leave_running();
    screen.print(&format!(
        "\nThe cluster runs on, with simulated GPUs; nobody restarts its daemons now. To look at it:\n  \
         export TIDEGATE_API={}\n  {} jobs --all\nTo end it and remove its directory:\n  \
         {} demo --end {}",
        socket.display(),
        tidegate.display(),
        tidegate.display(),
        dir.display()
    ));
    Ok(())
}
