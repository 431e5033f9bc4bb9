//! Who goes through a gate and who wants to, in the words of the gate's arithmetic.

use std::collections::BTreeSet;

use tidegate_model::{
    Ask, AttemptId, Bandwidth, Bytes, DecisionSeq, GpuCount, Span, StorageName, TaskId, Timestamp,
    WriteClass,
};

use super::{GateId, is_silent, is_unused, may_still, nodes_of, open_ask, writing};
use crate::books::{Attempt, Books, Job, Writing};
use crate::decision::{Right, SaveReason};
use crate::gate::{Flow, Limits, POOL_PART, Urgency, Want, Writer};
use crate::observations::Observations;

/// Of one GPU, where nothing is known: what benchmarks of storage take a checkpoint for.
const BYTES_OF_GPU: u64 = 14_000_000_000;

/// One gate at an instant.
pub(super) struct Target {
    pub(super) limits: Limits,
    flow: Flow,
    /// Whether it has a cap. Without one, rates mean nothing: all writers count as one byte.
    pub(super) capped: bool,
    pub(super) files: Option<u32>,
    pub(super) paused: bool,
    pub(super) writers: Vec<Writer>,
    /// In no order.
    pub(super) wants: Vec<Want>,
}

impl Target {
    /// The limits of a gate; none without a cap.
    pub(super) fn limits(books: &Books, of: GateId<'_>, now: Timestamp) -> Option<Limits> {
        let gate = books.gates.get(of.storage);
        let cap = gate.and_then(|gate| gate.cap_at(of.flow, now))?;
        let pool = Bandwidth(cap.0 / POOL_PART);
        Some(Limits { cap, pool, writers: width(books, of) })
    }

    pub(super) fn of(books: &Books, seen: &Observations, now: Timestamp, of: GateId<'_>) -> Self {
        let known = Self::limits(books, of, now);
        let no_cap =
            Limits { cap: Bandwidth(u64::MAX), pool: Bandwidth(0), writers: width(books, of) };
        let gate = books.gates.get(of.storage);
        let mut target = Self {
            limits: known.unwrap_or(no_cap),
            flow: of.flow,
            capped: known.is_some(),
            files: gate.and_then(|gate| gate.rule.files),
            // Who restores holds GPUs already: a pause is for those that can train on.
            paused: of.flow == Flow::Writes && gate.is_some_and(|gate| gate.paused.is_some()),
            writers: Vec::new(),
            wants: Vec::new(),
        };
        let here = |job: &Job, writing: Writing| {
            job.storage() == Some(of.storage) && writing.flow() == of.flow
        };
        for (job, attempt, of) in writing(books).filter(|(job, _, of)| here(job, *of)) {
            let own = target.own(books, job, attempt);
            // Who began before there was a cap may write as fast as it can until it is told.
            let told = of.rate.unwrap_or(own);
            let rate = told.max(may_still(seen, of).unwrap_or_default());
            // Who is to ask writes nothing yet: its step ends.
            let step = if of.permit.is_none() { asks_within(job) } else { None };
            let begins = of.since.plus(step.unwrap_or(Span::ZERO));
            let written = rate.over(now.since(begins));
            let waits = rate.over(begins.since(now));
            let left = of.bytes.0.saturating_add(waits.0).saturating_sub(written.0);
            let heard = !nodes_of(books, attempt, of).any(|node| is_silent(books, seen, node, now));
            let unused = is_unused(books, seen, now, (job, attempt, of));
            target.writers.push(Writer {
                who: attempt.id,
                rate,
                told,
                own,
                asks: of.permit.is_some() && target.capped && heard && !unused,
                pooled: of.pooled || unused && !target.capped,
                left: Bytes(left.max(1)),
            });
        }
        target
    }

    /// With all who want to go through.
    pub(super) fn whole(
        books: &Books,
        seen: &Observations,
        now: Timestamp,
        of: GateId<'_>,
    ) -> Self {
        let mut target = Self::of(books, seen, now, of);
        target.ask_all(books, seen, now, of);
        target
    }

    /// Finds out who wants to go through.
    pub(super) fn ask_all(
        &mut self,
        books: &Books,
        seen: &Observations,
        now: Timestamp,
        of: GateId<'_>,
    ) {
        for (job, attempt) in waiting(books, seen, of) {
            let want = self.want(books, seen, now, (job, attempt));
            self.wants.extend(want);
        }
    }

    /// What an attempt waits for at this gate, if it does.
    fn want(
        &self,
        books: &Books,
        seen: &Observations,
        now: Timestamp,
        (job, attempt): (&Job, &Attempt),
    ) -> Option<Want> {
        let Waits { since, ask, patience } = Waits::of(seen, attempt, self.flow)?;
        let tells = ask.and_then(|(task, _)| books.task(task)).map(|task| task.place.node);
        let all = attempt.tasks.iter().map(|task| task.place.node).filter(|_| tells.is_none());
        if tells.into_iter().chain(all).any(|node| is_silent(books, seen, node, now)) {
            // It would not hear of its turn.
            return None;
        }
        let late = now.since(since) >= books.policy.sharing.gate_patience
            || patience.is_some_and(|at| at <= now);
        let declared = ask.map(|(_, ask)| weighed(ask, self.files, self.limits.cap));
        Some(Want {
            who: attempt.id,
            urgency: urgency(books, attempt, ask.map(|(_, ask)| ask.class)),
            gpus: attempt.gpus(),
            bytes: declared.unwrap_or_else(|| expected_bytes(job, attempt)),
            own: self.own(books, job, attempt),
            asks: ask.is_some(),
            told: attempt.save.is_some_and(|save| save.said().is_some()),
            gang: waiting_gang(books, attempt),
            since,
            record: attempt.save.map_or(DecisionSeq(0), |save| save.decision),
            // Who writes out of the pool already has its part of it.
            overdue: self.capped && late && attempt.writing.is_none(),
        })
    }

    fn own(&self, books: &Books, job: &Job, attempt: &Attempt) -> Bandwidth {
        if self.capped {
            own_rate(books, job, attempt, self.flow).min(self.limits.cap)
        } else {
            Bandwidth(1)
        }
    }
}

/// Who may wait at a gate: not who has stopped, or is through. Who is asked to leave and writes out of the
/// pool waits for its turn like the others.
fn waiting<'books>(
    books: &'books Books,
    seen: &Observations,
    of: GateId<'_>,
) -> impl Iterator<Item = (&'books Job, &'books Attempt)> {
    let saving = books.index.saving.iter().filter(|_| of.flow == Flow::Writes);
    let unsaid = saving.map(|(_, id)| *id);
    let asking = seen.asking(of).map(|task| task.attempt);
    let all: BTreeSet<_> = unsaid.chain(asking).collect();
    all.into_iter().filter_map(|id| books.with_job(id)).filter(move |(job, attempt)| {
        let leaves = attempt.save.is_some_and(|save| save.admitted.is_none());
        attempt.writing.is_none_or(|held| held.pooled && leaves && held.flow() == of.flow)
            && attempt.is_live()
            && attempt.stop.is_none()
            && job.storage() == Some(of.storage)
    })
}

/// When anybody who waits at a gate has done so for as long as it may.
pub(super) fn late(books: &Books, seen: &Observations, of: GateId<'_>) -> Vec<Timestamp> {
    let policy = books.policy.sharing.gate_patience;
    let waits =
        waiting(books, seen, of).filter_map(|(_, attempt)| Waits::of(seen, attempt, of.flow));
    waits.flat_map(|waits| [Some(waits.since.plus(policy)), waits.patience]).flatten().collect()
}

/// Since when an attempt waits, and with which ask.
struct Waits {
    since: Timestamp,
    ask: Option<(TaskId, Ask)>,
    /// Until when it said that it would.
    patience: Option<Timestamp>,
}

impl Waits {
    fn of(seen: &Observations, attempt: &Attempt, flow: Flow) -> Option<Self> {
        if flow == Flow::Reads && attempt.save.is_some() {
            return None;
        }
        let unsaid = attempt.save.filter(|save| save.admitted.is_none());
        let ask = open_ask(seen, attempt, flow);
        let asked = ask.and_then(|(task, _)| seen.ask_of(task)).map(|noted| noted.since);
        let since = match (asked, unsaid) {
            (Some(asked), Some(save)) => asked.min(save.at),
            (Some(asked), None) => asked,
            (None, Some(save)) => save.at,
            (None, None) => return None,
        };
        let patience = ask.and_then(|(_, ask)| ask.patience).zip(asked);
        Some(Self { since, ask, patience: patience.map(|(span, asked)| asked.plus(span)) })
    }
}

/// How long after it is told a job asks to write at the latest, if it says that it asks.
pub(super) fn asks_within(job: &Job) -> Option<Span> {
    Some(job.spec.checkpoint.as_ref()?.asks_within?.span())
}

/// Most attempts that go through a gate at a time. Of those that read there are no more than start.
fn width(books: &Books, of: GateId<'_>) -> usize {
    if of.flow == Flow::Reads {
        return usize::MAX;
    }
    let own = books.gates.get(of.storage).and_then(|gate| gate.rule.writers);
    usize::try_from(own.unwrap_or(books.policy.sharing.gate_width)).unwrap_or(usize::MAX)
}

/// So many are sure to be let through together, if none of them writes faster than `own`.
pub(crate) fn at_a_time(books: &Books, storage: Option<&StorageName>, own: Bandwidth) -> u64 {
    let Some(storage) = storage else { return 1 };
    let writes = GateId { storage, flow: Flow::Writes };
    let width = u64::try_from(width(books, writes)).unwrap_or(u64::MAX).max(1);
    let cap = books.gates.get(storage).and_then(|gate| gate.rule.least_cap(Flow::Writes));
    cap.map_or(width, |cap| (cap.0 / own.0.min(cap.0).max(1)).clamp(1, width))
}

/// How long an attempt is expected to write once it is let through; none where its target has no
/// cap.
pub(crate) fn expected_write(books: &Books, job: &Job, attempt: &Attempt) -> Option<Span> {
    let cap = books.gates.get(job.storage()?)?.rule.least_cap(Flow::Writes)?;
    Some(own_bandwidth(books, job, attempt).min(cap).takes(expected_bytes(job, attempt)))
}

/// Who is to leave goes before who saves for itself.
fn urgency(books: &Books, attempt: &Attempt, class: Option<WriteClass>) -> Urgency {
    match (attempt.save.map(|save| save.why), class) {
        (Some(SaveReason::Displaced { by, grounds }), _) => {
            let small = books.attempt(by).is_some_and(|heir| heir.terms.small);
            if small {
                Urgency::Small
            } else if grounds.rule == Right::Reservation {
                Urgency::Firm
            } else {
                Urgency::Preemption
            }
        }
        (Some(SaveReason::Drained { .. }), _) | (None, Some(WriteClass::Preemption)) => {
            Urgency::Preemption
        }
        (None, Some(WriteClass::Final)) => Urgency::Final,
        // Nobody waits for what is only rehearsed.
        (Some(SaveReason::Rehearsed), _) => Urgency::Periodic,
        (None, Some(WriteClass::Periodic | WriteClass::Restore) | None) => Urgency::Periodic,
    }
}

/// The gang that an attempt leaves for, with its GPUs.
fn waiting_gang(books: &Books, attempt: &Attempt) -> Option<(AttemptId, GpuCount)> {
    let Some(SaveReason::Displaced { by, .. }) = attempt.save.map(|save| save.why) else {
        return None;
    };
    books.attempt(by).map(|heir| (by, heir.gpus()))
}

/// What an ask counts for: its bytes, or as many as a target that may make so many files in a
/// second writes while it makes them.
pub(super) fn weighed(ask: Ask, files: Option<u32>, cap: Bandwidth) -> Bytes {
    let Some(files) = files.filter(|files| *files > 0) else { return ask.bytes };
    let alike = u128::from(ask.files).saturating_mul(cap.0.into()) / u128::from(files);
    ask.bytes.max(Bytes(u64::try_from(alike).unwrap_or(u64::MAX)))
}

/// Likewise at a target as it is now.
pub(super) fn weighed_at(books: &Books, now: Timestamp, storage: &StorageName, ask: Ask) -> Bytes {
    let files = books.gates.get(storage).and_then(|gate| gate.rule.files);
    let writes = GateId { storage, flow: Flow::Writes };
    let cap = Target::limits(books, writes, now).map_or(Bandwidth(u64::MAX), |one| one.cap);
    weighed(ask, files, cap)
}

/// The part of a reckoned rate that is bytes: less than all of it where files are what takes time.
pub(crate) fn said_rate(ask: Ask, weighed: Bytes, rate: Bandwidth) -> Bandwidth {
    let part = u128::from(rate.0).saturating_mul(ask.bytes.0.into());
    let part = part.checked_div(u128::from(weighed.0)).unwrap_or(0);
    Bandwidth(u64::try_from(part).unwrap_or(u64::MAX).clamp(1, rate.0.max(1)))
}

/// What an attempt is expected to write: as much as its job's last checkpoint, or what it declares.
pub(crate) fn expected_bytes(job: &Job, attempt: &Attempt) -> Bytes {
    let last = job.commit().map(|commit| commit.bytes).filter(|bytes| bytes.0 > 0);
    let declared = || job.spec.checkpoint.as_ref().and_then(|offer| offer.bytes);
    let usual = || Bytes(u64::from(attempt.gpus().0).saturating_mul(BYTES_OF_GPU));
    last.or_else(declared).unwrap_or_else(usual)
}

/// The most that an attempt can write in a second: what its nodes can, and what its job made of its permits; of
/// one that never asked what it did the last time it saved at our word, from its first byte on, as far as
/// that was seen. What is seen late looks faster than it was, by no more than four times.
pub(crate) fn own_bandwidth(books: &Books, job: &Job, attempt: &Attempt) -> Bandwidth {
    let saved = job.attempts.iter().rev().find_map(|before| {
        let admitted = before.save?.admitted?;
        let committed = before.committed.filter(|at| *at > admitted)?;
        let begun = before.save?.first_byte.unwrap_or(admitted).max(admitted);
        let takes = committed.since(begun).max(Span(committed.since(admitted).0 / 4));
        Bandwidth::of(job.commit()?.bytes, takes.max(Span(1)))
    });
    let paced = job.commits.as_ref().and_then(|commits| commits.pace());
    let known = paced.or(saved).filter(|rate| rate.0 > 0);
    let all = of_nodes(books, job, attempt).into_iter().chain(known);
    all.min().unwrap_or(Bandwidth(u64::MAX))
}

/// The most that an attempt can write, or read, in a second.
pub(crate) fn own_rate(books: &Books, job: &Job, attempt: &Attempt, flow: Flow) -> Bandwidth {
    match flow {
        Flow::Writes => own_bandwidth(books, job, attempt),
        Flow::Reads => of_nodes(books, job, attempt).unwrap_or(Bandwidth(u64::MAX)),
    }
}

/// What its nodes can write or read together, if that is said.
fn of_nodes(books: &Books, job: &Job, attempt: &Attempt) -> Option<Bandwidth> {
    let of_node = books.gates.get(job.storage()?)?.rule.node?;
    Some(Bandwidth(of_node.0.saturating_mul(attempt.node_count())))
}
