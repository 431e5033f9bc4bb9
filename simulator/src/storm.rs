//! The storm: a mix of training jobs that are all asked to save, on a server that many writers slow
//! down, under different gates. Everything is at full scale and on virtual time; the scheduler is
//! the real one, the nodes and the server are simulated.

mod victims;

use std::collections::BTreeMap;

use scheduler_core::{Decision, Event, GateRequest, GateRule, Policy};
use tidegate_model::{
    AttemptId, Bandwidth, Bytes, GpuCount, NodeName, Span, Timestamp, UserId, WhileWaiting,
};

use crate::cluster::{NodeForm, job_spec};
use crate::work::{Asks, Work};
use crate::world::{Load, Server, World};

pub use self::victims::Victims;

/// Jobs alike: how many, GPUs of each, gigabytes of each checkpoint. Sizes are those of a benchmark of
/// storage for training, `MLPerf` Storage v2.0; one model is trained twice as wide.
pub const MIX: [(u32, u32, u64); 5] =
    [(2, 1024, 18_000), (4, 512, 5_290), (8, 256, 5_290), (32, 64, 912), (64, 8, 105)];

const GB: u64 = 1_000_000_000;
const GPUS_OF_NODE: u32 = 8;

/// What the gate is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// Nothing: all write at once.
    None,
    /// One at a time.
    One,
    /// So many at a time.
    Fixed(u32),
    /// Ours, of jobs that are signalled and write as fast as they can.
    Ours,
    /// Ours, of jobs that ask before they write.
    Permits,
}

/// Why they have to save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storm {
    /// A gang of 1,024 GPUs displaces others.
    Gang,
    /// All nodes are drained.
    Maintenance,
    /// A tenth of the nodes each minute.
    Waves,
}

/// What is played.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The gate.
    pub arm: Arm,
    /// The cause.
    pub storm: Storm,
    /// What is written to.
    pub server: Server,
    /// What checkpoints may write.
    pub cap: Bandwidth,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Attempts that were asked to leave.
    pub victims: u32,
    /// Of those the ones that ended unsaved.
    pub unsaved: u32,
    /// All their checkpoints.
    pub bytes: Bytes,
    /// From the storm to the end of the last write.
    pub makespan: Span,
    /// The most that was written in any second.
    pub peak: Bandwidth,
    /// Seconds in which more was written than the cap.
    pub seconds_over: u64,
    /// GPU-milliseconds from each victim's signal to its end.
    pub idle: u128,
    /// The same if each wrote alone, as fast as it can below the cap.
    pub idle_bound: u128,
    /// Until the gang ran.
    pub gang_wait: Option<Span>,
}

/// Plays it.
///
/// # Errors
/// If an invariant does not hold, or the cluster cannot be set up.
pub fn run(options: Options) -> Result<Figures, String> {
    let mut play = Play::new(options)?;
    let begin = play.world.now();
    let gang = play.strike()?;
    play.until(begin.plus(Span::hours(12)))?;
    Ok(play.figures(begin, gang))
}

struct Play {
    world: World<Victims>,
    options: Options,
    nodes: Vec<NodeName>,
    bytes: BTreeMap<AttemptId, Bytes>,
}

impl Play {
    /// All jobs of the mix run.
    fn new(options: Options) -> Result<Self, String> {
        let gpus: u32 = MIX.iter().map(|(count, gpus, _)| count.saturating_mul(*gpus)).sum();
        let form = |number: u32| -> Result<NodeForm, String> {
            let name = format!("n{number}").parse().map_err(|error| format!("{error}"))?;
            let (block, product) = (String::new(), "simulated".to_owned());
            Ok(NodeForm { name, gpus: GPUS_OF_NODE, block, product })
        };
        let forms: Vec<NodeForm> =
            (1..=gpus / GPUS_OF_NODE).map(form).collect::<Result<_, String>>()?;
        let mut policy = Policy::default();
        // The jobs are free work that may take as long to save as any may.
        policy.sharing.free_grace = tidegate_model::MAX_GRACE;
        policy.sharing.headroom = 0;
        let world = World::new(&forms, policy, Victims::default(), false);
        let nodes = forms.into_iter().map(|form| form.name).collect();
        let world = world.map_err(|wrong| wrong.to_string())?;
        let mut play = Self { world, options, nodes, bytes: BTreeMap::new() };
        play.limit()?;
        play.submit_all()?;
        play.world.serve(options.server);
        play.until(play.world.now().plus(Span::minutes(30)))?;
        Ok(play)
    }

    fn until(&mut self, at: Timestamp) -> Result<(), String> {
        self.world.run_until(at).map_err(|wrong| wrong.to_string())
    }

    fn tell(&mut self, event: &Event) -> Result<(), String> {
        self.world.tell(event).map(|_decided| ()).map_err(|wrong| wrong.to_string())
    }

    fn limit(&mut self) -> Result<(), String> {
        let Options { arm, server, cap, .. } = self.options;
        let many = Some(10_000);
        let rule = match arm {
            Arm::None => GateRule { writers: many, ..GateRule::default() },
            Arm::One => GateRule { writers: Some(1), ..GateRule::default() },
            Arm::Fixed(writers) => GateRule { writers: Some(writers), ..GateRule::default() },
            Arm::Ours | Arm::Permits => {
                let (cap, node) = (Some(cap), Some(server.node));
                GateRule { cap, node, writers: many, ..GateRule::default() }
            }
        };
        let storage = "shared".parse().map_err(|error| format!("{error}"))?;
        let request = GateRequest::Set(rule);
        self.tell(&Event::GateRequested { storage, by: UserId(0), request })
    }

    fn submit_all(&mut self) -> Result<(), String> {
        for (count, gpus, gigabytes) in MIX {
            for _ in 0..count {
                let bytes = Bytes(gigabytes.saturating_mul(GB));
                let account = "default".parse().map_err(|error| format!("{error}"))?;
                let mut spec = job_spec(account, GpuCount(gpus))?;
                if let Some(offer) = &mut spec.checkpoint {
                    offer.grace = tidegate_model::MAX_GRACE;
                    offer.bytes = Some(bytes);
                }
                let mut work = Work::lasting(None, Span::ZERO);
                work.bytes = bytes;
                let permits = self.options.arm == Arm::Permits;
                work.asks = if permits { Asks::Writes } else { Asks::Nothing };
                let decided = self.world.submit(UserId(1), spec, work);
                let decided = decided.map_err(|wrong| wrong.to_string())?;
                let planned = planned(&decided).ok_or("a job of the mix does not fit")?;
                self.bytes.insert(planned, bytes);
            }
        }
        Ok(())
    }

    /// The gang, if the storm is one's.
    fn strike(&mut self) -> Result<Option<AttemptId>, String> {
        match self.options.storm {
            Storm::Gang => {
                let account = "default".parse().map_err(|error| format!("{error}"))?;
                let mut spec = job_spec(account, GpuCount(1024))?;
                spec.min_runtime = Span::hours(8);
                spec.while_waiting = WhileWaiting::Wait;
                let decided = self.world.submit(UserId(2), spec, Work::lasting(None, Span::ZERO));
                let decided = decided.map_err(|wrong| wrong.to_string())?;
                Ok(planned(&decided))
            }
            Storm::Maintenance => self.drain(self.nodes.len()).map(|()| None),
            Storm::Waves => {
                for _ in 0..10 {
                    self.drain(self.nodes.len().div_ceil(10))?;
                    self.until(self.world.now().plus(Span::minutes(1)))?;
                }
                Ok(None)
            }
        }
    }

    /// The next so many nodes.
    fn drain(&mut self, count: usize) -> Result<(), String> {
        let nodes = self.world.core().books().nodes.values();
        let next: Vec<_> = nodes.filter(|node| node.drain.is_none()).take(count).collect();
        let next: Vec<NodeName> = next.into_iter().map(|node| node.name.clone()).collect();
        for node in next {
            let (by, reason) = (UserId(0), "maintenance".to_owned());
            self.tell(&Event::DrainRequested { node, by, reason, wanted_by: None })?;
        }
        Ok(())
    }

    fn figures(&self, begin: Timestamp, gang: Option<AttemptId>) -> Figures {
        let Options { server, cap, .. } = self.options;
        let alone = |gpus: GpuCount| {
            let nodes = u64::from(gpus.0 / GPUS_OF_NODE);
            Bandwidth(server.node.0.saturating_mul(nodes)).min(cap)
        };
        let load = self.world.load();
        let seconds = by_second(load, begin);
        // Rounding of a second's edges is not above.
        let above = Bandwidth(cap.0.saturating_add(cap.0 / 1000));
        let over = seconds.values().filter(|rate| **rate > above).count();
        Figures {
            makespan: load.last().map_or(Span::ZERO, |last| last.until.since(begin)),
            peak: seconds.values().copied().max().unwrap_or_default(),
            seconds_over: u64::try_from(over).unwrap_or(u64::MAX),
            gang_wait: gang
                .and_then(|gang| self.world.observer.running(gang))
                .map(|at| at.since(begin)),
            ..self.world.observer.figures(&self.bytes, alone)
        }
    }
}

fn planned(decided: &[Decision]) -> Option<AttemptId> {
    decided.iter().find_map(|decision| {
        let Decision::AttemptPlanned { attempt, .. } = decision else { return None };
        Some(*attempt)
    })
}

/// What was written in each second since the beginning.
fn by_second(load: &[Load], begin: Timestamp) -> BTreeMap<u64, Bandwidth> {
    let mut seconds: BTreeMap<u64, Bandwidth> = BTreeMap::new();
    for Load { from, until, rate } in load {
        let (mut at, end) = (from.since(begin).0, until.since(begin).0);
        while at < end {
            let next = (at / 1000).saturating_add(1).saturating_mul(1000).min(end);
            let bytes = rate.over(Span(next.saturating_sub(at)));
            let second = seconds.entry(at / 1000).or_default();
            *second = second.plus(Bandwidth(bytes.0));
            at = next;
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Bandwidth = Bandwidth(80 * GB);

    fn played(arm: Arm, storm: Storm) -> Figures {
        let (capacity, node) = (Bandwidth(100 * GB), Bandwidth(10 * GB));
        let server = Server { capacity, slower: 20_000, node };
        run(Options { arm, storm, server, cap: CAP }).unwrap()
    }

    #[test]
    fn a_gang_has_its_gpus_in_the_time_that_its_victims_bytes_take_at_the_cap() {
        let ours = played(Arm::Permits, Storm::Gang);
        assert_eq!((ours.unsaved, ours.seconds_over), (0, 0));
        let least = CAP.takes(ours.bytes);
        assert!(ours.makespan.0 <= least.0 + least.0 / 20, "{ours:?}, at best {least}");
        assert!(ours.peak <= Bandwidth(CAP.0 + CAP.0 / 100), "{ours:?}");
    }

    #[test]
    fn a_whole_cluster_saves_at_the_cap_where_an_uncontrolled_one_loses_work() {
        let ours = played(Arm::Permits, Storm::Maintenance);
        assert_eq!((ours.victims, ours.unsaved, ours.seconds_over), (110, 0, 0));
        let least = CAP.takes(ours.bytes);
        assert!(ours.makespan.0 <= least.0 + least.0 / 20, "{ours:?}, at best {least}");
        assert!(ours.idle <= ours.idle_bound + ours.idle_bound / 20, "{ours:?}");
        let uncontrolled = played(Arm::None, Storm::Maintenance);
        assert!(uncontrolled.unsaved > 0, "{uncontrolled:?}");
        assert!(uncontrolled.idle > 10 * ours.idle, "{uncontrolled:?} {ours:?}");
    }
}
