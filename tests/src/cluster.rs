//! A cluster of real processes on one machine: a coordinator, and for each node an agent and a
//! starter, with simulated GPUs. Each can be killed and started again.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use simulator::plain_job;
use tempfile::TempDir;
use tidegate_model::{GpuCount, JobSpec, Span, TaskLayout};
use tidegate_proto::v1;

use crate::binaries::Binaries;
use crate::client::Client;
use crate::processes::{Daemon, marked, signal};
use crate::wait::until;

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// GPUs of each node.
    pub gpus: Vec<u32>,
    /// Lines for the coordinator's configuration, before its tables.
    pub coordinator: String,
    /// Lines for its `[initial_policy]`.
    pub policy: String,
    /// Between an agent's heartbeats.
    pub heartbeat: String,
    /// Network namespaces, as files, that nodes are in, in turns; none = the network that this process is in.
    pub networks: Vec<PathBuf>,
}

impl Plan {
    /// So many nodes with so many GPUs each, quick to restart jobs.
    #[must_use]
    pub fn nodes(count: usize, gpus: u32) -> Self {
        Self {
            gpus: vec![gpus; count],
            coordinator: String::new(),
            // A gang may have all of a small cluster, and what is killed often makes no progress.
            policy: "restart_backoff = \"100ms\"\ngang_cap = \"100 %\"\n\
                     no_progress_limit = 1000000"
                .to_owned(),
            heartbeat: "1s".to_owned(),
            networks: Vec::new(),
        }
    }
}

/// A daemon of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The coordinator.
    Coordinator,
    /// The agent of the node with that index.
    Agent(usize),
    /// The starter of the node with that index.
    Starter(usize),
}

/// A running cluster. Dropping it ends every process in it, jobs too.
#[derive(Debug)]
pub struct Cluster {
    binaries: Binaries,
    dir: PathBuf,
    kept: Option<TempDir>,
    coordinator: Option<Daemon>,
    agents: Vec<Option<Daemon>>,
    starters: Vec<Option<Daemon>>,
    networks: Vec<PathBuf>,
}

/// The name of the node with that index.
#[must_use]
pub fn node_name(index: usize) -> String {
    format!("node-{index}")
}

impl Cluster {
    /// Writes the configurations, starts every process, and waits until all nodes are ready.
    ///
    /// # Errors
    /// If something cannot be started.
    pub async fn start(binaries: Binaries, plan: &Plan) -> anyhow::Result<Self> {
        let mut cluster = Self::stopped(binaries, plan)?;
        cluster.start_all()?;
        cluster.ready(Duration::from_secs(30)).await?;
        Ok(cluster)
    }

    /// Starts every process.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start_all(&mut self) -> anyhow::Result<()> {
        self.start_role(Role::Coordinator)?;
        for node in 0..self.nodes() {
            self.start_role(Role::Starter(node))?;
            self.start_role(Role::Agent(node))?;
        }
        Ok(())
    }

    /// The same with nothing started yet.
    ///
    /// # Errors
    /// If the configurations cannot be written.
    pub fn stopped(binaries: Binaries, plan: &Plan) -> anyhow::Result<Self> {
        // Directly in the system's temporary directory: a socket's path has at most 107 bytes.
        let kept = tempfile::Builder::new().prefix("tg-").tempdir()?;
        let dir = kept.path().to_owned();
        let nodes = plan.gpus.len();
        let names: Vec<_> = (0..nodes).map(|node| format!("{:?}", node_name(node))).collect();
        let shown = dir.display();
        let text = format!(
            "store = \"{shown}/store/store.redb\"\nrun_dir = \"{shown}/run\"\n\
             local_nodes = [{}]\n{}\n[initial_policy]\n{}\n",
            names.join(", "),
            plan.coordinator,
            plan.policy
        );
        fs::write(dir.join("coordinator.toml"), text)?;
        for (node, gpus) in plan.gpus.iter().enumerate() {
            write_node(&dir, &binaries, node, *gpus, &plan.heartbeat)?;
        }
        let none = |_| None;
        Ok(Self {
            binaries,
            dir,
            kept: Some(kept),
            coordinator: None,
            agents: (0..nodes).map(none).collect(),
            starters: (0..nodes).map(none).collect(),
            networks: plan.networks.clone(),
        })
    }

    /// The cluster's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The binaries it runs.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The API's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("run/api.sock")
    }

    /// A client of its API.
    ///
    /// # Errors
    /// If the socket's path is none.
    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.socket())
    }

    /// How many nodes it has.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.agents.len()
    }

    /// The process of a role, if it runs.
    #[must_use]
    pub fn pid(&self, role: Role) -> Option<u32> {
        let daemon = match role {
            Role::Coordinator => self.coordinator.as_ref(),
            Role::Agent(node) => self.agents.get(node).and_then(Option::as_ref),
            Role::Starter(node) => self.starters.get(node).and_then(Option::as_ref),
        };
        daemon.map(Daemon::pid)
    }

    /// Starts one process; if it runs already, the old one is killed first.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_role(&mut self, role: Role) -> anyhow::Result<()> {
        self.kill(role)?;
        let (program, config, log) = match role {
            Role::Coordinator => (
                "tidegate-coordinator",
                "coordinator.toml".to_owned(),
                "coordinator.log".to_owned(),
            ),
            Role::Agent(node) => {
                ("tidegate-agent", format!("{}.toml", node_name(node)), format!("agent-{node}.log"))
            }
            Role::Starter(node) => {
                let config = format!("{}.toml", node_name(node));
                ("tidegate-starter", config, format!("starter-{node}.log"))
            }
        };
        let mut command = self.command(role, &self.binaries.path(program));
        command.arg("--config").arg(self.dir.join(config));
        if let Role::Agent(node) = role {
            let state = self.dir.join(format!("{}.gpus.json", node_name(node)));
            command.env("TIDEGATE_NVML_SIM", state);
            command.env("TIDEGATE_NVML_SIM_SOCKET", self.gpu_socket(node));
        }
        let daemon = Daemon::start(command, &self.dir.join(log))?;
        *self.slot(role).context("no such node")? = Some(daemon);
        Ok(())
    }

    /// A program of a role, in its node's network.
    fn command(&self, role: Role, program: &Path) -> Command {
        let network = match role {
            Role::Coordinator => None,
            Role::Agent(node) | Role::Starter(node) => {
                node.checked_rem(self.networks.len()).and_then(|turn| self.networks.get(turn))
            }
        };
        let Some(network) = network else { return Command::new(program) };
        // It becomes the program: the process is the same.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", network.display())).arg(program);
        command
    }

    fn gpu_socket(&self, node: usize) -> PathBuf {
        self.dir.join(format!("{}.gpus.sock", node_name(node)))
    }

    /// Has the simulated driver of a node's agent do something, in the words of nvml-sim's control
    /// socket; its answer.
    ///
    /// # Errors
    /// If the agent does not run.
    pub fn gpus(&self, node: usize, command: &str) -> anyhow::Result<String> {
        let mut socket = UnixStream::connect(self.gpu_socket(node)).context("the driver")?;
        writeln!(socket, "{command}")?;
        let mut answer = String::new();
        BufReader::new(socket).read_line(&mut answer)?;
        Ok(answer)
    }

    /// What is started from now on is of this checkout, on the nodes too.
    pub fn upgrade(&mut self) {
        self.binaries = self.binaries.upgraded();
    }

    /// Kills one process with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub fn kill(&mut self, role: Role) -> anyhow::Result<()> {
        match self.slot(role).and_then(Option::take) {
            Some(mut daemon) => daemon.kill(),
            None => Ok(()),
        }
    }

    fn slot(&mut self, role: Role) -> Option<&mut Option<Daemon>> {
        match role {
            Role::Coordinator => Some(&mut self.coordinator),
            Role::Agent(node) => self.agents.get_mut(node),
            Role::Starter(node) => self.starters.get_mut(node),
        }
    }

    /// Waits until every node takes work.
    ///
    /// # Errors
    /// If one does not in time.
    pub async fn ready(&self, within: Duration) -> anyhow::Result<()> {
        let client = self.client()?;
        let all = self.nodes();
        until(within, "every node to be ready", async || match client.nodes().await {
            Ok(nodes) => {
                let ready = nodes
                    .iter()
                    .filter(|node| node.state() == v1::NodeState::Ready && !node.gpus.is_empty());
                let ready = ready.count();
                if ready == all { Ok(()) } else { Err(format!("{ready} of {all}")) }
            }
            Err(status) => Err(status.to_string()),
        })
        .await
    }

    /// Shims that run, with their task's directory.
    #[must_use]
    pub fn shims(&self) -> Vec<(u32, String)> {
        let mark = self.dir.display().to_string();
        let mut shims = marked(&mark);
        shims.retain(|(_, command)| {
            command.split(' ').next().is_some_and(|program| program.ends_with("tidegate-shim"))
        });
        shims
    }

    /// Task and rank processes of a job's attempt, by the environment they were given.
    #[must_use]
    pub fn task_processes(&self, task: &str) -> Vec<(u32, String)> {
        let mark = self.dir.display().to_string();
        let named = format!("TIDEGATE_TASK={task}");
        let mut found = marked(&mark);
        found.retain(|(pid, command)| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let environ = String::from_utf8_lossy(&environ);
            !command.contains("tidegate-shim") && environ.split('\0').any(|var| var == named)
        });
        found
    }

    /// A job that runs the trainer, one rank for each GPU, with its checkpoints in the cluster's
    /// directory.
    #[must_use]
    pub fn trainer(&self, name: &str, gpus: u32, arguments: &[&str]) -> JobSpec {
        let trainer = self.binaries.path("trainer").display().to_string();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        let work = self.dir.join("work");
        JobSpec {
            name: name.to_owned(),
            command: [trainer].into_iter().chain(arguments).collect(),
            layout: TaskLayout::PerGpu,
            checkpoint_dir: Some(work.join(name).display().to_string().into()),
            ..self.job(name, gpus)
        }
    }

    /// A job that does nothing.
    #[must_use]
    pub fn job(&self, name: &str, gpus: u32) -> JobSpec {
        let account = "default".parse().unwrap_or_else(|_| unreachable!("a valid path"));
        JobSpec {
            name: name.to_owned(),
            command: vec!["/bin/true".to_owned()],
            working_dir: self.dir.display().to_string(),
            grace: Span::seconds(10),
            max_restarts: 5,
            ..plain_job(account, GpuCount(gpus))
        }
    }

    /// Leaves everything running, and its directory in place.
    pub fn leave_running(mut self) -> PathBuf {
        if let Some(kept) = self.kept.take() {
            drop(kept.keep());
        }
        let dir = self.dir.clone();
        std::mem::take(&mut self.agents).into_iter().for_each(forget);
        std::mem::take(&mut self.starters).into_iter().for_each(forget);
        forget(self.coordinator.take());
        self.dir.clear();
        dir
    }
}

#[allow(clippy::mem_forget, reason = "the process is to outlive its handle")]
fn forget(daemon: Option<Daemon>) {
    std::mem::forget(daemon);
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.dir.as_os_str().is_empty() {
            return;
        }
        self.agents.clear();
        self.starters.clear();
        self.coordinator = None;
        // A shim takes its task along.
        let mark = self.dir.display().to_string();
        for (pid, _) in self.shims().into_iter().chain(marked(&mark)) {
            drop(signal(pid, nix::sys::signal::Signal::SIGKILL));
        }
    }
}

/// Ports that no other node has, of this cluster or of one that runs beside it: ranks that meet
/// at the same port would take each other for their own. Below the kernel's own choice of ports.
fn ports() -> (usize, usize) {
    static NODES: AtomicUsize = AtomicUsize::new(0);
    let process = usize::try_from(std::process::id()).unwrap_or(0).wrapping_mul(61);
    let range = process.wrapping_add(NODES.fetch_add(1, Ordering::Relaxed)) % 700;
    let first = 10_000_usize.saturating_add(range.saturating_mul(32));
    (first, first.saturating_add(31))
}

fn write_node(
    dir: &Path,
    binaries: &Binaries,
    node: usize,
    gpus: u32,
    heartbeat: &str,
) -> anyhow::Result<()> {
    let name = node_name(node);
    let shown = dir.display();
    let (first, last) = ports();
    let library = binaries.nvml_sim();
    let text = format!(
        "[node]\nname = \"{name}\"\naddress = \"127.0.0.1\"\n\
         [paths]\nstate_dir = \"{shown}/{name}\"\nrun_dir = \"{shown}/run-{node}\"\n\
         [link]\ncoordinator_socket = \"{shown}/run/nodes/{name}.sock\"\n\
         heartbeat = \"{heartbeat}\"\n\
         [gpu]\nlibrary = \"{}\"\n[ports]\nmaster_ports = \"{first}-{last}\"\n",
        library.display()
    );
    fs::write(dir.join(format!("{name}.toml")), text)?;
    let state = format!("{{\"node\":\"{name}\",\"gpus\":{gpus}}}");
    fs::write(dir.join(format!("{name}.gpus.json")), state)?;
    Ok(())
}
