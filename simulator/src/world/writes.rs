//! Jobs that ask before they write or read, and keep to what they are told.

use scheduler_core::Flow;
use tidegate_model::{
    Ask, AskSeen, AttemptId, Bandwidth, Bytes, DecisionSeq, Permit, Span, TaskId, Timestamp,
    WriteClass,
};

use super::processes::Timer;
use super::{Observer, World, Wrong};
use crate::agent::SAVED;
use crate::work::{Asks, OnSave};

/// A checkpoint of a job that asks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Write {
    ask: Ask,
    /// When it was made.
    since: Timestamp,
    /// The request to save that it answers, if it does.
    request: Option<DecisionSeq>,
    /// What it may do; none while it waits.
    grant: Option<Grant>,
    done: bool,
    /// The newest lower rate that it was told.
    rated: DecisionSeq,
}

impl Write {
    fn restores(&self) -> bool {
        self.ask.class == WriteClass::Restore && !self.done
    }
}

#[derive(Debug, Clone, Copy)]
struct Grant {
    rate: Option<Bandwidth>,
    length: Span,
    after: Option<Bandwidth>,
    since: Timestamp,
    /// Written before.
    written: Bytes,
}

impl Grant {
    /// At which rate it writes: as granted, until its agent has not been heard for the length.
    fn rate(&self, unheard: Option<Timestamp>, now: Timestamp) -> Option<Bandwidth> {
        let lapsed = unheard.is_some_and(|since| since.max(self.since).plus(self.length) <= now);
        if lapsed { self.after } else { self.rate }
    }
}

impl<O: Observer> World<O> {
    /// Its processes run: it goes on from its checkpoint, if it has one.
    pub(super) fn begin(&mut self, attempt: AttemptId) {
        let work = self.works.get(&attempt.job);
        if work.is_some_and(|work| work.asks == Asks::Restores && work.has_checkpoint()) {
            self.ask(attempt, WriteClass::Restore);
        } else {
            self.train(attempt);
        }
    }

    /// It trains from now on.
    pub(super) fn train(&mut self, attempt: AttemptId) {
        let work = self.works.get_mut(&attempt.job);
        let ends = work.and_then(|work| work.begin(attempt, self.now));
        self.set(ends, Timer::Finished(attempt));
        self.set_periodic(attempt);
    }

    /// Trains no more, and asks to write.
    pub(super) fn write(&mut self, attempt: AttemptId, class: WriteClass) {
        let (now, runs) = (self.now, self.first_runs(attempt));
        let work = self.works.get_mut(&attempt.job);
        let Some(work) = work.filter(|work| runs && work.trains(attempt)) else { return };
        work.pause(now);
        self.ask(attempt, class);
    }

    fn ask(&mut self, attempt: AttemptId, class: WriteClass) {
        let before = self.writes.get(&attempt).map_or(0, |write| write.ask.number);
        let number = before.saturating_add(1);
        let bytes = self.works.get(&attempt.job).map(|work| work.bytes).unwrap_or_default();
        let ask = Ask { number, class, bytes, files: 0, patience: None };
        let rated = DecisionSeq(0);
        let since = self.now;
        let write = Write { ask, since, request: None, grant: None, done: false, rated };
        self.writes.insert(attempt, write);
        self.say_ask(attempt, write, false);
    }

    pub(super) fn write_and_leave(&mut self, attempt: AttemptId, request: DecisionSeq) {
        if self.writes.get(&attempt).is_some_and(Write::restores) && self.first_runs(attempt) {
            // It has nothing that is not saved.
            return self.end_all(attempt, SAVED);
        }
        self.write(attempt, WriteClass::Preemption);
        // Who writes for itself just now leaves after that.
        if let Some(write) = self.writes.get_mut(&attempt) {
            write.request = Some(request);
        }
    }

    fn say_ask(&mut self, attempt: AttemptId, of: Write, done: bool) {
        let task = TaskId { attempt, index: 0 };
        let Write { ask, rated, since, .. } = of;
        let written = if done { ask.bytes } else { Bytes(0) };
        let waited = self.now.since(since);
        let seen = AskSeen { ask, waited, written, done, rated };
        self.on_node_of(task, |agent| agent.asks(task, seen));
    }

    /// Its ask was answered.
    pub(super) fn permitted(&mut self, task: TaskId, permit: &Permit) {
        let (attempt, now) = (task.attempt, self.now);
        if let Permit::Denied { ask, .. } = permit {
            return self.denied(attempt, *ask);
        }
        let Permit::Granted { ask, rate, length, after, rated } = *permit else { return };
        let written = self.written_by(attempt);
        let Some(write) = self.writes.get_mut(&attempt).filter(|one| one.ask.number == ask) else {
            return;
        };
        let all = |rate: Option<Bandwidth>| rate.unwrap_or(Bandwidth(u64::MAX));
        let before = write.grant.replace(Grant { rate, length, after, since: now, written });
        let is_news = before.is_some_and(|before| all(rate) <= all(before.rate));
        let is_news = is_news && write.rated < rated;
        if is_news {
            write.rated = rated;
        }
        let (of, bytes) = (*write, write.ask.bytes);
        let keeps = of.ask.class == WriteClass::Periodic
            && self.works.get(&attempt.job).is_some_and(|work| work.asks == Asks::ForNothing);
        if is_news {
            self.say_ask(attempt, of, false);
        }
        if keeps {
            if before.is_none() {
                self.train(attempt);
            }
        } else if !self.flow(attempt, bytes, rate, Timer::Written(attempt)) {
            self.look_again(attempt);
        }
    }

    /// Its node gives up what it may have had; it stands still.
    fn denied(&mut self, attempt: AttemptId, ask: u64) {
        let write = self.writes.get_mut(&attempt).filter(|write| write.ask.number == ask);
        if let Some(write) = write {
            write.grant = None;
            let of = *write;
            self.say_ask(attempt, of, true);
        }
    }

    /// Since when the agent of an attempt's first task has not been heard.
    fn unheard(&self, attempt: AttemptId) -> Option<Timestamp> {
        let first = self.replay.task(TaskId { attempt, index: 0 })?.place.node;
        let silent = self.agents.get(&first)?.silent;
        silent.into_iter().chain(self.away).min()
    }

    /// Who has a permit that is not over.
    pub(super) fn permitted_ones(&self) -> Vec<AttemptId> {
        let granted = self.writes.iter().filter(|(_, write)| write.grant.is_some());
        granted.map(|(id, _)| *id).collect()
    }

    /// What is written under a permit where no server says it.
    pub(super) fn written_at(&self, attempt: AttemptId) -> Bandwidth {
        let write =
            self.writes.get(&attempt).filter(|write| write.ask.class != WriteClass::Restore);
        let trains = self.works.get(&attempt.job).is_some_and(|work| work.trains(attempt));
        let grant = write.and_then(|write| write.grant).filter(|_| !trains);
        let rate = grant.map(|grant| grant.rate(self.unheard(attempt), self.now));
        // As fast as it can is fast.
        rate.map_or(Bandwidth(0), |rate| rate.unwrap_or(Bandwidth(1 << 30)))
    }

    fn written_by(&self, attempt: AttemptId) -> Bytes {
        let grant = self.writes.get(&attempt).and_then(|write| write.grant);
        let Some(grant) = grant else { return Bytes(0) };
        let rate = grant.rate(self.unheard(attempt), self.now);
        let since = rate.map_or(Bytes(0), |rate| rate.over(self.now.since(grant.since)));
        Bytes(grant.written.0.saturating_add(since.0))
    }

    /// When it may have written.
    fn look_again(&mut self, attempt: AttemptId) {
        let Some(Write { ask, grant: Some(grant), .. }) = self.writes.get(&attempt).copied() else {
            return;
        };
        let left = Bytes(ask.bytes.0.saturating_sub(self.written_by(attempt).0));
        let save = self.works.get(&attempt.job).map_or(Span::ZERO, |work| work.save);
        let rate = grant.rate(self.unheard(attempt), self.now);
        // At least a moment, so that what was rounded down is written too.
        let takes = rate.map_or(save, |rate| rate.takes(left)).max(Span(1));
        self.set(Some(self.now.plus(takes)), Timer::Written(attempt));
    }

    /// Perhaps it has written all.
    pub(super) fn written(&mut self, attempt: AttemptId) {
        let Some(write) = self.writes.get(&attempt).copied() else { return };
        let Some(grant) = write.grant.filter(|_| self.first_runs(attempt)) else { return };
        let by_rate = grant.rate.is_some() && self.traffic.is_none();
        if by_rate && self.written_by(attempt) < write.ask.bytes {
            return self.look_again(attempt);
        }
        self.say_ask(attempt, write, true);
        self.writes.entry(attempt).and_modify(|write| (write.grant, write.done) = (None, true));
        if write.ask.class == WriteClass::Restore {
            return self.train(attempt);
        }
        let Some(work) = self.works.get_mut(&attempt.job) else { return };
        let on_save = work.on_save;
        if write.request.is_some() && on_save == OnSave::Leave {
            return self.end_all(attempt, 0);
        }
        let step = work.saved();
        self.say_commit(attempt, step, write.request);
        if write.request.is_some() && on_save != OnSave::Stay {
            self.end_all(attempt, SAVED);
        } else {
            self.train(attempt);
        }
    }

    /// What may be written, and what may be read, never grows above the cap, and neither does what those
    /// that ask do write and read. After the cap became lower it comes down, and does not grow meanwhile.
    pub(super) fn check_writes(&mut self) -> Result<(), Wrong> {
        let mut allowed = std::mem::take(&mut self.allowed);
        for ((storage, flow), (may_most, does_most)) in &mut allowed {
            let books = &self.replay;
            let cap = books.gates.get(storage).and_then(|gate| gate.cap_at(*flow, self.now));
            let cap = cap.unwrap_or(Bandwidth(u64::MAX));
            let here = |id: &AttemptId| {
                let job = books.jobs.get(&id.job);
                let offer = job.and_then(|job| job.spec.checkpoint.as_ref());
                offer.is_some_and(|offer| offer.storage == *storage)
            };
            let live = books.live_attempts().filter(|one| here(&one.id));
            let rates = live.filter_map(|one| one.writing.filter(|of| of.flow() == *flow)?.rate);
            let (may, does) = (rates.sum::<Bandwidth>(), self.writing(*flow, here));
            if may > cap.max(*may_most) || does > cap.max(*does_most) {
                let why = format!(
                    "{storage}, {flow:?}: {may} are granted, {does} flow; the cap is {cap}"
                );
                return Err(Wrong::Overwritten(why));
            }
            // Until the next look what is below the cap may become as much as it.
            (*may_most, *does_most) = (cap.max(may), cap.max(does));
        }
        self.allowed = allowed;
        Ok(())
    }

    /// What those of them that ask write, or read, at this instant, whatever the scheduler thinks of it.
    fn writing(&self, flow: Flow, of: impl Fn(&AttemptId) -> bool) -> Bandwidth {
        let here = self.writes.iter().filter(|(id, _)| of(id));
        let alike = here.filter(|(_, write)| Flow::of(write.ask.class) == flow);
        let rates = alike.filter_map(|(attempt, write)| {
            let grant = write.grant.filter(|_| self.first_runs(*attempt))?;
            grant.rate(self.unheard(*attempt), self.now)
        });
        rates.sum()
    }
}
