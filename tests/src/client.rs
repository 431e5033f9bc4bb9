//! A client of a cluster's API, for tests.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use tidegate_model::{JobId, JobSpec};
use tidegate_proto::v1::tidegate_client::TidegateClient;
use tidegate_proto::{MAX_MESSAGE_BYTES, v1};
use tonic::transport::{Channel, Endpoint};

use crate::wait::until;

/// A connection to one coordinator; it reconnects by itself.
#[derive(Debug, Clone)]
pub struct Client {
    api: TidegateClient<Channel>,
}

impl Client {
    /// A client of the coordinator that serves, or will serve, the socket.
    ///
    /// # Errors
    /// If the path is no socket path.
    pub fn new(socket: &Path) -> anyhow::Result<Self> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let api = TidegateClient::new(endpoint.connect_lazy());
        Ok(Self { api: api.max_decoding_message_size(MAX_MESSAGE_BYTES) })
    }

    /// The generated client, for what has no method here.
    #[must_use]
    pub fn api(&self) -> TidegateClient<Channel> {
        self.api.clone()
    }

    /// Submits with a new key; repeats the same key while the coordinator is away.
    ///
    /// # Errors
    /// If it was refused, or is not answered for 30 s.
    pub async fn submit(&self, spec: &JobSpec) -> anyhow::Result<JobId> {
        let key = ulid::Ulid::generate().to_string();
        Ok(self.submit_as(&key, spec).await?.0)
    }

    /// The same with a key of one's own. Tells too whether the key had been answered before.
    ///
    /// # Errors
    /// If it was refused, or is not answered for 30 s.
    pub async fn submit_as(&self, key: &str, spec: &JobSpec) -> anyhow::Result<(JobId, bool)> {
        let request = v1::SubmitRequest { key: key.to_owned(), spec: Some(spec.clone().into()) };
        let submitted =
            until(Duration::from_secs(30), "an answer to a submit", async || {
                match self.api().submit(request.clone()).await {
                    Ok(reply) => Ok(Ok(reply.into_inner())),
                    Err(status) if is_away(&status) => Err(status.message().to_owned()),
                    Err(status) => Ok(Err(status)),
                }
            });
        let reply = submitted.await?.map_err(|status| anyhow::anyhow!("{}", status.message()))?;
        Ok((reply.job.parse()?, reply.repeated))
    }

    /// Gives a storage target's write gate a rule.
    ///
    /// # Errors
    /// If it was refused, or the coordinator is away.
    pub async fn set_gate(&self, storage: &str, rule: v1::GateRule) -> Result<(), tonic::Status> {
        let change = Some(v1::change_gate_request::Change::Set(rule));
        let request = v1::ChangeGateRequest { storage: storage.to_owned(), change };
        self.api().change_gate(request).await.map(|_| ())
    }

    /// The job as it stands.
    ///
    /// # Errors
    /// If the coordinator is away or does not know it.
    pub async fn job(&self, job: JobId) -> Result<v1::JobView, tonic::Status> {
        let request = v1::GetJobRequest { job: job.to_string() };
        Ok(self.api().get_job(request).await?.into_inner())
    }

    /// All jobs, ended ones too.
    ///
    /// # Errors
    /// If the coordinator is away.
    pub async fn jobs(&self) -> Result<Vec<v1::JobView>, tonic::Status> {
        let mut jobs: Vec<v1::JobView> = Vec::new();
        loop {
            let after = jobs.last().map(|job| job.job.clone()).unwrap_or_default();
            let request = v1::ListJobsRequest { ended: true, uid: None, after, limit: 0 };
            let reply = self.api().list_jobs(request).await?.into_inner();
            jobs.extend(reply.jobs);
            if !reply.more {
                return Ok(jobs);
            }
        }
    }

    /// All nodes.
    ///
    /// # Errors
    /// If the coordinator is away.
    pub async fn nodes(&self) -> Result<Vec<v1::NodeView>, tonic::Status> {
        Ok(self.api().list_nodes(v1::ListNodesRequest {}).await?.into_inner().nodes)
    }

    /// Waits until the job satisfies `holds`, through absences of the coordinator.
    ///
    /// # Errors
    /// If it does not in time.
    pub async fn job_until(
        &self,
        job: JobId,
        within: Duration,
        what: &str,
        holds: impl Fn(&v1::JobView) -> bool,
    ) -> anyhow::Result<v1::JobView> {
        let what = format!("{job}: {what}");
        until(within, &what, async || match self.job(job).await {
            Ok(view) if holds(&view) => Ok(view),
            Ok(view) => Err(format!("{:?}: {}", view.state(), view.reason)),
            Err(status) => Err(status.to_string()),
        })
        .await
    }

    /// Waits until the job has ended.
    ///
    /// # Errors
    /// If it does not in time.
    pub async fn job_ended(&self, job: JobId, within: Duration) -> anyhow::Result<v1::JobView> {
        self.job_until(job, within, "ended", |view| view.ended_ms.is_some()).await
    }

    /// Reads the whole standard output of a task.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn output(&self, job: JobId, attempt: u32, task: u32) -> anyhow::Result<String> {
        let stream = v1::LogStream::Stdout.into();
        let job = job.to_string();
        let mut request =
            v1::ReadLogRequest { job, attempt, task, stream, offset: 0, limit: 1 << 20 };
        let mut bytes = Vec::new();
        loop {
            let reply = self.api().read_log(request.clone()).await.context("the log")?.into_inner();
            request.offset = reply.offset.saturating_add(u64::try_from(reply.bytes.len())?);
            bytes.extend(reply.bytes);
            if request.offset >= reply.length {
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }
}

/// Whether the coordinator may answer if asked again.
fn is_away(status: &tonic::Status) -> bool {
    matches!(
        status.code(),
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled
    )
}
