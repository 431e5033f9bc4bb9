//! Notices: which addresses a job may name, and those of whoever asks.

use std::sync::Arc;
use std::time::Duration;

use tidegate_model::{DecisionSeq, JobSpec, UserId};
use tidegate_proto::v1;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use super::Api;
use crate::ingress::status;
use crate::journal::redb_store::Reader;
use crate::notices::allow::AllowList;
use crate::notices::{Page, read};

/// Longest wait for a notice: shorter than what a client waits for any answer.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Askers that read the journal at a time; the others wait for their turn.
const MAX_ASKERS: usize = 4;

/// Records come many at a time: one look at the journal for all.
const GATHERED: Duration = Duration::from_millis(100);

/// What the API needs for notices.
#[derive(Debug, Clone)]
pub struct Notices {
    reader: Reader,
    allow: AllowList,
    /// Orders nothing: bounds how many read at a time.
    places: Arc<Semaphore>,
}

impl Notices {
    /// Of the store that `reader` reads; jobs may name what `allow` allows.
    #[must_use]
    pub fn new(reader: Reader, allow: AllowList) -> Self {
        Self { reader, allow, places: Arc::new(Semaphore::new(MAX_ASKERS)) }
    }

    /// Whether the job's notices may go where it says.
    pub(super) fn check(&self, spec: &JobSpec) -> Result<(), Status> {
        let Some(url) = &spec.notify_url else { return Ok(()) };
        let checked = self.allow.check(url);
        checked.map_err(|why| Status::invalid_argument(status::cut(format!("notify_url: {why}"))))
    }

    async fn read(&self, after: DecisionSeq) -> Result<Page, Status> {
        let closed = |_closed| Status::unavailable("the coordinator is stopping; try again");
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(closed)?;
        let reader = self.reader.clone();
        let page = tokio::task::spawn_blocking(move || {
            let _place = place;
            read(&reader, after)
        });
        let page = page.await.map_err(|_panic| Status::internal("the journal was not read"))?;
        page.map_err(|error| Status::internal(format!("the journal cannot be read: {error}")))
    }
}

impl Api {
    pub(super) async fn notices_of(
        &self,
        uid: UserId,
        ask: v1::ListNoticesRequest,
    ) -> Result<v1::ListNoticesReply, Status> {
        let mut durable = self.engine.durable.clone();
        let cluster = self.view().await?.cluster;
        let newest = *durable.borrow_and_update();
        let after = ask.after_record.map_or(newest, DecisionSeq);
        let mut reply = v1::ListNoticesReply {
            up_to_record: after.0,
            cluster: cluster.to_string(),
            ..v1::ListNoticesReply::default()
        };
        if ask.after_record.is_none() {
            return Ok(reply);
        }
        let wait = Duration::from_millis(ask.wait_ms.into()).min(MAX_WAIT);
        let until = Instant::now().checked_add(wait).unwrap_or_else(Instant::now);
        loop {
            let after = DecisionSeq(reply.up_to_record);
            let page = self.notices.read(after).await?;
            (reply.up_to_record, reply.gone) = (page.up_to.0, reply.gone || page.gone);
            if !page.facts.is_empty() {
                let view = self.view().await?;
                let books = view.core.books();
                let told = page.facts.iter().filter_map(|fact| fact.told(books));
                reply.notices.extend(told.filter(|told| told.user == uid).map(|told| {
                    v1::NoticeView {
                        record: told.fact.stamp.seq.0,
                        at_ms: told.fact.stamp.at.0,
                        document: told.document(cluster).to_string(),
                        text: told.text,
                    }
                }));
            }
            let read_all = page.up_to >= *durable.borrow() || page.up_to == after;
            if !reply.notices.is_empty() || read_all && !more(&mut durable, until).await {
                return Ok(reply);
            }
        }
    }
}

/// Waits for another record.
async fn more(durable: &mut watch::Receiver<DecisionSeq>, until: Instant) -> bool {
    let changed = timeout_at(until, durable.changed()).await;
    let came = changed.is_ok_and(|changed| changed.is_ok());
    if came {
        tokio::time::sleep(GATHERED).await;
    }
    came
}
