//! What a person is told while a command waits: nothing for two seconds, then one line. On a
//! terminal it is a spinner that goes away; elsewhere it is a line that stays, told once.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use indicatif::ProgressBar;
use tokio::time::{Instant, sleep_until};

use crate::show::out::remark;
use crate::show::text::plain;

/// Waits shorter than this need no word.
const SILENCE: Duration = Duration::from_secs(2);

const TICK: Duration = Duration::from_millis(100);

/// The one line that stands for a wait.
#[derive(Debug)]
pub(crate) struct Progress {
    since: Instant,
    text: String,
    shown: Shown,
}

#[derive(Debug)]
enum Shown {
    No,
    Spinning(ProgressBar),
    Told,
}

impl Progress {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { since: Instant::now(), text: text.into(), shown: Shown::No }
    }

    /// What the wait is for from now on.
    pub(crate) fn set(&mut self, text: String) {
        if let Shown::Spinning(bar) = &self.shown {
            bar.set_message(plain(&text));
        }
        self.text = text;
    }

    /// Awaits something, and shows the line once the whole wait is long.
    pub(crate) async fn during<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        if matches!(self.shown, Shown::No) {
            tokio::select! {
                biased;
                done = &mut wait => return done,
                () = sleep_until(self.since + SILENCE) => self.show(),
            }
        }
        wait.await
    }

    fn show(&mut self) {
        let bar = ProgressBar::new_spinner().with_message(plain(&self.text));
        if bar.is_hidden() {
            remark(&self.text);
            self.shown = Shown::Told;
        } else {
            bar.enable_steady_tick(TICK);
            self.shown = Shown::Spinning(bar);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Spinning(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}
