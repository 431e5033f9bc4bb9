//! What must survive the agent: whom it obeys, and what it has promised.
//!
//! What is not here: the file it is kept in (`ledger_file`), and what the starter knows, which
//! survives by itself in the starter's task directories.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_model::{ClusterId, Epoch, Generation, GpuUuid, Idle, Span, TaskExit, TaskId};

use crate::record::ExitRecord;

/// The agent's durable memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "LedgerText", try_from = "LedgerText")]
pub struct Ledger {
    /// The only cluster this node obeys; none before its first welcome.
    pub cluster: Option<ClusterId>,
    /// The newest leadership whose plan was accepted; zero before the first.
    pub epoch: Epoch,
    /// The newest plan accepted in that leadership, or an older one: see [`Ledger::needs_write`].
    pub generation: Generation,
    /// The kernel's boot under which the tasks were prepared; empty before the first.
    pub boot_id: String,
    /// Tasks whose GPUs are set aside, until they are forgotten or end without having started.
    pub prepared: BTreeMap<TaskId, Prepared>,
    /// Tasks that ended without a record at the starter. They are never started.
    pub ended: BTreeMap<TaskId, EndedHere>,
    /// How long prepared tasks had idle GPUs, or a little less: see [`Ledger::needs_write`].
    pub idle: BTreeMap<TaskId, Idle>,
}

/// How much of what was measured an agent that is killed may forget. It counts as not measured.
const UNWRITTEN: Span = Span::minutes(5);

/// What was promised to one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its GPUs, verified free when they were set aside.
    pub gpus: Vec<GpuUuid>,
    /// Where its rank 0 may listen.
    pub port: u16,
}

/// The end of a task that the starter has no record of. Nothing of it is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedHere {
    /// How it ended.
    pub exit: TaskExit,
    /// How long it ran.
    pub ran: Span,
}

impl Default for Ledger {
    /// The ledger of a node that has never heard of a cluster.
    fn default() -> Self {
        Self {
            cluster: None,
            epoch: Epoch(0),
            generation: Generation(0),
            boot_id: String::new(),
            prepared: BTreeMap::new(),
            ended: BTreeMap::new(),
            idle: BTreeMap::new(),
        }
    }
}

impl Ledger {
    /// Whether this ledger must be written before anything is done or reported, when `written` is
    /// what the file holds.
    ///
    /// A newer generation alone need not be: it is written with the next change. After a crash
    /// the agent may then accept a plan of the same leadership that it had already passed, until
    /// the current one arrives, which every new stream begins with. That starts nothing twice:
    /// a task is startable only while it is prepared here, and the write that forgets it carries
    /// the generation that ordered the forgetting, so every plan before that stays refused.
    ///
    /// Nothing is promised by how idle GPUs were: it is written with the next change, or when it
    /// has grown by five minutes.
    #[must_use]
    pub fn needs_write(&self, written: &Self) -> bool {
        let Self { cluster, epoch, generation: _, boot_id, prepared, ended, idle } = self;
        let has_grown = |(task, sum): (&TaskId, &Idle)| {
            let before = written.idle.get(task).map_or(Span::ZERO, |before| before.of);
            sum.of.0.saturating_sub(before.0) >= UNWRITTEN.0
        };
        *cluster != written.cluster
            || *epoch != written.epoch
            || *boot_id != written.boot_id
            || *prepared != written.prepared
            || *ended != written.ended
            || idle.iter().any(has_grown)
    }
}

/// The ledger as the file has it; ids are texts there.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LedgerText {
    cluster: Option<String>,
    epoch: u64,
    generation: u64,
    boot_id: String,
    prepared: BTreeMap<String, PreparedText>,
    #[serde(default)]
    ended: BTreeMap<String, EndedText>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    idle: BTreeMap<String, IdleText>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PreparedText {
    gpus: Vec<String>,
    port: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndedText {
    exit: ExitRecord,
    ran_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdleText {
    idle_ms: u64,
    of_ms: u64,
}

impl From<Ledger> for LedgerText {
    fn from(ledger: Ledger) -> Self {
        let Ledger { cluster, epoch, generation, boot_id, prepared, ended, idle } = ledger;
        let prepared = prepared.into_iter().map(|(task, Prepared { gpus, port })| {
            let gpus = gpus.iter().map(ToString::to_string).collect();
            (task.to_string(), PreparedText { gpus, port })
        });
        let ended = ended.into_iter().map(|(task, EndedHere { exit, ran })| {
            (task.to_string(), EndedText { exit: exit.into(), ran_ms: ran.0 })
        });
        let idle = idle.into_iter().map(|(task, Idle { idle, of })| {
            (task.to_string(), IdleText { idle_ms: idle.0, of_ms: of.0 })
        });
        Self {
            cluster: cluster.map(|cluster| cluster.to_string()),
            epoch: epoch.0,
            generation: generation.0,
            boot_id,
            prepared: prepared.collect(),
            ended: ended.collect(),
            idle: idle.collect(),
        }
    }
}

impl TryFrom<LedgerText> for Ledger {
    type Error = String;

    fn try_from(text: LedgerText) -> Result<Self, String> {
        let LedgerText { cluster, epoch, generation, boot_id, prepared, ended, idle } = text;
        let (epoch, generation) = (Epoch(epoch), Generation(generation));
        let mut ledger = Self { epoch, generation, boot_id, ..Self::default() };
        ledger.cluster = cluster.as_deref().map(parsed).transpose()?;
        for (task, PreparedText { gpus, port }) in prepared {
            let gpus = gpus.iter().map(|gpu| parsed(gpu)).collect::<Result<_, _>>()?;
            ledger.prepared.insert(parsed(&task)?, Prepared { gpus, port });
        }
        for (task, EndedText { exit, ran_ms }) in ended {
            let ended = EndedHere { exit: exit.into(), ran: Span(ran_ms) };
            ledger.ended.insert(parsed(&task)?, ended);
        }
        for (task, IdleText { idle_ms, of_ms }) in idle {
            let idle = Idle { idle: Span(idle_ms), of: Span(of_ms) };
            ledger.idle.insert(parsed(&task)?, idle);
        }
        Ok(ledger)
    }
}

fn parsed<T: std::str::FromStr>(text: &str) -> Result<T, String>
where
    T::Err: ToString,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Idle = Idle { idle: Span::minutes(1), of: Span::minutes(2) };

    fn ledger() -> Ledger {
        let prepared = Prepared { gpus: vec!["GPU-a".parse().unwrap()], port: 29500 };
        let ended = EndedHere { exit: TaskExit::NeverStarted("no".into()), ran: Span(5) };
        Ledger {
            cluster: Some(ClusterId(7)),
            epoch: Epoch(3),
            generation: Generation(9),
            boot_id: "b".into(),
            prepared: BTreeMap::from([("job-1.1.0".parse().unwrap(), prepared)]),
            ended: BTreeMap::from([("job-2.1.0".parse().unwrap(), ended)]),
            idle: BTreeMap::from([("job-1.1.0".parse().unwrap(), IDLE)]),
        }
    }

    #[test]
    fn a_ledger_reads_back_what_it_wrote() {
        for ledger in [Ledger::default(), ledger()] {
            let text = serde_json::to_string(&ledger).unwrap();
            assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger, "{text}");
        }
        assert!(serde_json::from_str::<Ledger>("{}").is_err());
    }

    #[test]
    fn only_a_newer_generation_and_a_few_minutes_measured_may_wait_to_be_written() {
        let written = ledger();
        let check = |change: fn(&mut Ledger), needed: bool| {
            let mut changed = written.clone();
            change(&mut changed);
            assert_eq!(changed.needs_write(&written), needed);
        };
        check(|l| l.generation = Generation(10), false);
        check(|l| l.epoch = Epoch(4), true);
        check(|l| l.prepared.clear(), true);
        check(|l| l.ended.clear(), true);
        check(|l| l.cluster = None, true);
        let task = "job-1.1.0".parse().unwrap();
        let of = |minutes| Idle { of: Span::minutes(minutes), ..IDLE };
        for (minutes, needed) in [(6, false), (7, true)] {
            let mut measured = written.clone();
            measured.idle.insert(task, of(minutes));
            assert_eq!(measured.needs_write(&written), needed, "{minutes}");
        }
    }
}
