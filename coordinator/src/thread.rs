//! The engine thread: owns the engine by value, takes messages from one bounded channel, and
//! lets the outcome of a turn be seen only after the turn is durable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use scheduler_core::{Attempt, Event, Observation};
use tidegate_model::{Bandwidth, DecisionSeq, LEAST_SAVE, NodeName, Span, TaskId, Timestamp};
use tidegate_proto::link::NodePlan;
use tokio::sync::{oneshot, watch};

use crate::clock::Clock;
use crate::engine::{Answer, Engine, EngineError, MAX_EVENTS_PER_TURN, Outcome};
use crate::journal::Journal;
use crate::space::Space;
use crate::view::{View, Views};

/// Messages that may wait for the engine: four for each of 1,024 agents. More is answered
/// "unavailable" and tried again by its sender.
pub const MAX_WAITING: usize = 4096;

/// A view of 100,000 jobs takes milliseconds to copy. After one the engine does other things for
/// this many times as long, so that readers take at most a tenth of its time.
const VIEW_REST: u32 = 10;

/// How often the room on disk is looked at, at most.
const SPACE_EVERY: Duration = Duration::from_secs(1);

/// One connection of a node's agent; a newer one silences the older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Session(pub u64);

/// Where the newest plan of a node is put. A plan is whole, so that only the newest matters.
pub type PlanSlot = watch::Sender<Option<Arc<NodePlan>>>;

/// What reaches the engine thread.
#[derive(Debug)]
pub enum Message {
    /// A request whose sender waits for the answer.
    Ask {
        /// What happened.
        event: Event,
        /// Who waits.
        reply: oneshot::Sender<Result<Answer, Closed>>,
    },
    /// A node's report; its effects are seen in plans and views.
    Report {
        /// The connection it came by.
        session: Session,
        /// Its node.
        node: NodeName,
        /// What happened.
        event: Event,
    },
    /// What a node's agent says of idle GPUs. Seen, and never kept.
    Idle {
        /// The connection it came by.
        session: Session,
        /// Its node.
        node: NodeName,
        /// Whether tasks of the node that are not named are busy.
        whole: bool,
        /// For how long the GPUs of tasks have been idle; none = busy again.
        tasks: BTreeMap<TaskId, Option<Span>>,
    },
    /// What a node's agent says its tasks write. Seen, and never kept.
    Writes {
        /// The connection it came by.
        session: Session,
        /// Its node.
        node: NodeName,
        /// Whether tasks of the node that are not named write nothing.
        whole: bool,
        /// Bytes per second.
        tasks: BTreeMap<TaskId, Bandwidth>,
    },
    /// Somebody is heard whose silence has been noticed.
    SilentHeard,
    /// A node's agent has connected.
    Connected(Session, NodeName, PlanSlot),
    /// A reader waits for a view.
    ViewWanted,
    /// Finish the turn and end.
    Stop,
}

/// New work is not taken now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("new work is not taken: {0}; what was accepted goes on")]
pub struct Closed(pub String);

/// The engine takes no more messages just now, or has stopped.
#[derive(Debug, thiserror::Error)]
#[error("the coordinator is busy or stopping; try again")]
pub struct NotTaken;

/// The way to the engine thread.
#[derive(Debug, Clone)]
pub struct Handle {
    sender: SyncSender<Message>,
    clock: Clock,
    heard: Arc<Heard>,
    /// What readers see.
    pub views: Arc<Views>,
    /// The newest record that is durable.
    pub durable: watch::Receiver<DecisionSeq>,
}

/// Heartbeats since the engine last looked. A thousand agents would wake it two hundred times a
/// second to tell it nothing: it looks when something happens, or when somebody seems silent.
#[derive(Debug, Default)]
struct Heard {
    /// One entry a node. Orders nothing: the newest instant stands.
    nodes: Mutex<BTreeMap<NodeName, (Session, Timestamp)>>,
    /// Somebody is silent: the next heartbeat may be theirs, and work may wait for it.
    anyone_silent: AtomicBool,
}

impl Handle {
    /// Hands a message over without waiting.
    ///
    /// # Errors
    /// If the channel is full or the engine has stopped; the sender tries again.
    pub fn send(&self, message: Message) -> Result<(), NotTaken> {
        self.sender.try_send(message).map_err(|_full_or_gone| NotTaken)
    }

    /// Notes a heartbeat.
    ///
    /// # Errors
    /// If the engine must know at once and takes no message; the link is then closed.
    pub fn heard(&self, session: Session, node: &NodeName) -> Result<(), NotTaken> {
        let now = self.clock.now();
        let mut nodes = self.heard.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(node.clone(), (session, now));
        drop(nodes);
        if self.heard.anyone_silent.load(Ordering::Relaxed) {
            self.send(Message::SilentHeard)?;
        }
        Ok(())
    }

    /// The engine's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Asks, and waits for the durable answer.
    ///
    /// # Errors
    /// If the message was not taken, or the engine stopped before the answer was durable.
    pub async fn ask(&self, event: Event) -> Result<Result<Answer, Closed>, NotTaken> {
        let (reply, answer) = oneshot::channel();
        self.send(Message::Ask { event, reply })?;
        answer.await.map_err(|_stopped| NotTaken)
    }
}

/// Starts the thread. It ends with [`Message::Stop`] or the error that forces a restart.
///
/// # Errors
/// If no thread can be made.
pub fn spawn<J: Journal + Send + 'static>(
    engine: Engine<J>,
    clock: Clock,
    space: Space,
) -> std::io::Result<(Handle, JoinHandle<Result<(), EngineError>>)> {
    let (sender, messages) = sync_channel(MAX_WAITING);
    let views = Arc::new(Views::default());
    let heard = Arc::new(Heard::default());
    let (durable, seen) = watch::channel(engine.last_seq());
    let handle = Handle {
        sender,
        clock,
        heard: Arc::clone(&heard),
        views: Arc::clone(&views),
        durable: seen,
    };
    let desk = Desk {
        engine,
        clock,
        space,
        heard,
        views,
        durable,
        links: BTreeMap::new(),
        closed: None,
        space_seen: None,
        next_view: None,
    };
    let thread = std::thread::Builder::new().name("engine".to_owned());
    Ok((handle, thread.spawn(move || desk.run(&messages))?))
}

/// What the thread works with.
struct Desk<J> {
    engine: Engine<J>,
    clock: Clock,
    space: Space,
    heard: Arc<Heard>,
    views: Arc<Views>,
    durable: watch::Sender<DecisionSeq>,
    links: BTreeMap<NodeName, (Session, PlanSlot)>,
    closed: Option<String>,
    space_seen: Option<Instant>,
    next_view: Option<Instant>,
}

/// The messages of one turn: events in order, and who waits for which.
#[derive(Default)]
struct Intake {
    events: Vec<Event>,
    waiting: Vec<(usize, oneshot::Sender<Result<Answer, Closed>>)>,
    connected: Vec<NodeName>,
    stop: bool,
}

impl<J: Journal> Desk<J> {
    fn run(mut self, messages: &Receiver<Message>) -> Result<(), EngineError> {
        loop {
            let mut intake = Intake::default();
            match self.wait(messages) {
                Ok(first) => self.take(first, &mut intake),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            while intake.events.len() < MAX_EVENTS_PER_TURN && !intake.stop {
                let Ok(message) = messages.try_recv() else { break };
                self.take(message, &mut intake);
            }
            let stop = intake.stop;
            let turned = self.turn(intake);
            if turned.is_err() {
                // The restart needs room to say that jobs have ended.
                self.space.release();
            }
            turned?;
            if stop {
                return Ok(());
            }
        }
    }

    fn wait(&self, messages: &Receiver<Message>) -> Result<Message, RecvTimeoutError> {
        let deadline = self.engine.next_deadline().map(|at| at.since(self.clock.now()).into());
        let reader = self.views.unanswered().map(|_asked| {
            self.next_view.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
        });
        match deadline.into_iter().chain(reader).min() {
            Some(timeout) => messages.recv_timeout(timeout),
            None => messages.recv().map_err(|_disconnected| RecvTimeoutError::Disconnected),
        }
    }

    fn take(&mut self, message: Message, intake: &mut Intake) {
        match message {
            Message::Ask { event, reply } => match self.closed_to(&event) {
                Some(closed) => drop(reply.send(Err(closed))),
                None => {
                    intake.waiting.push((intake.events.len(), reply));
                    intake.events.push(event);
                }
            },
            Message::Report { session, node, event } if self.is_current(session, &node) => {
                intake.events.push(event);
            }
            Message::Report { session, node, .. } => {
                tracing::debug!(%node, ?session, "an older connection still speaks");
            }
            Message::Connected(session, node, slot) => {
                let older = self.links.get(&node).is_some_and(|(known, _)| *known > session);
                if !older {
                    self.links.insert(node.clone(), (session, slot));
                    intake.connected.push(node);
                }
            }
            Message::Idle { session, node, whole, tasks } => {
                if self.is_current(session, &node) {
                    self.note_idle(&node, whole, &tasks);
                }
            }
            Message::Writes { session, node, whole, tasks } => {
                if self.is_current(session, &node) {
                    intake.events.extend(self.note_writes(&node, whole, &tasks));
                }
            }
            Message::ViewWanted | Message::SilentHeard => {}
            Message::Stop => intake.stop = true,
        }
    }

    /// Of the tasks that a node speaks of those on it: it speaks only for its own.
    fn spoken_of<T>(
        &self,
        node: &NodeName,
        whole: bool,
        tasks: &BTreeMap<TaskId, T>,
    ) -> Vec<TaskId> {
        let known = self.engine.core().books().node_named(node);
        let own = known.into_iter().flat_map(|known| &known.tasks).copied();
        own.filter(|task| whole || tasks.contains_key(task)).collect()
    }

    fn note_idle(&mut self, node: &NodeName, whole: bool, tasks: &BTreeMap<TaskId, Option<Span>>) {
        let now = self.clock.now();
        for task in self.spoken_of(node, whole, tasks) {
            let idle = tasks.get(&task).copied().flatten();
            let since = idle.map(|span| Timestamp(now.0.saturating_sub(span.0)));
            self.engine.observe(now, &Observation::TaskIdle { task, since });
        }
    }

    /// Of an attempt that is to save, that it writes is a fact that something is decided on.
    fn note_writes(
        &mut self,
        node: &NodeName,
        whole: bool,
        tasks: &BTreeMap<TaskId, Bandwidth>,
    ) -> Vec<Event> {
        let now = self.clock.now();
        let mut begun = Vec::new();
        for task in self.spoken_of(node, whole, tasks) {
            let rate = tasks.get(&task).copied().unwrap_or_default();
            self.engine.observe(now, &Observation::TaskWrites { task, rate });
            let attempt = self.engine.core().books().attempt(task.attempt);
            if rate >= LEAST_SAVE && attempt.is_some_and(Attempt::awaits_first_byte) {
                begun.push(Event::WritingSeen { task });
            }
        }
        begun
    }

    fn is_current(&self, session: Session, node: &NodeName) -> bool {
        self.links.get(node).is_some_and(|(known, _)| *known == session)
    }

    /// New work is refused while there is no room for it; ends and releases never are.
    fn closed_to(&mut self, event: &Event) -> Option<Closed> {
        if !matches!(event, Event::JobSubmitted { .. }) {
            return None;
        }
        self.look_at_space();
        self.closed.clone().map(Closed)
    }

    fn look_at_space(&mut self) {
        if self.space_seen.is_none_or(|seen| seen.elapsed() >= SPACE_EVERY) {
            self.space_seen = Some(Instant::now());
            let closed = self.space.closed();
            if closed != self.closed {
                tracing::warn!(
                    why = closed.as_deref().unwrap_or("open again"),
                    "room for new work"
                );
            }
            self.closed = closed;
        }
    }

    fn turn(&mut self, mut intake: Intake) -> Result<(), EngineError> {
        let returned = self.note_heartbeats();
        let now = self.clock.now();
        if returned || self.engine.has_deadline_by(now) {
            intake.events.push(Event::DeadlineReached);
        }
        let Outcome { answers, plans } = self.engine.turn(now, &intake.events)?;
        self.part_from_removed(&intake.events);
        // From here on the turn is durable, and may be seen.
        let newest = self.engine.last_seq();
        self.durable.send_if_modified(|seen| std::mem::replace(seen, newest) != newest);
        self.heard.anyone_silent.store(self.engine.anyone_silent(), Ordering::Relaxed);
        for node in intake.connected {
            let plan = self.engine.plan_of(&node);
            self.post(&node, plan);
        }
        for (node, plan) in plans {
            self.post(&node, Some(plan));
        }
        for (at, reply) in intake.waiting {
            if let Some(answer) = answers.get(at) {
                drop(reply.send(Ok(answer.clone())));
            }
        }
        self.publish();
        self.engine.snapshot_if_due()
    }

    /// Answers the readers that wait, unless the last answer was just now.
    fn publish(&mut self) {
        let began = Instant::now();
        let Some(asked) = self.views.unanswered() else { return };
        if self.next_view.is_none_or(|at| began >= at) {
            self.look_at_space();
            self.views.publish(asked, self.view());
            self.next_view = began.checked_add(began.elapsed().saturating_mul(VIEW_REST));
        }
    }

    /// Takes the heartbeats since the last turn. Whether somebody is back who was silent.
    fn note_heartbeats(&mut self) -> bool {
        let mut nodes = self.heard.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = std::mem::take(&mut *nodes);
        drop(nodes);
        let mut returned = false;
        for (node, (session, at)) in heard {
            if self.is_current(session, &node) {
                returned |= self.engine.is_silent(&node);
                self.engine.observe(at, &Observation::NodeHeard { node });
            }
        }
        returned
    }

    /// An agent that hung while its node was removed has an open link, and takes up on it where it
    /// was: it would never say again what runs there. Closed, it introduces itself.
    fn part_from_removed(&mut self, events: &[Event]) {
        for event in events {
            if let Event::NodeRemovalRequested { node, .. } = event
                && self.engine.core().books().node_named(node).is_none()
            {
                self.links.remove(node);
            }
        }
    }

    fn post(&self, node: &NodeName, plan: Option<NodePlan>) {
        if let Some(((_, slot), plan)) = self.links.get(node).zip(plan) {
            slot.send_replace(Some(Arc::new(plan)));
        }
    }

    fn view(&self) -> View {
        View {
            core: self.engine.core().clone(),
            cluster: self.engine.cluster(),
            seq: self.engine.last_seq(),
            at: self.engine.now(),
            closed: self.closed.clone(),
        }
    }
}
