//! What admins do with write gates: they limit, lower, raise, pause and resume.

use scheduler_core::{Event, Flow, GateRequest, GateRule};
use tidegate_model::{Bandwidth, StorageName};

use super::people::PERSON;
use super::permits::NODE_SPEED;
use super::traffic::{Measure, Most};
use super::world::World;

/// Where jobs write.
pub(super) const STORAGES: [&str; 2] = ["fast", "large"];

fn storage(name: &str) -> StorageName {
    name.parse().unwrap_or_else(|_| unreachable!("a valid name"))
}

/// All gates as they begin.
pub(super) fn no_limits() -> Most {
    let flows = [Flow::Writes, Flow::Reads];
    let gates = STORAGES.iter().flat_map(|name| flows.map(|flow| (*name, flow)));
    let all = gates.flat_map(|(name, flow)| Measure::ALL.map(|of| (storage(name), flow, of)));
    all.map(|gate| (gate, Bandwidth(u64::MAX))).collect()
}

impl World {
    fn ask_of_gate(&mut self, storage: StorageName, request: GateRequest) {
        self.tell(Event::GateRequested { storage, by: PERSON, request });
    }

    /// Every target has limits of its own from the beginning, or none.
    pub(super) fn limit_gates(&mut self) {
        for name in STORAGES {
            let rule = self.limits();
            self.ask_of_gate(storage(name), GateRequest::Set(rule));
        }
    }

    pub(super) fn meddle_with_gates(&mut self) {
        let Some(name) = self.rng.choice(STORAGES) else { return };
        let request = match self.rng.u8(0..20) {
            0 => GateRequest::Pause { reason: "it is slow".to_owned() },
            1..=6 => GateRequest::Resume,
            7..=12 => GateRequest::Set(self.less(&storage(name))),
            _ => GateRequest::Set(self.limits()),
        };
        self.ask_of_gate(storage(name), request);
    }

    /// Nobody waits for an admin any more.
    pub(super) fn resume_gates(&mut self) {
        let Some(engine) = self.coordinator.engine() else { return };
        let gates = engine.core().books().gates.iter();
        let paused: Vec<_> = gates
            .filter(|(_, gate)| gate.paused.is_some())
            .map(|(storage, _)| storage.clone())
            .collect();
        paused.into_iter().for_each(|storage| self.ask_of_gate(storage, GateRequest::Resume));
    }

    /// Less than now, and as many as like.
    fn less(&mut self, of: &StorageName) -> GateRule {
        let by = self.rng.u64(2..20);
        let engine = self.coordinator.engine();
        let gate = engine.and_then(|engine| engine.core().books().gates.get(of));
        let rule = gate.map(|gate| gate.rule.clone()).unwrap_or_default();
        let lower = |cap: Option<Bandwidth>| cap.map(|cap| Bandwidth((cap.0 / by).max(1 << 16)));
        let (cap, reads) = (lower(rule.cap), lower(rule.reads));
        GateRule { cap, reads, writers: Some(8), ..rule }
    }

    /// Caps of a few nodes' speed and less.
    fn limits(&mut self) -> GateRule {
        let cap = (self.rng.u8(..) < 230).then(|| Bandwidth(self.rng.u64(2..60) << 20));
        let files = cap.filter(|_| self.rng.u8(..) < 60).map(|_| self.rng.u32(2..200));
        GateRule {
            cap,
            writers: self.rng.bool().then(|| self.rng.u32(1..9)),
            files,
            node: self.rng.bool().then(|| Bandwidth(NODE_SPEED.0 + (self.rng.u64(0..32) << 20))),
            reads: self.rng.bool().then(|| Bandwidth(self.rng.u64(2..60) << 20)),
            // What adapts is for the scheduler's own simulation, which plays a server.
            floor: None,
            hours: Vec::new(),
        }
    }
}
