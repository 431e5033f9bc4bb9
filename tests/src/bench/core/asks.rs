//! A batch of asks to write: what the turn costs that takes them in, and the gate's part of it.

use std::time::Duration;

use scheduler_core::{Broken, Core, Event, GateRequest, GateRule, Policy, Stamp};
use simulator::plain_job;
use tidegate_model::{
    Ask, AskSeen, AttemptId, Bandwidth, Bytes, DecisionSeq, GpuCount, JobId, JobSpec, NodeId, Span,
    SubmitKey, TaskId, TaskSeen, UserId, WriteClass,
};

use tidegate_coordinator::engine::MAX_EVENTS_PER_TURN;

use super::BEGIN;
use super::cluster::{facts, name};
use crate::bench::report::{Figure, Goal, millis};
use crate::bench::usage::thread_time;
use crate::offer::offer;

/// Nodes with a job each.
const NODES: u32 = 1024;

/// The jobs on all nodes ask at one instant: the turn with the plans that come of it, and how much of
/// it is spent on telling who waits.
///
/// # Errors
/// If the core breaks.
pub(super) fn measure() -> anyhow::Result<Vec<Figure>> {
    let (mut core, mut seq) = (Core::default(), 0);
    let mut apply = |core: &mut Core, event: &Event| {
        seq += 1;
        core.apply(Stamp { at: BEGIN, seq: DecisionSeq(seq) }, event).map(drop)
    };
    for event in founding().into_iter().chain((1..=NODES).flat_map(started)) {
        apply(&mut core, &event)?;
    }
    let began = thread_time();
    let asks: Vec<_> = (1..=NODES).map(|which| ask(which, 1)).collect();
    all_ask(&mut core, &mut apply, &asks)?;
    let applied = thread_time();
    let told = core.tell(BEGIN);
    let telling = thread_time() - applied;
    let planned: usize = (1..=NODES).map(|node| core.wanted_of(NodeId(node)).len()).sum();
    let whole = thread_time() - began;
    let all = usize::try_from(NODES)?;
    anyhow::ensure!(planned == all && told.len() > all / 2, "{} of {planned} wait", told.len());
    let again: Vec<_> = (1..=NODES).map(|which| ask(which, 2)).collect();
    let renewed = thread_time();
    all_ask(&mut core, &mut apply, &again)?;
    let renewing = thread_time() - renewed;
    let figure = |what: &str, took: Duration, goal| Figure {
        what: format!("{what}, 1,024 asks of one-node jobs at once"),
        value: millis(took),
        unit: "ms",
        n: 1,
        goal,
    };
    Ok(vec![
        figure("the turn with its plans", whole, Goal::AtMost(10.0)),
        figure("of it, who waits is told", telling, Goal::None),
        figure("all again, those who write among them, without plans", renewing, Goal::None),
    ])
}

/// The nodes, and a gate that lets one in sixteen write at a time.
fn founding() -> Vec<Event> {
    let cap = Some(Bandwidth(64_000_000_000));
    let rule = GateRule { cap, writers: Some(64), ..GateRule::default() };
    let request = GateRequest::Set(rule);
    let gate = Event::GateRequested { storage: storage(), by: UserId(0), request };
    let mut policy = Policy::default();
    // The last nodes, too, take free work.
    policy.sharing.headroom = 0;
    let mut events = vec![Event::LeaderStarted, Event::PolicyChanged(policy.into())];
    events.extend((1..=NODES).map(|node| said(node, None, None)));
    events.push(gate);
    events
}

/// A job takes the next node whole, and runs.
fn started(which: u32) -> Vec<Event> {
    let offer = offer(Span::minutes(10));
    let account = "default".parse().expect("a path");
    let spec = JobSpec { checkpoint: Some(offer), ..plain_job(account, GpuCount(8)) };
    let (key, user) = (SubmitKey(which.into()), UserId(1000));
    vec![
        Event::JobSubmitted { key, user, spec: Box::new(spec) },
        said(which, Some(TaskSeen::Prepared { port: 29_500 }), None),
        said(which, Some(TaskSeen::Running), None),
    ]
}

/// As the engine takes events of one turn: the gate is looked at with the last.
fn all_ask(
    core: &mut Core,
    apply: &mut impl FnMut(&mut Core, &Event) -> Result<(), Broken>,
    asks: &[Event],
) -> anyhow::Result<()> {
    for turn in asks.chunks(MAX_EVENTS_PER_TURN) {
        let Some((last, others)) = turn.split_last() else { continue };
        for event in others {
            anyhow::ensure!(core.only_asks(BEGIN, event), "{event:?} says more");
            core.note_asks(BEGIN, event);
        }
        apply(core, last)?;
    }
    Ok(())
}

fn ask(which: u32, number: u64) -> Event {
    let (bytes, class) = (Bytes(100_000_000_000), WriteClass::Periodic);
    let ask = Ask { number, class, bytes, files: 0, patience: None };
    let (waited, written, rated) = (Span::ZERO, Bytes(0), DecisionSeq(0));
    said(which, Some(TaskSeen::Running), Some(AskSeen { ask, waited, written, done: false, rated }))
}

fn storage() -> tidegate_model::StorageName {
    "shared".parse().expect("a name")
}

/// What a node says of the job on it: they have the same number. Nothing is its first, complete word.
fn said(node: u32, seen: Option<TaskSeen>, ask: Option<AskSeen>) -> Event {
    let attempt = AttemptId { job: JobId(node.into()), number: 1 };
    let task = TaskId { attempt, index: 0 };
    let complete = seen.is_none() && ask.is_none();
    Event::NodeReported {
        node: name(node),
        complete,
        facts: complete.then(|| facts(node)),
        tasks: seen.map(|seen| (task, seen)).into_iter().collect(),
        saves: vec![],
        commits: vec![],
        asks: ask.map(|ask| (task, ask)).into_iter().collect(),
    }
}
