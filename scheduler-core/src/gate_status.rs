//! What people see of write gates: limits, who writes, who waits and when its turn comes.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{
    Ask, AttemptId, Bandwidth, Bytes, GpuCount, LEAST_SAVE, NodeName, Permit, Span, StorageName,
    Timestamp, UserId, WriteClass,
};

use crate::books::{Attempt, Books, Job, Task, Writing};
use crate::decide::gate::{self, GateId};
use crate::decide::leave;
use crate::decide::victims::expected_save;
use crate::gate::{Flow, Gate, Slot, Want};
use crate::observations::Observations;

/// For so long after the end of a permit a node may still measure what was written with it: two heartbeats
/// of the usual pace.
const MEASURED_LATE: Span = Span::seconds(10);

/// One gate at an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateStatus {
    /// Of which target.
    pub storage: StorageName,
    /// Whether of what is written there, or of what is read back.
    pub flow: Flow,
    /// Its limits, and whether it is paused. A pause holds nobody back who reads, and is not here then.
    pub gate: Gate,
    /// The cap of this hour; none = not limited.
    pub cap: Option<Bandwidth>,
    /// Of the cap, what is kept for those who wait too long and for silent nodes.
    pub pool: Bandwidth,
    /// What those who write may write together, as it is held against the cap: who makes many files counts
    /// for what the target writes while it makes them.
    pub admitted: Bandwidth,
    /// What tasks write by their nodes' measure; none = no node has said. What is read is not measured.
    pub measured: Option<Bandwidth>,
    /// Who writes, by since when; then who writes without a permit.
    pub writers: Vec<WriterStatus>,
    /// Who waits, in the order in which they are expected to write; then who is on a node that is not heard.
    pub queue: Vec<WaiterStatus>,
}

/// Somebody who writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterStatus {
    /// Which.
    pub attempt: AttemptId,
    /// Whose.
    pub user: UserId,
    /// Its GPUs.
    pub gpus: GpuCount,
    /// What it may write; none = it neither asked nor was told.
    pub turn: Option<TurnStatus>,
    /// By its nodes' measure; none = not said.
    pub measured: Option<Bandwidth>,
    /// A node of it that is not heard; none = all are.
    pub unheard: Option<NodeName>,
}

/// What somebody may write, or is reckoned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnStatus {
    /// As it is reckoned, with files as bytes.
    pub writing: Writing,
    /// What it asked for, or is expected to write.
    pub bytes: Bytes,
    /// What it is told, or is reckoned to write; none = not limited.
    pub rate: Option<Bandwidth>,
    /// Until when it is expected to write; never past.
    pub until: Timestamp,
    /// When it should have written all, at its rate: it is overdue once that is past.
    pub due: Timestamp,
    /// When it is stopped if it has not left; none = nobody has told it to leave.
    pub stopped: Option<Timestamp>,
}

/// Somebody who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaiterStatus {
    /// Which.
    pub attempt: AttemptId,
    /// Whose.
    pub user: UserId,
    /// Its GPUs.
    pub gpus: GpuCount,
    /// What it asked for, or is expected to write.
    pub bytes: Bytes,
    /// Since when.
    pub since: Timestamp,
    /// When it is expected to begin, and to have written; none while the gate is paused, or a node of it is
    /// not heard.
    pub slot: Option<(Timestamp, Timestamp)>,
    /// What it asked for; none = it was asked to leave, and is told when its turn comes.
    pub class: Option<WriteClass>,
    /// Who has its GPUs then.
    pub heir: Option<AttemptId>,
    /// A node of it that is not heard: nobody is let through there. None = all are.
    pub unheard: Option<NodeName>,
}

impl TurnStatus {
    /// By how much later than it should it still writes; none = it is in time. Nobody is late by less than
    /// a second: its word is on its way.
    #[must_use]
    pub fn overdue(&self, now: Timestamp) -> Option<Span> {
        Some(now.since(self.due)).filter(|late| *late >= Span::seconds(1))
    }
}

/// All gates that have limits, and those of all that write or read, or want to.
pub(crate) fn all(books: &Books, seen: &Observations, now: Timestamp) -> Vec<GateStatus> {
    let measured = seen.writes().filter(|(_, rate)| *rate >= LEAST_SAVE);
    let measuring = measured.filter_map(|(task, _)| books.jobs.get(&task.attempt.job)?.storage());
    let writes = books.gates.keys().chain(measuring);
    let writes = writes.map(|storage| GateId { storage, flow: Flow::Writes });
    let reads = books.gates.iter().filter(|(_, gate)| gate.rule.reads.is_some());
    let reads = reads.map(|(storage, _)| GateId { storage, flow: Flow::Reads });
    let all: BTreeSet<_> = writes.chain(reads).chain(gate::gates(books, seen)).collect();
    all.into_iter().map(|id| of(books, seen, now, id)).collect()
}

/// One of them.
pub(crate) fn of(books: &Books, seen: &Observations, now: Timestamp, id: GateId<'_>) -> GateStatus {
    let GateId { storage, flow } = id;
    let mut gate = books.gates.get(storage).cloned().unwrap_or_default();
    if flow == Flow::Reads {
        gate.paused = None;
    }
    let at = Instant { books, seen, now };
    let (wants, slots) = gate::line(books, seen, now, id);
    let rates = match flow {
        Flow::Writes => at.measured(storage),
        Flow::Reads => BTreeMap::new(),
    };
    let mut writers = at.writers(id, &slots, &rates);
    let known: BTreeSet<_> = writers.iter().map(|one| one.attempt).collect();
    let others = rates.iter().filter(|(id, rate)| **rate >= LEAST_SAVE && !known.contains(id));
    writers.extend(others.filter_map(|(id, rate)| at.unasked(*id, *rate)));
    let turns = writers.iter().filter_map(|one| one.turn.as_ref()?.writing.rate);
    let mut queue = at.queue(&wants, &slots, gate.paused.is_some());
    queue.extend(at.unheard(id));
    GateStatus {
        storage: storage.clone(),
        flow,
        cap: gate.cap_at(flow, now),
        pool: gate::pool(books, id, now),
        admitted: turns.sum(),
        measured: (!rates.is_empty()).then(|| rates.values().copied().sum()),
        queue,
        writers,
        gate,
    }
}

/// What is known at an instant.
#[derive(Clone, Copy)]
struct Instant<'all> {
    books: &'all Books,
    seen: &'all Observations,
    now: Timestamp,
}

impl Instant<'_> {
    /// What attempts write by their nodes' measure; of a silent node nobody knows it.
    fn measured(self, storage: &StorageName) -> BTreeMap<AttemptId, Bandwidth> {
        let Self { books, seen, now } = self;
        let mut rates: BTreeMap<AttemptId, Bandwidth> = BTreeMap::new();
        for (task, rate) in seen.writes() {
            let job = books.jobs.get(&task.attempt.job);
            let is_heard = |task: &Task| {
                task.exit.is_none() && !gate::is_silent(books, seen, task.place.node, now)
            };
            let runs = books.task(task).is_some_and(is_heard);
            if runs && job.and_then(|job| job.storage()) == Some(storage) {
                let sum = rates.entry(task.attempt).or_default();
                *sum = sum.plus(rate);
            }
        }
        rates
    }

    fn writers(
        self,
        id: GateId<'_>,
        slots: &BTreeMap<AttemptId, Slot>,
        rates: &BTreeMap<AttemptId, Bandwidth>,
    ) -> Vec<WriterStatus> {
        let here =
            |job: &Job, of: &Writing| job.storage() == Some(id.storage) && of.flow() == id.flow;
        let writing = gate::writing(self.books).filter(|(job, _, of)| here(job, of));
        let status = writing.map(|(job, attempt, of)| WriterStatus {
            attempt: attempt.id,
            user: job.user,
            gpus: attempt.gpus(),
            turn: Some(self.turn((job, attempt, of), slots.get(&attempt.id))),
            measured: rates.get(&attempt.id).copied(),
            unheard: self.silent_node(attempt),
        });
        status.collect()
    }

    fn turn(
        self,
        (job, attempt, of): (&Job, &Attempt, Writing),
        slot: Option<&Slot>,
    ) -> TurnStatus {
        let Self { books, seen, .. } = self;
        let asked = of.permit.and_then(|permit| {
            let noted = seen.ask_of(permit.task)?;
            Some(noted.seen.ask).filter(|ask| ask.number == permit.ask)
        });
        let told = of.permit.and_then(|permit| gate::permit(books, seen, permit.task));
        let rate = match told {
            Some(Permit::Granted { rate, .. }) => rate,
            Some(Permit::Waits { .. } | Permit::Denied { .. }) | None => of.rate,
        };
        // Who is to ask writes nothing yet: its step ends.
        let offer = job.spec.checkpoint.as_ref().filter(|_| of.permit.is_none());
        let step = offer.and_then(|offer| offer.asks_within).map(|within| within.span());
        let takes = of.rate.map_or_else(|| expected_save(books, job), |rate| rate.takes(of.bytes));
        TurnStatus {
            writing: of,
            bytes: asked.map_or(of.bytes, |ask| ask.bytes),
            rate,
            until: slot.map_or(of.since, |slot| slot.until),
            due: of.since.plus(step.unwrap_or(Span::ZERO)).plus(takes),
            stopped: leave::left_by(books, job, attempt),
        }
    }

    /// Who writes without a permit; none of one that had its turn a moment ago, which is measured late.
    fn unasked(self, id: AttemptId, rate: Bandwidth) -> Option<WriterStatus> {
        let (job, attempt) = self.books.with_job(id)?;
        let committed = attempt.save.and_then(|save| save.committed);
        let ended = self.seen.asks_of(id).filter_map(|(_, noted)| noted.ended);
        if ended.chain(committed).any(|at| self.now < at.plus(MEASURED_LATE)) {
            return None;
        }
        Some(WriterStatus {
            attempt: id,
            user: job.user,
            gpus: attempt.gpus(),
            turn: None,
            measured: Some(rate),
            unheard: self.silent_node(attempt),
        })
    }

    fn queue(
        self,
        wants: &[Want],
        slots: &BTreeMap<AttemptId, Slot>,
        paused: bool,
    ) -> Vec<WaiterStatus> {
        let waiter = |want: &Want| {
            let (job, attempt) = self.books.with_job(want.who)?;
            let slot = slots.get(&want.who);
            let ask = self.ask(attempt.id, None).filter(|_| want.asks);
            let waiter = WaiterStatus {
                attempt: want.who,
                user: job.user,
                gpus: want.gpus,
                bytes: ask.map_or(want.bytes, |(ask, _)| ask.bytes),
                since: want.since,
                slot: slot.filter(|_| !paused).map(|slot| (slot.from, slot.until)),
                class: ask.map(|(ask, _)| ask.class),
                heir: want.gang.map(|(heir, _)| heir),
                unheard: None,
            };
            Some((slot.map_or(usize::MAX, |slot| slot.position), waiter))
        };
        let mut queue: Vec<_> = wants.iter().filter_map(waiter).collect();
        queue.sort_by_key(|(position, waiter)| (*position, waiter.attempt));
        queue.into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// Who would wait at a gate if all its nodes were heard.
    fn unheard(self, id: GateId<'_>) -> Vec<WaiterStatus> {
        let saving = self.books.index.saving.iter().map(|(_, id)| *id);
        let saving = saving.filter(|_| id.flow == Flow::Writes);
        let asking = self.seen.asking(id).map(|task| task.attempt);
        let all: BTreeSet<_> = saving.chain(asking).collect();
        let waiter = |who: AttemptId| {
            let (job, attempt) = self.books.with_job(who)?;
            let is_open = attempt.writing.is_none() && attempt.is_live() && attempt.stop.is_none();
            if !is_open || job.storage() != Some(id.storage) {
                return None;
            }
            let unheard = self.silent_node(attempt)?;
            let save = attempt.save.filter(|save| save.admitted.is_none());
            let ask = self.ask(who, Some(id.flow));
            let asked = ask.map(|(_, since)| since);
            Some(WaiterStatus {
                attempt: who,
                user: job.user,
                gpus: attempt.gpus(),
                bytes: ask.map_or_else(|| gate::expected_bytes(job, attempt), |(ask, _)| ask.bytes),
                since: asked.into_iter().chain(save.map(|save| save.at)).min()?,
                slot: None,
                class: ask.map(|(ask, _)| ask.class),
                heir: None,
                unheard: Some(unheard),
            })
        };
        all.into_iter().filter_map(waiter).collect()
    }

    /// What an attempt asks for, and since when; of one flow only, if that is said.
    fn ask(self, id: AttemptId, flow: Option<Flow>) -> Option<(Ask, Timestamp)> {
        let mut asks = self.seen.asks_of(id).map(|(_, noted)| noted);
        let open = asks.find(|noted| {
            !noted.seen.done && flow.is_none_or(|flow| Flow::of(noted.seen.ask.class) == flow)
        });
        open.map(|noted| (noted.seen.ask, noted.since))
    }

    fn silent_node(self, attempt: &Attempt) -> Option<NodeName> {
        let runs = attempt.tasks.iter().filter(|task| task.exit.is_none());
        let mut nodes = runs.map(|task| task.place.node);
        let silent = nodes.find(|node| gate::is_silent(self.books, self.seen, *node, self.now))?;
        self.books.nodes.get(&silent).map(|node| node.name.clone())
    }
}
