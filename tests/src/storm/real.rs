//! The storm on real storage: a coordinator, an agent for each job of the mix, training jobs that
//! write real checkpoints, and a target with a limit. Bytes and GPUs are scaled down; GPUs are
//! simulated.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use scheduler_core::Books;
use simulator::Observer;
use simulator::storm::{Arm, Figures, MIX, Storm, Victims};
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Journal, codec};
use tidegate_model::{
    AsksWithin, AttemptId, Bandwidth, Bytes, CheckpointOffer, DecisionSeq, GpuCount, JobSpec,
    MAX_GRACE, SaveSignal, Span, TaskLayout, Timestamp, WhileWaiting,
};
use tidegate_proto::v1;

use super::bystanders::Bystanders;
use super::joined;
use super::target::{Recorded, Recorder, Target};
use crate::binaries::Binaries;
use crate::cluster::{Cluster, Plan, Role, node_name};
use crate::offer::offer;
use crate::wait::{until, until_every};

/// A node has at most 128 GPUs, and each job of the mix has one node.
const GPU_SCALE: u32 = 8;

/// How long a storm may take.
const MOST: Duration = Duration::from_secs(540);

/// How long the target is looked at while nothing but bystanders write: for 500 of their files, and for
/// a small storm as long as that takes.
const IDLE: Duration = Duration::from_secs(35);
const IDLE_SMALL: Duration = Duration::from_secs(8);

const STORAGE: &str = "shared";

/// From when a trainer is told until it asks: a step of 20 ms, and what the word and the ask take on
/// their ways on a busy machine.
const ASKS_WITHIN: Span = Span(80);

/// Of attempts that were asked to leave and have not yet.
const LEAVES: [v1::AttemptState; 4] = [
    v1::AttemptState::Paced,
    v1::AttemptState::Saving,
    v1::AttemptState::Stopping,
    v1::AttemptState::Verifying,
];

/// What is played.
#[derive(Debug, Clone)]
pub struct Options {
    /// What is written to.
    pub target: Target,
    /// Bytes are divided by this.
    pub scale: u64,
    /// A tenth of the jobs.
    pub small: bool,
}

/// What a target does when no storm is.
#[derive(Debug, Clone)]
pub struct Calm {
    /// What it takes in a second.
    pub capacity: Bandwidth,
    /// What bystanders wait for it.
    pub bystanders: Vec<Duration>,
}

/// A storm on it.
#[derive(Debug)]
pub struct Played {
    /// Figures as the model's.
    pub figures: Figures,
    /// What bystanders waited meanwhile.
    pub bystanders: Vec<Duration>,
}

impl Calm {
    /// Four fifths of what was measured.
    #[must_use]
    pub fn cap(&self) -> Bandwidth {
        Bandwidth(self.capacity.0 / 5 * 4)
    }
}

/// Measures a target: what it takes when four write as fast as they can, and what bystanders wait when
/// nobody else writes.
///
/// # Errors
/// If it cannot be written.
pub fn measure(target: &Target, small: bool) -> anyhow::Result<Calm> {
    let recorder = Recorder::of(target.meter.clone());
    let writers: Vec<_> = (0..4)
        .map(|turn| target.directory(turn).join(format!("measure-{turn}")))
        .map(|path| std::thread::spawn(move || fill(&path)))
        .collect();
    for writer in writers {
        joined(writer)?;
    }
    let full = recorder.end()?;
    // The middle of what was seen: the first second and the last are not full.
    let mut seconds: Vec<u64> = full.seconds().collect();
    seconds.sort_unstable();
    let capacity = Bandwidth(seconds.get(seconds.len() / 2).copied().unwrap_or(0));
    ensure!(capacity.0 > 0, "nothing arrived at {}", target.name);
    let bystanders = Bystanders::on(target)?;
    std::thread::sleep(if small { IDLE_SMALL } else { IDLE });
    Ok(Calm { capacity, bystanders: bystanders.end()? })
}

/// Writes for eight seconds into a file that is gone when this ends, however it does.
fn fill(path: &std::path::Path) -> anyhow::Result<()> {
    let words = || path.display().to_string();
    let mut file = File::create(path).with_context(words)?;
    fs::remove_file(path).with_context(words)?;
    let (began, block) = (Instant::now(), vec![5; 1 << 18]);
    while began.elapsed() < Duration::from_secs(8) {
        file.write_all(&block).with_context(words)?;
        file.sync_data().with_context(words)?;
    }
    Ok(())
}

/// Plays one storm on a cluster of its own.
///
/// # Errors
/// If the cluster cannot be set up, or the storm is not over in time.
pub async fn play(
    binaries: Binaries,
    options: &Options,
    calm: &Calm,
    (arm, storm): (Arm, Storm),
) -> anyhow::Result<Played> {
    let mut play = Play::new(binaries, options).await?;
    play.limit(arm, calm.cap()).await?;
    play.submit_all(arm, &options.target).await?;
    let recorder = Recorder::of(options.target.meter.clone());
    let bystanders = Bystanders::on(&options.target)?;
    let gang = play.strike(storm).await?;
    let over = play.over(gang).await;
    let bystanders = bystanders.end()?;
    let recorded = recorder.end()?;
    over?;
    let figures = play.figures(calm.cap(), &recorded, gang)?;
    Ok(Played { figures, bystanders })
}

struct Play {
    cluster: Cluster,
    mix: Vec<(u32, Bytes)>,
    bytes: BTreeMap<AttemptId, Bytes>,
    began: Timestamp,
    name: String,
    /// Goes after the cluster that writes there.
    _written: Written,
}

/// GPUs and bytes of each job, scaled.
fn mix(options: &Options) -> Vec<(u32, Bytes)> {
    let jobs = |count: u32| if options.small { count.div_ceil(10) } else { count };
    let alike = MIX.iter().flat_map(|(count, gpus, gigabytes)| {
        let bytes = Bytes(gigabytes.saturating_mul(1_000_000_000) / options.scale.max(1));
        (0..jobs(*count)).map(move |_| (gpus / GPU_SCALE, bytes))
    });
    alike.collect()
}

impl Play {
    async fn new(binaries: Binaries, options: &Options) -> anyhow::Result<Self> {
        let mix = mix(options);
        let plan = Plan {
            gpus: mix.iter().map(|(gpus, _)| *gpus).collect(),
            policy: "gang_cap = \"100 %\"\nheadroom = \"0 %\"\nfree_grace = \"30m\"".to_owned(),
            networks: options.target.networks.clone(),
            ..Plan::nodes(0, 0)
        };
        let mut cluster = Cluster::stopped(binaries, &plan)?;
        cluster.start_all()?;
        cluster.ready(Duration::from_secs(120)).await?;
        let name = format!("storm-{}", std::process::id());
        let written = options.target.directories.iter().map(|directory| directory.join(&name));
        let written = Written(written.collect());
        Ok(Self {
            cluster,
            mix,
            bytes: BTreeMap::new(),
            began: Timestamp(0),
            name,
            _written: written,
        })
    }

    async fn limit(&self, arm: Arm, cap: Bandwidth) -> anyhow::Result<()> {
        let many = Some(10_000);
        let (cap_bytes_per_s, writers) = match arm {
            Arm::None => (None, many),
            Arm::One => (None, Some(1)),
            Arm::Fixed(writers) => (None, Some(writers)),
            Arm::Ours | Arm::Permits => (Some(cap.0), many),
        };
        let rule = v1::GateRule { cap_bytes_per_s, writers, ..v1::GateRule::default() };
        Ok(self.cluster.client()?.set_gate(STORAGE, rule).await?)
    }

    /// All jobs of the mix run, each on a node as large as itself.
    async fn submit_all(&mut self, arm: Arm, target: &Target) -> anyhow::Result<()> {
        let client = self.cluster.client()?;
        let mut jobs = Vec::new();
        for (turn, (gpus, bytes)) in self.mix.clone().into_iter().enumerate() {
            let spec = self.job(arm, target, turn, (gpus, bytes));
            let job = client.submit(&spec).await?;
            self.bytes.insert(AttemptId { job, number: 1 }, bytes);
            jobs.push(job);
        }
        for job in jobs {
            client
                .job_until(job, Duration::from_secs(60), "runs", |view| {
                    state(view) == v1::AttemptState::Running
                })
                .await?;
            let trains = async || match client.output(job, 1, 0).await {
                Ok(said) if said.contains("step ") => Ok(()),
                Ok(said) => Err(said),
                Err(error) => Err(error.to_string()),
            };
            until(Duration::from_secs(60), "a job to train", trains).await?;
        }
        Ok(())
    }

    fn job(&self, arm: Arm, target: &Target, turn: usize, (gpus, bytes): (u32, Bytes)) -> JobSpec {
        let name = format!("mix-{turn}");
        let ballast = bytes.0.to_string();
        let mut arguments = vec!["--steps", "1000000", "--save-every", "0", "--ballast", &ballast];
        if arm == Arm::Permits {
            arguments.push("--permits");
        }
        let directory = target.directory(turn).join(&self.name).join(&name);
        let trainer = self.cluster.trainer(&name, gpus, &arguments);
        // One rank for all of a node's GPUs: there are two cores for a thousand.
        let alone = ["/usr/bin/env", "WORLD_SIZE=1"].into_iter().map(str::to_owned);
        JobSpec {
            command: alone.chain(trainer.command.clone()).collect(),
            layout: TaskLayout::PerNode,
            gpus_per_node: Some(GpuCount(gpus)),
            checkpoint_dir: Some(directory.display().to_string().into()),
            checkpoint: Some(CheckpointOffer {
                asks_within: AsksWithin::of(ASKS_WITHIN).filter(|_| arm == Arm::Permits),
                signal: Some(SaveSignal::Usr1),
                bytes: Some(bytes),
                ..offer(MAX_GRACE)
            }),
            ..trainer
        }
    }

    /// The cause; the gang, if it is one.
    async fn strike(&mut self, storm: Storm) -> anyhow::Result<Option<AttemptId>> {
        let client = self.cluster.client()?;
        self.began = now();
        match storm {
            Storm::Gang => {
                let gpus: u32 = self.mix.iter().map(|(gpus, _)| *gpus).sum();
                let gpus = GpuCount(gpus.min(1024 / GPU_SCALE));
                let spec = JobSpec {
                    command: vec!["/bin/sleep".to_owned(), "1000".to_owned()],
                    gpus,
                    min_runtime: Span::hours(8),
                    while_waiting: WhileWaiting::Wait,
                    ..self.cluster.job("gang", gpus.0)
                };
                let job = client.submit(&spec).await?;
                return Ok(Some(AttemptId { job, number: 1 }));
            }
            Storm::Maintenance => self.drain(0, self.mix.len()).await?,
            Storm::Waves => {
                let each = self.mix.len().div_ceil(10);
                let mut minutes = tokio::time::interval(Duration::from_secs(60));
                for wave in 0..10 {
                    minutes.tick().await;
                    self.drain(each.saturating_mul(wave), each).await?;
                }
            }
        }
        Ok(None)
    }

    async fn drain(&self, first: usize, count: usize) -> anyhow::Result<()> {
        for node in (first..self.mix.len()).take(count) {
            let (node, reason) = (node_name(node), "maintenance".to_owned());
            let request = v1::DrainRequest { node, reason, wanted_by_ms: None };
            self.cluster.client()?.api().drain(request).await?;
        }
        Ok(())
    }

    /// Waits until everybody who was asked to leave has, and the gang runs.
    async fn over(&self, gang: Option<AttemptId>) -> anyhow::Result<()> {
        let client = self.cluster.client()?;
        until_every(Duration::from_millis(500), MOST, "the storm to be over", async || {
            let jobs = client.jobs().await.map_err(|status| status.to_string())?;
            let runs = |job: &&v1::JobView| state(job) == v1::AttemptState::Running;
            let leaves = |job: &&v1::JobView| {
                let state = state(job);
                // Drained, and not yet seen to be.
                LEAVES.contains(&state) || gang.is_none() && state == v1::AttemptState::Running
            };
            let left = jobs.iter().filter(leaves).count();
            let id = gang.map(|gang| gang.job.to_string());
            let gang = jobs.iter().find(|job| Some(&job.job) == id.as_ref());
            if left == 0 && gang.is_none_or(|job| runs(&job)) {
                return Ok(());
            }
            Err(format!("{left} still leave"))
        })
        .await
    }

    fn figures(
        &mut self,
        cap: Bandwidth,
        recorded: &Recorded,
        gang: Option<AttemptId>,
    ) -> anyhow::Result<Figures> {
        self.cluster.kill(Role::Coordinator)?;
        let victims = self.victims()?;
        ensure!(victims.count() > 0 && victims.are_over(), "nobody left, or not everybody");
        let last = victims.last_end().context("nobody left")?;
        let gang_wait = gang.and_then(|gang| victims.running(gang)).map(|at| at.since(self.began));
        Ok(Figures {
            makespan: last.since(self.began),
            peak: Bandwidth(recorded.seconds().max().unwrap_or(0)),
            seconds_over: recorded.seconds_over(cap.0),
            gang_wait,
            ..victims.figures(&self.bytes, |_| cap)
        })
    }

    /// What the journal says of those who were asked to leave.
    fn victims(&self) -> anyhow::Result<Victims> {
        let journal = RedbJournal::read_only(&self.cluster.dir().join("store/store.redb"))?;
        let (mut books, mut victims) = (Books::default(), Victims::default());
        let mut broken = None;
        journal.read(DecisionSeq(1), &mut |seq, bytes| {
            let record = codec::decode(seq, bytes)?;
            for decision in &record.decisions {
                victims.saw(&books, record.stamp.at, decision);
                if let Err(wrong) = books.evolve(record.stamp, decision) {
                    broken.get_or_insert_with(|| format!("{seq}: {wrong}"));
                }
            }
            Ok(())
        })?;
        match broken {
            Some(wrong) => anyhow::bail!("{wrong}"),
            None => Ok(victims),
        }
    }
}

/// What the jobs of one storm wrote.
struct Written(Vec<PathBuf>);

impl Drop for Written {
    fn drop(&mut self) {
        for directory in &self.0 {
            // Whoever measures there next makes room for itself.
            drop(fs::remove_dir_all(directory));
        }
    }
}

/// How a job's newest attempt stands.
fn state(job: &v1::JobView) -> v1::AttemptState {
    job.attempts.last().map_or(v1::AttemptState::Unspecified, v1::AttemptView::state)
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}
