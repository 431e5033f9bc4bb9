//! The job's socket: who may speak, what is answered, what counts as committed.
//!
//! Served here because the shim alone outlives agent and starter and knows the task's processes.
//! What is not here: what a request to save leads to (`ask`), what becomes of an ask to write
//! (`permit`), and how a checkpoint is looked at (`check`).

use std::fs::Permissions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Pid, getuid};
use tidegate_model::TaskId;

use super::check::{Check, refusal};
use super::permit::Permits;
use crate::durable;
use crate::job_protocol::{Announcement, Claim, FromJob, MAX_JOB_LINE, ToJob};
use crate::lines::{Closed, Limits, Lines, Then};
use crate::procs::Procs;
use crate::saving::CommitRecord;
use crate::starter::protocol::line_of;
use crate::task_dir::{TaskDir, bytes_of};

/// Most connections of one job on one node: one for each rank of a large node.
const MAX_CLIENTS: usize = 16;

/// Most bytes that wait for a client that does not read; then it is dropped. Every answer is one
/// short line.
const MAX_UNSENT: usize = 64 << 10;

/// How long the end of the task waits for a commit that was said before it.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// A process's way up to the shim is shorter than this, or it is taken for a stranger.
const ANCESTRY: usize = 1024;

pub(super) struct Door {
    task: TaskId,
    dir: TaskDir,
    procs: Procs,
    listener: UnixListener,
    clients: Vec<Client>,
    last_client: u64,
    /// One at a time: one rank speaks for the job.
    checking: Option<Checking>,
    /// The step of the newest commit.
    last_step: Option<u64>,
    permits: Permits,
}

struct Client {
    number: u64,
    lines: Lines,
}

struct Checking {
    check: Check,
    client: u64,
    /// What counts if the check says so, but for its bytes.
    commit: CommitRecord,
}

impl Door {
    /// Opened before the task starts, so that it finds it.
    pub(super) fn open(dir: &TaskDir, task: TaskId, procs: Procs) -> io::Result<Self> {
        let path = dir.socket();
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            task,
            dir: dir.clone(),
            procs,
            listener,
            clients: Vec::new(),
            last_client: 0,
            checking: None,
            last_step: None,
            permits: Permits::of(dir),
        })
    }

    /// What to wait on.
    pub(super) fn fds(&self) -> Vec<PollFd<'_>> {
        let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.clients.iter().map(|client| {
            let mut wanted = PollFlags::POLLIN;
            wanted.set(PollFlags::POLLOUT, client.lines.wants_to_write());
            PollFd::new(client.lines.fd(), wanted)
        }));
        let check = self.checking.as_ref().map(|checking| checking.check.fd());
        fds.extend(check.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        fds
    }

    /// Does what has come up. `asked` is the newest request to save.
    pub(super) fn turn(&mut self, asked: Option<&Announcement>) {
        self.accept();
        for mut client in std::mem::take(&mut self.clients) {
            if self.hear(&mut client, asked).is_ok() {
                self.clients.push(client);
            }
        }
        self.conclude();
        self.permits.turn(Instant::now());
        self.flush();
        let is_here = |number| self.clients.iter().any(|client| client.number == number);
        if self.permits.holder().is_some_and(|holder| !is_here(holder)) {
            self.permits.end();
        }
    }

    /// Until time alone brings something; none if it does not.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.permits.left(now)
    }

    /// Reads what the starter has written of an ask.
    pub(super) fn answered(&mut self) {
        self.permits.read();
    }

    /// The task is being stopped.
    pub(super) fn stop(&mut self) {
        self.permits.stop();
    }

    /// Tells every client of a request that is news.
    pub(super) fn tell(&mut self, asked: &Announcement) {
        let save = ToJob::Save(asked.clone());
        self.clients.retain_mut(|client| client.say(&save).is_ok());
    }

    /// The task has ended; what it said before counts, if it can be checked soon.
    pub(super) fn close(mut self, asked: Option<&Announcement>) {
        self.turn(asked);
        self.permits.end();
        let deadline = Instant::now().checked_add(LAST_PATIENCE);
        while let (Some(checking), Some(deadline)) = (&self.checking, deadline) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut fds = [PollFd::new(checking.check.fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)).ok();
            self.conclude();
        }
        self.flush();
    }

    /// Sends what there is to say.
    fn flush(&mut self) {
        for (number, message) in self.permits.take_said() {
            self.clients.retain_mut(|one| one.number != number || one.say(&message).is_ok());
        }
        self.clients.retain_mut(|client| client.lines.flush().is_ok());
    }

    fn accept(&mut self) {
        // A bound: a job that connects without pause must not keep its shim from a stop.
        for _ in 0..MAX_CLIENTS {
            let Ok((stream, _)) = self.listener.accept() else { return };
            let limits = Limits { line: MAX_JOB_LINE, unsent: MAX_UNSENT };
            let admitted = self.admitted(&stream);
            let Ok(lines) = Lines::over(stream, limits) else { continue };
            self.last_client = self.last_client.saturating_add(1);
            let mut client = Client { number: self.last_client, lines };
            match admitted {
                Ok(()) => self.clients.push(client),
                Err(why) => {
                    // It ends here whether or not it can be told why.
                    client.refuse(why).ok();
                    client.lines.flush().ok();
                }
            }
        }
    }

    /// Why not, if not.
    fn admitted(&self, stream: &UnixStream) -> Result<(), String> {
        let peer =
            getsockopt(stream, PeerCredentials).map_err(|why| format!("who are you: {why}"))?;
        admitted(peer.uid(), getuid().as_raw(), self.is_of_the_task(peer.pid()))?;
        if self.clients.len() >= MAX_CLIENTS {
            return Err(format!("{MAX_CLIENTS} connections are open, the most there can be"));
        }
        Ok(())
    }

    /// Whether a process is below the shim, which orphans of the task are too.
    fn is_of_the_task(&self, pid: i32) -> bool {
        let parent = |pid: &i32| self.procs.stat(*pid).map(|stat| stat.parent);
        let above = std::iter::successors(parent(&pid), parent).take(ANCESTRY);
        above.into_iter().any(|ancestor| ancestor == Pid::this().as_raw())
    }

    fn hear(&mut self, client: &mut Client, asked: Option<&Announcement>) -> Result<(), Closed> {
        let heard = client.lines.read();
        for line in heard.lines {
            if let Some(answer) = self.answer(client.number, &line, asked) {
                client.say(&answer)?;
            }
        }
        match heard.then {
            Then::Open => Ok(()),
            Then::TooLong => {
                client.refuse(format!("the message is longer than {MAX_JOB_LINE} bytes"))
            }
            Then::Gone => Err(Closed),
        }
    }

    /// None = it comes later.
    fn answer(&mut self, client: u64, line: &[u8], asked: Option<&Announcement>) -> Option<ToJob> {
        let refused = |why: String| Some(ToJob::Refused { why });
        match serde_json::from_slice::<FromJob>(line) {
            Ok(FromJob::Hello {}) => Some(ToJob::Hello {
                job: self.task.attempt.job.to_string(),
                attempt: self.task.attempt.number,
                task: self.task.to_string(),
                request: asked.cloned(),
            }),
            Ok(FromJob::Commit(claim)) => {
                self.begin(client, claim, asked.map(|asked| asked.request)).err().and_then(refused)
            }
            Ok(FromJob::Ask(wish)) => Some(answered(self.permits.ask(client, &wish))),
            Ok(FromJob::Progress(said)) => self.permits.progress(&said).err().and_then(refused),
            Ok(FromJob::Renew(held)) => Some(answered(self.permits.renew(held.permit))),
            Ok(FromJob::Done(said)) => Some(answered(self.permits.done(&said))),
            Err(why) => refused(format!("not a message: {why}")),
        }
    }

    fn begin(&mut self, client: u64, claim: Claim, request: Option<u64>) -> Result<(), String> {
        if self.checking.is_some() {
            return Err("another commit is being checked; wait for its answer".to_owned());
        }
        if let Some(why) = refusal(&claim) {
            return Err(why);
        }
        if let Some(last) = self.last_step.filter(|last| claim.step <= *last) {
            let step = claim.step;
            return Err(format!("step: {step} is not above {last}, which is committed"));
        }
        let commit = CommitRecord { step: claim.step, path: claim.path.clone(), bytes: 0, request };
        let check = Check::of(claim).map_err(|why| format!("it cannot be checked: {why}"))?;
        self.checking = Some(Checking { check, client, commit });
        Ok(())
    }

    /// Answers a commit whose check has ended.
    fn conclude(&mut self) {
        let verdict = self.checking.as_ref().and_then(|checking| checking.check.verdict());
        let Some(verdict) = verdict else { return };
        let Some(Checking { client, mut commit, .. }) = self.checking.take() else { return };
        let kept = verdict.and_then(|bytes| {
            commit.bytes = bytes;
            self.keep(&commit)
        });
        let answer = match kept {
            Ok(()) => ToJob::Committed { step: commit.step },
            Err(why) => ToJob::Refused { why },
        };
        // Who has gone is not answered; its commit counts.
        self.clients.retain_mut(|other| other.number != client || other.say(&answer).is_ok());
    }

    /// Durable before it is answered.
    fn keep(&mut self, commit: &CommitRecord) -> Result<(), String> {
        let kept = bytes_of(commit).and_then(|bytes| durable::replace(&self.dir.commit(), &bytes));
        kept.map_err(|why| format!("it cannot be recorded: {why}"))?;
        self.last_step = Some(commit.step);
        Ok(())
    }
}

impl Client {
    fn say(&mut self, message: &ToJob) -> Result<(), Closed> {
        self.lines.say(&line_of(message).map_err(|_broken| Closed)?)
    }

    fn refuse(&mut self, why: String) -> Result<(), Closed> {
        self.say(&ToJob::Refused { why })
    }
}

fn answered(answer: Result<ToJob, String>) -> ToJob {
    answer.unwrap_or_else(|why| ToJob::Refused { why })
}

/// One job must not commit the checkpoint of another.
fn admitted(peer: u32, user: u32, is_of_the_task: bool) -> Result<(), String> {
    if peer != user {
        return Err(format!("uid {peer} is not the job's"));
    }
    if !is_of_the_task {
        return Err("only processes of this task are heard here".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_jobs_user_in_the_jobs_own_processes_is_heard() {
        assert_eq!(admitted(7, 7, true), Ok(()));
        assert_eq!(admitted(0, 7, true), Err("uid 0 is not the job's".to_owned()));
        let stranger = Err("only processes of this task are heard here".to_owned());
        assert_eq!(admitted(7, 7, false), stranger);
    }
}
