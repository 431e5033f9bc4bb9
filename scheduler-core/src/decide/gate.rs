//! The write gate: who may save, write or go on, from the books and from what nodes say.
//!
//! The arithmetic is [`crate::gate`]'s; here is who wants what (`target`), whose turn is over, and
//! what is told to those that wait.

mod adapt;
mod target;
mod unasked;
mod unused;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{
    Ask, AskSeen, AttemptId, Bandwidth, Bytes, DecisionSeq, NodeId, Permit, Span, StorageName,
    TaskId, Timestamp,
};

use self::target::Target;
use crate::books::{Attempt, Books, Job, PermitOf, Writing};
use crate::decide::spots::save_grace;
use crate::decide::victims::expected_save;
use crate::decision::Decision;
use crate::gate::{Flow, Line, Slot, Step, Want, drift, has_room, order, schedule, step};
use crate::observations::{NodeState, Noted, Observations, Told};

pub(crate) use self::target::{
    at_a_time, expected_bytes, expected_write, own_bandwidth, own_rate, said_rate,
};
pub(crate) use self::unasked::{has_asked, kept_until};
pub(crate) use self::unused::is as is_unused;

/// How long anybody waits before the pool is there for it.
fn patience(books: &Books) -> Span {
    books.policy.sharing.gate_patience
}

/// The next change at any gate.
pub(crate) fn next(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    let nobody = books.index.writing.is_empty();
    if nobody && books.index.saving.is_empty() && seen.asks().next().is_none() {
        return None;
    }
    over(books, seen, now)
        .or_else(|| lapsed(books, seen, now))
        .or_else(|| unused::next(books, seen, now))
        .or_else(|| taken_up(books, seen, now))
        .or_else(|| writes_already(books, now))
        .or_else(|| adapt::next(books, seen, now))
        .or_else(|| gates(books, seen).into_iter().find_map(|one| stepped(books, seen, now, one)))
        .or_else(|| told_before(books, seen, now))
}

/// Whose gate it is, and which way bytes go through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GateId<'books> {
    pub(crate) storage: &'books StorageName,
    pub(crate) flow: Flow,
}

/// Gates that somebody goes through or wants to.
pub(crate) fn gates<'books>(
    books: &'books Books,
    seen: &'books Observations,
) -> BTreeSet<GateId<'books>> {
    let saving = books.index.saving.iter().map(|(_, id)| (*id, Flow::Writes));
    let writing = writing(books).map(|(_, attempt, of)| (attempt.id, of.flow()));
    let held = saving.chain(writing).filter_map(|(id, flow)| {
        Some(GateId { storage: books.jobs.get(&id.job)?.storage()?, flow })
    });
    held.chain(seen.asked_gates()).collect()
}

/// Who writes or reads, with what.
pub(crate) fn writing(books: &Books) -> impl Iterator<Item = (&Job, &Attempt, Writing)> {
    books.index.writing.iter().filter_map(|(_, id)| {
        let (job, attempt) = books.with_job(*id)?;
        Some((job, attempt, attempt.writing?))
    })
}

/// Whose writing is over: by what its node says of the ask, or by the commit of who never asked; and who
/// was to ask and did not.
fn over(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    writing(books).find_map(|(job, attempt, writing)| {
        let is_over = match writing.permit {
            Some(PermitOf { task, ask, .. }) => match seen.ask_of(task) {
                Some(noted) => noted.seen.ask.number > ask || noted.seen.done,
                // Its agent has reported all it knows, and knows of no ask.
                None => books.task(task).is_none_or(|of| seen.node(of.place.node).is_some()),
            },
            None => {
                attempt.committed.is_some_and(|at| at >= writing.since)
                    || unasked::gives_back(books, seen, now, (job, attempt, writing))
            }
        };
        is_over.then_some(Decision::WriteEnded(attempt.id))
    })
}

/// When the word of the nodes that a writing depends on holds no longer.
fn lapses(books: &Books, seen: &Observations, attempt: &Attempt, of: Writing) -> Option<Timestamp> {
    // Who keeps to its share and may not have heard of it falls to that by itself; others out of the pool have no
    // more to lose.
    of.rate.filter(|_| !of.pooled || of.keeps_to_share())?;
    let length = of.longest;
    let heard = nodes_of(books, attempt, of).map(|node| seen.last_word(node)).min()?;
    Some(heard.max(of.since).plus(length).plus(drift(length)))
}

/// What a writing may go on with until its node says that its job was told less; none = no more than that.
fn may_still(seen: &Observations, of: Writing) -> Option<Bandwidth> {
    let heard_of = of.permit.and_then(|permit| seen.ask_of(permit.task));
    let is_told = heard_of.is_some_and(|noted| noted.seen.rated >= of.rated);
    of.still.filter(|_| !is_told)
}

/// The node whose agent holds the permit; of who never asked all of its nodes.
fn nodes_of(books: &Books, attempt: &Attempt, of: Writing) -> impl Iterator<Item = NodeId> {
    let asks = of.permit.and_then(|permit| books.task(permit.task));
    let asks: Vec<NodeId> = match asks {
        Some(task) => vec![task.place.node],
        None => attempt.tasks.iter().map(|task| task.place.node).collect(),
    };
    asks.into_iter()
}

/// A silent node uses what it may use on its own from the end of its permit on, out of the pool.
fn lapsed(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    writing(books).find_map(|(job, attempt, of)| {
        let silent = nodes_of(books, attempt, of).any(|node| is_silent(books, seen, node, now));
        let due = lapses(books, seen, attempt, of).is_some_and(|at| at <= now);
        if !silent || !due {
            return None;
        }
        // Without a cap nothing is kept for silent nodes.
        books.safe_rate(job, attempt, of.flow())?;
        let rate = of.after?;
        // Time has told its job, whatever its node says.
        Some(Decision::WriteRated { attempt: attempt.id, rate, pooled: true, still: None })
    })
}

pub(crate) fn is_silent(books: &Books, seen: &Observations, node: NodeId, now: Timestamp) -> bool {
    books.nodes.get(&node).is_some_and(|node| {
        let state = seen.state(node, books.policy.silent_after, now);
        matches!(state, NodeState::Unreachable | NodeState::Unconfirmed)
    })
}

/// The ask of who was told to save: it has its rate already.
fn taken_up(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    writing(books).filter(|(_, _, writing)| writing.permit.is_none()).find_map(
        |(job, attempt, writing)| {
            let (task, ask) = open_ask(seen, attempt, Flow::Writes)?;
            let Writing { rate, pooled, .. } = writing;
            let permit = PermitOf { task, ask: ask.number, class: ask.class };
            let bytes = target::weighed_at(books, now, job.storage()?, ask);
            Some(Decision::PermitGranted { permit, bytes, rate, pooled })
        },
    )
}

/// Who is asked to leave while it writes by a permit has its turn: what it commits counts. Its grace begins when half
/// of that is enough for the rest, and as long after the request as it lasts at the latest: others were told by when
/// it is gone. Who writes out of the pool waits for its turn like the others.
fn writes_already(books: &Books, now: Timestamp) -> Option<Decision> {
    leaving_writers(books).find(|(at, _, _)| *at <= now).map(|(_, attempt, of)| {
        let Writing { bytes, rate, .. } = of;
        Decision::SaveAdmitted { attempt, bytes, rate }
    })
}

/// Those whose grace is to begin, and when.
fn leaving_writers(books: &Books) -> impl Iterator<Item = (Timestamp, AttemptId, Writing)> {
    books.index.saving.iter().filter_map(|(_, id)| {
        let (job, attempt) = books.with_job(*id)?;
        let save = attempt.save.filter(|save| save.admitted.is_none())?;
        let of = attempt.writing.filter(Writing::has_a_turn)?;
        let takes = of.rate.map_or(Span::ZERO, |rate| rate.takes(of.bytes));
        let grace = save_grace(books, job, attempt);
        // Half of it, as storage may be slower than its rate.
        let enough = of.since.plus(Span(takes.0.saturating_sub(grace.0 / 2)));
        Some((enough.min(save.at.plus(grace)), attempt.id, of))
    })
}

/// The ask that an attempt waits with at such a gate: its first task's, where several ask.
fn open_ask(seen: &Observations, attempt: &Attempt, flow: Flow) -> Option<(TaskId, Ask)> {
    let open = |noted: &AskSeen| !noted.done && Flow::of(noted.ask.class) == flow;
    let asks = seen.asks_of(attempt.id).map(|(task, noted)| (task, noted.seen));
    let mut asks = asks.filter(|(_, noted)| open(noted));
    asks.next().map(|(task, noted)| (task, noted.ask))
}

/// The task that speaks for its gang: the one that has such a permit, else the first that asks for one.
fn asks_for_all(seen: &Observations, attempt: &Attempt, flow: Flow) -> Option<TaskId> {
    let has = attempt.writing.filter(|of| of.flow() == flow).and_then(|of| of.permit);
    let has = has.map(|permit| permit.task);
    has.or_else(|| open_ask(seen, attempt, flow).map(|(task, _)| task))
}

fn stepped(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    gate: GateId<'_>,
) -> Option<Decision> {
    let mut target = Target::of(books, seen, now, gate);
    if target.paused {
        return None;
    }
    // What of the pool is lent is taken back for who has waited too long.
    let late = || target::late(books, seen, gate).into_iter().any(|at| at <= now);
    if has_room(target.limits, &target.writers) || target.capped && late() {
        target.ask_all(books, seen, now, gate);
    }
    let wants = order(std::mem::take(&mut target.wants), now, patience(books));
    let told = |rate: Bandwidth| target.capped.then_some(rate);
    let line = Line::of(&wants, target.limits);
    match step(now, target.limits, &target.writers, line)? {
        Step::Raise { who, rate } | Step::Lower { who, rate } => {
            let one = target.writers.iter().find(|one| one.who == who)?;
            let still = Some(one.rate).filter(|reckoned| *reckoned > rate);
            Some(Decision::WriteRated { attempt: who, rate, pooled: one.pooled_at(rate), still })
        }
        Step::Admit { who, rate, pooled } => {
            let (job, attempt) = books.with_job(who)?;
            if let Some(of) = attempt.writing {
                let still = of.still.filter(|still| *still > rate);
                return Some(Decision::WriteRated { attempt: who, rate, pooled, still });
            }
            let unsaid = attempt.save.is_some_and(|save| save.admitted.is_none());
            if gate.flow == Flow::Writes && unsaid {
                let bytes = expected_bytes(job, attempt);
                return Some(Decision::SaveAdmitted { attempt: who, bytes, rate: told(rate) });
            }
            let (task, ask) = open_ask(seen, attempt, gate.flow)?;
            let permit = PermitOf { task, ask: ask.number, class: ask.class };
            let (bytes, rate) = (target::weighed(ask, target.files, target.limits.cap), told(rate));
            Some(Decision::PermitGranted { permit, bytes, rate, pooled })
        }
    }
}

/// Of those next in line so many are looked at for who is to be told before its turn: what is further
/// behind is told of later.
const LOOK_AHEAD: usize = 16;

/// Who asks before it writes is told by so much before its turn as it takes to ask.
fn told_before(books: &Books, seen: &Observations, now: Timestamp) -> Option<Decision> {
    let all = gates(books, seen).into_iter().flat_map(|one| tellings(books, seen, now, one));
    all.min().filter(|(at, _)| *at <= now).map(|(_, who)| Decision::SaveTold(who))
}

/// When those next in line that ask before they write are to be told, if they were not yet.
fn tellings(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    gate: GateId<'_>,
) -> Vec<(Timestamp, AttemptId)> {
    let lead = |id: AttemptId| {
        let (job, attempt) = books.with_job(id)?;
        attempt.save.filter(|save| save.said().is_none())?;
        target::asks_within(job).filter(|_| job.storage() == Some(gate.storage))
    };
    if gate.flow == Flow::Reads || books.index.saving.iter().all(|(_, id)| lead(*id).is_none()) {
        return Vec::new();
    }
    // Without a cap nobody knows how long anybody writes.
    let target = Target::whole(books, seen, now, gate);
    if !target.capped || target.paused {
        return Vec::new();
    }
    let mut wants = order(target.wants, now, patience(books));
    wants.truncate(LOOK_AHEAD);
    let slots = schedule(now, target.limits, target.writers, wants);
    let before = |(id, slot): (AttemptId, Slot)| {
        Some((Timestamp(slot.from.0.saturating_sub(lead(id)?.0)), id))
    };
    slots.into_iter().filter_map(before).collect()
}

/// What of a gate's cap is kept back.
pub(crate) fn pool(books: &Books, gate: GateId<'_>, now: Timestamp) -> Bandwidth {
    Target::limits(books, gate, now).map_or(Bandwidth(0), |limits| limits.pool)
}

/// Who waits at a gate, in order; and when each of them, and of those that are through, is expected to be,
/// and until when.
pub(crate) fn line(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    gate: GateId<'_>,
) -> (Vec<Want>, BTreeMap<AttemptId, Slot>) {
    let target = Target::whole(books, seen, now, gate);
    let (limits, capped) = (target.limits, target.capped);
    let wants = order(target.wants, now, patience(books));
    let (mut writers, mut expected) = (target.writers, wants.clone());
    if !capped {
        // Everybody counts as one byte a second there: so many as the seconds that it takes to save.
        let seconds = |id: AttemptId| {
            books.with_job(id).map_or(1, |(job, _)| expected_save(books, job).0 / 1000)
        };
        expected.iter_mut().for_each(|want| want.bytes = Bytes(seconds(want.who).max(1)));
        for one in &mut writers {
            let of = books.attempt(one.who).and_then(|attempt| attempt.writing);
            let gone = of.map_or(0, |of| now.since(of.since).0 / 1000);
            one.left = Bytes(seconds(one.who).saturating_sub(gone).max(1));
        }
    }
    (wants, schedule(now, limits, writers, expected))
}

/// Who waits with an ask and is to be told when its turn is expected: it was not told yet, or that
/// instant is past.
pub(crate) fn untold(books: &Books, seen: &Observations, now: Timestamp) -> Vec<(TaskId, Told)> {
    let stale = |noted: &Noted| noted.told.is_none_or(|told| told.at.plus(told.wait) <= now);
    let mut slots: BTreeMap<GateId<'_>, BTreeMap<AttemptId, Slot>> = BTreeMap::new();
    let mut news = Vec::new();
    for (task, noted) in seen.asks().filter(|(_, noted)| !noted.seen.done && stale(noted)) {
        let waits = books.with_job(task.attempt).filter(|(_, one)| one.writing.is_none());
        let Some(storage) = waits.and_then(|(job, _)| job.storage()) else { continue };
        let gate = GateId { storage, flow: Flow::of(noted.seen.ask.class) };
        let all = slots.entry(gate).or_insert_with(|| line(books, seen, now, gate).1);
        let Some(slot) = all.get(&task.attempt) else { continue };
        let position = u32::try_from(slot.position).unwrap_or(u32::MAX);
        // At least a second: who is next would be told at every turn.
        let wait = slot.from.since(now).max(Span::seconds(1));
        news.push((task, Told { position, wait, at: now }));
    }
    news
}

/// The answer to a task's newest ask.
pub(crate) fn permit(books: &Books, seen: &Observations, task: TaskId) -> Option<Permit> {
    let noted = seen.ask_of(task).filter(|noted| !noted.seen.done)?;
    let (job, attempt) = books.with_job(task.attempt)?;
    let Ask { number: ask, class, .. } = noted.seen.ask;
    let flow = Flow::of(class);
    if job.storage().is_none() {
        if flow == Flow::Reads {
            // It reads what is no checkpoint of ours.
            let (rated, length) = (DecisionSeq(0), Span::hours(24));
            return Some(Permit::Granted { ask, rate: None, length, after: None, rated });
        }
        let why = "the job's file has no [checkpoint]; a permit is for a storage target that it \
                   names";
        return Some(Permit::Denied { ask, why: why.to_owned(), retry_after: None });
    }
    if flow == Flow::Reads && attempt.save.is_some() {
        // Its read would keep it from its turn to save. The node gives up the permit it may have.
        let why = "it was asked to leave, and restores nothing any more".to_owned();
        return Some(Permit::Denied { ask, why, retry_after: None });
    }
    if asks_for_all(seen, attempt, flow).is_some_and(|first| first != task) {
        let why = "another task of this gang has asked; one asks for all".to_owned();
        // By then the other is done, if it makes use of its rate.
        let held = attempt.writing.filter(|of| of.flow() == flow);
        let retry_after = held.and_then(|of| Some(of.rate?.takes(of.bytes)));
        return Some(Permit::Denied { ask, why, retry_after });
    }
    let own = |of: &Writing| of.permit.is_some_and(|one| (one.task, one.ask) == (task, ask));
    let Some(of) = attempt.writing.filter(own) else {
        let Told { position, wait, .. } = noted.told?;
        return Some(Permit::Waits { ask, position, expected: wait });
    };
    let rate = of.rate.map(|rate| said_rate(noted.seen.ask, of.bytes, rate));
    let after = rate
        .zip(of.after)
        .map(|(rate, after)| rate.min(said_rate(noted.seen.ask, of.bytes, after)));
    Some(Permit::Granted { ask, rate, length: of.length(), after, rated: of.rated })
}

/// The next instant after `now` at which time alone changes something at a gate: somebody has
/// waited too long, a silent node's permit is over, another hour's cap holds.
pub(crate) fn next_deadline(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
) -> Option<Timestamp> {
    let lapses = writing(books).filter_map(|(_, attempt, of)| {
        let at = lapses(books, seen, attempt, of)?;
        // While its nodes are heard, the end moves on with their words.
        let quiet = nodes_of(books, attempt, of).any(|node| is_silent(books, seen, node, now));
        quiet.then_some(at)
    });
    let at_gates = gates(books, seen).into_iter().filter_map(|gate| {
        let hours = books.gates.get(gate.storage).and_then(|gate| gate.rule.next_change(now));
        // Without a cap nothing is kept back, and nobody waits for it.
        let capped = Target::limits(books, gate, now).is_some();
        let late = if capped { target::late(books, seen, gate) } else { Vec::new() };
        let told = tellings(books, seen, now, gate).into_iter().map(|(at, _)| at);
        late.into_iter().chain(hours).chain(told).filter(|at| *at > now).min()
    });
    let looks = adapt::next_deadline(books, now);
    let unasked = writing(books).filter_map(|(job, attempt, _)| kept_until(books, job, attempt));
    let unasked = unasked.map(|(_, until)| until);
    let unused = unused::next_deadline(books, seen, now);
    let leaving = leaving_writers(books).map(|(at, _, _)| at);
    let times = lapses.chain(looks).chain(leaving).chain(unasked).chain(unused).chain(at_gates);
    times.filter(|at| *at > now).min()
}
