//! Gangs of real trainer processes on loopback. Every wait has a deadline; nothing sleeps for a
//! guessed time.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Long enough for anything that is going to happen at all on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How soon a gang dies of one death: a second, and time for a busy machine to run it.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(10);

pub(crate) const STOPPED: i32 = 75;
pub(crate) const SAVED: i32 = 85;

/// A run: what all its gangs share.
pub(crate) struct Run<'a> {
    pub(crate) world: u32,
    pub(crate) checkpoints: &'a Path,
    /// Beyond seed and checkpoint directory.
    pub(crate) args: &'a [&'a str],
}

/// A process with its output. Killed when dropped, so that a failed test leaves nothing behind.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    complaints: Option<ChildStderr>,
}

/// One process per rank, in order.
pub(crate) struct Gang {
    pub(crate) ranks: Vec<Process>,
}

impl Run<'_> {
    pub(crate) fn start(&self) -> Gang {
        self.start_with(&[])
    }

    /// With these variables.
    pub(crate) fn start_with(&self, variables: &[(&str, &Path)]) -> Gang {
        let port = next_port();
        let ranks = (0..self.world)
            .map(|rank| {
                let mut command = self.command(port);
                command.env("RANK", rank.to_string()).envs(variables.iter().copied());
                Process::start(command)
            })
            .collect();
        Gang { ranks }
    }

    /// One launcher per node, `per_node` ranks each.
    pub(crate) fn launch(&self, per_node: u32) -> Gang {
        let port = next_port();
        let launchers = (0..self.world / per_node)
            .map(|node| {
                let mut command = self.command(port);
                command.arg("--launch");
                command.env("NODE_RANK", node.to_string());
                command.env("LOCAL_WORLD_SIZE", per_node.to_string());
                Process::start(command)
            })
            .collect();
        Gang { ranks: launchers }
    }

    pub(crate) fn command(&self, port: u16) -> Command {
        let mut command = trainer();
        command.args(["--seed", "7", "--checkpoint-dir"]).arg(self.checkpoints).args(self.args);
        command.env("WORLD_SIZE", self.world.to_string());
        command.env("MASTER_ADDR", address()).env("MASTER_PORT", port.to_string());
        command
    }

    /// The line an undisturbed run ends with, by the reference that uses no network.
    pub(crate) fn reference(&self, steps: u64) -> String {
        let (steps, world) = (steps.to_string(), self.world.to_string());
        let mut command = trainer();
        command.args(["digest", "--seed", "7", "--steps", &steps, "--world-size", &world]);
        let output = command.output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Gang {
    pub(crate) fn leader(&mut self) -> &mut Process {
        &mut self.ranks[0]
    }

    /// The exit codes of all ranks, and what rank 0 said.
    pub(crate) fn end(&mut self, within: Duration) -> (Vec<Option<i32>>, Vec<String>) {
        let deadline = Instant::now() + within;
        let codes = self.ranks.iter_mut().map(|rank| rank.wait(deadline).code()).collect();
        (codes, self.leader().said())
    }

    /// Checks that all ranks end well, rank 0 with exactly this last line, once.
    pub(crate) fn check_ends_with(&mut self, expected: &str) {
        let (codes, said) = self.end(PATIENCE);
        assert!(codes.iter().all(|code| *code == Some(0)), "{codes:?} {said:?}");
        let finals: Vec<_> = said.iter().filter(|line| line.starts_with("final ")).collect();
        assert_eq!(finals, [expected], "{said:?}");
    }
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = lines(child.stdout.take().unwrap());
        let complaints = child.stderr.take();
        Self { child, lines, said: Vec::new(), complaints }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits until a line begins like this.
    pub(crate) fn wait_for(&mut self, beginning: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                let complaints = self.complaints();
                panic!("no {beginning:?} among {:?}; {complaints}", self.said);
            };
            self.said.push(line.clone());
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// Waits until the process has ended, and all that share its output.
    pub(crate) fn wait(&mut self, deadline: Instant) -> ExitStatus {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("still running; said {:?}", self.said),
            }
        }
    }

    /// What an ended process said in all.
    pub(crate) fn said(&mut self) -> Vec<String> {
        self.said.extend(self.lines.iter());
        self.said.clone()
    }

    /// What an ended process complained of.
    pub(crate) fn complaints(&mut self) -> String {
        self.child.kill().unwrap();
        let mut text = String::new();
        if let Some(mut complaints) = self.complaints.take() {
            complaints.read_to_string(&mut text).unwrap();
        }
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Probes a condition that nothing announces. The pause keeps the probing from starving what it
/// waits for; no test depends on its length.
pub(crate) fn wait_until<T>(deadline: Instant, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        let found = probe();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

pub(crate) fn trainer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trainer"));
    for variable in [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TIDEGATE_JOB_ID",
        "TIDEGATE_ATTEMPT",
        "TIDEGATE_CHECKPOINT_DIR",
        "TIDEGATE_PREEMPT_FILE",
        "TIDEGATE_SOCKET",
    ] {
        command.env_remove(variable);
    }
    command
}

/// A loopback address of this test process, so that no other process takes its ports.
pub(crate) fn address() -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{c}", a | 0x80)
}

/// Below the ephemeral range.
pub(crate) fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
