//! What goes wrong, and when it no longer does.

use std::collections::BTreeMap;

use super::agent::RoundCrash;
use super::coordinator::TurnCrash;
use super::world::World;

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A rank is killed.
    RankKilled,
    /// A shim is killed.
    ShimKilled,
    /// An agent dies between two rounds.
    AgentCrash,
    /// An agent dies before what it learnt is durable.
    AgentCrashBeforeLedger,
    /// An agent dies when it is durable and before it is said.
    AgentCrashAfterLedger,
    /// A starter dies.
    StarterCrash,
    /// A starter dies between an intent and its spawn.
    StarterCrashBeforeSpawn,
    /// A node loses its power.
    NodeReboot,
    /// The coordinator dies; its kernel keeps every write.
    CoordinatorCrash,
    /// Its machine loses power: un-synced writes are lost, reordered, torn.
    CoordinatorPowerLoss,
    /// It dies before a turn is durable.
    CoordinatorCrashBeforeAppend,
    /// It dies when a turn is durable and before anybody hears of it.
    CoordinatorCrashAfterAppend,
    /// A node is cut off for a while.
    Partition,
    /// Likewise for longer than permits hold.
    LongPartition,
    /// A node's clock steps forward.
    ClockStep,
    /// A connection breaks.
    LinkBreak,
    /// For a while messages are lost, and their streams with them.
    Drops,
    /// For a while plans come late, twice and out of order.
    DelaysAndReorders,
}

impl Fault {
    pub(super) const ALL: [Self; 18] = [
        Self::RankKilled,
        Self::ShimKilled,
        Self::AgentCrash,
        Self::AgentCrashBeforeLedger,
        Self::AgentCrashAfterLedger,
        Self::StarterCrash,
        Self::StarterCrashBeforeSpawn,
        Self::NodeReboot,
        Self::CoordinatorCrash,
        Self::CoordinatorPowerLoss,
        Self::CoordinatorCrashBeforeAppend,
        Self::CoordinatorCrashAfterAppend,
        Self::Partition,
        Self::LongPartition,
        Self::ClockStep,
        Self::LinkBreak,
        Self::Drops,
        Self::DelaysAndReorders,
    ];
}

/// The weather between faults.
#[derive(Debug, Default)]
pub(super) struct Calm {
    over: bool,
    cut_until: BTreeMap<usize, u64>,
    losing: u32,
    unruly: u32,
}

impl Calm {
    pub(super) fn end_faults(&mut self) {
        *self = Self { over: true, ..Self::default() };
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn is_cut(&self, node: usize, now: u64) -> bool {
        self.cut_until.get(&node).is_some_and(|until| now < *until)
    }

    /// Whether the next message is lost.
    pub(super) fn loses(&mut self, rng: &mut fastrand::Rng) -> bool {
        if self.losing == 0 || rng.u8(..) >= 64 {
            return false;
        }
        self.losing = self.losing.saturating_sub(1);
        true
    }

    /// A plan's delay, whether it comes twice, and how much later.
    pub(super) fn plan_fate(&mut self, rng: &mut fastrand::Rng) -> (u64, bool, u64) {
        if self.unruly == 0 {
            return (rng.u64(0..20), false, 0);
        }
        self.unruly = self.unruly.saturating_sub(1);
        (rng.u64(0..3000), rng.bool(), rng.u64(0..5000))
    }
}

impl World {
    pub(super) fn fault(&mut self) -> Result<(), String> {
        if self.calm.is_over() {
            return Ok(());
        }
        let Some(fault) = self.rng.choice(Fault::ALL) else { return Ok(()) };
        let node = self.rng.usize(..self.nodes.len());
        if self.strike(fault, node)? {
            self.note_fault(fault);
        }
        Ok(())
    }

    /// Whether the fault hit anything.
    fn strike(&mut self, fault: Fault, node: usize) -> Result<bool, String> {
        let up = self.coordinator.engine().is_some();
        match fault {
            Fault::RankKilled | Fault::ShimKilled => return self.strike_task(fault),
            Fault::AgentCrash
            | Fault::AgentCrashBeforeLedger
            | Fault::AgentCrashAfterLedger
            | Fault::StarterCrash
            | Fault::StarterCrashBeforeSpawn => return Ok(self.strike_node(fault, node)),
            Fault::NodeReboot => self.reboot(node),
            Fault::CoordinatorCrash if up => self.crash_coordinator(false),
            Fault::CoordinatorPowerLoss if up => self.crash_coordinator(true),
            Fault::CoordinatorCrashBeforeAppend if up => {
                self.coordinator.dies_in_turn = Some(TurnCrash::BeforeAppend);
            }
            Fault::CoordinatorCrashAfterAppend if up => {
                self.coordinator.dies_in_turn = Some(TurnCrash::AfterAppend);
            }
            Fault::CoordinatorCrash
            | Fault::CoordinatorPowerLoss
            | Fault::CoordinatorCrashBeforeAppend
            | Fault::CoordinatorCrashAfterAppend => return Ok(false),
            Fault::Partition => {
                let until = self.now.saturating_add(self.rng.u64(500..20_000));
                self.calm.cut_until.insert(node, until);
            }
            Fault::LongPartition => {
                // Of the one whose permit holds for the shortest time, if there is any.
                let node = self.ends_first().unwrap_or(node);
                let until = self.now.saturating_add(self.rng.u64(25_000..90_000));
                self.calm.cut_until.insert(node, until);
            }
            Fault::ClockStep => {
                let by = self.rng.u64(1..30_000);
                if let Some(node) = self.nodes.get_mut(node) {
                    node.clock.step(by);
                }
            }
            Fault::LinkBreak => self.break_link(node),
            Fault::Drops => self.calm.losing = 5,
            Fault::DelaysAndReorders => self.calm.unruly = 20,
        }
        Ok(true)
    }

    fn strike_task(&mut self, fault: Fault) -> Result<bool, String> {
        let alive = self.truth.alive();
        let Some(task) = self.rng.choice(alive) else { return Ok(false) };
        if fault == Fault::ShimKilled {
            self.kill_shim(task)?;
            return Ok(true);
        }
        let Some(index) = self.node_of(task) else { return Ok(false) };
        let boot = self.nodes.get(index).map_or(0, |node| node.boot);
        self.exits(index, task, boot, tidegate_model::TaskExit::Signaled(9))?;
        Ok(true)
    }

    fn strike_node(&mut self, fault: Fault, index: usize) -> bool {
        let Some(node) = self.nodes.get_mut(index) else { return false };
        let agent = node.agent.is_some();
        let starter = node.starter.is_up();
        match fault {
            Fault::AgentCrashBeforeLedger => {
                node.dies_in_round = Some(RoundCrash::BeforeLedger);
                agent
            }
            Fault::AgentCrashAfterLedger => {
                node.dies_in_round = Some(RoundCrash::AfterLedger);
                agent
            }
            Fault::StarterCrashBeforeSpawn => {
                node.starter.dies_before_spawn = true;
                starter
            }
            Fault::StarterCrash if starter => {
                self.crash_starter(index);
                true
            }
            Fault::AgentCrash if agent => {
                self.crash_agent(index);
                true
            }
            Fault::RankKilled
            | Fault::ShimKilled
            | Fault::AgentCrash
            | Fault::StarterCrash
            | Fault::NodeReboot
            | Fault::CoordinatorCrash
            | Fault::CoordinatorPowerLoss
            | Fault::CoordinatorCrashBeforeAppend
            | Fault::CoordinatorCrashAfterAppend
            | Fault::Partition
            | Fault::LongPartition
            | Fault::ClockStep
            | Fault::LinkBreak
            | Fault::Drops
            | Fault::DelaysAndReorders => false,
        }
    }

    /// No more planned deaths: what is down comes back by what is queued already.
    pub(super) fn bring_all_back(&mut self) {
        self.coordinator.dies_in_turn = None;
        for node in &mut self.nodes {
            node.dies_in_round = None;
            node.starter.dies_before_spawn = false;
        }
    }
}
