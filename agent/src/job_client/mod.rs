//! The job's side of its socket, for shell scripts: `tidegate-agent job`.
//!
//! What is not here: the socket itself (`shim`), and what is said on it ([`crate::job_protocol`]).

mod commit;
mod connection;

use std::env;
use std::io::{Write, stderr, stdout};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tidegate_model::{Bytes, Span, WriteClass};

use self::connection::Connection;

/// Talks to the job's socket; for scripts that run in a task.
#[derive(Debug, Args)]
pub struct Job {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print which job this is, and whether it was asked to save.
    Hello,
    /// Wait for a permit and print it. It is given back when this command ends: to write with one,
    /// use `write`.
    Ask(Wish),
    /// Run a command with a permit, and end as it does.
    ///
    /// It finds the rate in `TIDEGATE_BYTES_PER_S`, unless there is no limit, and the permit's
    /// number in `TIDEGATE_PERMIT`. Without a permit (no socket, or the answer is no) it is run all
    /// the same, after a word of why: a checkpoint matters more.
    Write(Writing),
    /// Say how much is written.
    Progress {
        /// Since the permit, all together, such as 10GiB.
        #[arg(long, value_parser = bytes)]
        bytes: Bytes,
        #[command(flatten)]
        permit: Permit,
    },
    /// Print how a permit stands.
    Renew(Permit),
    /// Give a permit back.
    Done(Permit),
    /// Say that a checkpoint is complete and durable.
    Commit {
        /// Its training step.
        #[arg(long)]
        step: u64,
        /// Its directory. All files in it belong to it.
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Wish {
    /// What the whole gang will write, such as 10GiB or a number of bytes.
    #[arg(long, value_parser = bytes)]
    bytes: Bytes,
    /// What for: preemption, final, periodic or restore.
    #[arg(long, default_value = "periodic")]
    class: WriteClass,
    /// How many files the whole gang will create.
    #[arg(long)]
    files: Option<u32>,
    /// How long to wait at most in the queue, such as 60s; then the job is let through early.
    #[arg(long)]
    wait: Option<Span>,
}

#[derive(Debug, Args)]
struct Writing {
    #[command(flatten)]
    wish: Wish,
    /// The command and its arguments.
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct Permit {
    /// Its number [default: `$TIDEGATE_PERMIT`].
    #[arg(long)]
    permit: Option<u64>,
}

/// Does what was asked. Exit code 1: it was not done, and why is on standard error; of `write` the
/// command's own.
#[must_use]
pub fn run(job: &Job) -> ExitCode {
    let done = match &job.verb {
        Verb::Write(writing) => write_with_permit(writing),
        Verb::Hello => say(&json!({"hello": {}}), "hello"),
        Verb::Ask(wish) => ask(wish).map(|held| print(&held.told)),
        Verb::Progress { bytes, permit } => progress(*bytes, permit),
        Verb::Renew(permit) => permit.number().and_then(renew),
        Verb::Done(permit) => {
            permit.number().and_then(|number| say(&json!({"done": {"permit": number}}), "done"))
        }
        Verb::Commit { step, directory } => {
            commit::message(*step, directory).and_then(|message| say(&message, "committed"))
        }
    };
    done.unwrap_or_else(|why| {
        complain(&format!("{why:#}"));
        ExitCode::FAILURE
    })
}

/// Says one thing and prints the answer.
fn say(message: &Value, answer: &str) -> anyhow::Result<ExitCode> {
    let mut connection = open()?;
    connection.say(message)?;
    Ok(print(&connection.hear(&[answer])?.1))
}

/// Nothing is answered unless it is refused: the question that follows is answered in any case.
fn progress(Bytes(bytes): Bytes, permit: &Permit) -> anyhow::Result<ExitCode> {
    let number = permit.number()?;
    let mut connection = open()?;
    connection.say(&json!({"progress": {"permit": number, "bytes": bytes}}))?;
    connection.say(&json!({"hello": {}}))?;
    connection.hear(&["hello"]).map(|_| ExitCode::SUCCESS)
}

fn renew(number: u64) -> anyhow::Result<ExitCode> {
    let mut connection = open()?;
    connection.say(&json!({"renew": {"permit": number}}))?;
    Ok(print(&connection.hear(&["grant", "wait"])?.1))
}

/// Held by its connection.
struct Held {
    connection: Connection,
    permit: u64,
    bytes_per_s: Option<u64>,
    told: Value,
}

/// Waits for a permit.
fn ask(wish: &Wish) -> anyhow::Result<Held> {
    let Wish { bytes, class, files, wait } = wish;
    let wait = wait.map(|Span(span)| span.div_ceil(1000));
    let wish =
        json!({"bytes": bytes.0, "class": class.to_string(), "files": files, "wait_s": wait});
    let mut connection = open()?;
    connection.say(&json!({"ask": wish}))?;
    let (name, told) = connection.hear(&["grant", "deny"])?;
    if name == "deny" {
        let why = told.get("why").and_then(Value::as_str).unwrap_or_default();
        let again = told.get("retry_after_s").and_then(Value::as_u64);
        let again = again.map(|seconds| format!("; asking again is of use in {seconds}s"));
        bail!("denied: {why}{}", again.unwrap_or_default());
    }
    let number = |name| told.get(name).and_then(Value::as_u64);
    let permit = number("permit").context("a grant without a number")?;
    Ok(Held { connection, permit, bytes_per_s: number("bytes_per_s"), told })
}

fn write_with_permit(writing: &Writing) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = writing.command.split_first() else { bail!("no command") };
    let mut command = Command::new(program);
    command.args(arguments).env_remove("TIDEGATE_BYTES_PER_S").env_remove("TIDEGATE_PERMIT");
    let held = match ask(&writing.wish) {
        Ok(held) => {
            command.env("TIDEGATE_PERMIT", held.permit.to_string());
            command.envs(held.bytes_per_s.map(|rate| ("TIDEGATE_BYTES_PER_S", rate.to_string())));
            Some(held)
        }
        Err(why) => {
            complain(&format!("writing without a permit: {why:#}"));
            None
        }
    };
    let status = command.status().with_context(|| format!("{program} cannot be run"))?;
    if let Some(Held { mut connection, permit, .. }) = held {
        // Without an answer it is over all the same, with the connection.
        connection.say(&json!({"done": {"permit": permit}})).ok();
        connection.hear(&["done"]).ok();
    }
    Ok(code(status))
}

/// As a shell has it.
fn code(status: ExitStatus) -> ExitCode {
    let of_signal = || status.signal().map(|signal| signal.saturating_add(128));
    let code = status.code().or_else(of_signal).and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

impl Permit {
    fn number(&self) -> anyhow::Result<u64> {
        if let Some(number) = self.permit {
            return Ok(number);
        }
        let number = env::var("TIDEGATE_PERMIT").ok();
        let number = number.context("which permit? Give --permit, or run below `job write`")?;
        number.parse().with_context(|| format!("TIDEGATE_PERMIT: {number:?} is no number"))
    }
}

fn open() -> anyhow::Result<Connection> {
    let socket = env::var_os("TIDEGATE_SOCKET");
    let socket = socket.context("TIDEGATE_SOCKET is not set: this is no task of Tidegate's")?;
    Connection::open(&PathBuf::from(socket))
}

/// With or without a unit.
fn bytes(text: &str) -> Result<Bytes, String> {
    match text.parse() {
        Ok(number) => Ok(Bytes(number)),
        Err(_) => text.parse().map_err(|error: tidegate_model::UnitError| error.to_string()),
    }
}

fn print(value: &Value) -> ExitCode {
    match writeln!(stdout(), "{value}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_closed) => ExitCode::FAILURE,
    }
}

fn complain(why: &str) {
    // Where stderr is closed there is nobody to tell.
    drop(writeln!(stderr(), "tidegate-agent job: {why}"));
}
