//! What a release leaves behind: a store and messages that every later version must read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use prost::Message;
use scheduler_core::{Books, Event, Job};
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::store;
use tidegate_model::{NodeFacts, Timestamp, UserId};
use tidegate_proto::v1;

use crate::history::{CLUSTER, history, start};

/// Where the fixture of a release lies.
#[must_use]
pub fn dir(release: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(release)
}

/// Writes the fixture of this version. Once released it is never written again.
///
/// # Errors
/// If one is there already, or it cannot be written.
pub fn write(release: &str) -> anyhow::Result<()> {
    let dir = dir(release);
    anyhow::ensure!(!dir.exists(), "{} is released: it stays as it is", dir.display());
    fs::create_dir_all(&dir)?;
    let path = dir.join("store.redb");
    let mut engine = start(RedbJournal::open(&path, CLUSTER)?, Timestamp(0))?;
    for (at, event) in history() {
        engine.turn(Timestamp(at), &[event])?;
    }
    drop(engine);
    fs::write(dir.join("books.txt"), text(&restored(&path)?))?;
    fs::write(dir.join("wire.txt"), wire_lines())?;
    Ok(())
}

/// The books that a store restores to.
///
/// # Errors
/// If it cannot be read.
pub fn restored(path: &Path) -> anyhow::Result<Books> {
    let journal = RedbJournal::open(path, CLUSTER)?;
    Ok(store::restore(&journal).context("restore")?.core.books().clone())
}

/// What the books of 0.1 say, as text. Only what 0.1 knew: what later versions add beside it does
/// not change a line.
#[must_use]
pub fn text(books: &Books) -> String {
    let Books { epoch, policy, nodes, jobs, last_job, last_node, .. } = books;
    let mut text = format!("{epoch:?}, last job {last_job}, last node {last_node}\n");
    text += &format!(
        "policy {} {} {} {} {} {} {} {:?}\n",
        policy.start_timeout,
        policy.restart_backoff,
        policy.restart_backoff_max,
        policy.steady_after,
        policy.keep_ended,
        policy.silent_after,
        policy.max_live_jobs,
        policy.admins
    );
    for node in nodes.values() {
        let NodeFacts { boot_id, gpus, gpu_note, address, block, memory, cpus, only_user, .. } =
            &node.facts;
        text += &format!("{} {} {boot_id} {gpu_note} {address} {block}", node.id, node.name);
        text += &format!(" {memory} {cpus}");
        // A drain as its record was printed then.
        let drain = node.drain.as_ref().map(|drain| {
            format!(
                "Drain {{ by: {:?}, reason: {:?}, since: {:?} }}",
                drain.by, drain.reason, drain.since
            )
        });
        let drain = drain.map_or_else(|| "None".to_owned(), |drain| format!("Some({drain})"));
        text += &format!(" {only_user:?} {drain} {:?}\n", node.held);
        for gpu in gpus {
            text += &format!("  {} {} {}\n", gpu.uuid, gpu.product, gpu.memory);
        }
    }
    jobs.values().for_each(|job| text += &job_text(job));
    text
}

fn job_text(job: &Job) -> String {
    let mut text = format!(
        "{} {} {} at {}, {:?}, cancelled {:?}, failures {}, streak {}\n  {:?}\n",
        job.id,
        job.key,
        job.user,
        job.submitted,
        job.state,
        job.cancelled.as_ref().map(|one| one.by),
        job.failures,
        job.streak,
        v1::JobSpec::from(job.spec.clone()).encode_to_vec()
    );
    for attempt in &job.attempts {
        text += &format!(
            "  {} {:?} planned {} granted {:?} running {:?} stop {:?} ended {:?}\n",
            attempt.id,
            attempt.state(),
            attempt.planned,
            attempt.granted,
            attempt.running,
            attempt.stop,
            attempt.ended
        );
        for (id, task) in attempt.tasks() {
            text += &format!(
                "    {id} on {} {:?} port {:?} started {} exit {:?} by {:?} ran {} released {}\n",
                task.place.node,
                task.place.gpus,
                task.port,
                task.started,
                task.exit,
                task.ended_by,
                task.ran,
                task.released
            );
        }
    }
    text
}

/// One line for each sample message: its name and its bytes in hexadecimal.
#[must_use]
pub fn wire_lines() -> String {
    let line = |(name, bytes): (&str, Vec<u8>)| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name} {hex}\n")
    };
    samples().into_iter().map(line).collect()
}

fn run() -> v1::Run {
    v1::Run {
        uid: 1000,
        command: vec!["torchrun".into(), "train.py".into()],
        working_dir: "/work".into(),
        env: vec![v1::EnvVar { name: "K".into(), value: "v".into() }],
        gpus: vec!["GPU-a-0".into()],
        layout: v1::TaskLayout::PerNode.into(),
        rank: 1,
        local_rank: 2,
        world_size: 3,
        local_world_size: 4,
        node_rank: 5,
        nodes: 6,
        master_addr: "10.0.0.1".into(),
        master_port: 29_500,
        checkpoint_dir: "/c".into(),
        log_cap_bytes: 7,
        save: None,
        pty: false,
        permit: None,
    }
}

fn seen(state: v1::task_seen::State) -> v1::TaskReport {
    let seen = Some(v1::TaskSeen { state: Some(state) });
    v1::TaskReport { task: "job-1.1.0".into(), seen, ..v1::TaskReport::default() }
}

fn reports() -> Vec<v1::TaskReport> {
    use v1::task_exit::How;
    use v1::task_seen::{Ended, Gone, Missing, Prepared, Running, Starting, State};
    let ended = |how| {
        let exit = Some(v1::TaskExit { how: Some(how) });
        seen(State::Ended(Ended { exit, released: true, ran_ms: 5, idle: None }))
    };
    vec![
        seen(State::Prepared(Prepared { port: 1 })),
        seen(State::Starting(Starting {})),
        seen(State::Running(Running {})),
        ended(How::Exited(3)),
        ended(How::Signaled(9)),
        ended(How::NeverStarted("no".into())),
        ended(How::Lost("gone".into())),
        seen(State::Missing(Missing {})),
        seen(State::Gone(Gone {})),
    ]
}

fn plan() -> v1::NodePlan {
    use v1::task_order::Order;
    let order = |order| v1::TaskOrder { task: "job-1.1.0".into(), order: Some(order) };
    v1::NodePlan {
        cluster: CLUSTER.to_string(),
        epoch: 2,
        generation: 3,
        tasks: vec![
            order(Order::Prepare(v1::Prepare { gpus: vec!["GPU-a-0".into()] })),
            order(Order::Run(run())),
            order(Order::Stop(v1::Stop { decision: 4, grace_ms: 5, why: "why".into() })),
            order(Order::Forget(v1::Forget {})),
        ],
    }
}

fn facts() -> v1::NodeFacts {
    let gpu =
        v1::Gpu { uuid: "GPU-a-0".into(), product: "simulated".into(), memory_bytes: 1 << 36 };
    v1::NodeFacts {
        boot_id: "boot".into(),
        gpus: vec![gpu],
        gpu_note: "note".into(),
        address: "10.0.0.1".into(),
        block: "b".into(),
        memory_bytes: 8,
        cpus: 9,
        only_uid: Some(UserId(1000).0),
        ..v1::NodeFacts::default()
    }
}

fn samples() -> Vec<(&'static str, Vec<u8>)> {
    use v1::from_agent::Message as From;
    use v1::to_agent::Message as To;
    let up = |message| v1::FromAgent { message: Some(message) }.encode_to_vec();
    let down = |message| v1::ToAgent { message: Some(message) }.encode_to_vec();
    let hello = v1::Hello {
        protocol: tidegate_proto::LINK_PROTOCOL,
        cluster: CLUSTER.to_string(),
        node: "node-a".into(),
        agent_version: "0.1.0".into(),
        terminals: false,
    };
    let report = v1::Report {
        complete: true,
        facts: Some(facts()),
        tasks: reports(),
        applied_epoch: 1,
        applied_generation: 2,
        idle: Vec::new(),
        renew: 0,
        writes: Vec::new(),
    };
    let chunk = v1::LogChunk {
        request: 1,
        offset: 2,
        bytes: b"out".to_vec(),
        length: 5,
        error: "none".into(),
    };
    let read = v1::ReadNodeLog {
        request: 1,
        task: "job-1.1.0".into(),
        stream: v1::LogStream::Stderr.into(),
        offset: 2,
        limit: 3,
    };
    let spec = history().into_iter().find_map(|(_, event)| {
        let Event::JobSubmitted { spec, .. } = event else { return None };
        Some(v1::JobSpec::from(*spec))
    });
    let submit = v1::SubmitRequest { key: CLUSTER.to_string(), spec };
    let reply = v1::SubmitReply { job: "job-1".into(), repeated: true, warnings: Vec::new() };
    let welcome = v1::Welcome { cluster: CLUSTER.to_string(), epoch: 2 };
    vec![
        ("FromAgent.hello", up(From::Hello(hello))),
        ("FromAgent.report", up(From::Report(report))),
        ("FromAgent.log_chunk", up(From::LogChunk(chunk))),
        ("ToAgent.welcome", down(To::Welcome(welcome))),
        ("ToAgent.plan", down(To::Plan(plan()))),
        ("ToAgent.read_log", down(To::ReadLog(read))),
        ("SubmitRequest", submit.encode_to_vec()),
        ("SubmitReply", reply.encode_to_vec()),
    ]
}
