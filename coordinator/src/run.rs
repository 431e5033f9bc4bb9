//! Puts the parts together and serves until told to stop.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tidegate_model::{ClusterId, Epoch, NodeName};
use tidegate_proto::MAX_MESSAGE_BYTES;
use tidegate_proto::v1::agent_link_server::AgentLinkServer;
use tidegate_proto::v1::tidegate_server::TidegateServer;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Engine, EngineError};
use crate::ingress::api::{Api, Notices, Past};
use crate::ingress::link::{LinkService, Links};
use crate::ingress::sockets::{self, NodeStream};
use crate::journal::redb_store::{Reader, RedbJournal};
use crate::notices::cursor::CursorFile;
use crate::notices::post::{ANSWERED_WITHIN, Poster};
use crate::notices::queue::Pace;
use crate::notices::sender::Sender;
use crate::space::Space;
use crate::store;
use crate::thread::{self, Handle, Message};

/// Connections of agents that may wait to be served: every agent of a large cluster at once.
const MAX_CONNECTING: usize = 1024;

/// Serves until SIGTERM or SIGINT, or until the engine must be restarted.
///
/// # Errors
/// If it could not start, or had to stop: the service manager starts it again, and it restores.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let Started { handle, engine, cluster, epoch, reader } = start_engine(&config)?;
    let links = Arc::new(Links::default());
    make_dir(&config.run_dir.join("nodes"), 0o755)?;
    let api = sockets::bind(&config.run_dir.join("api.sock"), 0o666).await;
    let api = UnixListenerStream::new(api.context("the API cannot be served")?);
    let agents = listen_for_agents(&config).await?;
    tracing::info!(%cluster, %epoch, run_dir = %config.run_dir.display(), "serving");

    let limit = MAX_MESSAGE_BYTES;
    let past = Past::new(reader.clone());
    let notices = Notices::new(reader.clone(), config.notices.clone());
    if !config.notices.is_empty() {
        tokio::spawn(sender(&config, handle.clone(), reader, cluster)?.run());
    }
    let service = Api { engine: handle.clone(), links: Arc::clone(&links), past, notices };
    let service = TidegateServer::new(service).max_decoding_message_size(limit);
    let serving_api = Server::builder().add_service(service).serve_with_incoming(api);
    let service = LinkService { engine: handle.clone(), links, cluster, epoch };
    let service = AgentLinkServer::new(service).max_decoding_message_size(limit);
    let serving_agents = Server::builder().add_service(service).serve_with_incoming(agents);

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut engine = tokio::task::spawn_blocking(move || engine.join());
    tokio::select! {
        served = serving_api => served.context("the API stopped")?,
        served = serving_agents => served.context("the agents' link stopped")?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = &mut engine => return outcome(ended),
    }
    tracing::info!("stopping; jobs go on");
    if handle.send(Message::Stop).is_ok() {
        return outcome(engine.await);
    }
    Ok(())
}

type Joined = Result<std::thread::Result<Result<(), EngineError>>, tokio::task::JoinError>;

fn outcome(ended: Joined) -> anyhow::Result<()> {
    let ended = ended.context("the engine thread was not waited for")?;
    let ended = ended.map_err(|_panic| anyhow::anyhow!("the engine thread panicked"))?;
    ended.context("the engine stopped; a restart restores")
}

/// The engine under way, and the ways to it and to its store.
struct Started {
    handle: Handle,
    engine: std::thread::JoinHandle<Result<(), EngineError>>,
    cluster: ClusterId,
    epoch: Epoch,
    reader: Reader,
}

fn start_engine(config: &Config) -> anyhow::Result<Started> {
    let dir = config.store.parent().context("store must lie in a directory")?;
    make_dir(dir, 0o700)?;
    let space = Space::new(&config.store, config.low_water, config.store_limit);
    // Leading writes as well: a start that fails on a full disk leaves the reserve to the next.
    let led = lead(config).inspect_err(|_| space.release())?;
    if let Err(error) = space.set_aside() {
        tracing::warn!(%error, "no room for the reserve: closed to new work");
    }
    let Led { engine, clock, reader } = led;
    let (cluster, epoch) = (engine.cluster(), engine.epoch());
    let (handle, thread) = thread::spawn(engine, clock, space)?;
    Ok(Started { handle, engine: thread, cluster, epoch, reader })
}

/// A store that is open, restored, and has this leadership as its newest record.
struct Led {
    engine: Engine<RedbJournal>,
    clock: Clock,
    reader: Reader,
}

fn lead(config: &Config) -> anyhow::Result<Led> {
    let shown = config.store.display();
    let journal = RedbJournal::open(&config.store, ClusterId(ulid::Ulid::generate().0))
        .with_context(|| format!("{shown} cannot be opened"))?;
    let restored = store::restore(&journal);
    let restored = restored.with_context(|| format!("{shown} cannot be restored"))?;
    let reader = journal.reader();
    let clock = Clock::start(restored.last)?;
    if restored.core.books().epoch.is_none() {
        tracing::warn!(store = %shown, "a new store: a new cluster, which knows of nothing that ran before");
    }
    let engine = Engine::start(journal, restored, clock.now(), &config.initial_policy);
    let engine = engine.with_context(|| format!("{shown} cannot be led"))?;
    Ok(Led { engine, clock, reader })
}

fn sender(
    config: &Config,
    engine: Handle,
    reader: Reader,
    cluster: ClusterId,
) -> anyhow::Result<Sender> {
    let poster = Poster::new(config.notices.clone(), ANSWERED_WITHIN)?;
    let file = (CursorFile::beside(&config.store), Pace::default());
    Sender::start(engine, reader, cluster, poster, file)
        .with_context(|| format!("{}.notices cannot be used", config.store.display()))
}

fn make_dir(dir: &Path, mode: u32) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(dir)
        .with_context(|| format!("cannot make {}", dir.display()))
}

/// One listener for each local node, all feeding one server.
async fn listen_for_agents(
    config: &Config,
) -> anyhow::Result<ReceiverStream<std::io::Result<NodeStream>>> {
    let (connections, incoming) = mpsc::channel(MAX_CONNECTING);
    for node in &config.local_nodes {
        let path = config.run_dir.join("nodes").join(format!("{node}.sock"));
        let listener = sockets::bind(&path, 0o600).await;
        let listener = listener.with_context(|| format!("{node} cannot be served"))?;
        tokio::spawn(accept(listener, node.clone(), connections.clone()));
    }
    Ok(ReceiverStream::new(incoming))
}

async fn accept(
    listener: UnixListener,
    node: NodeName,
    connections: mpsc::Sender<std::io::Result<NodeStream>>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let stream = NodeStream::new(stream, node.clone());
                if connections.send(Ok(stream)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                // Out of file descriptors, as a rule: others must close first.
                tracing::warn!(%node, %error, "cannot accept");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path, low_water: &str) -> Config {
        let text = format!(
            "store = \"{0}/store.redb\"\nrun_dir = \"{0}/run\"\nlow_water = \"{low_water}\"",
            dir.display()
        );
        Config::parse(&text).unwrap()
    }

    #[test]
    fn a_start_that_fails_gives_its_reserve_up() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("store.redb"), "not a store").unwrap();
        fs::write(dir.path().join("store.reserve"), "of an earlier start").unwrap();
        assert!(start_engine(&config(dir.path(), "1MiB")).is_err());
        assert!(!dir.path().join("store.reserve").exists(), "room for the next start");
    }

    #[test]
    fn a_start_takes_the_reserve_only_where_new_work_has_room_beside_it() {
        let check = |low_water, expected| {
            let dir = tempfile::tempdir().unwrap();
            let started = start_engine(&config(dir.path(), low_water)).unwrap();
            started.handle.send(Message::Stop).unwrap();
            started.engine.join().unwrap().unwrap();
            assert_eq!(dir.path().join("store.reserve").exists(), expected, "{low_water}");
        };
        check("1MiB", true);
        check("1000000GiB", false);
    }
}
