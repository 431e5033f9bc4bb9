//! A coordinator that only the command line can tell from a real one: it serves the API on a
//! socket of its own, answers what a test has written down, and records what it was asked.

use std::collections::{BTreeSet, VecDeque};
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use tempfile::TempDir;
use tidegate_proto::v1;
use tidegate_proto::v1::tidegate_server::{Tidegate, TidegateServer};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status, Streaming};

/// What it answers and what it was asked.
#[derive(Debug, Default)]
pub struct Script {
    /// So many connections are closed before one is served, as by a coordinator that dies.
    pub lost_connections: u32,
    /// Misses of submits that are recorded all the same, first to last; `Ok` is none.
    pub submit_misses: VecDeque<Status>,
    pub submits: Vec<v1::SubmitRequest>,
    pub jobs: Vec<v1::JobView>,
    /// Views of a job asked for one by one, first to last; the last one stays.
    pub views: VecDeque<v1::JobView>,
    /// By attempt and stream.
    pub logs: Vec<(u32, v1::LogStream, Log)>,
    pub nodes: Vec<v1::NodeView>,
    pub drained: v1::DrainReply,
    pub accounts: v1::ListAccountsReply,
    pub dry_runs: Vec<v1::DryRun>,
    pub policy: Option<v1::Policy>,
    /// The record that set it.
    pub policy_version: u64,
    /// Changes are answered with it.
    pub changed: bool,
    /// Misses of changes of accounts that are recorded all the same, first to last.
    pub change_misses: VecDeque<Status>,
    /// Answers to cancels, first to last; then jobs that are known are being cancelled.
    pub cancels: VecDeque<Result<v1::CancelReply, Status>>,
    pub checkpoints: Option<v1::ListCheckpointsReply>,
    /// Tasks of a node that is declared lost; the second time there are none.
    pub tasks_lost: u32,
    /// And with this.
    pub replaced: Option<v1::AskView>,
    /// Submits and dry runs are answered with it.
    pub warnings: Vec<v1::Warning>,
    /// What was asked besides submits, as it came.
    pub asked: Vec<Asked>,
    /// The answer to all other calls, and to those above if it is there.
    pub refusal: Option<Status>,
}

/// A request that was not a submit.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Drain(v1::DrainRequest),
    Remove(String),
    DryRun(v1::JobSpec),
    Job(String, v1::JobChange),
    Accounts(String),
    Account(v1::change_account_request::Change),
    Policy(v1::Policy, Option<u64>),
}

/// The kept end of an output that is complete.
#[derive(Debug, Clone)]
pub struct Log {
    pub first: u64,
    pub bytes: &'static [u8],
}

/// A coordinator that is up until it is dropped.
#[derive(Debug)]
pub struct Coordinator {
    dir: TempDir,
    script: Arc<Mutex<Script>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Coordinator {
    pub fn with(script: Script) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Bound before a thread is started: whoever connects is answered, however early.
        let listener = StdListener::bind(dir.path().join("api.sock")).unwrap();
        let lost_connections = script.lost_connections;
        let script = Arc::new(Mutex::new(script));
        let (stop, stopped) = oneshot::channel();
        let service = TidegateServer::new(Scripted { script: Arc::clone(&script) });
        let thread = std::thread::spawn(move || {
            for _ in 0..lost_connections {
                drop(listener.accept().unwrap());
            }
            listener.set_nonblocking(true).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let incoming = UnixListenerStream::new(UnixListener::from_std(listener).unwrap());
                let serving = tonic::transport::Server::builder().add_service(service);
                let stopped = async { drop(stopped.await) };
                serving.serve_with_incoming_shutdown(incoming, stopped).await.unwrap();
            });
        });
        Self { dir, script, stop: Some(stop), thread: Some(thread) }
    }

    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// A folder that goes with it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the real program against it.
    pub fn tidegate(&self, args: &[&str]) -> Ran {
        let mut command = tidegate(args);
        command.env("TIDEGATE_API", self.path("api.sock")).current_dir(self.dir.path());
        Ran::of(&command.output().unwrap())
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking(), "the coordinator panicked");
        }
    }
}

/// The real program, with nothing of the surroundings but PATH.
pub fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env_clear().stdin(Stdio::null());
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

/// How a run of the program ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

struct Scripted {
    script: Arc<Mutex<Script>>,
}

impl Scripted {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    /// Records what was asked, and answers with what is in the script.
    fn answer<T>(&self, asked: Asked, reply: impl Fn(&Script) -> T) -> Result<Response<T>, Status> {
        let mut script = self.script();
        script.asked.push(asked);
        match &script.refusal {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(Response::new(reply(&script))),
        }
    }

    fn refused<T>(&self) -> Result<T, Status> {
        let refusal = self.script().refusal.clone();
        Err(refusal.unwrap_or_else(|| Status::unimplemented("not in the script")))
    }
}

#[tonic::async_trait]
impl Tidegate for Scripted {
    type AttachStream = tokio_stream::Empty<Result<v1::AttachReply, Status>>;

    async fn attach(
        &self,
        _request: Request<Streaming<v1::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        self.refused()
    }

    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitReply>, Status> {
        let request = request.into_inner();
        let mut script = self.script();
        let repeated = script.submits.iter().any(|earlier| earlier.key == request.key);
        let key = request.key.clone();
        script.submits.push(request);
        match script.submit_misses.pop_front() {
            Some(miss) if miss.code() != Code::Ok => Err(miss),
            Some(_) | None => {
                // One job for each key, in the order of the keys' first use.
                let keys = script.submits.iter().map(|one| &one.key);
                let warnings = script.warnings.clone();
                let others: BTreeSet<_> = keys.take_while(|one| **one != key).collect();
                let job = format!("job-{}", 7 + others.len());
                Ok(Response::new(v1::SubmitReply { job, repeated, warnings }))
            }
        }
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsReply>, Status> {
        // One job a page: the client must ask again.
        let after = request.into_inner().after;
        let script = self.script();
        let next = match after.as_str() {
            "" => 0,
            after => script.jobs.iter().position(|job| job.job == after).unwrap() + 1,
        };
        let jobs = script.jobs.iter().skip(next).take(1).cloned().collect();
        Ok(Response::new(v1::ListJobsReply { jobs, more: next + 1 < script.jobs.len() }))
    }

    async fn get_job(
        &self,
        _request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::JobView>, Status> {
        let mut script = self.script();
        let view = match script.views.len() {
            0 => None,
            1 => script.views.front().cloned(),
            _ => script.views.pop_front(),
        };
        drop(script);
        view.map_or_else(|| self.refused(), |view| Ok(Response::new(view)))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainReply>, Status> {
        Ok(Response::new(v1::ExplainReply {
            job: request.into_inner().job,
            reason: "AwaitingNodes".into(),
            lines: vec!["8 GPUs are asked.".into(), "2 are idle.".into()],
            numbers: [("gpus".to_owned(), 8), ("gpus_idle".to_owned(), 2)].into(),
            ..v1::ExplainReply::default()
        }))
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        let job = request.into_inner().job;
        if let Some(answer) = self.script().cancels.pop_front() {
            return answer.map(Response::new);
        }
        if self.script().jobs.iter().any(|known| known.job == job) {
            return Ok(Response::new(v1::CancelReply::default()));
        }
        Err(Status::not_found(format!("there is no {job}")))
    }

    async fn read_log(
        &self,
        request: Request<v1::ReadLogRequest>,
    ) -> Result<Response<v1::ReadLogReply>, Status> {
        let request = request.into_inner();
        let script = self.script();
        let newest = script.logs.iter().map(|(attempt, ..)| *attempt).max().unwrap_or(0);
        let attempt = if request.attempt == 0 { newest } else { request.attempt };
        let wanted = (attempt, request.stream());
        let found = script.logs.iter().find(|(attempt, stream, _)| (*attempt, *stream) == wanted);
        let Some((_, _, log)) = found else {
            return Err(Status::not_found(format!("{}.{attempt} has no such log", request.job)));
        };
        let offset = request.offset.max(log.first);
        let skip = usize::try_from(offset - log.first).unwrap();
        // Two bytes a page: the client must ask again.
        let bytes: Vec<u8> = log.bytes.iter().skip(skip).take(2).copied().collect();
        let length = log.first + u64::try_from(log.bytes.len()).unwrap();
        Ok(Response::new(v1::ReadLogReply { offset, bytes, length, complete: true, attempt }))
    }

    async fn list_nodes(
        &self,
        _request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesReply>, Status> {
        Ok(Response::new(v1::ListNodesReply { nodes: self.script().nodes.clone() }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainReply>, Status> {
        let asked = Asked::Drain(request.into_inner());
        self.answer(asked, |script| script.drained.clone())
    }

    async fn resume(
        &self,
        _request: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeReply>, Status> {
        self.refused()
    }

    async fn declare_node_lost(
        &self,
        _request: Request<v1::DeclareNodeLostRequest>,
    ) -> Result<Response<v1::DeclareNodeLostReply>, Status> {
        let tasks_lost = std::mem::take(&mut self.script().tasks_lost);
        if let Some(miss) = self.script().change_misses.pop_front() {
            return Err(miss);
        }
        Ok(Response::new(v1::DeclareNodeLostReply { tasks_lost }))
    }

    async fn status(
        &self,
        _request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        Ok(Response::new(v1::StatusReply { cluster: "01JQ".into(), ..v1::StatusReply::default() }))
    }

    async fn remove_node(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeReply>, Status> {
        let asked = Asked::Remove(request.into_inner().node);
        self.answer(asked, |_| v1::RemoveNodeReply {})
    }

    async fn dry_run(
        &self,
        request: Request<v1::DryRunRequest>,
    ) -> Result<Response<v1::DryRunReply>, Status> {
        let asked = Asked::DryRun(request.into_inner().spec.unwrap());
        self.answer(asked, |script| v1::DryRunReply {
            runs: script.dry_runs.clone(),
            warnings: script.warnings.clone(),
        })
    }

    async fn change_job(
        &self,
        request: Request<v1::ChangeJobRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        let request = request.into_inner();
        let change = request.change();
        if let Some(miss) = self.script().change_misses.pop_front() {
            return Err(miss);
        }
        self.answer(Asked::Job(request.job, change), |script| v1::ChangeReply {
            replaced: None,
            changed: script.changed,
        })
    }

    async fn list_accounts(
        &self,
        request: Request<v1::ListAccountsRequest>,
    ) -> Result<Response<v1::ListAccountsReply>, Status> {
        let asked = Asked::Accounts(request.into_inner().below);
        self.answer(asked, |script| script.accounts.clone())
    }

    async fn change_account(
        &self,
        request: Request<v1::ChangeAccountRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        let asked = Asked::Account(request.into_inner().change.unwrap());
        let miss = self.script().change_misses.pop_front();
        if let Some(miss) = miss {
            self.script().asked.push(asked);
            return Err(miss);
        }
        self.answer(asked, |script| v1::ChangeReply {
            changed: script.changed,
            replaced: script.replaced.clone(),
        })
    }

    async fn report(
        &self,
        _request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportReply>, Status> {
        self.refused()
    }

    async fn list_checkpoints(
        &self,
        _request: Request<v1::ListCheckpointsRequest>,
    ) -> Result<Response<v1::ListCheckpointsReply>, Status> {
        let known = self.script().checkpoints.clone();
        known.map_or_else(|| self.refused(), |known| Ok(Response::new(known)))
    }

    async fn list_gates(
        &self,
        _request: Request<v1::ListGatesRequest>,
    ) -> Result<Response<v1::ListGatesReply>, Status> {
        self.refused()
    }

    async fn change_gate(
        &self,
        _request: Request<v1::ChangeGateRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        self.refused()
    }

    async fn list_notices(
        &self,
        _request: Request<v1::ListNoticesRequest>,
    ) -> Result<Response<v1::ListNoticesReply>, Status> {
        self.refused()
    }

    async fn get_policy(
        &self,
        _request: Request<v1::GetPolicyRequest>,
    ) -> Result<Response<v1::GetPolicyReply>, Status> {
        let script = self.script();
        Ok(Response::new(v1::GetPolicyReply {
            policy: script.policy.clone(),
            version: script.policy_version,
            set_ms: (script.policy_version > 0).then_some(86_400_000),
            by_uid: Some(4_294_000_000),
            by_configuration: false,
        }))
    }

    async fn set_policy(
        &self,
        request: Request<v1::SetPolicyRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        let v1::SetPolicyRequest { policy, version } = request.into_inner();
        let asked = Asked::Policy(policy.unwrap(), version);
        if let Some(miss) = self.script().change_misses.pop_front() {
            return Err(miss);
        }
        self.answer(asked, |script| v1::ChangeReply {
            changed: script.changed,
            replaced: script.replaced.clone(),
        })
    }
}
