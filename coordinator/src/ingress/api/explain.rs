//! Why a job is where it is, and why it was where it was.

use std::sync::Arc;

use scheduler_core::{Books, Explanation};
use tidegate_model::{JobId, Timestamp};
use tidegate_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::Status;

use super::{Api, find, job_id};
use crate::ingress::messages;
use crate::journal::redb_store::Reader;
use crate::past::{self, PastError};
use tidegate_model::rfc3339_ms;

/// Looks into the past at a time: each holds a copy of the books, reads all that is kept of the log
/// and keeps what is cut of it meanwhile.
const MAX_ASKERS: usize = 1;

/// The store, for what was.
#[derive(Debug, Clone)]
pub struct Past {
    reader: Reader,
    /// Orders nothing: bounds how many read at a time.
    places: Arc<Semaphore>,
}

impl Past {
    /// Of the store that `reader` reads.
    #[must_use]
    pub fn new(reader: Reader) -> Self {
        Self { reader, places: Arc::new(Semaphore::new(MAX_ASKERS)) }
    }

    /// A place among those who read, given back when it is dropped.
    fn place(&self) -> Result<OwnedSemaphorePermit, Status> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_taken| {
            Status::unavailable(
                "another look into the past is under way, and there is one at a time",
            )
        })
    }
}

impl Api {
    pub(super) async fn explained(
        &self,
        ask: v1::ExplainRequest,
    ) -> Result<v1::ExplainReply, Status> {
        let id = job_id(&ask.job)?;
        if let Some(at) = ask.at_ms.map(Timestamp) {
            return self.explained_at(id, at).await;
        }
        let view = self.view().await?;
        find(&view, id)?;
        let explained = view.core.explain(view.at, id);
        let explained = explained.ok_or_else(|| Status::internal("a known job has a reason"))?;
        Ok(told(view.core.books(), id, explained))
    }

    /// Everybody may ask why a job is where it is, and so everybody may of what was.
    async fn explained_at(&self, id: JobId, at: Timestamp) -> Result<v1::ExplainReply, Status> {
        let now = self.engine.now();
        if at > now {
            let (at, now) = (rfc3339_ms(at), rfc3339_ms(now));
            let words = format!("{at} is to come; an instant up to now, {now}, is accepted");
            return Err(Status::out_of_range(words));
        }
        let place = self.past.place()?;
        let (reader, (reply, answer)) = (self.past.reader.clone(), oneshot::channel());
        tokio::task::spawn_blocking(move || {
            let answered = explained_by(&reader, id, at, &|| !reply.is_closed());
            // Before the answer: whoever has it may ask again at once.
            drop(place);
            // Whoever asked may have gone.
            drop(reply.send(answered));
        });
        answer.await.map_err(|_panic| Status::internal("the look into the past failed"))?
    }
}

fn explained_by(
    reader: &Reader,
    id: JobId,
    at: Timestamp,
    wanted: &dyn Fn() -> bool,
) -> Result<v1::ExplainReply, Status> {
    let read = reader.reading().map_err(PastError::from);
    let past = read.and_then(|reading| past::as_of(&reading, at, id, wanted));
    let past = past.map_err(|error| match &error {
        PastError::TooEarly { .. } => Status::out_of_range(error.to_string()),
        PastError::Abandoned => Status::cancelled(error.to_string()),
        PastError::Journal(_) => Status::internal(error.to_string()),
    })?;
    let Some(explained) = past.core.explain(at, id) else {
        let when = rfc3339_ms(at);
        let words = if id.0 > past.core.books().last_job {
            format!("{id} was not submitted yet at {when}")
        } else {
            format!("{id} had ended long before {when}, and was forgotten")
        };
        return Err(Status::not_found(words));
    };
    let decided = past.decided.into_iter().map(|one| v1::PastDecision {
        record: one.stamp.seq.0,
        at_ms: one.stamp.at.0,
        told: one.told,
    });
    Ok(v1::ExplainReply {
        at_ms: Some(at.0),
        assumed: past.assumed,
        decided: decided.collect(),
        since_ms: past.since.0,
        ..told(past.core.books(), id, explained)
    })
}

/// The reason, and what rehearsals have shown of a job that is to save when it is asked.
fn told(books: &Books, id: JobId, explained: Explanation) -> v1::ExplainReply {
    let mut reply = v1::ExplainReply {
        job: id.to_string(),
        reason: messages::reason(explained.reason).to_owned(),
        numbers: messages::numbers(&explained),
        lines: explained.lines,
        ..v1::ExplainReply::default()
    };
    let rehearsed = books.jobs.get(&id).and_then(|job| messages::rehearsals::explained(books, job));
    if let Some((lines, numbers)) = rehearsed {
        reply.lines.extend(lines);
        reply.numbers.extend(numbers);
    }
    reply
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;
    use tidegate_model::ClusterId;

    use super::*;
    use crate::journal::redb_store::RedbJournal;

    #[test]
    fn a_second_look_into_the_past_is_refused_until_the_first_is_over() {
        let journal = RedbJournal::on_backend(InMemoryBackend::new(), ClusterId(7)).unwrap();
        let past = Past::new(journal.reader());
        let first = past.place().unwrap();
        let refused = past.place().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!(refused.message().contains("one at a time"), "{refused}");
        drop(first);
        assert!(past.place().is_ok());
    }
}
