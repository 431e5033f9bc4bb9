//! What has been said on one stream to the coordinator, and what is news. The first report of a
//! stream is complete, the others hold changes only.

use std::collections::BTreeMap;
use std::time::Instant;

use tidegate_model::{Epoch, Generation, Span, TaskId};
use tidegate_proto::link::{NodeFacts, Report, TaskReport};
use tidegate_proto::v1;
use tokio::sync::mpsc;

use crate::link::from_agent;

/// One stream's sending side.
#[derive(Debug)]
pub(crate) struct Reporting {
    outbox: mpsc::Sender<v1::FromAgent>,
    /// None before the complete report.
    said: Option<Said>,
}

#[derive(Debug)]
struct Said {
    facts: NodeFacts,
    tasks: BTreeMap<TaskId, TaskReport>,
    idle: BTreeMap<TaskId, Instant>,
}

/// What could be said now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now<'a> {
    pub(crate) facts: &'a NodeFacts,
    pub(crate) tasks: &'a BTreeMap<TaskId, TaskReport>,
    pub(crate) applied: Option<(Epoch, Generation)>,
    /// Tasks with idle GPUs, and since when.
    pub(crate) idle: &'a BTreeMap<TaskId, Instant>,
}

impl Reporting {
    pub(crate) fn over(outbox: mpsc::Sender<v1::FromAgent>) -> Self {
        Self { outbox, said: None }
    }

    /// Says what is news. If the stream does not take it now, it is news at the next call.
    pub(crate) fn report(&mut self, now: Now<'_>) {
        let Some(report) = self.news(now) else { return };
        if self.send(v1::from_agent::Message::Report(report.into())) {
            let (facts, tasks) = (now.facts.clone(), now.tasks.clone());
            self.said = Some(Said { facts, tasks, idle: now.idle.clone() });
        }
    }

    /// A sign of life; nothing before the complete report, which is one.
    pub(crate) fn heartbeat(&self) {
        if self.said.is_some() {
            self.send(v1::from_agent::Message::Report(Report::default().into()));
        }
    }

    /// Answers a read. It is dropped if the stream does not take it now: a read may be lost.
    pub(crate) fn log(&self, chunk: v1::LogChunk) {
        self.send(v1::from_agent::Message::LogChunk(chunk));
    }

    fn news(&self, now: Now<'_>) -> Option<Report> {
        let Now { facts, tasks, applied, idle } = now;
        let Some(said) = &self.said else {
            let (facts, tasks) = (Some(facts.clone()), tasks.clone());
            let idle = idle.iter().map(|(task, since)| (*task, Some(passed(*since)))).collect();
            return Some(Report {
                complete: true,
                facts,
                tasks,
                applied,
                idle,
                ..Report::default()
            });
        };
        let is_news =
            |(task, report): &(&TaskId, &TaskReport)| said.tasks.get(task) != Some(*report);
        let tasks = tasks.iter().filter(is_news);
        let tasks: BTreeMap<_, _> = tasks.map(|(task, report)| (*task, report.clone())).collect();
        let facts = (said.facts != *facts).then(|| facts.clone());
        let begun = idle.iter().filter(|(task, since)| said.idle.get(task) != Some(since));
        let begun = begun.map(|(task, since)| (*task, Some(passed(*since))));
        let over = said.idle.keys().filter(|task| !idle.contains_key(task));
        let idle: BTreeMap<_, _> = over.map(|task| (*task, None)).chain(begun).collect();
        if tasks.is_empty() && facts.is_none() && idle.is_empty() {
            return None;
        }
        Some(Report { complete: false, facts, tasks, applied, idle, ..Report::default() })
    }

    fn send(&self, message: v1::from_agent::Message) -> bool {
        self.outbox.try_send(from_agent(message)).is_ok()
    }
}

fn passed(since: Instant) -> Span {
    Span(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::{Bytes, Commit, TaskSeen};

    fn facts(note: &str) -> NodeFacts {
        NodeFacts {
            boot_id: "b".into(),
            gpus: Vec::new(),
            gpu_note: note.into(),
            address: "a".into(),
            block: String::new(),
            memory: Bytes(1),
            cpus: 1,
            only_user: None,
        }
    }

    fn next(outbox: &mut mpsc::Receiver<v1::FromAgent>) -> Option<Report> {
        match outbox.try_recv().ok()?.message? {
            v1::from_agent::Message::Report(report) => Some(report.try_into().unwrap()),
            v1::from_agent::Message::Hello(_) | v1::from_agent::Message::LogChunk(_) => None,
        }
    }

    #[test]
    fn the_first_report_is_complete_and_the_others_hold_changes_only() {
        let (sender, mut outbox) = mpsc::channel(2);
        let mut reporting = Reporting::over(sender);
        let one: TaskId = "job-1.1.0".parse().unwrap();
        let two: TaskId = "job-2.1.0".parse().unwrap();
        let mut tasks = BTreeMap::from([(one, TaskSeen::Running.into())]);
        let old = facts("old");
        reporting.heartbeat();
        assert_eq!(next(&mut outbox), None, "the complete report is the first sign of life");
        reporting.report(Now { facts: &old, tasks: &tasks, applied: None, idle: &BTreeMap::new() });
        let complete = next(&mut outbox).unwrap();
        assert!(complete.complete && complete.facts == Some(old.clone()));
        assert_eq!(complete.tasks, tasks);
        reporting.report(Now { facts: &old, tasks: &tasks, applied: None, idle: &BTreeMap::new() });
        assert_eq!(next(&mut outbox), None, "nothing is news");
        tasks.insert(two, TaskSeen::Starting.into());
        let new = facts("new");
        reporting.report(Now { facts: &new, tasks: &tasks, applied: None, idle: &BTreeMap::new() });
        let changes = next(&mut outbox).unwrap();
        assert_eq!(changes.tasks, BTreeMap::from([(two, TaskSeen::Starting.into())]));
        assert_eq!((changes.complete, changes.facts), (false, Some(new.clone())));
        let commit = Commit { step: 1, path: "/c".into(), bytes: Bytes(1), request: None };
        let saved = TaskReport { commit: Some(commit), ..TaskSeen::Running.into() };
        tasks.insert(one, saved.clone());
        reporting.report(Now { facts: &new, tasks: &tasks, applied: None, idle: &BTreeMap::new() });
        assert_eq!(next(&mut outbox).unwrap().tasks, BTreeMap::from([(one, saved)]));
    }

    #[test]
    fn what_the_stream_did_not_take_is_news_again() {
        let (sender, mut outbox) = mpsc::channel(1);
        let mut reporting = Reporting::over(sender);
        let facts = facts("");
        let task: TaskId = "job-1.1.0".parse().unwrap();
        reporting.report(Now {
            facts: &facts,
            tasks: &BTreeMap::new(),
            applied: None,
            idle: &BTreeMap::new(),
        });
        let tasks = BTreeMap::from([(task, TaskSeen::Running.into())]);
        reporting.report(Now {
            facts: &facts,
            tasks: &tasks,
            applied: None,
            idle: &BTreeMap::new(),
        });
        assert!(next(&mut outbox).unwrap().complete);
        assert_eq!(next(&mut outbox), None);
        reporting.report(Now {
            facts: &facts,
            tasks: &tasks,
            applied: None,
            idle: &BTreeMap::new(),
        });
        assert_eq!(next(&mut outbox).unwrap().tasks, tasks);
    }

    #[test]
    fn idleness_is_told_when_it_begins_and_when_it_ends_and_not_in_between() {
        let (sender, mut outbox) = mpsc::channel(1);
        let mut reporting = Reporting::over(sender);
        let facts = facts("");
        let task: TaskId = "job-1.1.0".parse().unwrap();
        let tasks = BTreeMap::from([(task, TaskSeen::Running.into())]);
        let idle = BTreeMap::from([(task, Instant::now())]);
        let mut told = |idle: &BTreeMap<TaskId, Instant>| {
            reporting.report(Now { facts: &facts, tasks: &tasks, applied: None, idle });
            let told = next(&mut outbox)?.idle.into_iter();
            Some(told.map(|(task, span)| (task, span.is_some())).collect::<Vec<_>>())
        };
        assert_eq!(told(&idle), Some(vec![(task, true)]), "in the complete report");
        assert_eq!(told(&idle), None);
        assert_eq!(told(&BTreeMap::new()), Some(vec![(task, false)]));
        assert_eq!(told(&BTreeMap::new()), None);
        assert_eq!(told(&idle), Some(vec![(task, true)]));
    }
}
