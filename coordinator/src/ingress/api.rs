//! The API that the command line and other clients speak.

mod accounts;
mod explain;
mod gates;
mod notices;
mod policy;
mod warnings;

use std::ops::Bound;
use std::sync::Arc;

use scheduler_core::{Event, Job, JobState, Task};
use tidegate_model::{AttemptId, JobId, JobSpec, NodeName, TaskId, Timestamp, UserId};
use tidegate_proto::{MAX_LOG_READ, optional, parsed, required, v1};
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status, Streaming};

use super::link::{Links, LogError, log_ask};
use super::{messages, requests, status, terminal};
use crate::engine::Answer;
use crate::report::MAX_WEEKS;
use crate::thread::{Handle, Message};
use crate::view::View;

pub use self::explain::Past;
pub use self::notices::Notices;

/// Most jobs in one page of a list.
const MAX_PAGE: usize = 10_000;

/// Most bytes of one page: what the largest message holds, with room for the last job.
const MAX_PAGE_BYTES: usize = 3 << 20;

/// Pending jobs whose reason a list works out; those behind them only await their turn.
const REASONS_IN_LIST: usize = 50;

/// The service.
#[derive(Debug, Clone)]
pub struct Api {
    /// The engine.
    pub engine: Handle,
    /// The agents that are connected.
    pub links: Arc<Links>,
    /// The store, for what was.
    pub past: Past,
    /// Where notices may go, and where they are read.
    pub notices: Notices,
}

/// Who asks: what the kernel says of the other end of the socket.
pub(super) fn caller<T>(request: &Request<T>) -> Result<UserId, Status> {
    let info = request.extensions().get::<UdsConnectInfo>();
    let cred = info.and_then(|info| info.peer_cred);
    cred.map(|cred| UserId(cred.uid()))
        .ok_or_else(|| Status::unauthenticated("the socket does not say who you are"))
}

pub(super) fn job_id(text: &str) -> Result<JobId, Status> {
    parsed(text, "job").map_err(|error| status::malformed(&error))
}

fn new_job(spec: v1::JobSpec) -> Result<JobSpec, Status> {
    let spec: Result<JobSpec, _> = spec.try_into();
    let spec = spec.and_then(|spec| Ok(spec.fit_to_submit()?));
    spec.map_err(|error| status::malformed(&error))
}

fn node_name(text: &str) -> Result<NodeName, Status> {
    parsed(text, "node").map_err(|error| status::malformed(&error))
}

impl Api {
    pub(super) async fn view(&self) -> Result<Arc<View>, Status> {
        // A full channel wakes the engine as well as a message would.
        let wake = || drop(self.engine.send(Message::ViewWanted));
        self.engine.views.fresh(wake).await.map_err(|error| status::busy(&error))
    }

    async fn change(&self, event: Event) -> Result<Response<v1::ChangeReply>, Status> {
        let answer = status::ask(&self.engine, event).await?;
        let changed = answer == Answer::Changed;
        Ok(Response::new(v1::ChangeReply { changed, ..v1::ChangeReply::default() }))
    }

    async fn log_of(&self, uid: UserId, ask: v1::ReadLogRequest) -> Result<LogPlace, Status> {
        let view = self.view().await?;
        let job = find(&view, job_id(&ask.job)?)?;
        if job.user != uid && !view.core.books().policy.is_admin(uid) {
            let words = format!("{} belongs to another user; its owner may read its logs", job.id);
            return Err(Status::permission_denied(words));
        }
        let newest = u32::try_from(job.attempts.len()).unwrap_or(u32::MAX);
        let number = if ask.attempt == 0 { newest } else { ask.attempt };
        let Some(attempt) = job.attempt(number) else {
            let words = match newest {
                0 => format!("{} has not started yet; it has no logs", job.id),
                _ => format!("{} has attempts 1 to {newest}", job.id),
            };
            return Err(Status::not_found(words));
        };
        let id = TaskId { attempt: AttemptId { job: job.id, number }, index: ask.task };
        let Some(task) = view.core.books().task(id) else {
            let last = attempt.tasks.len().saturating_sub(1);
            return Err(Status::not_found(format!("{} has tasks 0 to {last}", attempt.id)));
        };
        let node = node_of(&view, task, id, "its logs were there")?;
        Ok(LogPlace { id, node, started: task.started, complete: task.exit.is_some() })
    }
}

/// Where a log is, and whether more of it may come.
struct LogPlace {
    id: TaskId,
    node: NodeName,
    started: bool,
    complete: bool,
}

/// The node of a task. What was kept there has gone with a node that was removed.
pub(super) fn node_of(
    view: &View,
    task: &Task,
    id: TaskId,
    what: &str,
) -> Result<NodeName, Status> {
    let (books, node) = (view.core.books(), task.place.node);
    let known = books.nodes.get(&node).map(|node| node.name.clone());
    known.ok_or_else(|| {
        let name = books.node_name(node);
        let name = name.map_or_else(|| "the node".to_owned(), ToString::to_string);
        Status::not_found(format!("{name}, on which {id} ran, has been removed; {what}"))
    })
}

pub(super) fn find(view: &View, id: JobId) -> Result<&Job, Status> {
    let job = view.core.books().jobs.get(&id).map(Arc::as_ref);
    job.ok_or_else(|| {
        Status::not_found(format!("{id} is not known here; `tidegate jobs --all` lists what is"))
    })
}

#[tonic::async_trait]
impl v1::tidegate_server::Tidegate for Api {
    type AttachStream = terminal::Replies;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        terminal::attach(self, request).await
    }

    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitReply>, Status> {
        let user = caller(&request)?;
        let v1::SubmitRequest { key, spec } = request.into_inner();
        let malformed = |error| status::malformed(&error);
        let key = parsed(&key, "SubmitRequest.key").map_err(malformed)?;
        let spec = required(spec, "SubmitRequest.spec").map_err(malformed)?;
        let spec: Box<JobSpec> = Box::new(new_job(spec)?);
        self.notices.check(&spec)?;
        let warnings = self.warnings(user, &spec).await;
        match status::ask(&self.engine, Event::JobSubmitted { key, user, spec }).await? {
            Answer::Submitted { job, repeated } => {
                Ok(Response::new(v1::SubmitReply { job: job.to_string(), repeated, warnings }))
            }
            Answer::Changed | Answer::AsItWas | Answer::Refused(_) => {
                Err(Status::internal("a submit was answered with no job"))
            }
        }
    }

    async fn list_jobs(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsReply>, Status> {
        let ask = request.into_inner();
        let view = self.view().await?;
        let from = match ask.after.as_str() {
            "" => Bound::Unbounded,
            after => Bound::Excluded(job_id(after)?),
        };
        let asked = usize::try_from(ask.limit).unwrap_or(MAX_PAGE);
        let limit = if asked == 0 { MAX_PAGE } else { asked.min(MAX_PAGE) };
        let wanted = |job: &&Arc<Job>| {
            let ended = matches!(job.state, JobState::Ended { .. });
            (ask.ended || !ended) && ask.uid.is_none_or(|uid| job.user == UserId(uid))
        };
        let books = view.core.books();
        let mut jobs =
            books.jobs.range((from, Bound::Unbounded)).map(|(_, job)| job).filter(wanted);
        let mut reply = v1::ListJobsReply::default();
        let (mut bytes, mut reasons) = (0_usize, 0_usize);
        for job in jobs.by_ref() {
            let mut message = messages::job(&view, job);
            let pending = matches!(job.state, JobState::Pending { .. });
            reasons = reasons.saturating_add(usize::from(pending));
            message.reason = if pending && reasons > REASONS_IN_LIST {
                "AwaitingTurn: earlier jobs are placed first".to_owned()
            } else {
                view.core
                    .explain(view.at, job.id)
                    .map(|e| messages::reason_line(&e))
                    .unwrap_or_default()
            };
            bytes = bytes.saturating_add(prost::Message::encoded_len(&message));
            reply.jobs.push(message);
            if reply.jobs.len() >= limit || bytes >= MAX_PAGE_BYTES {
                break;
            }
        }
        reply.more = jobs.next().is_some();
        Ok(Response::new(reply))
    }

    async fn get_job(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::JobView>, Status> {
        let id = job_id(&request.into_inner().job)?;
        let view = self.view().await?;
        let mut message = messages::job(&view, find(&view, id)?);
        let explained = view.core.explain(view.at, id);
        message.reason = explained.map(|e| messages::reason_line(&e)).unwrap_or_default();
        Ok(Response::new(message))
    }

    async fn explain(
        &self,
        request: Request<v1::ExplainRequest>,
    ) -> Result<Response<v1::ExplainReply>, Status> {
        self.explained(request.into_inner()).await.map(Response::new)
    }

    async fn cancel(
        &self,
        request: Request<v1::CancelRequest>,
    ) -> Result<Response<v1::CancelReply>, Status> {
        let by = caller(&request)?;
        let job = job_id(&request.into_inner().job)?;
        let answer = status::ask(&self.engine, Event::CancelRequested { job, by }).await?;
        let view = self.view().await?;
        Ok(Response::new(messages::cancelled(find(&view, job)?, answer == Answer::Changed)))
    }

    async fn read_log(
        &self,
        request: Request<v1::ReadLogRequest>,
    ) -> Result<Response<v1::ReadLogReply>, Status> {
        let uid = caller(&request)?;
        let ask = request.into_inner();
        let place = self.log_of(uid, ask.clone()).await?;
        let attempt = place.id.attempt.number;
        if !place.started && !place.complete {
            return Ok(Response::new(v1::ReadLogReply { attempt, ..Default::default() }));
        }
        let limit = ask.limit.clamp(1, MAX_LOG_READ);
        let read = log_ask(place.id, ask.stream, ask.offset, limit);
        let chunk = self.links.read_log(&place.node, read).await.map_err(|error| match error {
            LogError::Away(_) => Status::unavailable(error.to_string()),
            LogError::Unreadable(words) => Status::not_found(status::cut(words)),
        })?;
        let v1::LogChunk { offset, bytes, length, .. } = chunk;
        let complete = place.complete;
        Ok(Response::new(v1::ReadLogReply { offset, bytes, length, complete, attempt }))
    }

    async fn list_nodes(
        &self,
        _request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesReply>, Status> {
        let view = self.view().await?;
        let nodes = view.core.books().nodes.values();
        let nodes = nodes.map(|node| messages::nodes::node(&view, node)).collect();
        Ok(Response::new(v1::ListNodesReply { nodes }))
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainReply>, Status> {
        let by = caller(&request)?;
        let v1::DrainRequest { node, reason, wanted_by_ms } = request.into_inner();
        let (node, wanted_by) = (node_name(&node)?, wanted_by_ms.map(Timestamp));
        let event = Event::DrainRequested { node: node.clone(), by, reason, wanted_by };
        status::ask(&self.engine, event).await?;
        Ok(Response::new(messages::nodes::drain(&*self.view().await?, &node, wanted_by)))
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeReply>, Status> {
        let by = caller(&request)?;
        let node = node_name(&request.into_inner().node)?;
        status::ask(&self.engine, Event::ResumeRequested { node, by }).await?;
        Ok(Response::new(v1::ResumeReply {}))
    }

    async fn declare_node_lost(
        &self,
        request: Request<v1::DeclareNodeLostRequest>,
    ) -> Result<Response<v1::DeclareNodeLostReply>, Status> {
        let by = caller(&request)?;
        let node = node_name(&request.into_inner().node)?;
        let tasks_lost = tasks_on(&*self.view().await?, &node);
        status::ask(&self.engine, Event::NodeDeclaredLost { node, by }).await?;
        Ok(Response::new(v1::DeclareNodeLostReply { tasks_lost }))
    }

    async fn status(
        &self,
        _request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusReply>, Status> {
        Ok(Response::new(messages::status(&*self.view().await?)))
    }

    async fn remove_node(
        &self,
        request: Request<v1::RemoveNodeRequest>,
    ) -> Result<Response<v1::RemoveNodeReply>, Status> {
        let by = caller(&request)?;
        let node = node_name(&request.into_inner().node)?;
        status::ask(&self.engine, Event::NodeRemovalRequested { node, by }).await?;
        Ok(Response::new(v1::RemoveNodeReply {}))
    }

    async fn dry_run(
        &self,
        request: Request<v1::DryRunRequest>,
    ) -> Result<Response<v1::DryRunReply>, Status> {
        let user = caller(&request)?;
        let spec = required(request.into_inner().spec, "DryRunRequest.spec");
        let spec = new_job(spec.map_err(|error| status::malformed(&error))?)?;
        self.notices.check(&spec)?;
        let view = self.view().await?;
        // It works on copies of the core: long enough to keep other requests waiting.
        let runs = tokio::task::spawn_blocking(move || {
            let warnings = warnings::of(view.core.books(), user, &spec);
            view.core.dry_run(view.at, user, &spec).map(|runs| (runs, warnings))
        });
        let runs = runs.await.map_err(|_panic| Status::internal("the dry run failed"))?;
        let (runs, warnings) = runs.map_err(|refusal| status::refused(&refusal))?;
        let runs = runs.iter().map(messages::dry_run).collect();
        Ok(Response::new(v1::DryRunReply { runs, warnings }))
    }

    async fn change_job(
        &self,
        request: Request<v1::ChangeJobRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        let by = caller(&request)?;
        let v1::ChangeJobRequest { job, change } = request.into_inner();
        let job = job_id(&job)?;
        let request = requests::job(change).map_err(|error| status::malformed(&error))?;
        self.change(Event::JobRequested { job, by, request }).await
    }

    async fn list_accounts(
        &self,
        request: Request<v1::ListAccountsRequest>,
    ) -> Result<Response<v1::ListAccountsReply>, Status> {
        self.accounts_page(&request.into_inner()).await.map(Response::new)
    }

    async fn change_account(
        &self,
        request: Request<v1::ChangeAccountRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        let by = caller(&request)?;
        self.account_changed(by, request.into_inner()).await.map(Response::new)
    }

    async fn get_policy(
        &self,
        _request: Request<v1::GetPolicyRequest>,
    ) -> Result<Response<v1::GetPolicyReply>, Status> {
        Ok(Response::new(policy::in_force(self.view().await?.core.books())))
    }

    async fn set_policy(
        &self,
        request: Request<v1::SetPolicyRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        let by = caller(&request)?;
        self.policy_set(by, request.into_inner()).await.map(Response::new)
    }

    async fn list_gates(
        &self,
        request: Request<v1::ListGatesRequest>,
    ) -> Result<Response<v1::ListGatesReply>, Status> {
        self.gates(request.into_inner()).await.map(Response::new)
    }

    async fn change_gate(
        &self,
        request: Request<v1::ChangeGateRequest>,
    ) -> Result<Response<v1::ChangeReply>, Status> {
        let by = caller(&request)?;
        self.changed_gate(by, request.into_inner()).await.map(Response::new)
    }

    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Result<Response<v1::ListCheckpointsReply>, Status> {
        let id = job_id(&request.into_inner().job)?;
        let view = self.view().await?;
        Ok(Response::new(messages::checkpoints::of(&view, find(&view, id)?)))
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportReply>, Status> {
        let v1::ReportRequest { weeks, below } = request.into_inner();
        if weeks > MAX_WEEKS {
            let words = format!("weeks: {weeks} asked; 1 to {MAX_WEEKS} is accepted");
            return Err(Status::invalid_argument(words));
        }
        let below = optional(&below, "ReportRequest.below");
        let below = below.map_err(|error| status::malformed(&error))?;
        let view = self.view().await?;
        // It looks at every attempt that is kept: long enough to keep other requests waiting.
        let reply =
            tokio::task::spawn_blocking(move || messages::report::report(&view, weeks, below));
        let reply = reply.await.map_err(|_panic| Status::internal("the report failed"))?;
        Ok(Response::new(reply.map_err(|refusal| status::refused(&refusal))?))
    }

    async fn list_notices(
        &self,
        request: Request<v1::ListNoticesRequest>,
    ) -> Result<Response<v1::ListNoticesReply>, Status> {
        let uid = caller(&request)?;
        self.notices_of(uid, request.into_inner()).await.map(Response::new)
    }
}

fn tasks_on(view: &View, node: &NodeName) -> u32 {
    let tasks = view.core.books().node_named(node).map_or(0, |node| node.tasks.len());
    u32::try_from(tasks).unwrap_or(u32::MAX)
}
