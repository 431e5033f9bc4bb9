//! The job file: TOML, one job, no nesting but `checkpoint` and `env`. Every refusal is one line
//! that names the key and what is accepted.
//!
//! [`EXAMPLE`] shows every key, [`help`] what each accepts. Relative directories are taken from
//! the job file's directory. What is not here: reading the file ([`crate::submit`]) and the
//! limits of a job ([`JobSpec::checked`]).

pub(crate) mod checkpoint;
mod keys;

use std::path::{Path, PathBuf};

use tidegate_model::{Bytes, CheckpointOffer, GpuCount, JobSpec, Span, SpecError, WhileWaiting};
use toml::Table;

use self::keys::{Keys, parsed, syntax};
use tidegate_model::nearest;

/// Largest job file. A spec holds 128 KiB at most; the rest is room for comments.
pub(crate) const MAX_FILE_BYTES: Bytes = Bytes(1 << 20);

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
gpu_type = "h100"
max_blocks = 2
tasks = "per-node"
min_runtime = "2h"
while_waiting = "free"
order = -1
after = ["job-3", "job-4:success"]
grace = "30s"
max_restarts = 3
checkpoint_dir = "checkpoints"
log_cap = "64MiB"
whole_cluster = false
notify_url = "https://hooks.example.com/T0/B1/secret"

[checkpoint]
preset = "megatron"
grace = "10m"
bytes = "1TiB"

[env]
SEED = "7"
"#;

/// Key, what is accepted, default.
type Key = (&'static str, &'static str, &'static str);

const KEYS: [Key; 21] = [
    ("name", "a string", "the program's file name"),
    ("account", "a string such as \"olmo/pretrain\"", "\"default\""),
    ("command", "an array of strings such as [\"python\", \"train.py\"]", "none: must be given"),
    ("working_dir", "a string with the directory the tasks start in", "the current directory"),
    ("checkpoint", "a table", "none: it is only stopped"),
    ("env", "a table of strings", "empty"),
    ("gpus", "a whole number of GPUs from 1 to 4294967295", "1"),
    ("gpus_per_node", "a whole number of GPUs that divides gpus", "left to placement"),
    ("gpu_type", "a string with the name of a kind of GPU", "any, one for the whole job"),
    ("max_blocks", "a whole number of blocks from 1 to 65536", "as few as possible"),
    ("tasks", "\"per-node\" or \"per-gpu\"", "\"per-node\""),
    ("min_runtime", "a span of time such as \"90s\", \"30m\" or \"2h\", at most \"8h\"", "\"0\""),
    ("while_waiting", "\"free\" or \"wait\"", "\"free\", with a [checkpoint]"),
    (
        "order",
        "a whole number from -2147483648 to 2147483647, smallest first among your own jobs",
        "0",
    ),
    ("after", "an array of jobs such as [\"job-3\", \"job-4:success\"]", "empty"),
    ("grace", "a span of time such as \"30s\", at most \"30m\"", "\"30s\""),
    ("max_restarts", "a whole number from 0 to 1000", "3"),
    ("checkpoint_dir", "a string with a directory", "one made below working_dir"),
    ("log_cap", "a size such as \"64MiB\", \"64KiB\" to \"16GiB\"", "\"64MiB\""),
    ("whole_cluster", "true or false, true for admins only", "false"),
    ("notify_url", "a string with a web address that your cluster allows", "nobody is told"),
];

/// Why a job file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JobFileError {
    #[error("line {line}: {message}")]
    Syntax { line: usize, message: String },
    #[error("unknown key {given:?}{}; the keys are {}", meant(.given, .known), .known.join(", "))]
    UnknownKey { given: String, known: Vec<&'static str> },
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
        return Err(JobFileError::UnknownKey { given: given.clone(), known: key_names().into() });
    }
    let keys = Keys(&table);
    let checkpoint = keys.table("checkpoint")?.map(checkpoint::offer).transpose()?;
    let min_runtime = keys.measured("min_runtime")?.unwrap_or(DEFAULT_MIN_RUNTIME);
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
        min_runtime,
        grace: keys.measured("grace")?.unwrap_or(DEFAULT_GRACE),
        max_restarts: keys.number("max_restarts")?.unwrap_or(DEFAULT_MAX_RESTARTS),
        checkpoint_dir: checkpoint_dir.map(Into::into),
        log_cap: keys.measured("log_cap")?.unwrap_or(DEFAULT_LOG_CAP),
        gpu_type: keys.parsed("gpu_type")?,
        max_blocks: keys.number("max_blocks")?,
        own_order: keys.signed("order")?.unwrap_or(0),
        while_waiting: while_waiting(keys.while_waiting()?, min_runtime, checkpoint.as_ref())?,
        checkpoint,
        after: keys.after()?,
        notify_url: keys.text("notify_url")?.map(Into::into),
        // A file describes a job that nobody sits at.
        pty: false,
        whole_cluster: keys.flag("whole_cluster")?.unwrap_or(false),
        // The command line makes arrays of it.
        array: None,
    };
    Ok(spec.fit_to_submit()?)
}

/// What a job does while it is not funded. What cannot be is refused, if it was asked for.
///
/// # Errors
/// If a job without a min runtime is to wait, or one that cannot be asked to leave is to run free.
pub(crate) fn while_waiting(
    asked: Option<WhileWaiting>,
    min_runtime: Span,
    checkpoint: Option<&CheckpointOffer>,
) -> Result<WhileWaiting, JobFileError> {
    let key = "while_waiting";
    let refused = |why: &str| Err(JobFileError::Unparsable { key, why: why.to_owned() });
    match asked {
        Some(WhileWaiting::Wait) if min_runtime == Span::ZERO => {
            refused("\"wait\" asked; a job without a min_runtime always runs free: give one")
        }
        Some(WhileWaiting::Free) if min_runtime > Span::ZERO && checkpoint.is_none() => refused(
            "\"free\" asked; a job that runs free must be able to save and leave: give a [checkpoint]",
        ),
        Some(asked) => Ok(asked),
        None => Ok(WhileWaiting::Free),
    }
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
    let line =
        |(key, accepts, default): &Key| format!("  {key:<15} {accepts} (default: {default})");
    let lines = |keys: &[Key]| keys.iter().map(line).collect::<Vec<_>>().join("\n");
    format!(
        "Keys of a job file (TOML):\n{}\n\nKeys of its [checkpoint] table:\n{}",
        lines(&KEYS),
        lines(&checkpoint::KEYS)
    )
}

fn key_names() -> [&'static str; KEYS.len()] {
    KEYS.map(|(key, ..)| key)
}

fn accepted(key: &str) -> &'static str {
    let (keys, key) = match key.strip_prefix("checkpoint.") {
        Some(key) => (&checkpoint::KEYS[..], key),
        None => (&KEYS[..], key),
    };
    // `env.NAME` and `command[2]` are parts of keys.
    match key {
        part if part.starts_with("env.") || part.starts_with("command[") => "a string",
        part if part.starts_with("saved_codes[") => "an exit code from 0 to 255",
        part if part.starts_with("after[") => "a job such as \"job-3\" or \"job-3:success\"",
        key => keys.iter().find(|(known, ..)| *known == key).map_or("another", |(_, text, _)| text),
    }
}

fn meant(given: &str, known: &[&str]) -> String {
    nearest(given, known).map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
