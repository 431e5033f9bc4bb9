//! What readers see: a copy of the core as of one durable turn. It shares the jobs and nodes with
//! the engine's own, so that a copy is cheap; readers never touch the core itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use scheduler_core::Core;
use tidegate_model::{ClusterId, DecisionSeq, Timestamp};
use tokio::sync::watch;

/// A reader that waits longer than this is told that the coordinator is busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// The core as of one durable turn.
#[derive(Debug, Clone)]
pub struct View {
    /// Books and what was seen.
    pub core: Core,
    /// The store's identity.
    pub cluster: ClusterId,
    /// The newest record it holds.
    pub seq: DecisionSeq,
    /// The engine's time when it was taken.
    pub at: Timestamp,
    /// Why new work is answered "unavailable", if it is.
    pub closed: Option<String>,
}

/// The engine did not publish in time.
#[derive(Debug, thiserror::Error)]
#[error("the coordinator is busy; try again")]
pub struct Busy;

/// Where readers ask and the engine thread answers. A reader marks that it wants a view no older
/// than its question; the engine publishes only if somebody wants one.
#[derive(Debug)]
pub struct Views {
    published: watch::Sender<Option<(u64, Arc<View>)>>,
    wanted: AtomicU64,
}

impl Default for Views {
    fn default() -> Self {
        Self { published: watch::channel(None).0, wanted: AtomicU64::new(0) }
    }
}

impl Views {
    /// A view that holds everything that was durable when this was called. `wake` tells the
    /// engine thread that somebody waits.
    ///
    /// # Errors
    /// [`Busy`] if the engine does not publish one in time.
    pub async fn fresh(&self, wake: impl FnOnce()) -> Result<Arc<View>, Busy> {
        // The count orders this question against the engine's answers: an answer that has seen it
        // was taken after it was asked.
        let asked = self.wanted.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        let mut published = self.published.subscribe();
        wake();
        let answer =
            published.wait_for(|view| view.as_ref().is_some_and(|(seen, _)| *seen >= asked));
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        let view = answer.ok().and_then(Result::ok).and_then(|view| view.clone());
        view.map(|(_, view)| view).ok_or(Busy)
    }

    /// The newest that was published, however old; none before the first.
    #[must_use]
    pub fn latest(&self) -> Option<Arc<View>> {
        self.published.borrow().as_ref().map(|(_, view)| Arc::clone(view))
    }

    /// The newest question that no published view answers, if there is one.
    #[must_use]
    pub fn unanswered(&self) -> Option<u64> {
        let asked = self.wanted.load(Ordering::SeqCst);
        let answered = self.published.borrow().as_ref().map_or(0, |(seen, _)| *seen);
        (asked > answered).then_some(asked)
    }

    /// Answers every question up to `asked`.
    pub fn publish(&self, asked: u64, view: View) {
        self.published.send_replace(Some((asked, Arc::new(view))));
    }
}
