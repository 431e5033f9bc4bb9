//! How ranks find each other: rank 0 listens, the others connect and introduce themselves.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::group::{Group, Peer};
use crate::place::Master;
use crate::wire::{self, Hello};
use crate::{output, signals};

/// How often a wait looks whether it should end. Not the latency of joining: that is poll's.
const GLANCE: Duration = Duration::from_millis(100);
/// Back-off between attempts to connect or to bind.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(1);
/// One attempt to connect; a host that is still booting drops packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A stranger who connects and says nothing must not hold up the gang.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);

/// Why there is no group.
#[derive(Debug)]
pub(crate) enum Joined {
    Group(Group),
    /// SIGTERM came first.
    Stopped,
}

/// Meets the other ranks of the gang.
///
/// # Errors
/// When `timeout` passes, a rank that had joined dies, or two ranks disagree on what to train.
pub(crate) fn join(me: &Hello, master: &Master, timeout: Duration) -> Result<Joined> {
    let deadline = Instant::now() + timeout;
    match (me.world, me.rank) {
        (1, _) => Ok(Joined::Group(Group::Alone)),
        (_, 0) => gather(me, master, deadline),
        (_, _) => connect(me, master, deadline),
    }
}

fn gather(me: &Hello, master: &Master, deadline: Instant) -> Result<Joined> {
    let Some(listener) = listen(master, deadline)? else { return Ok(Joined::Stopped) };
    let mut peers: Vec<Peer> = Vec::new();
    let wanted = usize::try_from(me.world).context("world too large")? - 1;
    while peers.len() < wanted {
        if signals::stop_asked() {
            return Ok(Joined::Stopped);
        }
        let missing = wanted - peers.len();
        ensure!(Instant::now() < deadline, "{missing} of {} ranks did not join in time", me.world);
        let Some(stream) = next_connection(&listener, &peers)? else { continue };
        match greet(me, stream, &peers) {
            Ok(peer) => peers.push(peer),
            // Anybody may connect to a port: the gang goes on waiting for its own.
            Err(error) => output::complain(&format!("turned a connection away: {error:#}")),
        }
    }
    peers.sort_by_key(|peer| peer.rank);
    Ok(Joined::Group(Group::Hub(peers)))
}

/// Binds the master address. A name may resolve to an address that peers cannot reach, so for a
/// name all addresses are bound.
fn listen(master: &Master, deadline: Instant) -> Result<Option<TcpListener>> {
    let address = master.host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let address = SocketAddr::new(address, master.port);
    let bound = retry(deadline, || TcpListener::bind(address))
        .with_context(|| format!("cannot listen on {address}"))?;
    if let Some(listener) = &bound {
        listener.set_nonblocking(true).context("cannot listen")?;
    }
    Ok(bound)
}

/// Waits a glance for a connection, and for the death of those who have joined.
fn next_connection(listener: &TcpListener, peers: &[Peer]) -> Result<Option<TcpStream>> {
    let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    // Peers say nothing between hello and welcome: a readable one has hung up.
    fds.extend(peers.iter().map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, PollTimeout::try_from(GLANCE).unwrap_or(PollTimeout::ZERO)) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error).context("cannot wait for ranks"),
    }
    for (fd, peer) in fds.iter().skip(1).zip(peers) {
        ensure!(!fd.any().unwrap_or(false), "rank {} left before the start", peer.rank);
    }
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        // The connection, not the listener, failed: see accept(2) on network errors.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error).context("cannot accept ranks"),
    }
}

fn greet(me: &Hello, mut stream: TcpStream, peers: &[Peer]) -> Result<Peer> {
    wire::prepare(&stream)?;
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let hello: Hello = serde_json::from_slice(&wire::receive(&mut stream)?)?;
    let rank = hello.rank;
    let expected = Hello { rank, ..me.clone() };
    ensure!(hello == expected, "it says {hello:?}, expected {expected:?}");
    ensure!((1..me.world).contains(&rank), "it says it is rank {rank} of {}", me.world);
    ensure!(peers.iter().all(|peer| peer.rank != rank), "rank {rank} has joined already");
    stream.set_read_timeout(Some(wire::SILENCE))?;
    Ok(Peer { rank, stream })
}

fn connect(me: &Hello, master: &Master, deadline: Instant) -> Result<Joined> {
    let where_to = format!("{}:{}", master.host, master.port);
    let stream = retry(deadline, || connect_once(master))
        .with_context(|| format!("cannot reach rank 0 at {where_to}"))?;
    let Some(mut stream) = stream else { return Ok(Joined::Stopped) };
    wire::prepare(&stream)?;
    wire::send(&mut stream, &serde_json::to_vec(me)?)?;
    // The welcome comes when the last rank has joined; it is read by whoever uses the group.
    loop {
        if signals::stop_asked() {
            return Ok(Joined::Stopped);
        }
        if Instant::now() >= deadline {
            bail!("rank 0 at {where_to} did not start in time");
        }
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(GLANCE).unwrap_or(PollTimeout::ZERO)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(Joined::Group(Group::Spoke(stream))),
            Err(error) => return Err(error).context("cannot wait for rank 0"),
        }
    }
}

fn connect_once(master: &Master) -> std::io::Result<TcpStream> {
    let mut last = None;
    for address in (master.host.as_str(), master.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::Error::other("the name has no address")))
}

/// Tries with doubling pauses until the deadline; `None` when SIGTERM comes.
fn retry<T>(
    deadline: Instant,
    attempt: impl Fn() -> std::io::Result<T>,
) -> std::io::Result<Option<T>> {
    let mut pause = FIRST_BACKOFF;
    loop {
        match attempt() {
            Ok(done) => return Ok(Some(done)),
            Err(error) if Instant::now() + pause >= deadline => return Err(error),
            Err(_) if signals::stop_asked() => return Ok(None),
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(MAX_BACKOFF);
    }
}
