//! The job file: TOML, one job, no nesting but `env`. Every refusal is one line that names the
//! key and what is accepted.
//!
//! [`EXAMPLE`] shows every key, [`help`] what each accepts. Relative directories are taken from
//! the job file's directory. What is not here: reading the file ([`crate::submit`]) and the
//! limits of a job ([`JobSpec::checked`]).

use std::path::{Path, PathBuf};
use std::str::FromStr;

use tidegate_model::{Bytes, GpuCount, JobSpec, Span, SpecError, TaskLayout};
use toml::{Table, Value};

use crate::nearest::nearest;

/// Largest job file. A spec holds 128 KiB at most; the rest is room for comments.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Defaults, shared with `tidegate run`.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";
pub(crate) const DEFAULT_GPUS: u32 = 1;
pub(crate) const DEFAULT_MIN_RUNTIME: Span = Span::ZERO;
pub(crate) const DEFAULT_GRACE: Span = Span::seconds(30);
pub(crate) const DEFAULT_MAX_RESTARTS: u32 = 3;
pub(crate) const DEFAULT_LOG_CAP: Bytes = Bytes(64 << 20);

/// Every key, as `tidegate submit --help` shows it.
pub(crate) const EXAMPLE: &str = r#"
name = "pretrain-7b"
account = "olmo/pretrain"
command = ["torchrun", "train.py"]
working_dir = "."
gpus = 16
gpus_per_node = 8
tasks = "per-node"
min_runtime = "2h"
grace = "30s"
max_restarts = 3
checkpoint_dir = "checkpoints"
log_cap = "64MiB"

[env]
SEED = "7"
"#;

/// Key, what is accepted, default.
const KEYS: [(&str, &str, &str); 13] = [
    ("name", "a string", "the program's file name"),
    ("account", "a string such as \"olmo/pretrain\"", "\"default\""),
    ("command", "an array of strings such as [\"python\", \"train.py\"]", "none: must be given"),
    ("working_dir", "a string with the directory the tasks start in", "the current directory"),
    ("env", "a table of strings", "empty"),
    ("gpus", "a whole number of GPUs from 1", "1"),
    ("gpus_per_node", "a whole number of GPUs that divides gpus", "left to placement"),
    ("tasks", "\"per-node\" or \"per-gpu\"", "\"per-node\""),
    ("min_runtime", "a span of time such as \"90s\", \"30m\" or \"2h\", at most \"8h\"", "\"0\""),
    ("grace", "a span of time such as \"30s\", at most \"30m\"", "\"30s\""),
    ("max_restarts", "a whole number from 0 to 1000", "3"),
    ("checkpoint_dir", "a string with a directory", "one made below working_dir"),
    ("log_cap", "a size such as \"64MiB\"", "\"64MiB\""),
];

/// Why a job file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JobFileError {
    #[error("line {line}: {message}")]
    Syntax { line: usize, message: String },
    #[error("unknown key {given:?}{}; the keys are {}", meant(.given), key_names().join(", "))]
    UnknownKey { given: String },
    #[error("{key}: {found} was given; {} is accepted", accepted(.key))]
    WrongType { key: String, found: String },
    #[error(
        "command: a string was given; program and arguments as an array are accepted, such as \
         [\"python\", \"train.py\"]: no shell reads it"
    )]
    ShellString,
    #[error("command: missing; give program and arguments such as [\"python\", \"train.py\"]")]
    NoCommand,
    #[error("{key}: {why}")]
    Unparsable { key: &'static str, why: String },
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// The directories that a job file's paths are taken from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dirs<'a> {
    /// Where the command was given.
    pub(crate) current: &'a Path,
    /// Where the job file lies.
    pub(crate) of_file: &'a Path,
}

/// Reads a job file.
///
/// # Errors
/// The first key that is refused, in the order of the alphabet; limits of the job after all keys.
pub(crate) fn parse(text: &str, dirs: Dirs<'_>) -> Result<JobSpec, JobFileError> {
    let table = text.parse::<Table>().map_err(|error| syntax(text, &error))?;
    if let Some(given) = table.keys().find(|given| !key_names().contains(&given.as_str())) {
        return Err(JobFileError::UnknownKey { given: given.clone() });
    }
    let keys = Keys(&table);
    let command = keys.command()?;
    let name = match keys.text("name")? {
        Some(name) => name.to_owned(),
        None => program_name(&command),
    };
    let working_dir = match keys.text("working_dir")? {
        Some(dir) => directory("working_dir", &dirs.of_file.join(dir))?,
        None => directory("working_dir", dirs.current)?,
    };
    let checkpoint_dir = keys.text("checkpoint_dir")?;
    let checkpoint_dir = checkpoint_dir
        .map(|dir| directory("checkpoint_dir", &dirs.of_file.join(dir)))
        .transpose()?;
    let spec = JobSpec {
        name,
        account: parsed("account", keys.text("account")?.unwrap_or(DEFAULT_ACCOUNT))?,
        command,
        working_dir,
        env: keys.env()?,
        gpus: GpuCount(keys.number("gpus")?.unwrap_or(DEFAULT_GPUS)),
        gpus_per_node: keys.number("gpus_per_node")?.map(GpuCount),
        layout: keys.layout()?,
        min_runtime: keys.parsed("min_runtime")?.unwrap_or(DEFAULT_MIN_RUNTIME),
        grace: keys.parsed("grace")?.unwrap_or(DEFAULT_GRACE),
        max_restarts: keys.number("max_restarts")?.unwrap_or(DEFAULT_MAX_RESTARTS),
        checkpoint_dir,
        log_cap: keys.parsed("log_cap")?.unwrap_or(DEFAULT_LOG_CAP),
    };
    Ok(spec.checked()?)
}

/// What people call a job that they gave no name.
pub(crate) fn program_name(command: &[String]) -> String {
    let program = command.first().map(String::as_str).unwrap_or_default();
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    name.unwrap_or(program).to_owned()
}

/// A directory as the wire carries it: absolute, without `.` parts.
///
/// # Errors
/// If it is not absolute or not UTF-8.
pub(crate) fn directory(key: &'static str, path: &Path) -> Result<String, JobFileError> {
    let tidy: PathBuf = path.components().collect();
    let text = tidy.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        let why = format!("{} is not UTF-8; choose a directory whose path is", tidy.display());
        JobFileError::Unparsable { key, why }
    })
}

/// The keys for `--help`.
pub(crate) fn help() -> String {
    let line = |(key, accepts, default): (&str, &str, &str)| {
        format!("  {key:<15} {accepts} (default: {default})")
    };
    format!("Keys of a job file (TOML):\n{}", KEYS.map(line).join("\n"))
}

fn key_names() -> [&'static str; KEYS.len()] {
    KEYS.map(|(key, ..)| key)
}

fn accepted(key: &str) -> &'static str {
    // `env.NAME` and `command[2]` are parts of keys.
    match key {
        part if part.starts_with("env.") => "a string",
        part if part.starts_with("command[") => "a string",
        key => KEYS.iter().find(|(known, ..)| *known == key).map_or("another", |(_, text, _)| text),
    }
}

fn meant(given: &str) -> String {
    nearest(given, &key_names())
        .map(|near| format!(" (did you mean {near:?}?)"))
        .unwrap_or_default()
}

fn syntax(text: &str, error: &toml::de::Error) -> JobFileError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    JobFileError::Syntax { line: before.matches('\n').count() + 1, message }
}

fn wrong_type(key: &str, value: &Value) -> JobFileError {
    const MOST_SHOWN: usize = 32;
    let short: String = value.to_string().chars().take(MOST_SHOWN).collect();
    let found = match value {
        Value::String(_) => format!("the string {short}"),
        Value::Integer(_) | Value::Float(_) => format!("the number {short}"),
        Value::Boolean(_) => short,
        Value::Datetime(_) => "a date".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Table(_) => "a table".to_owned(),
    };
    JobFileError::WrongType { key: key.to_owned(), found }
}

fn parsed<T: FromStr<Err: ToString>>(key: &'static str, text: &str) -> Result<T, JobFileError> {
    let told = |error: T::Err| JobFileError::Unparsable { key, why: error.to_string() };
    text.parse().map_err(told)
}

/// A job file whose keys are all known.
struct Keys<'a>(&'a Table);

impl<'a> Keys<'a> {
    fn text(&self, key: &'static str) -> Result<Option<&'a str>, JobFileError> {
        match self.0.get(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| wrong_type(key, value)),
        }
    }

    fn parsed<T: FromStr<Err: ToString>>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, JobFileError> {
        self.text(key)?.map(|text| parsed(key, text)).transpose()
    }

    fn number(&self, key: &'static str) -> Result<Option<u32>, JobFileError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| wrong_type(key, value))
    }

    fn layout(&self) -> Result<TaskLayout, JobFileError> {
        match self.0.get("tasks").map(|value| (value, value.as_str())) {
            None | Some((_, Some("per-node"))) => Ok(TaskLayout::PerNode),
            Some((_, Some("per-gpu"))) => Ok(TaskLayout::PerGpu),
            Some((value, _)) => Err(wrong_type("tasks", value)),
        }
    }

    fn command(&self) -> Result<Vec<String>, JobFileError> {
        let words = match self.0.get("command") {
            None => return Err(JobFileError::NoCommand),
            Some(Value::String(_)) => return Err(JobFileError::ShellString),
            Some(Value::Array(words)) => words,
            Some(value) => return Err(wrong_type("command", value)),
        };
        let word = |(at, value): (usize, &Value)| {
            let word = value.as_str().map(str::to_owned);
            word.ok_or_else(|| wrong_type(&format!("command[{at}]"), value))
        };
        words.iter().enumerate().map(word).collect()
    }

    /// Sorted by name, as a spec wants it: a [`Table`] is.
    fn env(&self) -> Result<Vec<(String, String)>, JobFileError> {
        let vars = match self.0.get("env") {
            None => return Ok(Vec::new()),
            Some(Value::Table(vars)) => vars,
            Some(value) => return Err(wrong_type("env", value)),
        };
        let mut env = Vec::new();
        for (name, value) in vars {
            let text = value.as_str().ok_or_else(|| wrong_type(&format!("env.{name}"), value))?;
            env.push((name.clone(), text.to_owned()));
        }
        env.sort();
        Ok(env)
    }
}

#[cfg(test)]
mod tests;
