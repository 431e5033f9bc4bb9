//! From an intent to a running process, or to words that say why not.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{Pid, pipe2};
use tidegate_model::TaskLayout;
use tidegate_proto::link::Launch;

use super::pump::Pump;
use crate::environment::{Places, environment};
use crate::sys;
use crate::task_dir::{Intent, TaskDir};

/// A task whose program has been executed.
pub(super) struct Started {
    pub(super) main: Pid,
    pub(super) since: Instant,
    pub(super) pumps: [Pump; 2],
    /// Its first rank, and how many a task has.
    pub(super) ranks: (u32, TaskLayout),
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
    let (stdout, out_end) = output_pipe().map_err(|error| format!("stdout pipe: {error}"))?;
    let (stderr, err_end) = output_pipe().map_err(|error| format!("stderr pipe: {error}"))?;
    let Some((program, arguments)) = launch.command.split_first() else {
        return Err("a launch without a command".to_owned());
    };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(&launch.working_dir).env_clear().envs(&variables);
    command.stdin(Stdio::null()).stdout(out_end).stderr(err_end);
    sys::prepare_task(&mut command, Pid::this());
    let path = variables.get("PATH").map(String::as_str).unwrap_or_default();
    let child = command.spawn().map_err(|error| not_executed(program, path, &error))?;
    let since = Instant::now();
    let main = i32::try_from(child.id()).map_err(|error| format!("its pid: {error}"))?;
    let pump = |source, stream| Pump::new(source, dir.path(), stream, launch.log_cap);
    let pumps = [pump(stdout, "stdout"), pump(stderr, "stderr")];
    let ranks = (launch.rank, launch.layout);
    Ok(Started { main: Pid::from_raw(main), since, pumps, ranks })
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
