//! A starter as a real process, and one agent's end of its socket.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_agent::procs::Procs;
use tidegate_agent::record::ExitRecord;
use tidegate_agent::starter::protocol::{
    FromStarter, Request, StatusRecord, TaskLine, Verb, line_of,
};
use tidegate_agent::task_dir::{State, TaskDir, load};
use tidegate_model::{Bytes, TaskId, TaskLayout, UserId};
use tidegate_proto::link::Launch;

/// How long anything may take on a busy machine before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    starter: Option<Child>,
    agent: Option<BufReader<UnixStream>>,
    seen: BTreeMap<TaskId, TaskLine>,
    next: u64,
}

pub(crate) fn task(text: &str) -> TaskId {
    text.parse().unwrap()
}

impl Bench {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = format!(
            "[node]\nname = \"node-a\"\n[paths]\nstate_dir = \"{0}/state\"\nrun_dir = \"{0}/run\"\n\
             [link]\ncoordinator_socket = \"{0}/link.sock\"\nheartbeat = \"100ms\"\n\
             [gpu]\nlibrary = \"{0}/no-such-library.so\"\n",
            dir.path().display()
        );
        fs::write(dir.path().join("node.toml"), config).unwrap();
        Self { dir, starter: None, agent: None, seen: BTreeMap::new(), next: 0 }
    }

    pub(crate) fn started() -> Self {
        let mut bench = Self::new();
        bench.start_starter();
        bench.connect();
        bench
    }

    pub(crate) fn start_starter(&mut self) {
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate-starter"))
            .arg("--config")
            .arg(self.dir.path().join("node.toml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.starter = Some(child);
    }

    /// Takes the first list as what is known.
    pub(crate) fn connect(&mut self) {
        let path = self.dir.path().join("run/starter.sock");
        let stream = until(|| UnixStream::connect(&path).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        self.agent = Some(BufReader::new(stream));
        self.seen.clear();
        self.seen = self.lines();
    }

    pub(crate) fn kill_starter(&mut self) {
        let mut starter = self.starter.take().unwrap();
        starter.kill().unwrap();
        starter.wait().unwrap();
        self.agent = None;
    }

    pub(crate) fn starter_pid(&self) -> u32 {
        self.starter.as_ref().unwrap().id()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.agent.as_mut().unwrap().get_mut().write_all(bytes).unwrap();
    }

    /// The next message; none at the end of the stream.
    pub(crate) fn hear(&mut self) -> Option<FromStarter> {
        let mut line = String::new();
        let count = self.agent.as_mut().unwrap().read_line(&mut line).expect("in time");
        if count == 0 {
            return None;
        }
        let message: FromStarter = serde_json::from_str(&line).unwrap();
        if let FromStarter::Changed(line) = &message {
            self.seen.insert(line.task, *line.clone());
        }
        Some(message)
    }

    pub(crate) fn ask(&mut self, verb: Verb) -> Result<(), String> {
        self.next += 1;
        let id = self.next;
        self.send(&line_of(&Request { id, verb }).unwrap());
        loop {
            match self.hear().unwrap() {
                FromStarter::Answer { id: of, refused } if of == id => {
                    return refused.map_or(Ok(()), Err);
                }
                FromStarter::Answer { .. }
                | FromStarter::Tasks { .. }
                | FromStarter::Changed(_) => {}
            }
        }
    }

    pub(crate) fn list(&mut self) -> BTreeMap<TaskId, StatusRecord> {
        self.lines().into_iter().map(|(task, line)| (task, line.status)).collect()
    }

    fn lines(&mut self) -> BTreeMap<TaskId, TaskLine> {
        self.send(&line_of(&Request { id: 0, verb: Verb::Status }).unwrap());
        loop {
            if let FromStarter::Tasks { tasks, .. } = self.hear().unwrap() {
                return tasks.into_iter().map(|line| (line.task, line)).collect();
            }
        }
    }

    pub(crate) fn shell(&mut self, id: &str, script: &str) -> Result<(), String> {
        let launch = self.launch(&["sh", "-c", script]);
        self.start(id, launch)
    }

    pub(crate) fn start(&mut self, id: &str, launch: Launch) -> Result<(), String> {
        self.ask(Verb::Start { task: task(id), launch: Box::new(launch.into()) })
    }

    pub(crate) fn launch(&self, command: &[&str]) -> Launch {
        Launch {
            user: UserId(nix::unistd::getuid().as_raw()),
            command: command.iter().map(ToString::to_string).collect(),
            working_dir: self.dir.path().display().to_string(),
            env: vec![("GREETING".into(), "hello".into())],
            gpus: Vec::new(),
            layout: TaskLayout::PerGpu,
            rank: 0,
            local_rank: 0,
            world_size: 1,
            local_world_size: 1,
            node_rank: 0,
            nodes: 1,
            master_addr: "127.0.0.1".into(),
            master_port: 29500,
            checkpoint_dir: self.dir.path().join("ckpt").display().to_string(),
            log_cap: Bytes(1 << 20),
            save: None,
            permit: None,
            pty: false,
        }
    }

    /// Waits until the task's status is so.
    pub(crate) fn wait(
        &mut self,
        id: &str,
        wanted: impl Fn(&StatusRecord) -> bool,
    ) -> StatusRecord {
        self.wait_line(id, |line| wanted(&line.status)).status
    }

    /// Waits until what is said of the task is so.
    pub(crate) fn wait_line(&mut self, id: &str, wanted: impl Fn(&TaskLine) -> bool) -> TaskLine {
        let id = task(id);
        loop {
            if let Some(line) = self.seen.get(&id).filter(|line| wanted(line)) {
                return line.clone();
            }
            self.hear().expect("the starter is there");
        }
    }

    pub(crate) fn running(&mut self, id: &str) -> State {
        self.wait(id, |status| *status == StatusRecord::Running);
        load(&self.task_dir(id).state()).unwrap().unwrap()
    }

    /// Waits until nothing of the task is left; how it ended.
    pub(crate) fn ended(&mut self, id: &str) -> ExitRecord {
        match self.wait(id, |status| matches!(status, StatusRecord::Ended { released: true, .. })) {
            StatusRecord::Ended { exit, .. } => exit,
            StatusRecord::Intended | StatusRecord::Running => unreachable!(),
        }
    }

    pub(crate) fn task_dir(&self, id: &str) -> TaskDir {
        TaskDir::of(&self.dir.path().join("state/tasks"), task(id))
    }

    /// The last kept output of a stream, its segments joined.
    pub(crate) fn output(&self, id: &str, stream: &str) -> String {
        let mut segments: Vec<(u64, PathBuf)> = fs::read_dir(self.task_dir(id).path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_stem().is_some_and(|stem| stem == stream))
            .map(|path| (path.extension().unwrap().to_str().unwrap().parse().unwrap(), path))
            .collect();
        segments.sort();
        segments.iter().map(|(_, path)| fs::read_to_string(path).unwrap()).collect()
    }

    /// Makes a file that scripts wait for.
    pub(crate) fn touch(&self, name: &str) {
        fs::write(self.dir.path().join(name), "").unwrap();
    }

    /// What is in a file of a task's own; empty without it.
    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// A number that a task writes into a file of its own.
    pub(crate) fn number(&self, name: &str) -> i32 {
        let path = self.dir.path().join(name);
        until(|| fs::read_to_string(&path).ok()?.strip_suffix('\n')?.trim().parse().ok())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(mut starter) = self.starter.take() {
            starter.kill().unwrap();
            starter.wait().unwrap();
        }
        // A test that failed may leave tasks: their shims take them along.
        for entry in fs::read_dir(self.dir.path().join("state/tasks")).into_iter().flatten() {
            let dir = TaskDir::at(entry.unwrap().path());
            if let Ok(Some(state)) = load::<State>(&dir.state())
                && Procs::default().is_alive(state.shim)
            {
                send_kill(state.shim.pid).ok();
            }
        }
    }
}

pub(crate) fn kill(pid: i32) {
    send_kill(pid).unwrap();
}

fn send_kill(pid: i32) -> nix::Result<()> {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
}

/// Asks again and again until there is an answer.
pub(crate) fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "in time");
        std::thread::yield_now();
    }
}

pub(crate) fn is_gone(pid: i32) -> bool {
    Procs::default().stat(pid).is_none_or(|stat| stat.is_dead)
}
