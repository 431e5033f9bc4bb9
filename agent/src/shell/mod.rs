//! The agent's loop: events in, the pure node asked what follows, its actions done, the changes
//! reported.
//!
//! Order within a turn: the ledger is durable before an action is done or a report is sent.

mod prepare;
mod telling;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_model::{ClusterId, Epoch, TaskId, UserId};
use tidegate_proto::link::{Hello, NodeFacts};
use tidegate_proto::v1;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::idle::Idleness;
use crate::ledger_file::LedgerFile;
use crate::link::{self, LinkEvent};
use crate::node::{Action, Node, TaskStatus};
use crate::orders::{Orders, Outcome};
use crate::ports::Ports;
use crate::procs::Procs;
use crate::renewals::Renewals;
use crate::reporting::Reporting;
use crate::sense::gpu::{Gpus, Heard};
use crate::sense::host;
use crate::sense::writes::Writes;
use crate::starter_link::{self, StarterEvent};
use crate::terminal::Terminals;
use crate::{durable, logs};

use self::prepare::Verifying;
use self::telling::Told;

/// Events that may wait; the senders wait then.
const MAX_EVENTS: usize = 256;

/// Events of one turn: they share one write of the ledger and one report.
const EVENTS_PER_TURN: usize = 64;

/// How long the driver may take for its first answer before the node goes on without GPUs.
const DRIVER_PATIENCE: Duration = Duration::from_secs(5);

/// What the loop waits for.
#[derive(Debug)]
pub(crate) enum Event {
    Link(LinkEvent),
    Starter(StarterEvent),
    Gpu(Heard),
    /// The driver has had its time for the first answer.
    DriverPatienceOver,
    /// Time to look at a task's GPUs again.
    LookAgain(TaskId),
}

/// Runs the agent until TERM or INT. Tasks go on.
///
/// # Errors
/// What keeps it from running: another agent, a ledger that cannot be read.
pub async fn run(config: Config) -> anyhow::Result<()> {
    durable::create_private_dir(&config.state_dir).context("make the state directory")?;
    let lock = durable::lock(&config.state_dir.join("agent.lock"));
    let _lock = lock.context("an agent serves this state directory already")?;
    let (sender, mut events) = mpsc::channel(MAX_EVENTS);
    let (greeting, hello) = watch::channel(None);
    let mut shell = Shell::new(&config, sender.clone(), greeting)?;
    let link = link::keep(config.coordinator_socket.clone(), hello, sender.clone());
    let starter = starter_link::keep(config.starter_socket(), sender.clone());
    tokio::spawn(link);
    tokio::spawn(starter);
    later(sender, DRIVER_PATIENCE, Event::DriverPatienceOver);
    let (mut term, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut heartbeat = tokio::time::interval(Duration::from_millis(config.heartbeat.0));
    heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    info!(node = %config.name, "started");
    loop {
        tokio::select! {
            _ = term.recv() => break,
            _ = interrupt.recv() => break,
            _ = heartbeat.tick() => shell.heartbeat(),
            _ = events.recv_many(&mut batch, EVENTS_PER_TURN) => {}
        }
        for event in batch.drain(..) {
            shell.take(event);
        }
        shell.turn();
    }
    info!("asked to end; tasks go on");
    shell.ledger.write(shell.node.ledger()).context("write the ledger")
}

struct Shell {
    config: Config,
    node: Node,
    ledger: LedgerFile,
    /// Why the last write of the ledger failed. The node takes no new work then; what is not
    /// written is not acted upon.
    ledger_fails: Option<String>,
    /// The starter could not write something: whether the ledger can be written is to be seen.
    in_doubt: bool,
    /// Where tasks' output is: of those that are known, and of those that are forgotten.
    log_places: [PathBuf; 2],
    terminals: Terminals,
    ports: Ports,
    gpus: Gpus,
    idleness: Idleness,
    writes: Writes,
    /// A sample is asked for: a driver that hangs is not asked for another.
    sampling: bool,
    facts: NodeFacts,
    /// Whether the GPUs are known, or the driver has had its time.
    facts_known: bool,
    /// Tasks whose GPUs are being verified.
    verifying: BTreeMap<TaskId, Verifying>,
    orders: Option<Orders>,
    reporting: Option<Reporting>,
    /// What was reported on this stream when the ledger was last durable.
    told: Option<Told>,
    renewals: Renewals,
    greeting: watch::Sender<Option<Hello>>,
    refused: Option<ClusterId>,
    events: mpsc::Sender<Event>,
}

impl Shell {
    fn new(
        config: &Config,
        events: mpsc::Sender<Event>,
        greeting: watch::Sender<Option<Hello>>,
    ) -> anyhow::Result<Self> {
        let ledger = LedgerFile::open(&config.ledger_file())?;
        let told = events.clone();
        // The thread's own patience is endless; if the agent ends, so does the send.
        let tell = move |heard| drop(told.blocking_send(Event::Gpu(heard)));
        let gpus = Gpus::watch(config.gpu_library.clone(), tell).context("watch GPUs")?;
        let (memory, cpus) = host::memory_and_cpus();
        let facts = NodeFacts {
            boot_id: Procs::default().boot_id().context("read the boot id")?,
            gpus: Vec::new(),
            gpu_note: String::new(),
            address: config.address.clone(),
            block: config.block.clone(),
            memory,
            cpus,
            // Its starter has no more rights than it has itself.
            only_user: Some(UserId(nix::unistd::getuid().as_raw())),
            closed: String::new(),
        };
        Ok(Self {
            config: config.clone(),
            node: Node::restore(ledger.written().clone(), &facts.boot_id),
            ledger,
            ledger_fails: None,
            in_doubt: false,
            log_places: [config.tasks_dir(), config.logs_dir()],
            terminals: Terminals::new(config.coordinator_socket.clone(), config.tasks_dir()),
            ports: Ports::of(config.master_ports),
            gpus,
            writes: Writes::default(),
            idleness: Idleness::every(Duration::from_millis(config.heartbeat.0)),
            sampling: false,
            facts,
            facts_known: false,
            verifying: BTreeMap::new(),
            orders: None,
            reporting: None,
            told: None,
            renewals: Renewals::default(),
            greeting,
            refused: None,
            events,
        })
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Link(event) => self.take_link(event),
            Event::Starter(event) => self.take_starter(event),
            Event::Gpu(Heard::List(list)) => {
                info!(gpus = list.gpus.len(), note = %list.note, "GPUs");
                self.facts.gpus = list.gpus;
                self.facts.gpu_note = list.note;
                self.facts_known = true;
            }
            Event::Gpu(Heard::Busy(busy)) => {
                self.sampling = false;
                self.node.sample(&mut self.idleness, Instant::now(), &busy);
            }
            Event::Gpu(Heard::Verdict(task, verdict)) => self.take_verdict(task, verdict),
            Event::DriverPatienceOver if !self.facts_known => {
                warn!("the GPU driver does not answer; going on without GPUs");
                self.facts.gpu_note = format!(
                    "the GPU driver is unresponsive: no answer in {} s",
                    DRIVER_PATIENCE.as_secs()
                );
                self.facts_known = true;
            }
            Event::DriverPatienceOver => {}
            Event::LookAgain(task) => self.look_again(task),
        }
    }

    fn take_link(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Welcomed { cluster, epoch, outbox, verdict } => {
                let obeyed = self.welcomed(cluster, epoch);
                self.reporting = obeyed.then(|| Reporting::over(outbox));
                self.told = None;
                // The link may have gone in between; it says so next.
                verdict.send(obeyed).ok();
            }
            LinkEvent::Plan(plan) => {
                let (epoch, generation) = (plan.epoch, plan.generation);
                if let Err(why) = self.node.accept_plan(plan) {
                    warn!(%epoch, %generation, %why, "a plan was refused");
                }
            }
            LinkEvent::ReadLog(ask) => self.read_log(&ask),
            LinkEvent::Renewed(number) => {
                if let Some(at) = self.renewals.answered(number) {
                    self.node.was_heard(at);
                }
            }
            LinkEvent::OpenTerminal(ask) => self.terminals.open(ask),
            LinkEvent::Closed => self.reporting = None,
        }
    }

    fn welcomed(&mut self, cluster: ClusterId, epoch: Epoch) -> bool {
        let is_new = self.node.ledger().cluster.is_none();
        if let Err(why) = self.node.welcomed(cluster) {
            if self.refused != Some(cluster) {
                error!(%why, "not linking to this coordinator");
                self.refused = Some(cluster);
            }
            return false;
        }
        if is_new {
            info!(%cluster, %epoch, "enrolled with this cluster");
        }
        true
    }

    fn read_log(&self, ask: &v1::ReadNodeLog) {
        if let Some(reporting) = &self.reporting {
            reporting.log(logs::read(&self.log_places, ask));
        }
    }

    fn take_starter(&mut self, event: StarterEvent) {
        match event {
            StarterEvent::Connected(tasks, outbox) => {
                self.node.starter_knows(tasks);
                self.orders = Some(Orders::over(outbox));
            }
            StarterEvent::Changed(task, facts) => self.node.status_changed(task, *facts),
            StarterEvent::Disconnected => self.orders = None,
            StarterEvent::Answered(id, refused) => {
                let Some(orders) = &mut self.orders else { return };
                match orders.answered(id, refused) {
                    Outcome::Done => {}
                    Outcome::Forgotten(task) => self.node.forgotten(task),
                    Outcome::StartRefused(task, why) => {
                        warn!(%task, %why, "the starter refused a start");
                        self.node.start_refused(task, why);
                        self.in_doubt = true;
                    }
                    Outcome::Refused(task, why) => warn!(%task, %why, "the starter refused"),
                }
            }
        }
    }

    /// One round: durable, done, durable, said.
    fn turn(&mut self) {
        if !self.keep_ledger() {
            return self.tell_of_node();
        }
        for action in self.node.actions() {
            self.act(action);
        }
        if !self.keep_ledger() {
            return self.tell_of_node();
        }
        self.greet();
        self.tell();
    }

    /// Whether what must be durable is. Once a write has failed, only one that succeeds shows that the
    /// next will: that nothing need be written shows nothing.
    fn keep_ledger(&mut self) -> bool {
        let failing = self.ledger_fails.is_some();
        let kept = self.ledger.keep(self.node.ledger());
        let is_kept = kept.is_ok();
        let proven = match kept {
            Ok(()) if failing || self.in_doubt => self.ledger.write_in_any_case(self.node.ledger()),
            kept => kept,
        };
        self.in_doubt = false;
        match &proven {
            Err(why) if !failing => {
                error!(%why, "the ledger cannot be written; no new work is taken until it can");
            }
            Ok(()) if failing => info!("the ledger can be written again"),
            Ok(()) | Err(_) => {}
        }
        self.ledger_fails = proven.err().map(|why| why.to_string());
        self.facts.closed = self.ledger_fails.as_ref().map_or_else(String::new, |why| {
            format!("it cannot write to {}: {why}", self.config.state_dir.display())
        });
        is_kept
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Prepare { task, gpus } => self.prepare(task, gpus),
            Action::Start { task, launch } => {
                if let Some(orders) = &mut self.orders
                    && orders.start(task, *launch)
                {
                    info!(%task, "starting");
                    self.node.status_changed(task, TaskStatus::Intended.into());
                }
            }
            Action::Save { task, save } => {
                let (request, why) = (save.request, save.why.clone());
                if let Some(orders) = &mut self.orders
                    && orders.save(task, save)
                {
                    info!(%task, %request, %why, "asking it to save");
                }
            }
            Action::Permit { task, permit } => {
                if let Some(orders) = &mut self.orders {
                    orders.permit(task, &permit);
                }
            }
            Action::Stop { task, stop } => {
                if let Some(orders) = &mut self.orders
                    && orders.stop(task, &stop)
                {
                    info!(%task, decision = %stop.decision, why = %stop.why, "stopping");
                }
            }
            Action::Forget { task } => {
                if let Some(orders) = &mut self.orders {
                    orders.forget(task);
                }
            }
        }
    }

    fn heartbeat(&mut self) {
        if let Some(reporting) = &self.reporting {
            let renews = !self.node.open_asks().is_empty();
            reporting.heartbeat(renews.then_some(&mut self.renewals));
        }
        self.refuse_hung();
        let tasks = self.config.tasks_dir();
        let running = self.node.running();
        self.writes.look(&Procs::default(), &tasks, &running, Instant::now());
        let used = self.node.used_gpus();
        if !self.sampling && !used.is_empty() {
            self.sampling = self.gpus.sample(used);
        }
        if let Some(orders) = &mut self.orders {
            orders.retry();
        }
    }

    /// Lets the link dial once a complete report can be made: a report that left a task out would
    /// say that this node does not know it.
    fn greet(&self) {
        if !self.node.starter_heard() || !self.facts_known {
            return;
        }
        let hello = Hello {
            cluster: self.node.ledger().cluster,
            node: self.config.name.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            terminals: true,
        };
        self.greeting.send_if_modified(|current| {
            let is_news = current.as_ref() != Some(&hello);
            *current = Some(hello);
            is_news
        });
    }
}

fn later(events: mpsc::Sender<Event>, pause: Duration, event: Event) {
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        // Fails only if the agent ends.
        drop(events.send(event).await);
    });
}
