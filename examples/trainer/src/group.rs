//! A gang that has met: a star around rank 0, which sums in ascending order of ranks.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::wire::{self, Contribution};

/// This process's connections.
#[derive(Debug)]
pub(crate) enum Group {
    /// A world of one.
    Alone,
    /// Rank 0: all others, in ascending order of ranks.
    Hub(Vec<Peer>),
    /// Any other rank: the connection to rank 0.
    Spoke(TcpStream),
}

/// Another rank, as rank 0 sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) rank: u32,
    pub(crate) stream: TcpStream,
}

impl Group {
    /// Rank 0 gives all others the same bytes; every rank returns with them.
    ///
    /// # Errors
    /// When a peer is gone.
    pub(crate) fn broadcast(&mut self, from_rank_0: Vec<u8>) -> Result<Vec<u8>> {
        match self {
            Self::Alone => Ok(from_rank_0),
            Self::Hub(peers) => {
                for peer in peers {
                    let rank = peer.rank;
                    wire::send(&mut peer.stream, &from_rank_0).with_context(|| lost(rank))?;
                }
                Ok(from_rank_0)
            }
            Self::Spoke(stream) => wire::receive(stream).with_context(|| lost(0)),
        }
    }

    /// The sum of all ranks' contributions, the same bits on every rank. Rank 0 hands it out at
    /// `not_before`, which paces the gang.
    ///
    /// # Errors
    /// When a peer is gone or at another step.
    pub(crate) fn all_reduce(
        &mut self,
        own: Contribution,
        not_before: Instant,
    ) -> Result<Contribution> {
        let mut sum = own;
        match self {
            Self::Alone => {}
            Self::Hub(peers) => {
                for peer in peers {
                    let share = wire::receive(&mut peer.stream)
                        .and_then(|bytes| Contribution::decode(&bytes));
                    sum.add(&share.with_context(|| lost(peer.rank))?)?;
                }
            }
            Self::Spoke(stream) => {
                wire::send(stream, &sum.encode()).with_context(|| lost(0))?;
                return Contribution::decode(&wire::receive(stream).with_context(|| lost(0))?);
            }
        }
        self.idle_until(not_before)?;
        self.broadcast(sum.encode())?;
        Ok(sum)
    }

    /// Checks that all ranks hold the same weights. Returns on rank 0 when all have answered; the
    /// others then wait for the next [`Group::broadcast`].
    ///
    /// # Errors
    /// When a peer is gone or holds other weights.
    pub(crate) fn agree(&mut self, digest: u64) -> Result<()> {
        match self {
            Self::Alone => Ok(()),
            Self::Hub(peers) => {
                for peer in peers {
                    let theirs =
                        wire::receive(&mut peer.stream).with_context(|| lost(peer.rank))?;
                    ensure!(
                        theirs == digest.to_le_bytes(),
                        "rank {} holds other weights than rank 0",
                        peer.rank
                    );
                }
                Ok(())
            }
            Self::Spoke(stream) => {
                wire::send(stream, &digest.to_le_bytes()).with_context(|| lost(0))
            }
        }
    }

    /// Sleeps, but notices at once when a peer hangs up.
    fn idle_until(&self, instant: Instant) -> Result<()> {
        loop {
            let left = instant.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.idle(left)?;
        }
    }

    /// At most `left`, or until a signal.
    fn idle(&self, left: Duration) -> Result<()> {
        let peers: &[Peer] = match self {
            Self::Hub(peers) => peers,
            Self::Alone | Self::Spoke(_) => &[],
        };
        // Peers wait for rank 0 now: a readable one has hung up.
        let mut fds: Vec<_> =
            peers.iter().map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLIN)).collect();
        // poll counts whole milliseconds; rounding up keeps the last one from spinning.
        let left = Duration::from_millis(u64::try_from(left.as_millis())?.saturating_add(1));
        match poll(&mut fds, PollTimeout::try_from(left)?) {
            Ok(0) | Err(Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error).context("cannot wait for the next step"),
        }
        for (fd, peer) in fds.iter().zip(peers) {
            if fd.any().unwrap_or(false) {
                bail!("{}: the connection is lost", lost(peer.rank));
            }
        }
        Ok(())
    }
}

fn lost(rank: u32) -> String {
    format!("lost rank {rank}")
}
