//! Posts notices: reads the journal as it grows, and keeps beside the store how far it is.

use std::sync::Arc;
use std::time::Duration;

use tidegate_model::{ClusterId, DecisionSeq, Timestamp};
use tokio::task::JoinSet;

use super::cursor::{CursorFile, Position};
use super::post::Poster;
use super::queue::{Pace, Post, Posted, Queue};
use super::{Notice, allow};
use crate::journal::redb_store::Reader;
use crate::thread::{Handle, Message};
use crate::view::View;

/// Records come many at a time: one look at the journal for all.
const GATHERED: Duration = Duration::from_millis(100);

/// How soon a position without a post is written: records that hold nothing to post may be read
/// again.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);

/// After the store or the engine did not answer.
const PAUSE: Duration = Duration::from_secs(5);

/// What posts.
#[derive(Debug)]
pub struct Sender {
    engine: Handle,
    reader: Reader,
    cluster: ClusterId,
    poster: Poster,
    file: CursorFile,
    queue: Queue,
    written: Position,
    /// Something was posted or given up since.
    settled: bool,
}

type Settled = (Post, Posted);

impl Sender {
    /// Goes on where the file says that the one before ended; without one what happens from now on is
    /// told.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn start(
        engine: Handle,
        reader: Reader,
        cluster: ClusterId,
        poster: Poster,
        (file, pace): (CursorFile, Pace),
    ) -> std::io::Result<Self> {
        let newest = *engine.durable.borrow();
        let known = file.load()?.filter(|position| position.up_to <= newest.0);
        // A position behind the end is of a store that was put back since.
        let written = known.unwrap_or_else(|| Position::at(newest));
        file.save(&written)?;
        let queue = Queue::from(written.clone(), pace);
        Ok(Self { engine, reader, cluster, poster, file, queue, written, settled: false })
    }

    /// Posts until it is dropped.
    pub async fn run(mut self) {
        let mut durable = self.engine.durable.clone();
        let mut posts: JoinSet<Settled> = JoinSet::new();
        loop {
            let newest = *durable.borrow_and_update();
            if self.queue.has_room() && self.queue.read_up_to() < newest {
                self.read(newest).await;
            }
            self.post(&mut posts);
            self.write(false);
            let has_room = self.queue.has_room();
            let due = self
                .queue
                .next_due()
                .map_or(WRITTEN_WITHIN, |due| due.since(self.engine.now()).into());
            let behind = has_room && self.queue.read_up_to() < newest;
            tokio::select! {
                Some(settled) = posts.join_next() => self.settle(settled),
                changed = durable.changed(), if has_room => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(GATHERED).await;
                }
                () = tokio::time::sleep(if behind { Duration::ZERO } else { due }) => {
                    self.write(true);
                }
            }
        }
    }

    /// Reads some records; what cannot be read now is read later.
    async fn read(&mut self, newest: DecisionSeq) {
        let (reader, after) = (self.reader.clone(), self.queue.read_up_to());
        let page = tokio::task::spawn_blocking(move || super::read(&reader, after)).await;
        let page = match page {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the journal cannot be read for notices");
                return tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                tracing::warn!(%error, "the journal cannot be read for notices");
                return tokio::time::sleep(PAUSE).await;
            }
        };
        if page.gone {
            tracing::warn!(
                after = after.0,
                "records with notices were cut before they were posted"
            );
        }
        let mut notices = Vec::new();
        if !page.facts.is_empty() {
            let Some(view) = self.view().await else { return tokio::time::sleep(PAUSE).await };
            let books = view.core.books();
            notices.extend(page.facts.iter().filter_map(|fact| fact.told(books)));
        }
        // A page without records is the end, also where the store was put back.
        let up_to = if page.up_to == after { newest } else { page.up_to };
        let dropped = self.queue.take(notices, up_to);
        told(&dropped, "too many wait for this address");
    }

    async fn view(&self) -> Option<Arc<View>> {
        let wake = || drop(self.engine.send(Message::ViewWanted));
        self.engine.views.fresh(wake).await.ok()
    }

    fn post(&mut self, posts: &mut JoinSet<Settled>) {
        let (due, old) = self.queue.due(self.engine.now());
        told(&old, "it is no news any more");
        for post in due {
            let poster = self.poster.clone();
            let mut document = post.notice.document(self.cluster);
            if let (Some(fields), true) = (document.as_object_mut(), post.missed > 0) {
                fields.insert("missed".to_owned(), post.missed.into());
            }
            posts.spawn(async move {
                let posted = poster.post(&post.url, document.to_string()).await;
                (post, posted)
            });
        }
    }

    fn settle(&mut self, settled: Result<Settled, tokio::task::JoinError>) {
        let (post, posted) = match settled {
            Ok(settled) => settled,
            // The notice stays under way until a restart; that is a fault of this program.
            Err(error) => return tracing::error!(%error, "a post failed"),
        };
        let (id, place) = (post.notice.fact.id(), allow::shown(&post.url));
        match &posted {
            Posted::Taken => tracing::debug!(id, place, "posted"),
            Posted::Again(why) => tracing::warn!(id, place, why, "not posted; it is tried again"),
            Posted::Refused(why) => tracing::warn!(id, place, why, "not posted, and given up"),
        }
        let now: Timestamp = self.engine.now();
        self.queue.settle(&post, &posted, now);
        self.settled = true;
    }

    /// What was posted is written at once; records that held nothing may wait.
    fn write(&mut self, even_if_nothing: bool) {
        let position = self.queue.position();
        if position == self.written || !(self.settled || even_if_nothing) {
            return;
        }
        match self.file.save(&position) {
            Ok(()) => (self.written, self.settled) = (position, false),
            Err(error) => tracing::warn!(%error, "how far notices are posted cannot be written"),
        }
    }
}

fn told(given_up: &[Notice], why: &str) {
    for notice in given_up {
        let place = notice.url.as_deref().map(allow::shown).unwrap_or_default();
        tracing::warn!(id = notice.fact.id(), place, why, "not posted, and given up");
    }
}
