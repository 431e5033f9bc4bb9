//! The one configuration file of agent and starter: raw text, then checked values.
//!
//! What is not here: policy. What the node does, the coordinator decides.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;
use tidegate_model::{Bytes, NodeName, Span, nearest};
use tidegate_proto::text_up_to;

use crate::ports::PortRange;

/// Longest path of a Unix socket that the kernel takes, without its closing NUL.
const MAX_SOCKET_PATH: usize = 107;
/// Most bytes of a configuration file.
const MAX_CONFIG_BYTES: Bytes = Bytes(1 << 20);
/// A heartbeat more often would be load without news; less often, a dead link would go unnoticed, and a
/// short permit be over before it is renewed.
const HEARTBEAT_RANGE: (Span, Span) = (Span(100), Span::seconds(5));

/// The output of some days of ordinary jobs; a local disk has it to spare.
const DEFAULT_KEPT_LOGS: Bytes = Bytes(1 << 30);

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The node's name in the cluster.
    pub name: NodeName,
    /// Where the ranks of other nodes reach this one.
    pub address: String,
    /// The block it is labelled with, or empty.
    pub block: String,
    /// What survives a reboot: ledger, tasks, logs.
    pub state_dir: PathBuf,
    /// What does not: sockets.
    pub run_dir: PathBuf,
    /// The coordinator's socket for this node.
    pub coordinator_socket: PathBuf,
    /// Between two signs of life.
    pub heartbeat: Span,
    /// NVML's library; none = the driver's own.
    pub gpu_library: Option<PathBuf>,
    /// What is kept of the output of tasks that have ended and are forgotten.
    pub keep_logs: Bytes,
    /// Ports that rank 0 of a gang may be given.
    pub master_ports: PortRange,
}

/// Why a configuration is not accepted: what is wrong and what would be right.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {why}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        why: std::io::Error,
    },
    /// It is not TOML, or a value has the wrong type.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// A key that no version knows.
    #[error("{key} is not a key; {hint}")]
    UnknownKey {
        /// As written, with its table.
        key: String,
        /// The nearest key, or all of them.
        hint: String,
    },
    /// A value that cannot be used.
    #[error("{key}: {why}")]
    Invalid {
        /// The key, with its table.
        key: &'static str,
        /// What was wrong and what would be accepted.
        why: String,
    },
}

/// Every key there is, by table.
const KEYS: [(&str, &[&str]); 6] = [
    ("node", &["name", "address", "block"]),
    ("paths", &["state_dir", "run_dir"]),
    ("link", &["coordinator_socket", "heartbeat"]),
    ("gpu", &["library"]),
    ("logs", &["keep"]),
    ("ports", &["master_ports"]),
];

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Raw {
    node: RawNode,
    paths: RawPaths,
    link: RawLink,
    gpu: RawGpu,
    logs: RawLogs,
    ports: RawPorts,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawNode {
    name: Option<String>,
    address: Option<String>,
    block: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawPaths {
    state_dir: Option<PathBuf>,
    run_dir: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawLink {
    coordinator_socket: Option<PathBuf>,
    heartbeat: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawGpu {
    library: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawLogs {
    keep: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawPorts {
    master_ports: Option<String>,
}

/// What the defaults depend on.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// What `hostname` prints.
    pub hostname: String,
    /// `XDG_STATE_HOME`, or `.local/state` in the user's home directory.
    pub state_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// The user's number.
    pub uid: u32,
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let hostname = nix::unistd::gethostname().unwrap_or_default();
        let path = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Self {
            hostname: hostname.to_string_lossy().to_lowercase(),
            state_home: path("XDG_STATE_HOME")
                .or_else(|| path("HOME").map(|home| home.join(".local/state"))),
            runtime_dir: path("XDG_RUNTIME_DIR"),
            uid: nix::unistd::getuid().as_raw(),
        }
    }
}

impl Config {
    /// Reads and checks a file; without one, the defaults for one machine.
    ///
    /// # Errors
    /// It cannot be read or accepted.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let text = match path {
            None => String::new(),
            Some(path) => {
                let text = File::open(path).and_then(|file| text_up_to(MAX_CONFIG_BYTES, file));
                text.map_err(|why| ConfigError::Unreadable { path: path.to_owned(), why })?
            }
        };
        Self::parse(&text, &Surroundings::of_this_process())
    }

    /// Checks a text.
    ///
    /// # Errors
    /// It cannot be accepted.
    pub fn parse(text: &str, around: &Surroundings) -> Result<Self, ConfigError> {
        check_keys(&text.parse::<toml::Table>()?)?;
        toml::from_str::<Raw>(text)?.checked(around)
    }

    /// The starter's socket.
    #[must_use]
    pub fn starter_socket(&self) -> PathBuf {
        self.run_dir.join("starter.sock")
    }

    /// The directory of all task directories.
    #[must_use]
    pub fn tasks_dir(&self) -> PathBuf {
        self.state_dir.join("tasks")
    }

    /// The directory of the output of forgotten tasks.
    #[must_use]
    pub fn logs_dir(&self) -> PathBuf {
        self.state_dir.join("logs")
    }

    /// The agent's durable memory.
    #[must_use]
    pub fn ledger_file(&self) -> PathBuf {
        self.state_dir.join("ledger.json")
    }
}

/// As a file that would give the same configuration.
impl fmt::Display for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |path: &Path| toml::Value::from(path.display().to_string());
        let text = |text: &str| toml::Value::from(text);
        writeln!(out, "[node]")?;
        writeln!(out, "name = {}", text(self.name.as_str()))?;
        writeln!(out, "address = {}", text(&self.address))?;
        writeln!(out, "block = {}", text(&self.block))?;
        writeln!(out, "\n[paths]")?;
        writeln!(out, "state_dir = {}", path(&self.state_dir))?;
        writeln!(out, "run_dir = {}", path(&self.run_dir))?;
        writeln!(out, "\n[link]")?;
        writeln!(out, "coordinator_socket = {}", path(&self.coordinator_socket))?;
        writeln!(out, "heartbeat = {}", text(&self.heartbeat.to_string()))?;
        writeln!(out, "\n[gpu]")?;
        match &self.gpu_library {
            Some(library) => writeln!(out, "library = {}", path(library))?,
            None => writeln!(out, "# library: the driver's own")?,
        }
        writeln!(out, "\n[logs]")?;
        writeln!(out, "keep = {}", text(&self.keep_logs.to_string()))?;
        writeln!(out, "\n[ports]")?;
        write!(out, "master_ports = {}", text(&self.master_ports.to_string()))
    }
}

impl Raw {
    fn checked(self, around: &Surroundings) -> Result<Config, ConfigError> {
        let name = self.node.name.unwrap_or_else(|| around.hostname.clone());
        let name: NodeName = parsed("node.name", &name)?;
        let runtime = around.runtime_dir.as_ref().map_or_else(
            || PathBuf::from(format!("/tmp/tidegate-{}", around.uid)),
            |dir| dir.join("tidegate"),
        );
        let state_dir = match (self.paths.state_dir, &around.state_home) {
            (Some(dir), _) => dir,
            (None, Some(state)) => state.join("tidegate/node"),
            (None, None) => {
                let why = "give it: neither HOME nor XDG_STATE_HOME is set";
                return Err(invalid("paths.state_dir", why));
            }
        };
        let socket = self.link.coordinator_socket;
        let socket = socket.unwrap_or_else(|| runtime.join("nodes").join(format!("{name}.sock")));
        let heartbeat = self.link.heartbeat.map(|text| parsed("link.heartbeat", &text));
        let keep = self.logs.keep.map(|text| parsed("logs.keep", &text));
        let ports = self.ports.master_ports.map(|text| parsed("ports.master_ports", &text));
        let config = Config {
            name,
            address: self.node.address.unwrap_or_else(|| "127.0.0.1".to_owned()),
            block: self.node.block.unwrap_or_default(),
            state_dir,
            run_dir: self.paths.run_dir.unwrap_or(runtime),
            coordinator_socket: socket,
            heartbeat: heartbeat.transpose()?.unwrap_or(Span::seconds(5)),
            gpu_library: self.gpu.library,
            keep_logs: keep.transpose()?.unwrap_or(DEFAULT_KEPT_LOGS),
            master_ports: ports.transpose()?.unwrap_or_default(),
        };
        config.check()?;
        Ok(config)
    }
}

impl Config {
    fn check(&self) -> Result<(), ConfigError> {
        if self.address.is_empty() || self.address.contains(char::is_whitespace) {
            return Err(invalid("node.address", "give a host name or an IP address"));
        }
        for (key, path) in [
            ("paths.state_dir", &self.state_dir),
            ("paths.run_dir", &self.run_dir),
            ("link.coordinator_socket", &self.coordinator_socket),
        ] {
            if !path.is_absolute() {
                return Err(invalid(key, &format!("{}: give an absolute path", path.display())));
            }
        }
        check_socket("paths.run_dir", &self.starter_socket())?;
        check_socket("link.coordinator_socket", &self.coordinator_socket)?;
        let (least, most) = HEARTBEAT_RANGE;
        if self.heartbeat < least || self.heartbeat > most {
            let why = format!("{} given; {least} to {most} is accepted", self.heartbeat);
            return Err(invalid("link.heartbeat", &why));
        }
        Ok(())
    }
}

fn check_socket(key: &'static str, path: &Path) -> Result<(), ConfigError> {
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        let path = path.display();
        let why = format!(
            "the socket {path} has a path of {length} bytes; the kernel takes {MAX_SOCKET_PATH}"
        );
        return Err(invalid(key, &why));
    }
    Ok(())
}

fn check_keys(table: &toml::Table) -> Result<(), ConfigError> {
    for (section, content) in table {
        let Some((_, keys)) = KEYS.iter().find(|(name, _)| name == section) else {
            let hint = hint(section, &KEYS.map(|(name, _)| name));
            return Err(ConfigError::UnknownKey { key: section.clone(), hint });
        };
        for key in content.as_table().into_iter().flat_map(toml::Table::keys) {
            if !keys.contains(&key.as_str()) {
                let hint = hint(key, keys);
                return Err(ConfigError::UnknownKey { key: format!("{section}.{key}"), hint });
            }
        }
    }
    Ok(())
}

fn hint(given: &str, valid: &[&str]) -> String {
    let meant = nearest(given, valid).map(|key| format!("did you mean {key}?"));
    meant.unwrap_or_else(|| format!("there are {}", valid.join(", ")))
}

fn parsed<T: FromStr>(key: &'static str, text: &str) -> Result<T, ConfigError>
where
    T::Err: fmt::Display,
{
    text.parse().map_err(|error: T::Err| invalid(key, &error.to_string()))
}

fn invalid(key: &'static str, why: &str) -> ConfigError {
    ConfigError::Invalid { key, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around() -> Surroundings {
        Surroundings {
            hostname: "node-a".into(),
            state_home: Some("/home/a/.local/state".into()),
            runtime_dir: None,
            uid: 1000,
        }
    }

    fn check(text: &str, expected: &str) {
        let told = Config::parse(text, &around());
        let told = told.map_or_else(|error| error.to_string(), |config| config.to_string());
        assert_eq!(told, expected);
    }

    #[test]
    fn the_defaults_work_on_one_machine_and_are_a_file_themselves() {
        let defaults = r#"[node]
name = "node-a"
address = "127.0.0.1"
block = ""

[paths]
state_dir = "/home/a/.local/state/tidegate/node"
run_dir = "/tmp/tidegate-1000"

[link]
coordinator_socket = "/tmp/tidegate-1000/nodes/node-a.sock"
heartbeat = "5s"

[gpu]
# library: the driver's own

[logs]
keep = "1GiB"

[ports]
master_ports = "29500-29999""#;
        check("", defaults);
        check(defaults, defaults);
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest() {
        check("[nodes]", "nodes is not a key; did you mean node?");
        check("[link]\nheart_beat = 1", "link.heart_beat is not a key; did you mean heartbeat?");
        check("[gpu]\ncolour = 1", "gpu.colour is not a key; there are library");
    }

    #[test]
    fn a_value_is_refused_with_what_would_be_accepted() {
        let long = format!("[paths]\nrun_dir = \"/{}\"", "x".repeat(100));
        let told = Config::parse(&long, &around()).unwrap_err().to_string();
        assert!(told.contains("has a path of 114 bytes; the kernel takes 107"), "{told}");
        check("[link]\nheartbeat = \"1ms\"", "link.heartbeat: 1ms given; 100ms to 5s is accepted");
        check("[paths]\nrun_dir = \"here\"", "paths.run_dir: here: give an absolute path");
        check(
            "[ports]\nmaster_ports = \"9-1\"",
            "ports.master_ports: \"9-1\" is not a range of ports: expected a form like 29500-29999",
        );
        check(
            "[node]\nname = \"A b\"",
            "node.name: \"A b\" is not a name: expected at most 253 of a-z 0-9 - _ in labels \
             joined by dots",
        );
    }
}
