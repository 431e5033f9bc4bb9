//! Frames between ranks: a length, then that many bytes. Every read is bounded in size and time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::model::{Gradient, WEIGHTS};

/// A peer whose process dies closes its socket at once; only a dead network or a stopped process
/// is silent. NCCL's users wait minutes here; tests cannot.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// The greatest frame: a gradient and its few fields.
const MAX_FRAME: usize = 8 * WEIGHTS + 64;

/// The first frame of a rank: who it is, and what it is about to train. Rank 0 compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    pub(crate) job: String,
    pub(crate) attempt: Option<u64>,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) seed: u64,
    pub(crate) steps: u64,
    pub(crate) save_every: u64,
}

/// What a rank would like to happen after this step. The gang does the greatest wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    GoOn,
    /// Asked to make room: the run is to be resumed.
    SaveAndLeave,
    SaveAndStop,
}

/// One rank's share of a step, or the sum of all.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Contribution {
    pub(crate) step: u64,
    pub(crate) wish: Wish,
    pub(crate) gradient: Gradient,
}

impl Contribution {
    /// Adds the next rank's, in ascending order of ranks.
    ///
    /// # Errors
    /// When the two are of different steps.
    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        ensure!(self.step == other.step, "step {} met step {}", self.step, other.step);
        self.wish = self.wish.max(other.wish);
        self.gradient.add(&other.gradient);
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_FRAME);
        bytes.extend(self.step.to_le_bytes());
        bytes.push(match self.wish {
            Wish::GoOn => 0,
            Wish::SaveAndLeave => 1,
            Wish::SaveAndStop => 2,
        });
        bytes.extend(self.gradient.loss.to_le_bytes());
        push_floats(&mut bytes, &self.gradient.of_weights);
        bytes
    }

    /// # Errors
    /// When the bytes are not a contribution.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let (step, rest) = bytes.split_first_chunk::<8>().context("short contribution")?;
        let (wish, rest) = rest.split_first().context("short contribution")?;
        let (loss, rest) = rest.split_first_chunk::<8>().context("short contribution")?;
        let of_weights = floats(rest);
        ensure!(of_weights.len() == WEIGHTS, "a gradient of {} slopes", of_weights.len());
        let wish = match wish {
            0 => Wish::GoOn,
            1 => Wish::SaveAndLeave,
            2 => Wish::SaveAndStop,
            other => anyhow::bail!("unknown wish {other}"),
        };
        let gradient = Gradient { loss: f64::from_le_bytes(*loss), of_weights };
        Ok(Self { step: u64::from_le_bytes(*step), wish, gradient })
    }
}

pub(crate) fn push_floats(bytes: &mut Vec<u8>, floats: &[f64]) {
    for float in floats {
        bytes.extend(float.to_le_bytes());
    }
}

/// Whole little-endian floats; a remainder is dropped, callers check the count.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes
        .chunks_exact(8)
        .filter_map(|chunk| chunk.try_into().ok())
        .map(f64::from_le_bytes)
        .collect()
}

/// Sets the time limits every stream between ranks has.
///
/// # Errors
/// When the socket refuses.
pub(crate) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))
}

/// # Errors
/// When the peer is gone, or took nothing for [`SILENCE`].
pub(crate) fn send(stream: &mut TcpStream, payload: &[u8]) -> Result<()> {
    let length = u32::try_from(payload.len()).context("a frame too long")?;
    let mut frame = Vec::with_capacity(payload.len() + 4);
    frame.extend(length.to_le_bytes());
    frame.extend(payload);
    stream.write_all(&frame).context("the connection is lost")
}

/// # Errors
/// When the peer is gone, was silent for [`SILENCE`], or sends what is no frame of ours.
pub(crate) fn receive(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).context("the connection is lost")?;
    let length = usize::try_from(u32::from_le_bytes(length)).context("a frame too long")?;
    ensure!(length <= MAX_FRAME, "a frame of {length} bytes, at most {MAX_FRAME} expected");
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).context("the connection is lost")?;
    Ok(payload)
}
