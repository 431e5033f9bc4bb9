//! The jobs: a real trainer in both layouts, and what an undisturbed run of each would end with.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use anyhow::{Context, anyhow, ensure};
use serde::Deserialize;
use tidegate_model::{JobSpec, Span, TaskLayout};

use crate::cluster::Cluster;

/// A step takes this long, so that 25 steps, one save, are a second.
const STEP_MS: u64 = 40;
/// Between two saves.
const SAVE_EVERY: u64 = 25;
/// The demo kills one job several times; a job that fails so often by itself would be given up.
const MAX_RESTARTS: u32 = 100;
/// Longer than the demo: nobody stops a job inside it, so that only a kill ends one.
const MIN_RUNTIME: Span = Span::minutes(10);
/// What a job that takes no notice of TERM is given before KILL.
const STUBBORN_GRACE: Span = Span(1_500);
/// Leaves 64 processes behind and becomes the trainer. They are no ranks.
const STRAYING: &str = "i=0; while [ $i -lt 64 ]; do env -u RANK sleep 600 & i=$((i+1)); done; \
                        exec \"$0\" \"$@\"";

/// What is trained.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recipe {
    /// Until this step.
    pub steps: u64,
    /// Ranks, one for each GPU.
    pub gpus: u32,
    /// Of weights and data.
    pub seed: u64,
}

/// One job of the demo.
#[derive(Debug, Clone)]
pub struct Work {
    /// Unique in a run: it also names the checkpoint directory.
    pub name: String,
    /// What is trained.
    pub recipe: Recipe,
    /// One task for each node, with a launcher, or for each GPU.
    pub layout: TaskLayout,
    /// What is special about it.
    pub manner: Manner,
}

/// How a job behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// As a training job does.
    Plain,
    /// Takes no notice of TERM and never ends by itself: it is there to be cancelled.
    Stubborn,
    /// Its tasks leave many other processes behind. Once the shim is dead, those have to be found
    /// before the task is verified gone.
    Straying,
}

use TaskLayout::{PerGpu, PerNode};

/// First come, first served: the first four fill the cluster, with one stubborn job; the rest
/// waits, the small ones first, so that something begins often. Steps are 40 ms.
const FIRST: [(&str, u32, TaskLayout, u64); 14] = [
    ("pretrain", 24, PerNode, 150),
    ("finetune", 4, PerGpu, 100),
    ("ablation", 2, PerNode, 125),
    ("eval", 1, PerGpu, 75),
    ("probe", 2, PerGpu, 100),
    ("distill", 4, PerGpu, 125),
    ("tokenizer", 1, PerNode, 100),
    ("sweep", 3, PerGpu, 125),
    ("merge", 1, PerNode, 125),
    ("reward", 8, PerNode, 150),
    ("vision", 8, PerGpu, 125),
    ("audio", 6, PerNode, 125),
    ("sft", 16, PerGpu, 125),
    ("long-context", 8, PerNode, 100),
];

/// Small and short: submitted while kills are to come and the queue runs dry.
const LATER: [(&str, u32, TaskLayout, u64); 7] = [
    ("batch-a", 4, PerNode, 125),
    ("batch-b", 2, PerGpu, 100),
    ("batch-c", 3, PerNode, 150),
    ("batch-d", 8, PerNode, 100),
    ("batch-e", 6, PerGpu, 125),
    ("batch-f", 1, PerNode, 175),
    ("batch-g", 4, PerGpu, 75),
];

/// The jobs of a run, in the order in which they are submitted.
#[derive(Debug)]
pub struct Playbill {
    seed: u64,
    later: usize,
    stubborn: usize,
    straying: usize,
}

impl Playbill {
    /// Jobs whose data depend on the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, later: 0, stubborn: 0, straying: 0 }
    }

    /// Those of the beginning.
    #[must_use]
    pub fn first(&self) -> Vec<Work> {
        let work = |(at, (name, gpus, layout, steps)): (usize, &(&str, u32, TaskLayout, u64))| {
            self.work((*name).to_owned(), *gpus, *layout, (*steps, at))
        };
        FIRST.iter().enumerate().map(work).collect()
    }

    /// One more.
    pub fn later(&mut self) -> Option<Work> {
        let round = self.later.checked_div(LATER.len())?.saturating_add(1);
        let (name, gpus, layout, steps) = LATER.iter().cycle().nth(self.later)?;
        self.later = self.later.saturating_add(1);
        let number = self.later.saturating_add(FIRST.len());
        Some(self.work(format!("{name}-{round}"), *gpus, *layout, (*steps, number)))
    }

    /// One that is there to be cancelled.
    pub fn stubborn(&mut self) -> Work {
        self.stubborn = self.stubborn.saturating_add(1);
        let name = format!("stubborn-{}", self.stubborn);
        Work { manner: Manner::Stubborn, ..self.work(name, 1, PerGpu, (1_000_000, 0)) }
    }

    /// One whose end takes a while to be verified.
    pub fn straying(&mut self) -> Work {
        self.straying = self.straying.saturating_add(1);
        let number = self.straying.saturating_add(2000);
        let name = format!("straying-{}", self.straying);
        Work { manner: Manner::Straying, ..self.work(name, 2, PerNode, (150, number)) }
    }

    /// The one that is submitted while nobody is there to answer.
    #[must_use]
    pub fn while_away(&self, nth: usize) -> Work {
        self.work(format!("sent-while-away-{nth}"), 1, PerGpu, (75, nth.saturating_add(1000)))
    }

    fn work(
        &self,
        name: String,
        gpus: u32,
        layout: TaskLayout,
        (steps, number): (u64, usize),
    ) -> Work {
        let number = u64::try_from(number).unwrap_or(0);
        let seed = self.seed.wrapping_mul(10_000).wrapping_add(number);
        Work { name, recipe: Recipe { steps, gpus, seed }, layout, manner: Manner::Plain }
    }
}

impl Work {
    /// As it is submitted.
    #[must_use]
    pub fn spec(&self, cluster: &Cluster) -> JobSpec {
        let Recipe { steps, gpus, seed } = &self.recipe;
        let numbers = [
            ("--steps", *steps),
            ("--step-ms", STEP_MS),
            ("--save-every", SAVE_EVERY),
            ("--seed", *seed),
        ];
        let mut arguments: Vec<String> = numbers
            .iter()
            .flat_map(|(name, value)| [(*name).to_owned(), value.to_string()])
            .collect();
        if self.layout == PerNode {
            arguments.push("--launch".to_owned());
        }
        if self.manner == Manner::Stubborn {
            arguments.push("--ignore-term".to_owned());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut spec = cluster.trainer(&self.name, *gpus, &arguments);
        match self.manner {
            Manner::Plain => {}
            Manner::Stubborn => spec.grace = STUBBORN_GRACE,
            Manner::Straying => {
                let shell = ["/bin/sh", "-c", STRAYING].map(str::to_owned);
                spec.command = shell.into_iter().chain(spec.command).collect();
            }
        }
        spec.min_runtime = MIN_RUNTIME;
        JobSpec { layout: self.layout, max_restarts: MAX_RESTARTS, ..spec }
    }

    /// Whether it ends by itself, and may be hit by any kill.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.manner == Manner::Plain
    }

    /// For the table.
    #[must_use]
    pub fn layout_word(&self) -> &'static str {
        match self.layout {
            PerNode => "per node",
            PerGpu => "per GPU",
        }
    }

    /// Where it keeps its checkpoints.
    #[must_use]
    pub fn checkpoints(&self, cluster: &Cluster) -> Checkpoints {
        let dir = self.spec(cluster).checkpoint_dir.unwrap_or_default();
        Checkpoints { dir: PathBuf::from(&*dir) }
    }
}

/// A checkpoint directory, read only.
#[derive(Debug)]
pub struct Checkpoints {
    dir: PathBuf,
}

/// The end of `result.json` that matters here.
#[derive(Debug, Deserialize)]
struct Finished {
    digest: String,
}

/// A line of `attempts.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Begun {
    /// Its number, as the scheduler counts.
    pub attempt: u32,
    /// The step it began after.
    pub resumed_from: u64,
}

impl Checkpoints {
    /// The step of the newest save; none before the first.
    #[must_use]
    pub fn newest_save(&self) -> Option<u64> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let steps = entries.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("step-")?.strip_suffix(".ckpt")?.parse().ok()
        });
        steps.max()
    }

    /// The starts of the gang. A line torn by a kill is left out.
    #[must_use]
    pub fn begun(&self) -> Vec<Begun> {
        let text = fs::read_to_string(self.dir.join("attempts.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The digest that the run ended with.
    ///
    /// # Errors
    /// If there is none.
    pub fn digest(&self) -> anyhow::Result<String> {
        let path = self.dir.join("result.json");
        let text = fs::read(&path).with_context(|| path.display().to_string())?;
        let Finished { digest } = serde_json::from_slice(&text).context("result.json")?;
        Ok(digest)
    }
}

/// Computes on a thread of its own, while the jobs run, what undisturbed runs would end with.
#[derive(Debug)]
pub struct References {
    questions: Sender<Recipe>,
    thread: JoinHandle<BTreeMap<Recipe, anyhow::Result<String>>>,
}

impl References {
    /// By that trainer.
    #[must_use]
    pub fn by(trainer: PathBuf) -> Self {
        let (questions, asked) = mpsc::channel::<Recipe>();
        let answer = move || {
            let mut digests = BTreeMap::new();
            for recipe in asked {
                let digest = reference(&trainer, &recipe);
                digests.insert(recipe, digest);
            }
            digests
        };
        Self { questions, thread: thread::spawn(answer) }
    }

    /// Adds a run to those that are to be known in the end.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn ask(&self, recipe: &Recipe) -> anyhow::Result<()> {
        self.questions.send(recipe.clone()).context("the thread that computes digests has ended")
    }

    /// The digests of all runs asked for.
    ///
    /// # Errors
    /// If the thread has panicked.
    pub fn answers(self) -> anyhow::Result<BTreeMap<Recipe, anyhow::Result<String>>> {
        drop(self.questions);
        self.thread.join().map_err(|_panic| anyhow!("the thread that computes digests panicked"))
    }
}

fn reference(trainer: &Path, recipe: &Recipe) -> anyhow::Result<String> {
    let Recipe { steps, gpus, seed } = recipe;
    let mut command = Command::new(trainer);
    command.args(["digest", "--steps", &steps.to_string()]);
    command.args(["--world-size", &gpus.to_string(), "--seed", &seed.to_string()]);
    let output = command.output().context("the trainer cannot be run")?;
    ensure!(output.status.success(), "the trainer gave no digest: {}", output.status);
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let digest = line.trim().rsplit_once("digest=").map(|(_, digest)| digest.to_owned());
    digest.with_context(|| format!("no digest in {line:?}"))
}
