//! Shims and training processes that ask before they write or read, and keep to what they are told.
//!
//! What a permit allows, and when a lower rate counts as told, is the agent's own code
//! ([`PermitRecord`]). What is not here: whether all of it together is too much (`traffic`).

use scheduler_core::Flow;
use tidegate_agent::permits::{AskRecord, PermitRecord};
use tidegate_agent::since_boot::SinceBoot;
use tidegate_model::{
    Bandwidth, Bytes, DecisionSeq, Span, StorageName, TaskExit, TaskId, WriteClass,
};

use super::Planted;
use super::saving::SAVED;
use super::world::{Happening, Place, World, short};

/// What a node can write in a second; admins who limit a node know it.
pub(super) const NODE_SPEED: Bandwidth = Bandwidth(32 << 20);

/// How long a job that is done waits for its last permit before it leaves without.
const LAST_WAIT: u64 = 120_000;

/// What a job does with its permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It writes, and says when it is done.
    Writes,
    /// It writes until somebody ends it.
    Endless,
    /// It writes nothing, and gives it back after a while.
    Unused,
    /// It writes nothing, and keeps it.
    Kept,
    /// It asks anew before it is done.
    Again,
    /// A rank of it dies meanwhile.
    Dies,
}

/// The newest ask of a task, as its shim and its job know it; gone when it is over.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) class: WriteClass,
    /// None: its job's file names none.
    pub(super) storage: Option<StorageName>,
    /// When it was made.
    pub(super) since: u64,
    bytes: Bytes,
    /// The most that its gang can write in a second.
    pub(super) speed: Bandwidth,
    manner: Manner,
    /// The request to save that it answers.
    request: Option<DecisionSeq>,
    /// What its shim has read.
    pub(super) answer: Option<PermitRecord>,
    pub(super) has_lapsed: bool,
    written: Bytes,
    /// Until when that is counted.
    counted: u64,
    /// The newest look at whether all is written; older ones are void.
    look: u64,
}

impl Asked {
    /// The rate that it was granted, none for no limit, at an instant of its node's clock; none before it is.
    pub(super) fn granted(&self, at: SinceBoot) -> Option<Option<Bandwidth>> {
        let Some(PermitRecord::Granted { bytes_per_s, after_bytes_per_s, .. }) = &self.answer
        else {
            return None;
        };
        let rate = if self.is_over(at) { after_bytes_per_s } else { bytes_per_s };
        Some(rate.map(Bandwidth))
    }

    /// Whether it writes to such a target, or reads from it.
    pub(super) fn goes_through(&self, storage: &StorageName, flow: Flow) -> bool {
        self.storage.as_ref() == Some(storage) && Flow::of(self.class) == flow
    }

    /// Whether what it was granted has not been renewed.
    pub(super) fn is_over(&self, at: SinceBoot) -> bool {
        match &self.answer {
            Some(PermitRecord::Granted { until_ms, .. }) => *until_ms <= at,
            Some(PermitRecord::Waits { .. } | PermitRecord::Denied { .. }) | None => false,
        }
    }

    /// The record that set the rate it was told; none before it is granted.
    pub(super) fn rated(&self) -> Option<DecisionSeq> {
        match &self.answer {
            Some(PermitRecord::Granted { rated, .. }) => Some(DecisionSeq(*rated)),
            Some(PermitRecord::Waits { .. } | PermitRecord::Denied { .. }) | None => None,
        }
    }

    pub(super) fn does(&self, at: SinceBoot) -> Option<Bandwidth> {
        let rate = self.granted(at)?.unwrap_or(self.speed).min(self.speed);
        Some(rate).filter(|_| !matches!(self.manner, Manner::Unused | Manner::Kept))
    }

    /// Counts what was written since the last look. A permit that lapsed meanwhile counts as lapsed
    /// throughout: it is looked at again in any case.
    fn count(&mut self, now: u64, at: SinceBoot) {
        let passed = Span(now.saturating_sub(std::mem::replace(&mut self.counted, now)));
        let more = self.does(at).map_or(Bytes(0), |rate| rate.over(passed));
        self.written = Bytes(self.written.0.saturating_add(more.0).min(self.bytes.0));
    }
}

/// Nothing of it is asked for any more.
pub(super) fn close(ask: &mut Option<AskRecord>) {
    if let Some(ask) = ask {
        ask.done = true;
    }
}

impl World {
    pub(super) fn clock(&self, index: usize) -> SinceBoot {
        self.nodes.get(index).map_or(SinceBoot(0), |node| node.clock.read(self.now))
    }

    /// Plans what a task that has just begun asks for, and when it ends after so many milliseconds.
    pub(super) fn plan_asks(&mut self, place: Place, ends: u64, exit: TaskExit) {
        let Place { node, task, boot } = place;
        let exits = Happening::Exits { node, task, boot, exit };
        let asks = self.coordinator.watch().job(task.attempt).is_some_and(|job| job.asks);
        if !asks || (task.index > 0 && self.rng.u8(..) >= 30) {
            return self.after(ends, exits);
        }
        let restores = self.truth.has_saved(task.attempt.job) && self.rng.u8(..) < 160;
        let class = if restores { WriteClass::Restore } else { WriteClass::Periodic };
        let first = self.rng.u64(30..2000);
        self.after(first, Happening::Asks { place, class, request: None });
        if task.index == 0 && self.rng.u8(..) < 60 {
            let class = WriteClass::Final;
            self.after(ends, Happening::Asks { place, class, request: None });
            self.after(ends.saturating_add(LAST_WAIT), exits);
        } else {
            self.after(ends, exits);
        }
    }

    /// Whether a task of a node's boot runs and is not told to end.
    fn may_ask(&self, place: Place) -> bool {
        let Place { node, task, boot } = place;
        let node = self.nodes.get(node).filter(|node| node.boot == boot);
        node.is_some_and(|node| node.starter.runs(task)) && self.truth.is_alive(task)
    }

    /// A job asks: its shim notes it, and whoever is up hears of it.
    pub(super) fn asks(
        &mut self,
        place: Place,
        class: WriteClass,
        request: Option<DecisionSeq>,
    ) -> Result<(), String> {
        let Place { node: index, task, boot } = place;
        let job = self.coordinator.watch().job(task.attempt);
        let Some(job) = job.filter(|_| self.may_ask(place)) else { return Ok(()) };
        // Who writes already may leave when that is done.
        if let (Some(_), Some(open)) = (request, self.asked.get_mut(&task))
            && open.class != WriteClass::Restore
            && open.manner == Manner::Writes
            && open.answer.is_some()
        {
            open.request = request;
            return Ok(());
        }
        let before = self.nodes.get(index).and_then(|node| node.starter.facts(task)?.ask);
        let manner = self.manner(task);
        let long = manner == Manner::Writes && self.rng.u8(..) < 50;
        let most = if long { 1024 } else { 64 };
        let bytes = Bytes(self.rng.u64(1..=most) << 20);
        let record = AskRecord {
            number: before.map_or(0, |ask| ask.number).saturating_add(1),
            class,
            bytes: bytes.0,
            files: if self.rng.u8(..) < 60 { self.rng.u32(1..200) } else { 0 },
            patience_ms: self.rng.bool().then(|| self.rng.u64(0..30).saturating_mul(1000)),
            asked_ms: self.clock(index),
            written: 0,
            done: false,
            rated: 0,
        };
        let asked = Asked {
            number: record.number,
            class,
            storage: job.storage,
            since: self.now,
            bytes,
            speed: job.speed,
            manner,
            request,
            answer: None,
            has_lapsed: false,
            written: Bytes(0),
            counted: self.now,
            look: 0,
        };
        self.asked.insert(task, asked);
        self.count(format!("ask {class:?}"));
        self.note(index, task, boot, |facts| facts.ask = Some(record))
    }

    fn manner(&mut self, task: TaskId) -> Manner {
        match self.rng.u8(..) {
            _ if self.rehearsed(task).is_some() => Manner::Writes,
            0..=35 => Manner::Endless,
            36..=60 => Manner::Kept,
            61..=80 => Manner::Unused,
            81..=100 => Manner::Again,
            101..=112 => Manner::Dies,
            _ => Manner::Writes,
        }
    }

    /// A starter writes the answer down for the task's shim, which reads it in its time.
    pub(super) fn pass_permit(
        &mut self,
        index: usize,
        task: TaskId,
        permit: PermitRecord,
    ) -> Result<(), String> {
        let Some(node) = self.nodes.get(index).filter(|node| node.starter.is_up()) else {
            return Ok(());
        };
        let boot = node.boot;
        let delay =
            if self.rng.u8(..) < 10 { self.rng.u64(20..3000) } else { short(&mut self.rng) };
        self.after(delay, Happening::Reads { place: Place { node: index, task, boot } });
        self.note(index, task, boot, |facts| facts.permit = Some(permit))
    }

    /// A shim reads what it was answered, and tells its job.
    pub(super) fn reads(&mut self, place: Place) -> Result<(), String> {
        let Place { node: index, task, boot } = place;
        let (now, at) = (self.now, self.clock(index));
        let node = self.nodes.get(index).filter(|node| node.boot == boot);
        let answer = node.and_then(|node| node.starter.facts(task)?.permit.clone());
        let Some(asked) = self.asked.get_mut(&task) else { return Ok(()) };
        let Some(answer) = answer.filter(|answer| answer.ask() == asked.number) else {
            return Ok(());
        };
        asked.count(now, at);
        if let PermitRecord::Granted { bytes_per_s: Some(_), after_bytes_per_s: None, .. } = answer
        {
            return Err(format!("{task} may write at a rate, and without limit when that is over"));
        }
        let lowered = asked.answer.as_ref().and_then(|before| answer.rated_no_higher(before));
        let is_first = asked.rated().is_none();
        let answer = match self.options.planted {
            Some(Planted::LowerRateIgnored) if lowered.is_some() => {
                with_rate(answer, asked.granted(at).flatten())
            }
            _ => answer,
        };
        let before = asked.answer.replace(answer);
        asked.has_lapsed = asked.is_over(at);
        if matches!(asked.answer, Some(PermitRecord::Denied { .. })) {
            self.count("ask denied".to_owned());
            return self.end_ask(place);
        }
        if before.is_none() {
            self.count("ask answered".to_owned());
        }
        if asked_first_grant(self.asked.get(&task), is_first) {
            self.begins(place);
        }
        self.look_again(place);
        let Some(rated) = lowered else { return Ok(()) };
        self.count("permit lowered".to_owned());
        self.note(index, task, boot, |facts| {
            if let Some(ask) = &mut facts.ask {
                ask.rated = rated;
            }
        })
    }

    /// It may write from now on.
    fn begins(&mut self, place: Place) {
        self.count("permit granted".to_owned());
        let Some(asked) = self.asked.get(&place.task) else { return };
        let Place { node, task, boot } = place;
        let (manner, class) = (asked.manner, asked.class);
        let soon = self.rng.u64(1..3000);
        match manner {
            Manner::Again if class != WriteClass::Preemption => {
                self.after(soon, Happening::Asks { place, class, request: None });
            }
            Manner::Dies => {
                let exit = TaskExit::Signaled(9);
                self.after(soon, Happening::Exits { node, task, boot, exit });
            }
            Manner::Writes | Manner::Endless | Manner::Unused | Manner::Kept | Manner::Again => {}
        }
    }

    /// Looks again when it may have written all.
    fn look_again(&mut self, place: Place) {
        let at = self.clock(place.node);
        let idle = self.rng.u64(0..20_000);
        let Some(asked) = self.asked.get_mut(&place.task) else { return };
        asked.look = asked.look.saturating_add(1);
        let (look, left) = (asked.look, Bytes(asked.bytes.0.saturating_sub(asked.written.0)));
        let delay = match (asked.manner, asked.granted(at)) {
            (Manner::Endless | Manner::Kept, _) | (_, None) => return,
            (Manner::Unused, Some(_)) => idle,
            (Manner::Writes | Manner::Again | Manner::Dies, Some(rate)) => {
                rate.unwrap_or(asked.speed).min(asked.speed).takes(left).0.max(1)
            }
        };
        self.after(delay, Happening::Writes { place, look });
    }

    /// Perhaps it has written all.
    pub(super) fn writes(&mut self, place: Place, look: u64) -> Result<(), String> {
        let (now, at) = (self.now, self.clock(place.node));
        let asked = self.asked.get_mut(&place.task).filter(|asked| asked.look == look);
        let Some(asked) = asked else { return Ok(()) };
        asked.count(now, at);
        let (class, request, unused) = (asked.class, asked.request, asked.manner == Manner::Unused);
        if asked.written < asked.bytes && !unused {
            self.look_again(place);
            return Ok(());
        }
        self.end_ask(place)?;
        self.count("permit given back".to_owned());
        self.goes_on(place, class, request, unused)
    }

    /// What a job does once its ask is over.
    fn goes_on(
        &mut self,
        place: Place,
        class: WriteClass,
        request: Option<DecisionSeq>,
        unused: bool,
    ) -> Result<(), String> {
        let Place { node, task, boot } = place;
        if class != WriteClass::Restore && !unused {
            self.commits(node, task, boot, request)?;
        }
        let soon = short(&mut self.rng).saturating_add(1);
        let leaves = |code| Happening::Exits { node, task, boot, exit: TaskExit::Exited(code) };
        match class {
            WriteClass::Final => self.after(soon, leaves(0)),
            _ if request.is_some() && self.leaves_when_saved(task) => {
                self.after(soon, leaves(SAVED));
            }
            WriteClass::Restore | WriteClass::Periodic => {
                let next = self.rng.u64(200..6000);
                let class = WriteClass::Periodic;
                self.after(next, Happening::Asks { place, class, request: None });
            }
            WriteClass::Preemption => {}
        }
        Ok(())
    }

    fn end_ask(&mut self, place: Place) -> Result<(), String> {
        let Place { node, task, boot } = place;
        let asked = self.asked.remove(&task);
        let written = asked.map_or(0, |asked| asked.written.0);
        self.note(node, task, boot, |facts| {
            close(&mut facts.ask);
            if let Some(ask) = &mut facts.ask {
                ask.written = written;
            }
        })
    }

    /// The node that holds the permit which is over first, if it is not renewed.
    pub(super) fn ends_first(&self) -> Option<usize> {
        let left = |task: TaskId, asked: &Asked| {
            let index = self.node_of(task)?;
            match &asked.answer {
                Some(PermitRecord::Granted { until_ms, .. }) if !asked.has_lapsed => {
                    Some((until_ms.since(self.clock(index)), task, index))
                }
                _ => None,
            }
        };
        let all = self.asked.iter().filter(|(_, asked)| asked.storage.is_some());
        all.filter_map(|(task, asked)| left(*task, asked)).min().map(|(_, _, index)| index)
    }

    /// A task is being stopped: who waits is let through no more, who writes may finish.
    pub(super) fn stop_asking(&mut self, place: Place) -> Result<(), String> {
        let waits = self.asked.get(&place.task).is_some_and(|asked| asked.rated().is_none());
        if waits { self.end_ask(place) } else { Ok(()) }
    }
}

/// Whether an ask was granted just now.
fn asked_first_grant(asked: Option<&Asked>, was_waiting: bool) -> bool {
    was_waiting && asked.is_some_and(|asked| asked.rated().is_some())
}

/// The planted bug: a shim that goes on at the rate before.
fn with_rate(mut answer: PermitRecord, rate: Option<Bandwidth>) -> PermitRecord {
    if let (PermitRecord::Granted { bytes_per_s, .. }, Some(Bandwidth(rate))) = (&mut answer, rate)
    {
        *bytes_per_s = Some(rate);
    }
    answer
}
