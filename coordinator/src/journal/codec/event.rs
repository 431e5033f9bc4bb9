//! The event of a record, for audit: who asked or reported what. What follows is in the decisions.

use std::collections::BTreeMap;

use scheduler_core::Event;
use tidegate_model::{AskSeen, Commit, NodeName, SaveSeen, TaskId, TaskSeen};
use tidegate_proto::journal::v1 as wire;
use tidegate_proto::journal::v1::event::{self, Event as Kind};
use tidegate_proto::v1;

use super::parts;

pub(super) fn message(event: &Event) -> wire::Event {
    let kind = match event {
        Event::LeaderStarted => Kind::LeaderStarted(event::LeaderStarted {}),
        Event::JobSubmitted { key, user, spec: _ } => {
            Kind::JobSubmitted(event::JobSubmitted { key: key.to_string(), user: user.0 })
        }
        Event::CancelRequested { job, by } => {
            Kind::CancelRequested(event::CancelRequested { job: job.to_string(), by: by.0 })
        }
        Event::NodeReported { node, complete, facts: _, tasks, saves, commits, asks } => {
            let tasks = reports(tasks, saves, commits, asks);
            let (node, complete) = (node.to_string(), *complete);
            Kind::NodeReported(event::NodeReported { node, complete, tasks })
        }
        Event::DrainRequested { node, by, reason: _, wanted_by: _ } => {
            Kind::DrainRequested(event::DrainRequested { node: node.to_string(), by: by.0 })
        }
        Event::ResumeRequested { node, by } => {
            Kind::ResumeRequested(event::ResumeRequested { node: node.to_string(), by: by.0 })
        }
        Event::NodeDeclaredLost { node, by } => {
            Kind::NodeDeclaredLost(event::NodeDeclaredLost { node: node.to_string(), by: by.0 })
        }
        Event::NodeRemovalRequested { node, by } => removal(node, by.0),
        Event::AccountRequested { by, request: _ } => {
            Kind::AccountRequested(event::AccountRequested { by: by.0 })
        }
        Event::JobRequested { job, by, request: _ } => {
            Kind::JobRequested(event::JobRequested { job: job.to_string(), by: by.0 })
        }
        Event::GateRequested { storage, by, request: _ } => {
            Kind::GateRequested(event::GateRequested { storage: storage.to_string(), by: by.0 })
        }
        Event::PolicyChanged(change) => {
            Kind::PolicyChanged(event::PolicyChanged { by: parts::author_message(change.by) })
        }
        Event::WritingSeen { task } => {
            Kind::WritingSeen(event::WritingSeen { task: task.to_string() })
        }
        Event::DeadlineReached => Kind::DeadlineReached(event::DeadlineReached {}),
    };
    wire::Event { event: Some(kind) }
}

fn removal(node: &NodeName, by: u32) -> Kind {
    Kind::NodeRemovalRequested(event::NodeRemovalRequested { node: node.to_string(), by })
}

/// One line a task, as it was reported.
fn reports(
    tasks: &[(TaskId, TaskSeen)],
    saves: &[(TaskId, SaveSeen)],
    commits: &[(TaskId, Commit)],
    asks: &[(TaskId, AskSeen)],
) -> Vec<v1::TaskReport> {
    let mut reports: BTreeMap<TaskId, v1::TaskReport> = BTreeMap::new();
    let mut report = |task: TaskId, note: &mut dyn FnMut(&mut v1::TaskReport)| {
        note(reports.entry(task).or_insert_with(|| v1::TaskReport {
            task: task.to_string(),
            ..v1::TaskReport::default()
        }));
    };
    for (task, seen) in tasks {
        report(*task, &mut |line| line.seen = Some(seen.clone().into()));
    }
    for (task, save) in saves {
        report(*task, &mut |line| line.save = Some(save.clone().into()));
    }
    for (task, commit) in commits {
        report(*task, &mut |line| line.commit = Some(commit.clone().into()));
    }
    for (task, ask) in asks {
        report(*task, &mut |line| line.ask = Some((*ask).into()));
    }
    reports.into_values().collect()
}
