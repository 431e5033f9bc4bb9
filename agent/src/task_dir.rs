//! A task's directory: what the starter and the shim tell each other, and what survives both.
//!
//! | file | by | durable | says |
//! |---|---|---|---|
//! | `intent.json` | starter | yes, before the spawn | the whole launch; its start is never repeated |
//! | `begun` | shim | no: void after a reboot | a shim is about to start the task: no other ever may |
//! | `state.json` | shim | no: void after a reboot | the task runs, as this process |
//! | `stop.json` | starter | no: void after a reboot | the task is to end |
//! | `save.json` | starter | yes | the task is to save |
//! | `saving.json` | shim | yes, before each signal | which ranks were asked, and that none is asked twice |
//! | `commit.json` | shim | yes | the job's newest checkpoint |
//! | `ask.json` | shim | no: void without its shim, which takes the task along | the job's newest ask for a permit to write |
//! | `permit.json` | starter | no: void after a reboot | the answer to that ask |
//! | `preempt` | shim | no | tells the job that it is to save |
//! | `job.sock` | shim | no | where the job talks to its shim |
//! | `pty.sock` | shim | no | where the agent opens the task's terminal, if it has one |
//! | `exit.json` | shim; the starter if the shim is dead | yes | its end |
//! | `stdout.N`, `stderr.N` | shim | no | output from byte N on |
//! | `shim.log` | shim | no | what went wrong in the shim itself |
//!
//! The shim holds a record lock on `intent.json` for life: whoever asks for the lock learns
//! whether a shim is alive, and its pid, without a look at other processes.

use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate_model::{Bytes, NameError, Span, TaskExit, TaskId, TaskLayout, UserId};
use tidegate_proto::link::Launch;

use crate::durable;
use crate::procs::ProcessId;
use crate::record::ExitRecord;

/// The paths of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDir {
    path: PathBuf,
}

impl TaskDir {
    /// Below `tasks`, named by the task's id; an id holds no separator and no `..`.
    #[must_use]
    pub fn of(tasks: &Path, task: TaskId) -> Self {
        Self { path: tasks.join(task.to_string()) }
    }

    /// As given on the shim's command line.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Of [`Intent`].
    #[must_use]
    pub fn intent(&self) -> PathBuf {
        self.path.join("intent.json")
    }

    /// Made by the one shim that starts the task, just before it does.
    #[must_use]
    pub fn begun(&self) -> PathBuf {
        self.path.join("begun")
    }

    /// Of [`State`].
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// Of [`StopRecord`].
    #[must_use]
    pub fn stop(&self) -> PathBuf {
        self.path.join("stop.json")
    }

    /// Of [`crate::saving::SaveRecord`].
    #[must_use]
    pub fn save(&self) -> PathBuf {
        self.path.join("save.json")
    }

    /// Of [`crate::saving::SavingRecord`].
    #[must_use]
    pub fn saving(&self) -> PathBuf {
        self.path.join("saving.json")
    }

    /// Of [`crate::saving::CommitRecord`].
    #[must_use]
    pub fn commit(&self) -> PathBuf {
        self.path.join("commit.json")
    }

    /// Of [`crate::permits::AskRecord`].
    #[must_use]
    pub fn ask(&self) -> PathBuf {
        self.path.join("ask.json")
    }

    /// Of [`crate::permits::PermitRecord`].
    #[must_use]
    pub fn permit(&self) -> PathBuf {
        self.path.join("permit.json")
    }

    /// Of [`Exit`].
    #[must_use]
    pub fn exit(&self) -> PathBuf {
        self.path.join("exit.json")
    }

    /// What the shim itself has to say.
    #[must_use]
    pub fn shim_log(&self) -> PathBuf {
        self.path.join("shim.log")
    }

    /// Appears when the job is asked to save.
    #[must_use]
    pub fn preempt_file(&self) -> PathBuf {
        self.path.join("preempt")
    }

    /// Where the job may talk to its shim.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path.join("job.sock")
    }

    /// Where the agent opens the task's terminal.
    #[must_use]
    pub fn terminal(&self) -> PathBuf {
        self.path.join("pty.sock")
    }
}

/// The intent to start a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// Which.
    #[serde(with = "crate::text")]
    pub task: TaskId,
    /// In which boot of the node.
    pub boot_id: String,
    /// Home directory of the task's user.
    pub home: String,
    /// Name of the task's user.
    pub user: String,
    /// What.
    pub launch: LaunchRecord,
}

/// A started task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// In which boot of the node.
    pub boot_id: String,
    /// The supervisor.
    pub shim: ProcessId,
    /// The task's own process.
    pub main: ProcessId,
}

/// The order to end a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopRecord {
    /// The journal record that ordered it.
    pub decision: u64,
    /// Between TERM and KILL.
    pub grace_ms: u64,
}

/// A task's end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exit {
    /// How.
    pub exit: ExitRecord,
    /// Whether no process of it is left.
    pub released: bool,
    /// From exec to exit, by the monotonic clock.
    pub ran_ms: u64,
    /// Output that could not be written, in bytes.
    #[serde(default)]
    pub dropped_output: u64,
}

impl Exit {
    /// The end of a task of which nothing is left.
    #[must_use]
    pub fn released(exit: TaskExit, ran: Span) -> Self {
        Self { exit: exit.into(), released: true, ran_ms: ran.0, dropped_output: 0 }
    }
}

/// [`Launch`] as JSON, but for its request to save: a start is the same with and without one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchRecord {
    uid: u32,
    command: Vec<String>,
    working_dir: String,
    env: Vec<(String, String)>,
    gpus: Vec<String>,
    per_node: bool,
    rank: u32,
    local_rank: u32,
    world_size: u32,
    local_world_size: u32,
    node_rank: u32,
    nodes: u32,
    master_addr: String,
    master_port: u16,
    checkpoint_dir: String,
    log_cap_bytes: u64,
    /// Left out where it is false: what a starter of 0.1 is told it must know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pty: bool,
}

impl From<Launch> for LaunchRecord {
    fn from(launch: Launch) -> Self {
        Self {
            uid: launch.user.0,
            command: launch.command,
            working_dir: launch.working_dir,
            env: launch.env,
            gpus: launch.gpus.iter().map(ToString::to_string).collect(),
            per_node: match launch.layout {
                TaskLayout::PerNode => true,
                TaskLayout::PerGpu => false,
            },
            rank: launch.rank,
            local_rank: launch.local_rank,
            world_size: launch.world_size,
            local_world_size: launch.local_world_size,
            node_rank: launch.node_rank,
            nodes: launch.nodes,
            master_addr: launch.master_addr,
            master_port: launch.master_port,
            checkpoint_dir: launch.checkpoint_dir,
            log_cap_bytes: launch.log_cap.0,
            pty: launch.pty,
        }
    }
}

impl TryFrom<LaunchRecord> for Launch {
    type Error = String;

    fn try_from(record: LaunchRecord) -> Result<Self, String> {
        let parsed = |gpu: &String| gpu.parse().map_err(|error: NameError| error.to_string());
        if record.command.first().is_none_or(String::is_empty) {
            return Err("a launch without a command".to_owned());
        }
        Ok(Self {
            user: UserId(record.uid),
            command: record.command,
            working_dir: record.working_dir,
            env: record.env,
            gpus: record.gpus.iter().map(parsed).collect::<Result<_, _>>()?,
            layout: if record.per_node { TaskLayout::PerNode } else { TaskLayout::PerGpu },
            rank: record.rank,
            local_rank: record.local_rank,
            world_size: record.world_size,
            local_world_size: record.local_world_size,
            node_rank: record.node_rank,
            nodes: record.nodes,
            master_addr: record.master_addr,
            master_port: record.master_port,
            checkpoint_dir: record.checkpoint_dir,
            log_cap: Bytes(record.log_cap_bytes),
            save: None,
            permit: None,
            pty: record.pty,
        })
    }
}

/// Reads a record; none if the file is not there.
///
/// # Errors
/// It cannot be read or is not such a record.
pub fn load<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let Some(bytes) = durable::read(path)? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// A record as bytes.
///
/// # Errors
/// Never for the records of this module; kept so that nothing is unwrapped.
pub fn bytes_of<T: Serialize>(record: &T) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(record)?)
}
