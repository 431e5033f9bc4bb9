//! What has been said on one stream to the coordinator, and what is news. The first report of a
//! stream is complete, the others hold changes only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_model::{Bandwidth, Bytes, Epoch, Generation, Span, TaskId};
use tidegate_proto::link::{NodeFacts, Report, TaskReport};
use tidegate_proto::v1;
use tokio::sync::mpsc;

use crate::link::from_agent;
use crate::renewals::Renewals;
use crate::since_boot::SinceBoot;

/// Between two words of how much jobs say they have written, if that alone has changed.
const WRITTEN_INTERVAL: Duration = Duration::from_secs(5);

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
    writes: BTreeMap<TaskId, Bandwidth>,
    at: Instant,
}

/// What could be said now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now<'a> {
    pub(crate) facts: &'a NodeFacts,
    pub(crate) tasks: &'a BTreeMap<TaskId, TaskReport>,
    pub(crate) applied: Option<(Epoch, Generation)>,
    /// Tasks with idle GPUs, and since when.
    pub(crate) idle: &'a BTreeMap<TaskId, Instant>,
    /// Tasks with an open ask, and since when.
    pub(crate) asks: &'a BTreeMap<TaskId, SinceBoot>,
    /// What tasks write, of those that do.
    pub(crate) writes: &'a BTreeMap<TaskId, Bandwidth>,
}

impl Reporting {
    pub(crate) fn over(outbox: mpsc::Sender<v1::FromAgent>) -> Self {
        Self { outbox, said: None }
    }

    /// Says what is news. If the stream does not take it now, it is news at the next call.
    pub(crate) fn report(&mut self, now: Now<'_>, renewals: &mut Renewals) {
        let Some(mut report) = self.news(now) else { return };
        let at = SinceBoot::now();
        for (task, report) in &mut report.tasks {
            if let (Some(ask), Some(asked)) = (&mut report.ask, now.asks.get(task)) {
                ask.waited = at.since(*asked);
            }
        }
        if !now.asks.is_empty() {
            report.renew = renewals.next(at);
        }
        let mut writes = self.said.as_ref().map(|said| said.writes.clone()).unwrap_or_default();
        writes.extend(report.writes.clone());
        writes.retain(|_, rate| rate.0 > 0);
        if self.send(v1::from_agent::Message::Report(report.into())) {
            let (facts, idle) = (now.facts.clone(), now.idle.clone());
            let tasks = now.tasks.clone();
            self.said = Some(Said { facts, tasks, idle, writes, at: Instant::now() });
        }
    }

    /// A sign of life, with a number if there are permits to renew; nothing before the complete
    /// report, which is one.
    pub(crate) fn heartbeat(&self, renewals: Option<&mut Renewals>) {
        if self.said.is_some() {
            let renew = renewals.map_or(0, |renewals| renewals.next(SinceBoot::now()));
            let heartbeat = Report { renew, ..Report::default() };
            self.send(v1::from_agent::Message::Report(heartbeat.into()));
        }
    }

    /// Answers a read. It is dropped if the stream does not take it now: a read may be lost.
    pub(crate) fn log(&self, chunk: v1::LogChunk) {
        self.send(v1::from_agent::Message::LogChunk(chunk));
    }

    fn news(&self, now: Now<'_>) -> Option<Report> {
        let Now { facts, tasks, applied, idle, asks: _, writes } = now;
        let Some(said) = &self.said else {
            let (facts, tasks) = (Some(facts.clone()), tasks.clone());
            let idle = idle.iter().map(|(task, since)| (*task, Some(passed(*since)))).collect();
            return Some(Report {
                complete: true,
                facts,
                tasks,
                applied,
                idle,
                writes: writes.clone(),
                ..Report::default()
            });
        };
        let changed = tasks.iter().filter(|(task, report)| said.tasks.get(task) != Some(*report));
        let changed = changed.map(|(task, report)| (*task, report.clone()));
        let mut tasks: BTreeMap<_, _> = changed.collect();
        if said.at.elapsed() < WRITTEN_INTERVAL {
            // All that has changed is said at the end of the interval, or with the next news.
            let is_told =
                |task, report| said.tasks.get(task).is_some_and(|old| is_alike(old, report));
            if tasks.iter().all(|(task, report)| is_told(task, report)) {
                tasks.clear();
            }
        }
        let facts = (said.facts != *facts).then(|| facts.clone());
        let begun = idle.iter().filter(|(task, since)| said.idle.get(task) != Some(since));
        let begun = begun.map(|(task, since)| (*task, Some(passed(*since))));
        let over = said.idle.keys().filter(|task| !idle.contains_key(task));
        let idle: BTreeMap<_, _> = over.map(|task| (*task, None)).chain(begun).collect();
        let writes = changed_writes(&said.writes, writes);
        if tasks.is_empty() && facts.is_none() && idle.is_empty() && writes.is_empty() {
            return None;
        }
        Some(Report { facts, tasks, applied, idle, writes, ..Report::default() })
    }

    fn send(&self, message: v1::from_agent::Message) -> bool {
        self.outbox.try_send(from_agent(message)).is_ok()
    }
}

/// What differs by more than a tenth from what was said; zero = no more.
fn changed_writes(
    said: &BTreeMap<TaskId, Bandwidth>,
    now: &BTreeMap<TaskId, Bandwidth>,
) -> BTreeMap<TaskId, Bandwidth> {
    let over = said.keys().filter(|task| !now.contains_key(task));
    let over = over.map(|task| (*task, Bandwidth(0)));
    let changed = now.iter().filter(|(task, rate)| {
        said.get(task).is_none_or(|said| rate.0.abs_diff(said.0) > said.0 / 10)
    });
    over.chain(changed.map(|(task, rate)| (*task, *rate))).collect()
}

/// Whether only the words of its job of how much it has written differ.
fn is_alike(old: &TaskReport, new: &TaskReport) -> bool {
    let without = |report: &TaskReport| {
        let mut report = report.clone();
        if let Some(ask) = &mut report.ask {
            ask.written = Bytes(0);
        }
        report
    };
    without(old) == without(new)
}

fn passed(since: Instant) -> Span {
    Span(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permits::AskRecord;
    use tidegate_model::{Commit, DecisionSeq, TaskSeen, WriteClass};

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
            closed: String::new(),
        }
    }

    fn report(reporting: &mut Reporting, facts: &NodeFacts, tasks: &BTreeMap<TaskId, TaskReport>) {
        let (idle, asks) = (&BTreeMap::new(), &BTreeMap::new());
        let now = Now { facts, tasks, applied: None, idle, asks, writes: &BTreeMap::new() };
        reporting.report(now, &mut Renewals::default());
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
        reporting.heartbeat(None);
        assert_eq!(next(&mut outbox), None, "the complete report is the first sign of life");
        report(&mut reporting, &old, &tasks);
        let complete = next(&mut outbox).unwrap();
        assert!(complete.complete && complete.facts == Some(old.clone()));
        assert_eq!(complete.tasks, tasks);
        report(&mut reporting, &old, &tasks);
        assert_eq!(next(&mut outbox), None, "nothing is news");
        tasks.insert(two, TaskSeen::Starting.into());
        let new = facts("new");
        report(&mut reporting, &new, &tasks);
        let changes = next(&mut outbox).unwrap();
        assert_eq!(changes.tasks, BTreeMap::from([(two, TaskSeen::Starting.into())]));
        assert_eq!((changes.complete, changes.facts), (false, Some(new.clone())));
        let commit = Commit { step: 1, path: "/c".into(), bytes: Bytes(1), request: None };
        let saved = TaskReport { commit: Some(commit), ..TaskSeen::Running.into() };
        tasks.insert(one, saved.clone());
        report(&mut reporting, &new, &tasks);
        assert_eq!(next(&mut outbox).unwrap().tasks, BTreeMap::from([(one, saved)]));
    }

    #[test]
    fn what_the_stream_did_not_take_is_news_again() {
        let (sender, mut outbox) = mpsc::channel(1);
        let mut reporting = Reporting::over(sender);
        let facts = facts("");
        let task: TaskId = "job-1.1.0".parse().unwrap();
        report(&mut reporting, &facts, &BTreeMap::new());
        let tasks = BTreeMap::from([(task, TaskSeen::Running.into())]);
        report(&mut reporting, &facts, &tasks);
        assert!(next(&mut outbox).unwrap().complete);
        assert_eq!(next(&mut outbox), None);
        report(&mut reporting, &facts, &tasks);
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
            let now = Now {
                facts: &facts,
                tasks: &tasks,
                applied: None,
                idle,
                asks: &BTreeMap::new(),
                writes: &BTreeMap::new(),
            };
            reporting.report(now, &mut Renewals::default());
            let told = next(&mut outbox)?.idle.into_iter();
            Some(told.map(|(task, span)| (task, span.is_some())).collect::<Vec<_>>())
        };
        assert_eq!(told(&idle), Some(vec![(task, true)]), "in the complete report");
        assert_eq!(told(&idle), None);
        assert_eq!(told(&BTreeMap::new()), Some(vec![(task, false)]));
        assert_eq!(told(&BTreeMap::new()), None);
        assert_eq!(told(&idle), Some(vec![(task, true)]));
    }

    #[test]
    fn an_ask_is_news_when_it_changes_and_is_numbered_until_it_is_over() {
        let (sender, mut outbox) = mpsc::channel(1);
        let (mut reporting, mut renewals) = (Reporting::over(sender), Renewals::default());
        let facts = facts("");
        let task: TaskId = "job-1.1.0".parse().unwrap();
        let record = AskRecord {
            number: 1,
            class: WriteClass::Periodic,
            bytes: 5,
            files: 0,
            patience_ms: None,
            asked_ms: SinceBoot(0),
            written: 0,
            done: false,
            rated: 0,
        };
        let mut told = |record: AskRecord| {
            let ask = Some(record.seen());
            let tasks = BTreeMap::from([(task, TaskReport { ask, ..TaskSeen::Running.into() })]);
            let asks = [(task, record.asked_ms)].into_iter().filter(|_| !record.done);
            let (idle, asks) = (&BTreeMap::new(), &asks.collect());
            let now = Now {
                facts: &facts,
                tasks: &tasks,
                applied: None,
                idle,
                asks,
                writes: &BTreeMap::new(),
            };
            reporting.report(now, &mut renewals);
            let told = next(&mut outbox)?;
            Some((told.renew, told.tasks.get(&task)?.ask?))
        };
        let (number, first) = told(record).unwrap();
        assert!(number == 1 && first.waited > Span::ZERO, "{first:?}");
        assert_eq!(told(record), None, "that it waits is no news");
        let written = AskRecord { written: 3, ..record };
        assert_eq!(told(written), None, "not so soon after another report");
        let second = AskRecord { number: 2, ..written };
        let (number, ask) = told(second).unwrap();
        assert_eq!((number, ask.ask.number, ask.written), (2, 2, Bytes(3)));
        let (_, ask) = told(AskRecord { rated: 7, ..second }).unwrap();
        assert_eq!(ask.rated, DecisionSeq(7), "at once: others wait for it");
        let (number, ask) = told(AskRecord { done: true, ..second }).unwrap();
        assert_eq!((number, ask.done), (0, true), "nothing is to be renewed");
    }

    #[test]
    fn what_a_task_writes_is_news_when_it_changes_by_a_tenth_and_when_it_ends() {
        let (sender, mut outbox) = mpsc::channel(1);
        let mut reporting = Reporting::over(sender);
        let (facts, idle, asks) = (facts(""), BTreeMap::new(), BTreeMap::new());
        let task: TaskId = "job-1.1.0".parse().unwrap();
        let mut told = |rate: Option<u64>| {
            let writes = &rate.map(|rate| (task, Bandwidth(rate))).into_iter().collect();
            let tasks = &BTreeMap::new();
            let (facts, idle, asks) = (&facts, &idle, &asks);
            let now = Now { facts, tasks, applied: None, idle, asks, writes };
            reporting.report(now, &mut Renewals::default());
            Some(next(&mut outbox)?.writes.get(&task)?.0)
        };
        assert_eq!(told(Some(100)), Some(100), "in the complete report");
        assert_eq!(told(Some(110)), None);
        assert_eq!(told(Some(111)), Some(111));
        assert_eq!(told(Some(102)), None);
        assert_eq!(told(None), Some(0));
        assert_eq!(told(None), None);
    }
}
