//! Where this process stands in its gang: the environment, checked once.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

use crate::cli::MAX_WORLD;

/// One rank's place, in torchrun's words.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    /// Where rank 0 listens. Not used by a world of one.
    pub(crate) master: Master,
    pub(crate) job: String,
    pub(crate) attempt: Option<u64>,
    pub(crate) checkpoint_dir: Option<PathBuf>,
    pub(crate) preempt_file: Option<PathBuf>,
    /// Where checkpoints are committed.
    pub(crate) socket: Option<PathBuf>,
}

/// The address of rank 0.
#[derive(Debug, Clone)]
pub(crate) struct Master {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A node's part of the gang, for the launcher.
#[derive(Debug)]
pub(crate) struct NodePlace {
    pub(crate) node_rank: u32,
    pub(crate) local_world: u32,
    pub(crate) world: u32,
}

impl Place {
    /// # Errors
    /// Names the variable that is missing or makes no sense.
    pub(crate) fn from_environment() -> Result<Self> {
        let world = number("WORLD_SIZE")?.unwrap_or(1);
        ensure!((1..=MAX_WORLD).contains(&world), "WORLD_SIZE={world}: 1 to {MAX_WORLD} expected");
        let rank = match number("RANK")? {
            Some(rank) => rank,
            None if world == 1 => 0,
            None => bail!("WORLD_SIZE={world} without RANK: start one task per rank, or --launch"),
        };
        ensure!(rank < world, "RANK={rank}: less than WORLD_SIZE={world} expected");
        Ok(Self {
            rank,
            world,
            master: Master::from_environment(world)?,
            job: text("TIDEGATE_JOB_ID")?.unwrap_or_default(),
            attempt: number("TIDEGATE_ATTEMPT")?,
            checkpoint_dir: path("TIDEGATE_CHECKPOINT_DIR"),
            preempt_file: path("TIDEGATE_PREEMPT_FILE"),
            socket: path("TIDEGATE_SOCKET"),
        })
    }
}

impl Master {
    fn from_environment(world: u32) -> Result<Self> {
        let host = text("MASTER_ADDR")?;
        let port = number("MASTER_PORT")?;
        if let (Some(host), Some(port)) = (host, port) {
            return Ok(Self { host, port });
        }
        ensure!(world == 1, "WORLD_SIZE={world} needs MASTER_ADDR and MASTER_PORT");
        Ok(Self { host: "127.0.0.1".to_owned(), port: 0 })
    }
}

impl NodePlace {
    /// # Errors
    /// Names the variable that is missing or makes no sense.
    pub(crate) fn from_environment() -> Result<Self> {
        let local_world = number("LOCAL_WORLD_SIZE")?.unwrap_or(1);
        let world = number("WORLD_SIZE")?.unwrap_or(local_world);
        let node_rank = number("NODE_RANK")?.unwrap_or(0);
        ensure!(local_world >= 1, "LOCAL_WORLD_SIZE=0: at least 1 expected");
        ensure!(world <= MAX_WORLD, "WORLD_SIZE={world}: at most {MAX_WORLD} expected");
        let end = u64::from(node_rank).saturating_add(1).saturating_mul(u64::from(local_world));
        ensure!(
            end <= u64::from(world),
            "NODE_RANK={node_rank} with LOCAL_WORLD_SIZE={local_world} ends at rank {end}, \
             but WORLD_SIZE={world}"
        );
        Ok(Self { node_rank, local_world, world })
    }
}

fn number<T: FromStr>(name: &str) -> Result<Option<T>>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text(name)?
        .map(|value| value.parse().with_context(|| format!("{name}={value}: a number expected")))
        .transpose()
}

/// A variable that is set to nothing counts as not set.
fn text(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error @ std::env::VarError::NotUnicode(_)) => Err(error).context(name.to_owned()),
    }
}

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}
