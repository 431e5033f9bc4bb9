//! What a user asks for. Shape and limits are checked here, once; whether the cluster can serve
//! it is the scheduler's question.

use std::fmt;

use crate::checkpoint::{AskAfter, CheckpointOffer};
use crate::ids::{JobId, SubmitKey};
use crate::names::{AccountPath, GpuType};
use crate::time::Span;
use crate::units::{Bytes, GpuCount};

/// Longest min runtime that may be asked for (overview, "What was wrong before": 0 to 8 h).
pub const MAX_MIN_RUNTIME: Span = Span::hours(8);
/// Longest grace: the policy cap on the time between TERM and KILL.
pub const MAX_GRACE: Span = Span::minutes(30);
/// Most restarts after failures of the job's own; more is a job that cannot run.
pub const MAX_RESTARTS: u32 = 1000;
/// Bytes of command, environment and paths together. A job file is not a place for data; the
/// limit keeps 10,000 jobs in memory small.
pub const MAX_SPEC_BYTES: usize = 128 * 1024;
/// Longest directory of a new job: what Linux takes of a path.
const MAX_DIR_BYTES: usize = 4096;
/// Most blocks a job may name; no cluster has more nodes.
pub const MAX_BLOCKS: u32 = 65_536;
/// Most jobs one job may wait for: a plan beyond it belongs in a workflow tool.
pub const MAX_DEPENDENCIES: usize = 64;
/// Smallest and largest cap on what is kept of one output stream of one task.
pub const LOG_CAP_RANGE: (Bytes, Bytes) = (Bytes(64 << 10), Bytes(16 << 30));

/// Longest address for notices: those of chat services have some 200 bytes.
const MAX_NOTIFY_URL_BYTES: usize = 2048;

/// How many tasks (processes that the agent starts) a gang has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskLayout {
    /// One per node: a launcher such as torchrun starts the ranks.
    PerNode,
    /// One per GPU: the task is the rank.
    PerGpu,
}

/// A job as submitted. Made only by [`JobSpec::checked`] on its way in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// For people; need not be unique.
    pub name: String,
    /// The account that will be charged.
    pub account: AccountPath,
    /// Program and arguments; never a shell string.
    pub command: Vec<String>,
    /// Absolute directory in which the tasks start.
    pub working_dir: String,
    /// Variables for the tasks, sorted by name. Public to readers of the job.
    pub env: Vec<(String, String)>,
    /// GPUs of the whole gang; at least one.
    pub gpus: GpuCount,
    /// GPUs on each node of the gang; absent = decided by placement.
    pub gpus_per_node: Option<GpuCount>,
    /// One task per node or per GPU.
    pub layout: TaskLayout,
    /// The span that makes a start worthwhile.
    pub min_runtime: Span,
    /// Between TERM and KILL when the job is stopped.
    pub grace: Span,
    /// Restarts granted after failures of the job's own. Lost hardware does not count.
    pub max_restarts: u32,
    /// Absolute directory for checkpoints; absent = one made below `working_dir`.
    pub checkpoint_dir: Option<Box<str>>,
    /// What is kept of each output stream of each task; the newest bytes stay.
    pub log_cap: Bytes,
    /// The kind of GPU; none = any, but one kind for the whole gang.
    pub gpu_type: Option<GpuType>,
    /// Most blocks the gang may span; none = as few as possible.
    pub max_blocks: Option<u32>,
    /// Orders a user's own jobs in one account, smallest first; affects nobody else.
    pub own_order: i32,
    /// What it does until it is funded. Only for a min runtime above 0.
    pub while_waiting: WhileWaiting,
    /// How it saves when asked; none = it cannot be asked, it is only stopped.
    pub checkpoint: Option<CheckpointOffer>,
    /// Jobs that must have ended before it may start.
    pub after: Vec<Dependency>,
    /// Where the coordinator tells its owner what becomes of it; none = nowhere.
    pub notify_url: Option<Box<str>>,
    /// It has a terminal, which its owner may attach to. Then it is one task.
    pub pty: bool,
    /// It may hold more of the GPUs of its kind than one gang may: by an admin's leave.
    pub whole_cluster: bool,
    /// The array it is one of, if only so many of that run at a time. Few jobs are of one.
    pub array: Option<Box<ArrayPlace>>,
}

/// Jobs of one user that were submitted together, of which only so many run at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrayPlace {
    /// Which array: the key that its client made for all of it.
    pub key: SubmitKey,
    /// So many at a time; at least one.
    pub at_a_time: u32,
}

/// What a job with a min runtime does while its account cannot fund it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhileWaiting {
    /// It may run free and unprotected, and keeps its place.
    Free,
    /// It waits (`--no-free`).
    Wait,
}

/// A job that must have ended first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// Which.
    pub job: JobId,
    /// Whether it must have been done; else any end will do.
    pub success: bool,
}

/// Why a job cannot be accepted whatever the cluster: what was wrong, what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// The key in the job file.
    pub field: &'static str,
    /// What was wrong and what would be accepted.
    pub why: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.field, self.why)
    }
}

impl std::error::Error for SpecError {}

/// Names that Tidegate sets itself; a job that sets them would mislead its own ranks.
const RESERVED_ENV: [&str; 8] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
];

impl JobSpec {
    /// Checks every limit that does not depend on the cluster.
    ///
    /// # Errors
    /// The first field that breaks one.
    pub fn checked(self) -> Result<Self, SpecError> {
        self.check_texts()?;
        self.check_env()?;
        self.check_numbers()?;
        Ok(self)
    }

    /// Checks also what new jobs are held to. Earlier releases took jobs that break it, and those are
    /// read for ever.
    ///
    /// # Errors
    /// The first field that breaks a limit.
    pub fn fit_to_submit(self) -> Result<Self, SpecError> {
        let spec = self.checked()?;
        let hidden = spec.name.trim().is_empty() || spec.name.chars().any(misleads);
        refuse_if(hidden, "name", || {
            "give 1 to 128 characters that are seen, without those that hide, break or reverse a \
             line"
                .into()
        })?;
        let dirs = [
            ("working_dir", Some(spec.working_dir.len())),
            ("checkpoint_dir", spec.checkpoint_dir.as_ref().map(|dir| dir.len())),
        ];
        for (field, bytes) in dirs {
            let bytes = bytes.unwrap_or(0);
            refuse_if(bytes > MAX_DIR_BYTES, field, || {
                format!("{bytes} bytes; at most {MAX_DIR_BYTES} are accepted")
            })?;
        }
        Ok(spec)
    }

    fn check_texts(&self) -> Result<(), SpecError> {
        let texts = self.command.iter().map(|text| ("command", text));
        let texts = texts.chain([("name", &self.name), ("working_dir", &self.working_dir)]);
        let texts = texts.chain(self.env.iter().flat_map(|(k, v)| [("env", k), ("env", v)]));
        let mut total = 0_usize;
        for (field, text) in texts {
            total = total.saturating_add(text.len());
            refuse_if(text.contains('\0'), field, || "a NUL byte cannot be passed on".into())?;
        }
        refuse_if(total > MAX_SPEC_BYTES, "command", || {
            format!("{total} bytes with its environment; at most {MAX_SPEC_BYTES} are accepted")
        })?;
        let no_program = self.command.first().is_none_or(String::is_empty);
        refuse_if(no_program, "command", || "empty; give a program and its arguments".into())?;
        let name_fits = (1..=128).contains(&self.name.chars().count())
            && !self.name.chars().any(char::is_control);
        refuse_if(!name_fits, "name", || "give 1 to 128 characters without controls".into())?;
        let dirs = [
            ("working_dir", Some(self.working_dir.as_str())),
            ("checkpoint_dir", self.checkpoint_dir.as_deref()),
        ];
        for (field, dir) in dirs {
            let relative = dir.is_some_and(|dir| !dir.starts_with('/') || dir.contains('\0'));
            refuse_if(relative, field, || "give an absolute path".into())?;
        }
        Ok(())
    }

    fn check_env(&self) -> Result<(), SpecError> {
        let mut previous: Option<&str> = None;
        for (name, _) in &self.env {
            let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
            let ours = RESERVED_ENV.contains(&name.as_str()) || name.starts_with("TIDEGATE_");
            let shown = || name.chars().take(64).collect::<String>();
            refuse_if(name.is_empty() || !name.bytes().all(valid), "env", || {
                format!("{:?} is not a variable's name; use A-Z a-z 0-9 _", shown())
            })?;
            refuse_if(ours, "env", || {
                format!("{} is set by Tidegate; choose another name", shown())
            })?;
            refuse_if(previous.is_some_and(|before| before >= name.as_str()), "env", || {
                format!("{} is out of order or given twice; sort by name, each once", shown())
            })?;
            previous = Some(name);
        }
        Ok(())
    }

    fn check_numbers(&self) -> Result<(), SpecError> {
        refuse_if(self.gpus.0 == 0, "gpus", || "0 asked; a job has at least 1 GPU".into())?;
        if let Some(per_node) = self.gpus_per_node {
            let divides = per_node.0 > 0 && self.gpus.0.is_multiple_of(per_node.0);
            refuse_if(!divides, "gpus_per_node", || {
                format!("{per_node} does not divide {} GPUs; give a divisor", self.gpus)
            })?;
        }
        refuse_if(self.min_runtime > MAX_MIN_RUNTIME, "min_runtime", || {
            format!("{} asked; 0 to {MAX_MIN_RUNTIME} is accepted", self.min_runtime)
        })?;
        refuse_if(self.grace > MAX_GRACE, "grace", || {
            format!("{} asked; 0 to {MAX_GRACE} is accepted", self.grace)
        })?;
        refuse_if(self.max_restarts > MAX_RESTARTS, "max_restarts", || {
            format!("{} asked; 0 to {MAX_RESTARTS} is accepted", self.max_restarts)
        })?;
        let blocks = self.max_blocks.unwrap_or(1);
        refuse_if(!(1..=MAX_BLOCKS).contains(&blocks), "max_blocks", || {
            format!("{blocks} asked; 1 to {MAX_BLOCKS} is accepted")
        })?;
        refuse_if(self.after.len() > MAX_DEPENDENCIES, "after", || {
            format!("{} jobs named; at most {MAX_DEPENDENCIES} are accepted", self.after.len())
        })?;
        let at_a_time = self.array.as_ref().map_or(1, |array| array.at_a_time);
        refuse_if(at_a_time == 0, "array", || {
            "0 at a time would never start; 1 or more is accepted".into()
        })?;
        self.check_checkpoint()?;
        self.check_notify_url()?;
        // Placement may spread a gang over nodes unless it is told how many GPUs are on each.
        let is_one_task = self.gpus == GpuCount(1)
            || (self.layout == TaskLayout::PerNode && self.gpus_per_node == Some(self.gpus));
        refuse_if(self.pty && !is_one_task, "pty", || {
            "a terminal belongs to one task; ask for one task per node, with gpus_per_node equal \
             to gpus"
                .into()
        })?;
        let (least, most) = LOG_CAP_RANGE;
        refuse_if(self.log_cap < least || self.log_cap > most, "log_cap", || {
            format!("{} asked; {least} to {most} is accepted", self.log_cap)
        })
    }
}

impl JobSpec {
    /// Whether notices may go there is the coordinator's question.
    fn check_notify_url(&self) -> Result<(), SpecError> {
        let Some(url) = &self.notify_url else { return Ok(()) };
        let has_scheme = ["https://", "http://"].iter().any(|scheme| url.starts_with(scheme));
        let is_plain = url.bytes().all(|byte| byte.is_ascii_graphic());
        let fits = has_scheme && is_plain && url.len() <= MAX_NOTIFY_URL_BYTES;
        refuse_if(!fits, "notify_url", || {
            format!(
                "give https:// or http:// and a place, of at most {MAX_NOTIFY_URL_BYTES} visible ASCII \
                 characters"
            )
        })
    }

    /// Of a rehearsal, how long it trains before it is asked to save, unless it commits before.
    #[must_use]
    pub fn rehearsal(&self) -> Option<Span> {
        self.checkpoint.as_ref()?.rehearsal.map(AskAfter::span)
    }

    fn check_checkpoint(&self) -> Result<(), SpecError> {
        let Some(offer) = &self.checkpoint else { return Ok(()) };
        let grace = offer.grace;
        refuse_if(grace == Span::ZERO || grace > MAX_GRACE, "checkpoint.grace", || {
            format!("{grace} asked; more than 0 and up to {MAX_GRACE} is accepted")
        })?;
        refuse_if(offer.saved_codes.len() > 16, "checkpoint.saved_codes", || {
            format!("{} codes named; at most 16 are accepted", offer.saved_codes.len())
        })?;
        let alone = !self.pty && self.array.is_none();
        refuse_if(offer.rehearsal.is_some() && !alone, "rehearsal", || {
            "a job without a terminal, of no array, is accepted".into()
        })
    }
}

/// Whether a character makes a line look like another one: it breaks it, reverses its direction or is
/// not seen. Of what Unicode calls Format, Line and Paragraph Separator, and fillers.
fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
        )
}

fn refuse_if(
    wrong: bool,
    field: &'static str,
    why: impl FnOnce() -> String,
) -> Result<(), SpecError> {
    if wrong { Err(SpecError { field, why: why() }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> JobSpec {
        JobSpec {
            name: "train".into(),
            account: "default".parse().unwrap(),
            command: vec!["python".into(), "train.py".into()],
            working_dir: "/home/a".into(),
            env: vec![("A".into(), "1".into())],
            gpus: GpuCount(16),
            gpus_per_node: None,
            layout: TaskLayout::PerNode,
            min_runtime: Span::hours(2),
            grace: Span::seconds(30),
            max_restarts: 3,
            checkpoint_dir: None,
            log_cap: Bytes(64 << 20),
            gpu_type: None,
            max_blocks: None,
            own_order: 0,
            while_waiting: WhileWaiting::Free,
            checkpoint: None,
            after: vec![],
            notify_url: None,
            pty: false,
            whole_cluster: false,
            array: None,
        }
    }

    fn check(change: impl FnOnce(&mut JobSpec), expected: &str) {
        let mut changed = spec();
        change(&mut changed);
        let told = changed.checked().map(|_| "accepted".to_owned());
        assert_eq!(told.unwrap_or_else(|error| error.to_string()), expected);
    }

    #[test]
    fn a_refusal_names_the_field_and_what_would_be_accepted() {
        check(|_| (), "accepted");
        check(|s| s.gpus = GpuCount(0), "gpus: 0 asked; a job has at least 1 GPU");
        check(|s| s.min_runtime = Span::hours(9), "min_runtime: 9h asked; 0 to 8h is accepted");
        check(|s| s.grace = Span::hours(1), "grace: 1h asked; 0 to 30m is accepted");
        check(
            |s| s.gpus_per_node = Some(GpuCount(3)),
            "gpus_per_node: 3 does not divide 16 GPUs; give a divisor",
        );
        check(|s| s.command.clear(), "command: empty; give a program and its arguments");
        check(|s| s.working_dir = "here".into(), "working_dir: give an absolute path");
        check(
            |s| s.env = vec![("RANK".into(), "0".into())],
            "env: RANK is set by Tidegate; choose another name",
        );
        check(
            |s| s.env = vec![("B".into(), String::new()), ("A".into(), String::new())],
            "env: A is out of order or given twice; sort by name, each once",
        );
        check(
            |s| s.pty = true,
            "pty: a terminal belongs to one task; ask for one task per node, with gpus_per_node \
             equal to gpus",
        );
        check(
            |s| {
                s.pty = true;
                s.gpus_per_node = Some(s.gpus);
            },
            "accepted",
        );
        let array = |at_a_time| Some(Box::new(ArrayPlace { key: SubmitKey(7), at_a_time }));
        check(|s| s.array = array(1), "accepted");
        check(
            |s| s.array = array(0),
            "array: 0 at a time would never start; 1 or more is accepted",
        );
        let nul = || "a\0b".to_owned();
        let told = |field| format!("{field}: a NUL byte cannot be passed on");
        check(|s| s.name = nul(), &told("name"));
        check(|s| s.command.push(nul()), &told("command"));
        check(|s| s.env = vec![("A".into(), nul())], &told("env"));
        check(|s| s.working_dir = format!("/{}", nul()), &told("working_dir"));
        check(|s| s.log_cap = Bytes(1), "log_cap: 1B asked; 64KiB to 16GiB is accepted");
    }
    #[test]
    fn a_new_job_has_a_name_that_is_seen_as_it_is_and_directories_that_a_kernel_takes() {
        let check = |name: &str, dir: String, expected: &str| {
            let changed = JobSpec { name: name.into(), checkpoint_dir: Some(dir.into()), ..spec() };
            assert!(changed.clone().checked().is_ok(), "an earlier release took it");
            let told = changed.fit_to_submit().map(|_| "accepted".to_owned());
            assert_eq!(told.unwrap_or_else(|error| error.to_string()), expected, "{name:?}");
        };
        for name in ["train", "gr\u{fc}n 8 \u{1f680}", "\u{5d0}\u{5d1}"] {
            check(name, "/c".into(), "accepted");
        }
        let seen = "name: give 1 to 128 characters that are seen, without those that hide, break or \
                    reverse a line";
        for name in [" ", "\u{a0}\u{2003}", "a\u{202e}b", "a\u{2028}b", "\u{200b}", "a\u{2066}"] {
            check(name, "/c".into(), seen);
        }
        let long = "checkpoint_dir: 4097 bytes; at most 4096 are accepted";
        check("train", format!("/{}", "d".repeat(4096)), long);
    }
}
