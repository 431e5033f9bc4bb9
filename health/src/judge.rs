//! What follows from an incident: for each GPU, and for the node.
//!
//! Pure: the incident, the table, what we did ourselves, who had the GPUs, and what was before go in.
//! More signals never make a fatal verdict less, and their order changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{AttemptId, Span, Timestamp, UserId};

use crate::incident::{Code, Incident, Kind, Seen};
use crate::meaning::{Action, Class, HARMLESS, Meaning, NOT_KNOWN, Own, Scope};
use crate::signal::PciAddress;
use crate::table::Table;

/// What was done to GPUs by ourselves, or known of them, around an incident.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// What we did that makes signals of its own.
    pub own: Vec<OwnAct>,
    /// Who had GPUs.
    pub holders: Vec<Holder>,
    /// The other ends of links, where they are known.
    pub peers: BTreeMap<(PciAddress, u32), PciAddress>,
    /// What was before, of other incidents.
    pub past: Vec<Past>,
    /// Users whose work fails alike on other nodes: it says nothing of this one's GPUs.
    pub fail_elsewhere: BTreeSet<UserId>,
}

/// We ended processes on GPUs, or reset them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnAct {
    /// What.
    pub what: Own,
    /// When.
    pub at: Timestamp,
    /// Where.
    pub gpus: Vec<PciAddress>,
}

/// An attempt that had GPUs of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Which.
    pub attempt: AttemptId,
    /// Whose.
    pub user: UserId,
    /// Its GPUs.
    pub gpus: Vec<PciAddress>,
    /// Since when.
    pub from: Timestamp,
    /// Until when; none = still.
    pub until: Option<Timestamp>,
}

/// Something that was seen of a device before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Past {
    /// When.
    pub at: Timestamp,
    /// Of which.
    pub device: PciAddress,
    /// What.
    pub code: Code,
    /// At which link, where links are told apart.
    pub link: Option<u32>,
    /// Whose work ran there, if it was the work's.
    pub users: BTreeSet<UserId>,
}

/// What a verdict is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// All of it.
    Node,
    /// One GPU, or a switch.
    Device(PciAddress),
}

/// What follows for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Of what.
    pub target: Target,
    /// How bad it is.
    pub class: Class,
    /// What brings it back.
    pub action: Action,
    /// The row that decided, in words.
    pub rule: String,
    /// Where that row is from.
    pub source: String,
    /// Why it is not what its row says, where it is not.
    pub why: Option<String>,
    /// How many signals there were of that target.
    pub count: u64,
    /// The earliest line of the row that decided.
    pub evidence: String,
    /// Attempts that had it meanwhile.
    pub attempts: Vec<AttemptId>,
}

/// An entry of an incident, with what it comes to.
struct Judged<'incident> {
    kind: &'incident Kind,
    seen: &'incident Seen,
    target: Target,
    meaning: Meaning,
    why: Option<String>,
}

/// The verdicts of an incident, the worst first.
#[must_use]
pub fn judge(table: &Table, incident: &Incident, context: &Context) -> Vec<Verdict> {
    let mut targets: BTreeMap<Target, Vec<Judged<'_>>> = BTreeMap::new();
    for one in entries(table, incident, context) {
        targets.entry(one.target).or_default().push(one);
    }
    let verdicts =
        targets.into_iter().filter_map(|(target, all)| verdict(table, context, target, &all));
    let mut verdicts: Vec<_> = verdicts.collect();
    verdicts.sort_by_key(|one| (std::cmp::Reverse(one.class), one.target));
    verdicts
}

fn entries<'incident>(
    table: &Table,
    incident: &'incident Incident,
    context: &Context,
) -> impl Iterator<Item = Judged<'incident>> {
    let company = has_company(table, incident, context);
    incident.kinds().map(move |(kind, seen)| entry(table, context, company, kind, seen))
}

fn entry<'incident>(
    table: &Table,
    context: &Context,
    company: bool,
    kind: &'incident Kind,
    seen: &'incident Seen,
) -> Judged<'incident> {
    let (mut meaning, mut why) = (kind.meaning, None);
    if kind.needs_company && !company {
        (meaning, why) = (HARMLESS, Some("no GPU and no link failed with it".to_owned()));
    }
    if let Some(again) = &kind.again {
        let often = before(context, kind, seen, again.within()).saturating_add(seen.occurrences());
        if often >= again.times {
            meaning = meaning.max(again.meaning());
            why = Some(format!("{often} times in {}", again.within()));
        }
    }
    if let Some(own) = kind.own.filter(|own| is_ours(table, context, *own, kind, seen)) {
        (meaning, why) = (HARMLESS, Some(own.words().to_owned()));
    }
    let mut target = match (meaning.scope, kind.device) {
        (Some(Scope::Node), _) | (_, None) => Target::Node,
        (Some(Scope::Gpu) | None, Some(device)) => Target::Device(device),
    };
    if let (true, Some(device)) = (kind.peer, kind.device) {
        let peer = kind.link.and_then(|link| context.peers.get(&(device, link)));
        match peer {
            Some(peer) => {
                target = Target::Device(*peer);
                why = Some(format!("{device} blames the other end of its link"));
            }
            None => {
                meaning = meaning.min(NOT_KNOWN);
                why = Some("it blames the other end of its link, which is not known".to_owned());
            }
        }
    }
    Judged { kind, seen, target, meaning, why }
}

/// Whether a GPU or a link failed by itself.
fn has_company(table: &Table, incident: &Incident, context: &Context) -> bool {
    let mut own = incident
        .kinds()
        .filter(|(kind, _)| !kind.needs_company && matches!(kind.code, Code::Xid(_)));
    own.any(|(kind, seen)| {
        entry(table, context, false, kind, seen).meaning.class >= Class::Degraded
    })
}

/// How often it was before this incident, within that span of it.
fn before(context: &Context, kind: &Kind, seen: &Seen, within: Span) -> u32 {
    let alike = context.past.iter().filter(|past| {
        let is_it = Some(past.device) == kind.device && past.code == kind.code;
        is_it && past.link == kind.link && seen.last.since(past.at) <= within
    });
    u32::try_from(alike.count()).unwrap_or(u32::MAX)
}

/// Whether all of it is what comes of our own act.
fn is_ours(table: &Table, context: &Context, own: Own, kind: &Kind, seen: &Seen) -> bool {
    let here = |act: &&OwnAct| {
        act.what == own && kind.device.is_some_and(|device| act.gpus.contains(&device))
    };
    let times: Vec<_> = context.own.iter().filter(here).map(|act| act.at).collect();
    seen.only_near(&times, table.own_within())
}

fn verdict(
    table: &Table,
    context: &Context,
    target: Target,
    all: &[Judged<'_>],
) -> Option<Verdict> {
    // Of alike the earliest.
    let earliest = |one: &&Judged<'_>| std::cmp::Reverse((one.seen.first.0, one.kind.clone()));
    let worst = all.iter().max_by_key(|one| (one.meaning.class, earliest(one)))?;
    let drains = all.iter().filter(|one| one.meaning.class >= Class::Degraded);
    let action = drains.map(|one| one.meaning.action).max().unwrap_or(worst.meaning.action);
    let holders = holders(context, target, all);
    let mut verdict = Verdict {
        target,
        class: worst.meaning.class,
        action,
        rule: worst.kind.name.clone(),
        source: worst.kind.source.clone(),
        why: worst.why.clone(),
        count: all.iter().map(|one| one.seen.count).fold(0, u64::saturating_add),
        evidence: worst.seen.first.1.clone(),
        attempts: holders.iter().map(|holder| holder.attempt).collect(),
    };
    if verdict.class < Class::Degraded
        && let Some((users, words)) = failing_users(table, context, target, all, &holders)
    {
        verdict.class = Class::Degraded;
        verdict.action = Action::Look;
        verdict.why = Some(format!("work of {users} users failed on it in {words}"));
    }
    Some(verdict)
}

/// Who had it while it was seen.
fn holders<'context>(
    context: &'context Context,
    target: Target,
    all: &[Judged<'_>],
) -> Vec<&'context Holder> {
    let first = all.iter().map(|one| one.seen.first.0).min().unwrap_or(Timestamp(0));
    let last = all.iter().map(|one| one.seen.last).max().unwrap_or(Timestamp(u64::MAX));
    let has = |holder: &&Holder| {
        let here = match target {
            Target::Node => true,
            Target::Device(device) => holder.gpus.contains(&device),
        };
        // What a job does as it ends is told a moment later.
        let until = holder.until.map_or(Timestamp(u64::MAX), |until| until.plus(Span::seconds(10)));
        here && holder.from <= last && until >= first
    };
    context.holders.iter().filter(has).collect()
}

/// How many users' work failed on a device, if those are too many for it to be their work's fault.
fn failing_users(
    table: &Table,
    context: &Context,
    target: Target,
    all: &[Judged<'_>],
    holders: &[&Holder],
) -> Option<(usize, Span)> {
    let Target::Device(device) = target else { return None };
    let fails = |one: &&Judged<'_>| one.meaning.class == Class::Application;
    let last = all.iter().filter(fails).map(|one| one.seen.last).max()?;
    let (most, within) = table.users();
    let past =
        context.past.iter().filter(|past| past.device == device && last.since(past.at) <= within);
    let mut users: BTreeSet<UserId> = past.flat_map(|past| past.users.iter().copied()).collect();
    users.extend(holders.iter().map(|holder| holder.user));
    users.retain(|user| !context.fail_elsewhere.contains(user));
    (users.len() >= most).then_some((users.len(), within))
}

/// What of an incident is kept for those that come after it.
#[must_use]
pub fn remembered(table: &Table, incident: &Incident, context: &Context) -> Vec<Past> {
    let kept = entries(table, incident, context).filter_map(|one| {
        let Judged { kind, seen, .. } = one;
        let is_work = one.meaning.class == Class::Application;
        (kind.again.is_some() || is_work).then_some(())?;
        let at_work = is_work.then(|| holders(context, one.target, std::slice::from_ref(&one)));
        let users = at_work.into_iter().flatten().map(|holder| holder.user).collect();
        Some(Past { at: seen.last, device: kind.device?, code: kind.code, link: kind.link, users })
    });
    kept.collect()
}
