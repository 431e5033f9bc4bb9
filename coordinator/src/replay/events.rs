//! The event of a record, whole again: the journal keeps who asked or reported what, and what
//! follows from it is in the decisions.

use prost::Message;
use scheduler_core::{
    AccountId, AccountRequest, Books, Decision, Event, GateRequest, JobRequest, ParkReason,
    PolicyChange, ROOT,
};
use tidegate_model::{AccountPath, AskSeen, Commit, NodeName, SaveSeen, TaskSeen, UserId};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::journal::v1::event::Event as Kind;
use tidegate_proto::{WireError, parsed, required};

use crate::journal::codec::parts;

/// The event as the record has it.
pub(crate) fn told(bytes: &[u8]) -> Result<Kind, WireError> {
    let record = wire::Record::decode(bytes)
        .map_err(|error| WireError::Invalid { field: "Record", why: error.to_string() })?;
    required(record.event.and_then(|event| event.event), "Record.event")
}

/// What the core was given. A request of which nothing is in the decisions was refused, and the
/// record holds only what was due before it: that is what a deadline books as well.
pub(super) fn event(books: &Books, told: &Kind, then: &[Decision]) -> Result<Event, WireError> {
    Ok(match told {
        Kind::LeaderStarted(_) => Event::LeaderStarted,
        Kind::JobSubmitted(m) => {
            let spec = then.iter().find_map(|decision| {
                if let Decision::JobAccepted { spec, .. } = decision { Some(spec) } else { None }
            });
            match spec.cloned() {
                Some(spec) => {
                    let key = parsed(&m.key, "JobSubmitted.key")?;
                    Event::JobSubmitted { key, user: UserId(m.user), spec }
                }
                None => Event::DeadlineReached,
            }
        }
        Kind::CancelRequested(m) => {
            let job = parsed(&m.job, "CancelRequested.job")?;
            Event::CancelRequested { job, by: UserId(m.by) }
        }
        Kind::NodeReported(m) => report(books, m, then)?,
        Kind::DrainRequested(m) => {
            let node = parsed(&m.node, "DrainRequested.node")?;
            drain(node, UserId(m.by), then)
        }
        Kind::ResumeRequested(m) => {
            let node = parsed(&m.node, "ResumeRequested.node")?;
            Event::ResumeRequested { node, by: UserId(m.by) }
        }
        Kind::NodeDeclaredLost(m) => {
            let node = parsed(&m.node, "NodeDeclaredLost.node")?;
            Event::NodeDeclaredLost { node, by: UserId(m.by) }
        }
        Kind::NodeRemovalRequested(m) => {
            let node = parsed(&m.node, "NodeRemovalRequested.node")?;
            Event::NodeRemovalRequested { node, by: UserId(m.by) }
        }
        Kind::AccountRequested(m) => {
            let by = UserId(m.by);
            let asked = account(books, then);
            asked.map_or(Event::DeadlineReached, |request| Event::AccountRequested { by, request })
        }
        Kind::JobRequested(m) => {
            let (job, by) = (parsed(&m.job, "JobRequested.job")?, UserId(m.by));
            let asked = then.iter().find_map(job_request);
            asked.map_or(Event::DeadlineReached, |request| Event::JobRequested { job, by, request })
        }
        Kind::GateRequested(m) => {
            let (storage, by) = (parsed(&m.storage, "GateRequested.storage")?, UserId(m.by));
            let asked = then.iter().find_map(gate_request);
            asked.map_or(Event::DeadlineReached, |request| Event::GateRequested {
                storage,
                by,
                request,
            })
        }
        Kind::PolicyChanged(m) => {
            let by = parts::author(m.by);
            let set = then.iter().find_map(|decision| {
                if let Decision::PolicySet { policy, .. } = decision { Some(policy) } else { None }
            });
            let change = |policy| Event::PolicyChanged(PolicyChange { policy, by, read: None });
            set.cloned().map_or(Event::DeadlineReached, change)
        }
        Kind::WritingSeen(m) => Event::WritingSeen { task: parsed(&m.task, "WritingSeen.task")? },
        Kind::DeadlineReached(_) => Event::DeadlineReached,
    })
}

/// What a node says of itself is in the decisions if it is news.
fn report(
    books: &Books,
    told: &wire::event::NodeReported,
    then: &[Decision],
) -> Result<Event, WireError> {
    let node: NodeName = parsed(&told.node, "NodeReported.node")?;
    let news = then.iter().find_map(|decision| {
        if let Decision::NodeRefreshed { facts, .. } = decision {
            Some(facts.clone())
        } else {
            None
        }
    });
    let known = || books.node_named(&node).map(|node| node.facts.clone());
    let facts = news.or_else(|| told.complete.then(known).flatten());
    let (mut tasks, mut saves, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    let mut asks = Vec::new();
    for line in told.tasks.iter().cloned() {
        let task = parsed(&line.task, "TaskReport.task")?;
        if let Some(seen) = line.seen {
            tasks.push((task, TaskSeen::try_from(seen)?));
        }
        if let Some(save) = line.save {
            saves.push((task, SaveSeen::try_from(save)?));
        }
        if let Some(commit) = line.commit {
            commits.push((task, Commit::try_from(commit)?));
        }
        if let Some(ask) = line.ask {
            asks.push((task, AskSeen::try_from(ask)?));
        }
    }
    Ok(Event::NodeReported { node, complete: told.complete, facts, tasks, saves, commits, asks })
}

fn drain(node: NodeName, by: UserId, then: &[Decision]) -> Event {
    let began = then.iter().find_map(|decision| {
        let Decision::DrainBegan { reason, wanted_by, .. } = decision else { return None };
        Some((reason.clone(), *wanted_by))
    });
    match began {
        Some((reason, wanted_by)) => Event::DrainRequested { node, by, reason, wanted_by },
        None => Event::DeadlineReached,
    }
}

fn job_request(decision: &Decision) -> Option<JobRequest> {
    if matches!(decision, Decision::JobParked { why: ParkReason::Asked { .. }, .. }) {
        Some(JobRequest::Park)
    } else if matches!(decision, Decision::JobUnparked { .. }) {
        Some(JobRequest::Release)
    } else if matches!(decision, Decision::ElderAllowed { .. }) {
        Some(JobRequest::AllowElder)
    } else if matches!(decision, Decision::ReservationDropped { .. }) {
        Some(JobRequest::DropReservation)
    } else {
        None
    }
}

fn gate_request(decision: &Decision) -> Option<GateRequest> {
    if let Decision::GateSet { rule, .. } = decision {
        Some(GateRequest::Set(rule.clone()))
    } else if let Decision::GatePaused { reason, .. } = decision {
        Some(GateRequest::Pause { reason: reason.clone() })
    } else if matches!(decision, Decision::GateResumed { .. }) {
        Some(GateRequest::Resume)
    } else {
        None
    }
}

/// The last that names it: before a granted request stands the budget it brings.
fn account(books: &Books, then: &[Decision]) -> Option<AccountRequest> {
    then.iter().rev().find_map(|decision| account_request(books, decision))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "these are all that a request about accounts is")]
fn account_request(books: &Books, decision: &Decision) -> Option<AccountRequest> {
    let path = |account: AccountId| -> Option<AccountPath> {
        if account == ROOT { None } else { books.accounts.name(account).parse().ok() }
    };
    Some(match decision {
        Decision::AccountMade { parent, label, size, .. } => {
            let above = path(*parent);
            let whole = above.map_or_else(|| label.clone(), |above| format!("{above}/{label}"));
            let cut = scheduler_core::Cut::Gradual;
            AccountRequest::Set { account: whole.parse().ok()?, size: *size, cut }
        }
        Decision::BudgetSet { account, size, cut, .. } => {
            AccountRequest::Set { account: path(*account)?, size: *size, cut: *cut }
        }
        Decision::BudgetTransferred { from, to, amount, until, key, .. } => {
            AccountRequest::Transfer {
                from: path(*from)?,
                to: path(*to)?,
                amount: *amount,
                permanent: until.is_none(),
                key: *key,
            }
        }
        Decision::BudgetAsked { account, size, reason, .. } => {
            AccountRequest::Ask { account: path(*account)?, size: *size, reason: reason.clone() }
        }
        Decision::BudgetAnswered { account, asked_by, granted, .. } => AccountRequest::Answer {
            account: path(*account)?,
            asked_by: *asked_by,
            grant: *granted,
            size: None,
        },
        Decision::AccountDeleted { account, .. } => {
            AccountRequest::Delete { account: path(*account)? }
        }
        Decision::RoleSet { account, user, role, .. } => {
            AccountRequest::SetRole { account: path(*account), user: *user, role: *role }
        }
        _ => return None,
    })
}
