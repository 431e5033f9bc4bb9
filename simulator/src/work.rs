//! What a job's processes do once they run.

use tidegate_model::{AttemptId, Bytes, Span, Timestamp};

/// How a job answers a request to save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnSave {
    /// It commits after its save time and exits with 85.
    Commit,
    /// It commits after its save time, and trains on.
    Stay,
    /// It goes on as if nobody had asked.
    Ignore,
    /// It exits with 0 after its save time, and commits nothing.
    Leave,
}

/// What a job asks a permit for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// It writes when it likes.
    Nothing,
    /// It asks before it writes, and keeps to its permit.
    Writes,
    /// It asks before it reads its checkpoint back, too.
    Restores,
    /// Permitted to write for itself it trains on, writes nothing, and does not say so.
    ForNothing,
}

/// A job's behaviour, and how far it has come.
#[derive(Debug, Clone)]
pub struct Work {
    /// How long it trains in all; none = for ever.
    pub run: Option<Span>,
    /// From the order to run to its processes running.
    pub start: Span,
    /// From the request to save to its exit.
    pub save: Span,
    /// From the order to stop to its exit, if its grace lasts as long.
    pub stop: Span,
    /// How often it commits unasked.
    pub commit_every: Option<Span>,
    /// How it answers a request to save.
    pub on_save: OnSave,
    /// What it asks for.
    pub asks: Asks,
    /// From when it is told to save until it asks: what is left of its step.
    pub asks_after: Span,
    /// Whether each attempt begins again, whatever was committed.
    pub forgets: bool,
    /// Of one checkpoint.
    pub bytes: Bytes,
    /// Work that is safe: what it had done at its last commit.
    pub(crate) safe: Span,
    /// The step of its last commit.
    pub(crate) step: u64,
    /// What it had done when it was asked to save.
    pub(crate) saving: Span,
    /// The attempt that trains, and since when.
    pub(crate) training: Option<(AttemptId, Timestamp)>,
}

impl Work {
    /// A job that trains for `run`, starts and stops at once, and saves within `save`.
    #[must_use]
    pub fn lasting(run: Option<Span>, save: Span) -> Self {
        Self {
            run,
            start: Span::ZERO,
            save,
            stop: Span::ZERO,
            commit_every: None,
            on_save: OnSave::Commit,
            asks: Asks::Nothing,
            asks_after: Span::ZERO,
            forgets: false,
            bytes: Bytes(1 << 30),
            safe: Span::ZERO,
            step: 0,
            saving: Span::ZERO,
            training: None,
        }
    }

    /// Whether there is one that it could go on from.
    pub(crate) fn has_checkpoint(&self) -> bool {
        self.step > 0 && !self.forgets
    }

    /// Work done by `now`, if it trains.
    pub(crate) fn done(&self, now: Timestamp) -> Span {
        let since = self.training.map_or(Span::ZERO, |(_, since)| now.since(since));
        Span(self.safe.0.saturating_add(since.0))
    }

    /// Work done by `now` and not more than there is.
    pub(crate) fn kept(&self, now: Timestamp) -> Span {
        let done = self.done(now);
        self.run.map_or(done, |run| done.min(run))
    }

    /// It begins to train, from its last commit on; when it will be done.
    pub(crate) fn begin(&mut self, attempt: AttemptId, now: Timestamp) -> Option<Timestamp> {
        if self.forgets {
            (self.safe, self.step) = (Span::ZERO, 0);
        }
        self.training = Some((attempt, now));
        self.run.map(|run| now.plus(Span(run.0.saturating_sub(self.safe.0))))
    }

    /// What it has done by now is safe; the step of that commit.
    pub(crate) fn commit(&mut self, now: Timestamp) -> u64 {
        self.safe = self.done(now);
        self.training = self.training.map(|(attempt, _)| (attempt, now));
        self.next_step()
    }

    /// A step takes a second; no two commits of one job are of the same.
    fn next_step(&mut self) -> u64 {
        self.step = self.step.saturating_add(1).max(self.safe.0 / 1000);
        self.step
    }

    /// It trains no more, and saves.
    pub(crate) fn pause(&mut self, now: Timestamp) {
        self.saving = self.done(now);
        self.training = None;
    }

    /// What it saves is safe; the step of that commit.
    pub(crate) fn saved(&mut self) -> u64 {
        self.safe = self.saving;
        self.next_step()
    }

    /// Whether all its work is done.
    pub(crate) fn is_done(&self, now: Timestamp) -> bool {
        self.run.is_some_and(|run| self.done(now) >= run)
    }

    /// Whether that attempt trains.
    pub(crate) fn trains(&self, attempt: AttemptId) -> bool {
        self.training.is_some_and(|(training, _)| training == attempt)
    }
}
