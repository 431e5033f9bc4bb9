//! The coordinator's one configuration file. Every key has a default that works on one machine.
//! Policy (budgets, limits) is not here: it enters as events and is journaled.

mod policy;

use std::io;
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use scheduler_core::Policy;
use serde::Deserialize;
use tidegate_model::{Bytes, NodeName, UserId, nearest};
use tidegate_proto::text_up_to;

use crate::notices::allow::AllowList;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}", path = .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not what is accepted.
    #[error("{path}: {why}", path = .path.display())]
    Invalid {
        /// Which.
        path: PathBuf,
        /// What was wrong and what would be accepted.
        why: String,
    },
}

/// The checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The store.
    pub store: PathBuf,
    /// Where sockets are made.
    pub run_dir: PathBuf,
    /// Nodes on this host that get a socket of their own.
    pub local_nodes: Vec<NodeName>,
    /// Less free room than this closes the coordinator to new work.
    pub low_water: Bytes,
    /// The store may not grow beyond this.
    pub store_limit: Option<Bytes>,
    /// Where notices may be sent.
    pub notices: AllowList,
    /// The policy that a new store begins with; later ones enter as events.
    pub initial_policy: Policy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Raw {
    store: Option<PathBuf>,
    run_dir: Option<PathBuf>,
    local_nodes: Option<Vec<String>>,
    low_water: Option<String>,
    store_limit: Option<String>,
    notices: RawNotices,
    initial_policy: policy::RawPolicy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawNotices {
    allow: Vec<String>,
}

const KEYS: [&str; 7] =
    ["store", "run_dir", "local_nodes", "low_water", "store_limit", "notices", "initial_policy"];

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`], in one line.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::File::open(path).and_then(|file| text_up_to(MAX_CONFIG_BYTES, file));
        let text = text.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|why| ConfigError::Invalid { path: path.to_owned(), why })
    }

    /// Checks a configuration's text.
    ///
    /// # Errors
    /// What was wrong and what would be accepted, in one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| one_line(&error))?;
        refuse_unknown(&table, &KEYS, "")?;
        if let Some(toml::Value::Table(table)) = table.get("initial_policy") {
            policy::refuse_unknown_keys(table)?;
        }
        if let Some(toml::Value::Table(table)) = table.get("notices") {
            refuse_unknown(table, &["allow"], "notices.")?;
        }
        let raw: Raw = toml::Value::Table(table).try_into().map_err(|error| one_line(&error))?;
        checked(raw)
    }
}

/// Most bytes of a configuration: far above any that a person writes.
const MAX_CONFIG_BYTES: Bytes = Bytes(1 << 20);

fn one_line(error: &toml::de::Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn refuse_unknown(table: &toml::Table, known: &[&str], prefix: &str) -> Result<(), String> {
    let Some(unknown) = table.keys().find(|key| !known.contains(&key.as_str())) else {
        return Ok(());
    };
    let meant = nearest(unknown, known).map(|near| format!("; did you mean {prefix}{near}?"));
    let meant = meant.unwrap_or_else(|| ".".to_owned());
    let all = known.join(", ");
    Err(format!("{prefix}{unknown} is not a key{meant} Keys are: {all}"))
}

fn checked(raw: Raw) -> Result<Config, String> {
    let uid = nix::unistd::geteuid().as_raw();
    let hostname =
        || nix::unistd::gethostname().unwrap_or_default().to_string_lossy().to_lowercase();
    let names = raw.local_nodes.unwrap_or_else(|| vec![hostname()]);
    let local_nodes = names
        .iter()
        .map(|name| field("local_nodes", name))
        .collect::<Result<Vec<NodeName>, _>>()?;
    if local_nodes.is_empty() {
        return Err("local_nodes: empty; name at least one node of this host".to_owned());
    }
    let mut once = local_nodes.clone();
    once.sort();
    if let Some([twice, _]) = once.windows(2).find(|pair| pair.first() == pair.last()) {
        return Err(format!("local_nodes: {twice} is named twice; name each once"));
    }
    let low_water = raw.low_water.unwrap_or_else(|| "64MiB".to_owned());
    let store_limit =
        raw.store_limit.as_deref().map(|text| field("store_limit", text)).transpose()?;
    Ok(Config {
        store: raw.store.map_or_else(default_store, Ok)?,
        run_dir: raw.run_dir.unwrap_or_else(|| run_dir(uid)),
        local_nodes,
        low_water: field("low_water", &low_water)?,
        store_limit,
        notices: AllowList::parse(&raw.notices.allow)
            .map_err(|why| format!("notices.allow: {why}"))?,
        initial_policy: policy::checked(&raw.initial_policy, UserId(uid))?,
    })
}

fn field<T: std::str::FromStr>(key: &'static str, text: &str) -> Result<T, String>
where
    T::Err: fmt::Display,
{
    text.parse().map_err(|error: T::Err| format!("{key}: {error}"))
}

fn default_store() -> Result<PathBuf, String> {
    let given = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = given.or_else(home).ok_or("neither HOME nor XDG_STATE_HOME is set; set store")?;
    Ok(base.join("tidegate/coordinator/store.redb"))
}

fn run_dir(uid: u32) -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => PathBuf::from(dir).join("tidegate"),
        None => PathBuf::from(format!("/tmp/tidegate-{uid}")),
    }
}

/// The effective values, as `--check-config` prints them.
impl fmt::Display for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, run_dir, local_nodes, low_water, store_limit, notices, initial_policy } =
            self;
        let names: Vec<_> = local_nodes.iter().map(|name| format!("{:?}", name.as_str())).collect();
        writeln!(out, "store = {store:?}")?;
        writeln!(out, "run_dir = {run_dir:?}")?;
        writeln!(out, "local_nodes = [{}]", names.join(", "))?;
        writeln!(out, "low_water = \"{low_water}\"")?;
        if let Some(limit) = store_limit {
            writeln!(out, "store_limit = \"{limit}\"")?;
        }
        writeln!(out, "\n[notices]\nallow = {:?}", notices.entries())?;
        write!(out, "\n[initial_policy]\n{}", policy::Shown(initial_policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let told = Config::parse(text).map_or_else(|why| why, |_| "accepted".to_owned());
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn a_refusal_names_the_key_and_what_would_be_accepted() {
        check("", "accepted");
        check("stor = \"x\"", "stor is not a key; did you mean store? Keys are: store, run_dir");
        check("colour = \"x\"", "colour is not a key. Keys are: store, run_dir");
        check("[initial_policy]\nadmin = []", "did you mean initial_policy.admins?");
        check("low_water = \"5\"", "low_water: \"5\" is not a size: expected a form like 512KiB");
        check("local_nodes = [\"A B\"]", "local_nodes: \"A B\" is not a name");
        check("local_nodes = []", "local_nodes: empty; name at least one node");
        check("local_nodes = [\"a\", \"a\"]", "local_nodes: a is named twice");
        check(
            "[initial_policy]\nsilent_after = \"0\"",
            "initial_policy.silent_after: 0 given; 1s to 1h is accepted",
        );
        check(
            "[initial_policy]\nslack = \"5\"",
            "slack: \"5\" is not a percentage: expected a form like 5 % or 12.5 %",
        );
        check(
            "[initial_policy]\nslack = \"101 %\"",
            "initial_policy.slack: 101 % given; 0 to 100 % is accepted",
        );
        check(
            "[[initial_policy.gpu_types]]\nnam = \"h100\"",
            "did you mean initial_policy.gpu_types.name?",
        );
        check("[notices]\nallowed = []", "did you mean notices.allow? Keys are: allow");
        check(
            "[notices]\nallow = [\"hooks.slack.com\"]",
            "notices.allow: \"hooks.slack.com\" is no beginning of a web address: expected",
        );
        check("store = 5", "invalid type: integer");
        check("store = ", "TOML parse error");
    }

    #[test]
    fn what_is_printed_reads_back_as_the_same() {
        let text = "store = \"/s\"\nstore_limit = \"1GiB\"\n[notices]\nallow = [\"https://a.example/x\"]\n[initial_policy]\nadmins = [7]\nslack = \"0.5%\"\n\
                    small_floor = \"8 GPU-h\"\n[[initial_policy.gpu_types]]\nname = \"h100\"\n\
                    product = \"H100\"\nweight = 2000";
        let config = Config::parse(text).unwrap();
        assert_eq!(Config::parse(&config.to_string()), Ok(config));
    }
}
