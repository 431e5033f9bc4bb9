//! What people see of write gates: limits, who writes, who waits and when its turn comes.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{
    AttemptId, Bandwidth, Bytes, GpuCount, StorageName, Timestamp, UserId, WriteClass,
};

use crate::books::{Books, Job, Task, Writing};
use crate::decide::gate::{self, GateId};
use crate::gate::{Flow, Gate, Slot, Want};
use crate::observations::Observations;

/// One gate at an instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateStatus {
    /// Of which target.
    pub storage: StorageName,
    /// Whether of what is written there, or of what is read back.
    pub flow: Flow,
    /// Its limits, and whether it is paused.
    pub gate: Gate,
    /// The cap of this hour; none = not limited.
    pub cap: Option<Bandwidth>,
    /// Of the cap, what is kept for those who wait too long and for silent nodes.
    pub pool: Bandwidth,
    /// What those who write may write together.
    pub admitted: Bandwidth,
    /// What tasks write by their nodes' measure; none = no node has said. What is read is not measured.
    pub measured: Option<Bandwidth>,
    /// Who writes, by since when; then who writes without a permit.
    pub writers: Vec<WriterStatus>,
    /// Who waits, in the order in which they are expected to write.
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
    /// What it may write, and until when it is expected to; none = it neither asked nor was told.
    pub turn: Option<(Writing, Timestamp)>,
    /// By its nodes' measure; none = not said.
    pub measured: Option<Bandwidth>,
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
    /// What it is expected to write.
    pub bytes: Bytes,
    /// Since when.
    pub since: Timestamp,
    /// When it is expected to begin, and to have written; none while the gate is paused.
    pub slot: Option<(Timestamp, Timestamp)>,
    /// What it asked for; none = it was asked to leave, and is told when its turn comes.
    pub class: Option<WriteClass>,
    /// Who has its GPUs then.
    pub heir: Option<AttemptId>,
}

/// All gates that have limits, and those of all that write or read, or want to.
pub(crate) fn all(books: &Books, seen: &Observations, now: Timestamp) -> Vec<GateStatus> {
    let measured = seen.writes().filter(|(_, rate)| rate.0 > 0);
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
    let gate = books.gates.get(storage).cloned().unwrap_or_default();
    let (wants, slots) = gate::line(books, seen, now, id);
    let rates = match flow {
        Flow::Writes => measured(books, seen, now, storage),
        Flow::Reads => BTreeMap::new(),
    };
    let mut writers = writers(books, id, &slots, &rates);
    let known: BTreeSet<_> = writers.iter().map(|one| one.attempt).collect();
    let others = rates.iter().filter(|(id, rate)| rate.0 > 0 && !known.contains(id));
    writers.extend(others.filter_map(|(id, rate)| {
        let (job, attempt) = books.with_job(*id)?;
        let (gpus, measured) = (attempt.gpus(), Some(*rate));
        Some(WriterStatus { attempt: *id, user: job.user, gpus, turn: None, measured })
    }));
    let turns = writers.iter().filter_map(|one| one.turn.as_ref()?.0.rate);
    GateStatus {
        storage: storage.clone(),
        flow,
        cap: gate.cap_at(flow, now),
        pool: gate::pool(books, id, now),
        admitted: turns.sum(),
        measured: (!rates.is_empty()).then(|| rates.values().copied().sum()),
        queue: queue(books, seen, (id, wants), &slots),
        writers,
        gate,
    }
}

/// What attempts write by their nodes' measure; of a silent node nobody knows it.
fn measured(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    storage: &StorageName,
) -> BTreeMap<AttemptId, Bandwidth> {
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
    books: &Books,
    id: GateId<'_>,
    slots: &BTreeMap<AttemptId, Slot>,
    rates: &BTreeMap<AttemptId, Bandwidth>,
) -> Vec<WriterStatus> {
    let here = |job: &Job, of: &Writing| job.storage() == Some(id.storage) && of.flow() == id.flow;
    let writing = gate::writing(books).filter(|(job, _, of)| here(job, of));
    let status = writing.map(|(job, attempt, of)| WriterStatus {
        attempt: attempt.id,
        user: job.user,
        gpus: attempt.gpus(),
        turn: Some((of, slots.get(&attempt.id).map_or(of.since, |slot| slot.until))),
        measured: rates.get(&attempt.id).copied(),
    });
    status.collect()
}

fn queue(
    books: &Books,
    seen: &Observations,
    (GateId { storage, flow }, wants): (GateId<'_>, Vec<Want>),
    slots: &BTreeMap<AttemptId, Slot>,
) -> Vec<WaiterStatus> {
    let paused =
        flow == Flow::Writes && books.gates.get(storage).is_some_and(|gate| gate.paused.is_some());
    let mut queue: Vec<_> = wants
        .into_iter()
        .filter_map(|want| {
            let job = books.jobs.get(&want.who.job)?;
            let slot = slots.get(&want.who);
            let class = seen.asks_of(want.who).next().map(|(_, noted)| noted.seen.ask.class);
            let waiter = WaiterStatus {
                attempt: want.who,
                user: job.user,
                gpus: want.gpus,
                bytes: want.bytes,
                since: want.since,
                slot: slot.filter(|_| !paused).map(|slot| (slot.from, slot.until)),
                class: class.filter(|_| want.asks),
                heir: want.gang.map(|(heir, _)| heir),
            };
            Some((slot.map_or(usize::MAX, |slot| slot.position), waiter))
        })
        .collect();
    queue.sort_by_key(|(position, waiter)| (*position, waiter.attempt));
    queue.into_iter().map(|(_, waiter)| waiter).collect()
}
