//! Decisions in words: what a person cares about, one line each.

use std::collections::BTreeMap;

use tidegate_model::{AttemptId, GpuCount, JobId, NodeId, Timestamp};

use scheduler_core::{
    Books, Decision, Excuse, Flow, Grounds, JobOutcome, Outcome, ParkReason, Place, Rehearsal,
    SaveReason, Standing,
};

use super::values::{amount_text, instant_text};
use crate::world::Observer;

/// What has been said.
#[derive(Debug, Default)]
pub(super) struct Words {
    lines: Vec<Line>,
    names: BTreeMap<JobId, String>,
    /// What the next job is called.
    pub(super) next_name: Option<String>,
}

#[derive(Debug)]
struct Line {
    at: Timestamp,
    /// Of an attempt that is placed: what is said when it runs at the same instant stands for it.
    of: Option<AttemptId>,
    text: String,
}

impl Observer for Words {
    fn saw(&mut self, before: &Books, at: Timestamp, decision: &Decision) {
        if let Decision::JobAccepted { job, .. } = decision {
            self.names.extend(self.next_name.take().map(|name| (*job, name)));
        }
        if let Decision::CapAdapted { storage, cap } = decision {
            self.say(at, format!("{storage} has a cap of {cap}, by what it proves to carry"));
        }
        self.of_attempt(before, at, decision);
        self.of_job(before, at, decision);
    }
}

impl Words {
    /// Says something that is no decision.
    pub(super) fn say(&mut self, at: Timestamp, text: String) {
        self.lines.push(Line { at, of: None, text });
    }

    /// The job of that name.
    pub(super) fn job(&self, name: &str) -> Option<JobId> {
        self.names.iter().find(|(_, known)| *known == name).map(|(job, _)| *job)
    }

    /// What the job is called.
    pub(super) fn name(&self, job: JobId) -> String {
        self.names.get(&job).cloned().unwrap_or_else(|| job.to_string())
    }

    /// Everything that was said.
    pub(super) fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| (instant_text(line.at), &line.text));
        lines.map(|(at, text)| format!("{at} {text}\n")).collect()
    }

    pub(super) fn attempt(&self, id: AttemptId) -> String {
        format!("{}.{}", self.name(id.job), id.number)
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "`of_job` says the others, or nobody cares")]
    fn of_attempt(&mut self, books: &Books, at: Timestamp, decision: &Decision) {
        let Some(id) = decision.attempt() else { return };
        let name = self.attempt(id);
        let text = match decision {
            Decision::AttemptPlanned { places, terms, .. } => {
                let nodes = places_text(books, places);
                let text = format!("{name} is placed on {nodes}, {}", terms.standing);
                self.lines.push(Line { at, of: Some(id), text });
                return;
            }
            Decision::AttemptRunning(_) => {
                self.lines.retain(|line| line.at != at || line.of != Some(id));
                running(books, at, id, &name)
            }
            Decision::StandingChanged { at, to, promised_until, .. } => {
                let from = books.attempt(id).map(|attempt| attempt.standing);
                let text = standing(from, *to, *promised_until, &name);
                self.lines.extend(text.map(|text| Line { at: *at, of: None, text }));
                return;
            }
            Decision::SaveOrdered { why, .. } => {
                let why = self.save_reason(books, *why);
                format!("{name} is asked to save: {why}")
            }
            Decision::SaveTold(_) => format!("{name} is told to save, before its turn"),
            Decision::SaveAdmitted { rate, .. } => {
                let asked = books.attempt(id).and_then(|attempt| attempt.save);
                let told = rate.map(|rate| format!(", reckoned at {rate}")).unwrap_or_default();
                if asked.is_some_and(|save| save.at == at) && told.is_empty() {
                    return;
                }
                format!("{name} may save{told}")
            }
            Decision::PermitGranted { permit, bytes, rate, pooled } => {
                let rate = rate.map(|rate| format!(" at {rate}")).unwrap_or_default();
                let pooled = if *pooled { " out of the pool" } else { "" };
                let does = does(Flow::of(permit.class));
                format!("{name} may {does} {bytes}{rate}{pooled} ({})", permit.class)
            }
            Decision::WriteRated { rate, pooled, .. } => {
                let pooled = if *pooled { " out of the pool" } else { "" };
                let writing = books.attempt(id).and_then(|attempt| attempt.writing);
                let does = does(writing.map_or(Flow::Writes, |writing| writing.flow()));
                format!("{name} may {does} at {rate}{pooled}")
            }
            Decision::WriteEnded(_) => {
                let attempt = books.attempt(id);
                let of = attempt.and_then(|one| one.writing).filter(|of| of.permit.is_none());
                let committed = attempt.and_then(|one| one.committed);
                if of.is_none_or(|of| committed.is_some_and(|at| at >= of.since)) {
                    return;
                }
                format!("{name} did not ask to write, and its turn is over")
            }
            Decision::SaveWithdrawn(_) => format!("{name} need not save"),
            Decision::StopOrdered { why, .. } => format!("{name} is stopped: {why}"),
            Decision::AttemptEnded { outcome: Outcome::Done, .. } => return,
            Decision::AttemptEnded { outcome, excused, .. } => {
                let excused = excused.map(|span| {
                    let why = match span.why {
                        Excuse::Saved => "not charged",
                        Excuse::Fault => "credited",
                    };
                    format!(", {why} from {}", instant_text(span.from))
                });
                format!("{name} ends {outcome:?}{}", excused.unwrap_or_default())
            }
            _ => return,
        };
        self.say(at, text);
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "`of_attempt` says the others")]
    fn of_job(&mut self, books: &Books, at: Timestamp, decision: &Decision) {
        let text = match decision {
            Decision::JobRequeued { job, not_before, carried, .. } => {
                let name = self.name(*job);
                let kept = carried.map(|span| format!(" with {span} of protection"));
                let later =
                    (*not_before > at).then(|| format!(" from {}", instant_text(*not_before)));
                if kept.is_none() && later.is_none() {
                    return;
                }
                let (kept, later) = (kept.unwrap_or_default(), later.unwrap_or_default());
                format!("{name} waits again{kept}{later}")
            }
            Decision::JobEnded { job, outcome } => {
                let how = match outcome {
                    JobOutcome::Done => "done",
                    JobOutcome::Failed => "failed",
                    JobOutcome::Cancelled => "cancelled",
                };
                format!("{} is {how}", self.name(*job))
            }
            Decision::RehearsalJudged { shown, .. } => self.judged(shown),
            Decision::JobParked { job, why } => {
                let why = match why {
                    ParkReason::Asked { by } => format!("{by} said so"),
                    ParkReason::NoProgress { attempts } => {
                        format!("{attempts} attempts without a new commit")
                    }
                    ParkReason::DependencyFailed { job } => {
                        format!("{} did not end as it must", self.name(*job))
                    }
                };
                format!("{} is parked: {why}", self.name(*job))
            }
            Decision::ElderNamed { job, at } => {
                let text = format!("{} is an elder", self.name(*job));
                return self.say(*at, text);
            }
            Decision::ReservationMade { job, nodes, at: from, pledge } => format!(
                "{} has {} reserved from {}, {} GPU-h pledged",
                self.name(*job),
                nodes_text(books, nodes),
                instant_text(*from),
                amount_text(*pledge)
            ),
            Decision::ReservationMoved { job, nodes, at: from, cause } => format!(
                "{}'s reservation moves to {} from {}: {cause}",
                self.name(*job),
                nodes_text(books, nodes),
                instant_text(*from)
            ),
            Decision::ReservationDropped { job, .. } => {
                format!("{}'s reservation is dropped", self.name(*job))
            }
            Decision::NodeRemoved { node, .. } => {
                format!("{} is no part of the cluster any more", node_name(books, *node))
            }
            _ => return,
        };
        self.say(at, text);
    }

    fn judged(&self, shown: &Rehearsal) -> String {
        let text = shown.to_string();
        let text = text.strip_prefix(&shown.job.to_string()).unwrap_or(&text);
        format!("{}{text}", self.name(shown.job))
    }

    fn save_reason(&self, books: &Books, why: SaveReason) -> String {
        match why {
            SaveReason::Displaced { by, grounds } => {
                format!("{} ({}){}", grounds.rule, self.attempt(by), figures(grounds))
            }
            SaveReason::Drained { node } => format!("{} takes no work", node_name(books, node)),
            SaveReason::Rehearsed => "it is rehearsed".to_owned(),
        }
    }
}

fn figures(grounds: Grounds) -> String {
    let (mine, theirs) = (grounds.claimant, grounds.victim);
    if mine.1.0 == 0 {
        return String::new();
    }
    let of = |(claim, budget)| format!("{} of {}", amount_text(claim), amount_text(budget));
    format!(", {} against {}", of(mine), of(theirs))
}

fn running(books: &Books, at: Timestamp, id: AttemptId, name: &str) -> String {
    let Some(attempt) = books.attempt(id) else { return format!("{name} runs") };
    let places: Vec<_> = attempt.tasks.iter().map(|task| task.place.clone()).collect();
    let nodes = places_text(books, &places);
    let until = match attempt.standing {
        Standing::Protected => format!(" until {}", instant_text(at.plus(attempt.terms.protect))),
        Standing::Funded | Standing::Free => String::new(),
    };
    format!("{name} starts {} on {nodes}{until}", attempt.standing)
}

fn standing(
    from: Option<Standing>,
    to: Standing,
    until: Option<Timestamp>,
    name: &str,
) -> Option<String> {
    let until = until.map(|until| format!(" until {}", instant_text(until))).unwrap_or_default();
    match (from, to) {
        (Some(Standing::Free), Standing::Protected) => {
            Some(format!("{name} turns Protected in place{until}"))
        }
        (Some(Standing::Free), Standing::Funded) => {
            Some(format!("{name} returns to Funded{until}"))
        }
        (_, Standing::Free) => Some(format!("{name} turns Free")),
        (Some(Standing::Protected), Standing::Funded) => Some(format!("{name} is Funded")),
        (Some(Standing::Funded | Standing::Protected) | None, _) => None,
    }
}

pub(super) fn node_name(books: &Books, node: NodeId) -> String {
    books.nodes.get(&node).map_or_else(|| node.to_string(), |node| node.name.to_string())
}

fn places_text(books: &Books, places: &[Place]) -> String {
    let mut nodes: Vec<(NodeId, GpuCount)> = Vec::new();
    for place in places {
        let gpus = GpuCount(u32::try_from(place.gpus.len()).unwrap_or(u32::MAX));
        match nodes.last_mut().filter(|(node, _)| *node == place.node) {
            Some((_, known)) => *known = known.plus(gpus),
            None => nodes.push((place.node, gpus)),
        }
    }
    nodes_text(books, &nodes)
}

/// `n1 n2:4`, and `n1..n4` of whole nodes in a row.
fn nodes_text(books: &Books, nodes: &[(NodeId, GpuCount)]) -> String {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    let mut words: Vec<String> = Vec::new();
    let mut row: Option<(NodeId, NodeId)> = None;
    for (node, gpus) in nodes {
        let whole = books.nodes.get(&node).is_some_and(|one| one.size() == gpus);
        row = match row {
            Some((first, last)) if whole && node.0 == last.0.saturating_add(1) => {
                Some((first, node))
            }
            other => {
                words.extend(other.map(|row| row_text(books, row)));
                whole.then_some((node, node))
            }
        };
        if !whole {
            words.push(format!("{}:{gpus}", node_name(books, node)));
        }
    }
    words.extend(row.map(|row| row_text(books, row)));
    words.join(" ")
}

fn row_text(books: &Books, (first, last): (NodeId, NodeId)) -> String {
    let (from, to) = (node_name(books, first), node_name(books, last));
    match last.0.saturating_sub(first.0) {
        0 => from,
        1 => format!("{from} {to}"),
        _ => format!("{from}..{to}"),
    }
}

fn does(flow: Flow) -> &'static str {
    match flow {
        Flow::Writes => "write",
        Flow::Reads => "read",
    }
}
