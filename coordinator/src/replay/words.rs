//! Events and decisions in a few words, one line a record.

use scheduler_core::{Author, Decision};
use tidegate_proto::journal::v1::event::Event as Kind;

use crate::journal::codec::parts;

/// Most that a line names of one kind; more are counted.
const NAMED: usize = 3;

pub(super) fn event(event: &Kind) -> String {
    match event {
        Kind::LeaderStarted(_) => "a coordinator started".to_owned(),
        Kind::JobSubmitted(m) => format!("uid-{} submitted a job", m.user),
        Kind::CancelRequested(m) => format!("uid-{} cancelled {}", m.by, m.job),
        Kind::NodeReported(m) => {
            let whole = if m.complete { " everything:" } else { "" };
            format!("{} reported{whole} {} tasks", m.node, m.tasks.len())
        }
        Kind::DrainRequested(m) => format!("uid-{} drained {}", m.by, m.node),
        Kind::ResumeRequested(m) => format!("uid-{} resumed {}", m.by, m.node),
        Kind::NodeDeclaredLost(m) => format!("uid-{} said {} is lost", m.by, m.node),
        Kind::NodeRemovalRequested(m) => format!("uid-{} removed {}", m.by, m.node),
        Kind::AccountRequested(m) => format!("uid-{} asked about accounts", m.by),
        Kind::JobRequested(m) => format!("uid-{} asked about {}", m.by, m.job),
        Kind::GateRequested(m) => format!("uid-{} changed the gate of {}", m.by, m.storage),
        Kind::PolicyChanged(m) => match parts::author(m.by) {
            Author::Unknown => "the policy was set".to_owned(),
            by @ (Author::Configuration | Author::User(_)) => format!("{by} set the policy"),
        },
        Kind::WritingSeen(m) => format!("{} was seen to write", m.task),
        Kind::DeadlineReached(_) => "an instant came".to_owned(),
    }
}

/// Decisions by name, those of one kind that follow each other together:
/// `TaskStarted job-1.1.0 job-1.1.1 job-1.1.2 and 5 more`.
pub(super) fn decisions(decisions: &[Decision]) -> String {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for decision in decisions {
        let (kind, about) = (kind(decision), about(decision));
        match groups.last_mut() {
            Some((last, named)) if *last == kind => named.push(about),
            Some(_) | None => groups.push((kind, vec![about])),
        }
    }
    let told = |(kind, named): (String, Vec<String>)| {
        let more = named.len().saturating_sub(NAMED);
        let mut words = vec![kind];
        words.extend(named.into_iter().take(NAMED).filter(|name| !name.is_empty()));
        words.extend((more > 0).then(|| format!("and {more} more")));
        words.join(" ")
    };
    let told: Vec<_> = groups.into_iter().map(told).collect();
    if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
}

/// The name of the variant, which is what the code and the journal call it.
fn kind(decision: &Decision) -> String {
    let told = format!("{decision:?}");
    told.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

/// What it is about, with what tells it from others of its kind.
fn about(decision: &Decision) -> String {
    if let Some(task) = decision.task() {
        return if let Decision::TaskEnded { exit, .. } = decision {
            format!("{task} ({exit})")
        } else {
            task.to_string()
        };
    }
    if let Some(attempt) = decision.attempt() {
        return format!("{attempt}{}", further(decision));
    }
    if let Decision::JobAccepted { job, .. }
    | Decision::JobCancelled { job, .. }
    | Decision::JobRequeued { job, .. }
    | Decision::JobForgotten(job)
    | Decision::JobParked { job, .. }
    | Decision::JobUnparked { job, .. }
    | Decision::ElderNamed { job, .. }
    | Decision::ElderAllowed { job, .. }
    | Decision::ReservationMade { job, .. }
    | Decision::ReservationMoved { job, .. }
    | Decision::ReservationDropped { job, .. } = decision
    {
        job.to_string()
    } else if let Decision::JobEnded { job, outcome } = decision {
        format!("{job} ({outcome:?})")
    } else if let Decision::RehearsalJudged { shown, .. } = decision {
        format!("{} ({:?})", shown.job, shown.verdict())
    } else if let Decision::NodeAdmitted { name, .. } = decision {
        name.to_string()
    } else if let Decision::EpochBegan(epoch) = decision {
        epoch.to_string()
    } else {
        String::new()
    }
}

fn further(decision: &Decision) -> String {
    if let Decision::AttemptEnded { outcome, .. } = decision {
        format!(" ({outcome:?})")
    } else if let Decision::StandingChanged { to, .. } = decision {
        format!(" ({to})")
    } else if let Decision::AttemptPlanned { places, terms, .. } = decision {
        format!(" ({}, {} tasks)", terms.standing, places.len())
    } else if let Decision::StopOrdered { why, .. } = decision {
        format!(" ({why})")
    } else {
        String::new()
    }
}
