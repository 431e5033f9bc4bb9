//! From an intent to a running process, or to words that say why not.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags};
use nix::unistd::{Pid, pipe2};
use tidegate_model::{TaskExit, TaskLayout};
use tidegate_proto::link::Launch;

use super::pump::Pump;
use super::terminal::Terminal;
use crate::environment::{Places, environment};
use crate::sys::{self, Stdin};
use crate::task_dir::{Intent, TaskDir};

/// A task whose program has been executed.
pub(super) struct Started {
    pub(super) main: Pid,
    pub(super) since: Instant,
    pub(super) output: Output,
    /// Its first rank, and how many a task has.
    pub(super) ranks: (u32, TaskLayout),
}

/// Where what a task prints arrives.
pub(super) enum Output {
    Pipes([Pump; 2]),
    Terminal(Terminal),
}

impl Output {
    /// What to wait on.
    pub(super) fn fds(&self) -> Vec<PollFd<'_>> {
        match self {
            Self::Pipes(pumps) => {
                let sources = pumps.iter().filter_map(Pump::source);
                sources.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect()
            }
            Self::Terminal(terminal) => terminal.fds(),
        }
    }

    /// Takes what is there, up to a bound.
    pub(super) fn turn(&mut self) {
        match self {
            Self::Pipes(pumps) => pumps.iter_mut().for_each(Pump::turn),
            Self::Terminal(terminal) => terminal.turn(),
        }
    }

    /// Takes all that is left of a task that has ended.
    pub(super) fn drain(&mut self, exit: &TaskExit) {
        match self {
            Self::Pipes(pumps) => pumps.iter_mut().for_each(Pump::drain),
            Self::Terminal(terminal) => terminal.close(exit),
        }
    }

    /// Output that could not be written, in bytes.
    pub(super) fn dropped(&self) -> u64 {
        match self {
            Self::Pipes(pumps) => pumps.iter().map(Pump::dropped).fold(0, u64::saturating_add),
            Self::Terminal(terminal) => terminal.dropped(),
        }
    }
}

/// Starts the task; an error is why it never started.
pub(super) fn start(
    dir: &TaskDir,
    intent: Intent,
    socket: Option<&Path>,
) -> Result<Started, String> {
    let launch = Launch::try_from(intent.launch)?;
    let preempt_file = dir.preempt_file();
    let places =
        Places { preempt_file: &preempt_file, socket, home: &intent.home, user: &intent.user };
    let variables = environment(intent.task, &launch, places);
    check_places(&launch)?;
    let Some((program, arguments)) = launch.command.split_first() else {
        return Err("a launch without a command".to_owned());
    };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&launch.working_dir).env_clear().envs(&variables);
    let (output, stdin) = if launch.pty {
        (Output::Terminal(terminal(dir, &launch, &mut command)?), Stdin::Terminal)
    } else {
        (Output::Pipes(pipes(dir, &launch, &mut command)?), Stdin::Nothing)
    };
    sys::prepare_task(&mut command, Pid::this(), stdin);
    let path = variables.get("PATH").map(String::as_str).unwrap_or_default();
    let child = command.spawn().map_err(|error| not_executed(program, path, &error))?;
    let since = Instant::now();
    let main = i32::try_from(child.id()).map_err(|error| format!("its pid: {error}"))?;
    let ranks = (launch.rank, launch.layout);
    Ok(Started { main: Pid::from_raw(main), since, output, ranks })
}

fn pipes(dir: &TaskDir, launch: &Launch, command: &mut Command) -> Result<[Pump; 2], String> {
    let (stdout, out_end) = output_pipe().map_err(|error| format!("stdout pipe: {error}"))?;
    let (stderr, err_end) = output_pipe().map_err(|error| format!("stderr pipe: {error}"))?;
    command.stdin(Stdio::null()).stdout(out_end).stderr(err_end);
    let pump = |source, stream| Pump::new(source, dir.path(), stream, launch.log_cap);
    Ok([pump(stdout, "stdout"), pump(stderr, "stderr")])
}

fn terminal(dir: &TaskDir, launch: &Launch, command: &mut Command) -> Result<Terminal, String> {
    let opened = Terminal::open(dir, launch.log_cap);
    let (terminal, [stdin, stdout, stderr]) =
        opened.map_err(|error| format!("its terminal cannot be made: {error}"))?;
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    Ok(terminal)
}

fn check_places(launch: &Launch) -> Result<(), String> {
    let working_dir = Path::new(&launch.working_dir);
    if !working_dir.is_dir() {
        return Err(format!("the working directory {} is not there", launch.working_dir));
    }
    if launch.checkpoint_dir.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(&launch.checkpoint_dir).map_err(|error| {
        format!("the checkpoint directory {} cannot be made: {error}", launch.checkpoint_dir)
    })
}

/// Our end, which never blocks, and the task's.
fn output_pipe() -> nix::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((ours, theirs))
}

fn not_executed(program: &str, path: &str, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::NotFound {
        return format!("{program} cannot be executed: {error}");
    }
    if program.contains('/') {
        return format!("the program {program}, or the interpreter it names, is not there");
    }
    format!("the program {program} is in none of {path}")
}
