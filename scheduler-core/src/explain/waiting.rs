//! Why a job does not run yet, by asking the pass itself.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{Span, Timestamp};

use super::limits::{Headroom, ProtectedCap};
use super::{Explanation, Reason, counted, said, takes_none};
use crate::accounts::AccountId;
use crate::books::{Attempt, Books, Job};
use crate::decide::leave::left_by;
use crate::decide::money::{Claimant, Money, Short};
use crate::decide::pass::{Bid, Pass};
use crate::decide::published;
use crate::decide::spots::Backlog;
use crate::decide::walk::{self, Demand, Next};
use crate::decide::words::MAX_NAMED;
use crate::decision::{SaveReason, Standing};
use crate::money::{Amount, WINDOW};
use crate::observations::Observations;

/// Steps in which the instant of a refill is looked for: fine enough for people.
const REFILL_STEP: Span = Span::minutes(10);

pub(super) fn waiting(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    job: &Job,
) -> Explanation {
    let pass = Pass::new(books, seen, now);
    let first = reserved(&pass, job).or_else(|| array(books, job));
    if let Some(explanation) = first.or_else(|| too_few_nodes(&pass, job)) {
        return explanation;
    }
    let bids = pass.options(job);
    let Some(bid) = bids.first() else {
        return said(Reason::Unsatisfiable, "no nodes have the form it asks".to_owned(), []);
    };
    let claimant = bid.claimant;
    if job.spec.min_runtime > Span::ZERO {
        if let Some(explanation) = never_funded(&pass.money, &claimant) {
            return explanation;
        }
        if let Err(short) = pass.money.funding(&claimant) {
            return short_of_budget(&pass.money, &claimant, short);
        }
        if let Some((from, spots)) = pass.expected_place(bid).filter(|(from, _)| *from > now) {
            return expected(&pass, bid, from, &spots);
        }
        if let Some(cap) = ProtectedCap::keeps(&pass, bid) {
            return capped(&pass, bid, cap);
        }
    }
    turn(&pass, bid)
}

fn reserved(pass: &Pass<'_>, job: &Job) -> Option<Explanation> {
    let (books, now) = (pass.books, pass.now);
    let held = job.reservation.as_ref()?;
    let nodes: Vec<_> = held
        .nodes
        .iter()
        .filter_map(|(node, _)| books.nodes.get(node))
        .map(|node| node.name.to_string())
        .collect();
    let at = published::latest(books, pass.seen, now, job.id).unwrap_or(held.at);
    let leave = if at > held.at.max(now) { ", when those on them have saved and left" } else { "" };
    let line = format!(
        "it has a firm reservation of {}: its own from {} on, and empty at the latest {}{leave}; {} \
         GPU-hours of its account are set aside",
        listed(&nodes),
        away(held.at, now),
        at_latest(at, now),
        held.pledge
    );
    let numbers = [("at_ms", at.0), ("from_ms", held.at.0), ("firm", 1)];
    Some(said(Reason::AwaitingReservation, line, numbers))
}

/// It waits for others of its own array, whatever the cluster has.
fn array(books: &Books, job: &Job) -> Option<Explanation> {
    let (held, at_a_time) = (books.array_full(job)?, job.spec.array.as_ref()?.at_a_time);
    let line = format!("its array runs {at_a_time} at a time, and {held} of it have their turn");
    let numbers = [("at_a_time", at_a_time.into()), ("array_active", held.into())];
    Some(said(Reason::AwaitingTurn, line, numbers))
}

fn too_few_nodes<'books>(pass: &Pass<'books>, job: &'books Job) -> Option<Explanation> {
    let fits = |bid: &Bid<'_>| {
        let able = pass.spots().iter().filter(|spot| {
            spot.kind == bid.kind
                && spot.node.serves(job.user)
                && spot.node.size().0 >= bid.shape.per_node
        });
        (bid.shape.nodes, able.count())
    };
    let counts: Vec<_> = pass.options(job).iter().map(fits).collect();
    let enough = |(needed, able): &(u32, usize)| {
        usize::try_from(*needed).is_ok_and(|needed| *able >= needed)
    };
    if counts.iter().any(enough) {
        return None;
    }
    let (needed, able) = counts.first().copied().unwrap_or((1, 0));
    let able = u64::try_from(able).unwrap_or(u64::MAX);
    let line = format!(
        "it needs {} of its kind, and {able} that could take a part of it are in service; it \
         waits for nodes that are drained, silent or closed to return",
        counted(usize::try_from(needed).unwrap_or(usize::MAX), "node")
    );
    let mut explanation =
        said(Reason::AwaitingNodes, line, [("needed", needed.into()), ("fit", able)]);
    let closed = pass.books.nodes.values().filter_map(takes_none);
    explanation.lines.extend(closed.take(MAX_NAMED));
    Some(explanation)
}

/// What it asks is more than an account on its path could ever fund.
fn never_funded(money: &Money<'_>, claimant: &Claimant<'_>) -> Option<Explanation> {
    let path = money.books.accounts.path(claimant.leaf);
    let most = |id: AccountId| {
        let row = money.sheet.row(id);
        if claimant.small { row.budget } else { row.limit }
    };
    let account = path.map(|one| one.id).find(|id| claimant.ask > most(*id))?;
    let name = money.books.accounts.name(account);
    let free = if claimant.job.runs_free() { "; until then it may run free" } else { "" };
    let line = format!(
        "it asks {} GPU-hours at a time, and {name} can never fund more than {}: ask for a shorter \
         min runtime or a larger budget{free}",
        claimant.ask,
        most(account)
    );
    Some(said(Reason::Unsatisfiable, line, numbers(claimant.ask, most(account))))
}

fn numbers(ask: Amount, limit: Amount) -> [(&'static str, u64); 2] {
    [("asked_gpu_ms", gpu_ms(ask)), ("limit_gpu_ms", gpu_ms(limit))]
}

/// Reference-GPU milliseconds, as programs read them.
fn gpu_ms(amount: Amount) -> u64 {
    u64::try_from(amount.0 / 1000).unwrap_or(0)
}

fn short_of_budget(money: &Money<'_>, claimant: &Claimant<'_>, short: Short) -> Explanation {
    let name = money.books.accounts.name(short.account);
    let elder = money.waiting_elder(claimant.leaf);
    let elder = elder.filter(|elder| elder.id != claimant.job.id && !claimant.small);
    let refills = refills_at(money, claimant);
    let when = refills.map_or_else(
        || "not within two weeks as things are".to_owned(),
        |at| format!("about {}", away(at, money.now)),
    );
    let free = if claimant.job.runs_free() { "; it may run free until then" } else { "" };
    let line = match elder {
        Some(elder) => format!(
            "{name} keeps its budget for {}, which has waited longest; only small jobs start \
             before it{free}",
            elder.id
        ),
        None => format!(
            "{name} is {} GPU-hours short of the {} it asks; they are there {when}{free}",
            short.by, claimant.ask
        ),
    };
    let mut explanation = said(
        Reason::AwaitingBudget,
        line,
        [("short_by_gpu_ms", gpu_ms(short.by)), ("asked_gpu_ms", gpu_ms(claimant.ask))],
    );
    explanation.numbers.extend(refills.map(|at| ("refills_at_ms", at.0)));
    explanation
}

/// When the funding test will hold if only what is known happens: what runs is charged on, and the
/// window slides.
fn refills_at(money: &Money<'_>, claimant: &Claimant<'_>) -> Option<Timestamp> {
    let (books, now) = (money.books, money.now);
    // What is charged until then slides out within one more window.
    let steps = 2 * WINDOW.0 / REFILL_STEP.0;
    let holds = |at: &Timestamp| Money::at(books, *at).funding(claimant).is_ok();
    let instants = (1..=steps).map(|step| now.plus(Span(step.saturating_mul(REFILL_STEP.0))));
    instants.into_iter().find(holds)
}

fn expected(pass: &Pass<'_>, bid: &Bid<'_>, from: Timestamp, spots: &[usize]) -> Explanation {
    let at = published::expected(pass, bid, from, spots);
    let leave = if at > from {
        let verify = pass.books.policy.sharing.verify_limit;
        let save = Span(at.since(from).0.saturating_sub(verify.0));
        format!(
            ": others yield {}, need {save} to save, and {verify} to verify",
            away(from, pass.now)
        )
    } else {
        String::new()
    };
    let (gpus, when) = (bid.claimant.job.spec.gpus, away(at, pass.now));
    let line = format!("it is funded; its {gpus} GPUs are expected {when}{leave}");
    let numbers = [("at_ms", at.0), ("from_ms", from.0), ("firm", 0)];
    said(Reason::AwaitingReservation, line, numbers)
}

/// It is funded, and protected work holds as much as ordinary jobs may make it.
fn capped(pass: &Pass<'_>, bid: &Bid<'_>, cap: ProtectedCap) -> Explanation {
    let job = bid.claimant.job;
    let needed = u64::from(job.spec.gpus.0);
    let mut line = format!("it is funded; {}", cap.line(needed));
    let mut numbers =
        BTreeMap::from([("protected", cap.held), ("cap", cap.most), ("needed", needed)]);
    if job.runs_free() {
        line.push_str("; it may run free until then");
        let headroom = Headroom::keeps(pass, bid);
        line.extend(headroom.map(|headroom| format!(", but {}", headroom.line())));
        numbers.extend(headroom.into_iter().flat_map(of_headroom));
    }
    Explanation { reason: Reason::AwaitingTurn, lines: vec![line], numbers }
}

fn of_headroom(headroom: Headroom) -> [(&'static str, u64); 2] {
    [("idle", headroom.idle.into()), ("headroom", headroom.kept.into())]
}

/// How many come before it in its order.
fn ahead(pass: &Pass<'_>, job: &Job) -> u64 {
    let demand = if job.spec.min_runtime > Span::ZERO { Demand::Protected } else { Demand::Free };
    let mut ahead = 0_u64;
    for leaf in walk::leaves(&pass.money, demand) {
        let walked = walk::jobs(&pass.money, demand, leaf, &walk::All, |other| {
            if other.id == job.id {
                return Next::Break(());
            }
            ahead = ahead.saturating_add(1);
            Next::Continue(())
        });
        if walked.is_break() {
            break;
        }
    }
    ahead
}

fn turn(pass: &Pass<'_>, bid: &Bid<'_>) -> Explanation {
    let job = bid.claimant.job;
    let (ahead, needed) = (ahead(pass, job), job.spec.gpus);
    let idle: u32 = pass.spots().iter().map(|spot| spot.idle).fold(0, u32::saturating_add);
    let numbers = [("ahead", ahead), ("needed", needed.0.into()), ("idle", idle.into())];
    let headroom = job.runs_free().then(|| Headroom::keeps(pass, bid)).flatten();
    let kept = headroom.map(Headroom::line);
    let (reason, line) = match (ahead, kept) {
        (0, Some(kept)) => {
            (Reason::AwaitingNodes, format!("it is first and needs {needed} GPUs; {kept}"))
        }
        (0, None) => (
            Reason::AwaitingNodes,
            format!(
                "it is first, and its gang of {needed} GPUs does not fit the {idle} idle ones \
                 together"
            ),
        ),
        (_, kept) => {
            let jobs = counted(usize::try_from(ahead).unwrap_or(usize::MAX), "job");
            let kept = kept.map(|kept| format!("; it needs {needed} GPUs, and {kept}"));
            let kept = kept.unwrap_or_default();
            (Reason::AwaitingTurn, format!("{jobs} before it in the order{kept}"))
        }
    };
    let mut explanation = said(reason, line, numbers);
    explanation.numbers.extend(headroom.into_iter().flat_map(of_headroom));
    explanation
}

/// A planned attempt whose GPUs others still hold.
pub(super) fn for_checkpoints(books: &Books, now: Timestamp, attempt: &Attempt) -> Explanation {
    let mut holders = BTreeSet::new();
    for (id, task) in attempt.tasks() {
        let Some(node) = books.nodes.get(&task.place.node) else { continue };
        let held = task.place.gpus.iter().filter_map(|gpu| node.held.get(gpu));
        holders.extend(held.filter(|holder| **holder != id).map(|holder| holder.attempt));
    }
    let until = holders.iter().filter_map(|id| {
        let job = books.jobs.get(&id.job)?;
        Some(Backlog::of(books, now).gone_by(books, job, job.attempt(id.number)?))
    });
    let until = until.max().unwrap_or(now);
    let left: Vec<_> = holders.iter().map(ToString::to_string).collect();
    let position = u64::try_from(left.len()).unwrap_or(u64::MAX);
    let line = format!(
        "{}: {} to save and leave, at the latest {}",
        attempt.id,
        listed(&left),
        at_latest(until, now)
    );
    let numbers = BTreeMap::from([
        ("attempt", u64::from(attempt.id.number)),
        ("position", position),
        ("until_ms", until.0),
    ]);
    Explanation { reason: Reason::AwaitingCheckpoint, lines: vec![line], numbers }
}

/// How a running attempt stands, in words.
pub(super) fn standing(attempt: &Attempt, now: Timestamp) -> String {
    match (attempt.standing, attempt.promised_until) {
        (Standing::Protected, Some(until)) => {
            let left = whole_seconds(until.since(now));
            format!("all its tasks run; nothing displaces it for another {left}")
        }
        (Standing::Protected, None) => "all its tasks run, protected".to_owned(),
        (Standing::Funded, _) => "all its tasks run, within its account's budget; who is further \
                                  below its own may displace it"
            .to_owned(),
        (Standing::Free, _) => {
            "all its tasks run free: charged to nobody, and gives way to protected work".to_owned()
        }
    }
}

/// Why an attempt is to leave, and how far it is.
pub(super) fn saving(books: &Books, attempt: &Attempt, now: Timestamp) -> String {
    let Some(save) = attempt.save else { return String::new() };
    let why = match save.why {
        SaveReason::Displaced { by, grounds } => format!("{by} has its GPUs: {grounds}"),
        SaveReason::Drained { node } => {
            let name = books.node_name(node).map(ToString::to_string);
            format!("{} takes no work", name.unwrap_or_else(|| node.to_string()))
        }
        SaveReason::Rehearsed => "it is rehearsed".to_owned(),
    };
    let record = save.decision;
    match leaves_by(books, attempt) {
        Some(ends) if ends <= now => {
            format!("its time to save is over, and it is stopped ({why}, {record})")
        }
        Some(ends) => {
            let left = up_to_seconds(ends.since(now));
            format!("it saves and leaves within {left} ({why}, {record})")
        }
        None if save.told.is_some() => {
            format!("it was told to save, and is to ask before its turn comes ({why}, {record})")
        }
        None => format!("it runs on until its turn to save ({why}, {record})"),
    }
}

/// When an attempt that may save has left, or is stopped.
pub(super) fn leaves_by(books: &Books, attempt: &Attempt) -> Option<Timestamp> {
    left_by(books, books.jobs.get(&attempt.id.job)?, attempt)
}

fn whole_seconds(span: Span) -> Span {
    Span(span.0 / 1000 * 1000)
}

pub(super) fn away(at: Timestamp, now: Timestamp) -> String {
    let whole = whole_seconds(at.since(now));
    if whole == Span::ZERO { "now".to_owned() } else { format!("in {whole}") }
}

/// A bound is not told shorter than it is.
pub(super) fn at_latest(at: Timestamp, now: Timestamp) -> String {
    let whole = up_to_seconds(at.since(now));
    if whole == Span::ZERO { "now".to_owned() } else { format!("in {whole}") }
}

pub(super) fn up_to_seconds(span: Span) -> Span {
    Span(span.0.div_ceil(1000).saturating_mul(1000))
}

pub(super) fn listed(names: &[String]) -> String {
    match names {
        [] => "nobody".to_owned(),
        [one] => one.clone(),
        [first, .., last] if names.len() > 4 => {
            format!("{first} to {last} ({} of them)", names.len())
        }
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}
