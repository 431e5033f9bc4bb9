//! What a person sees while the demo runs: lines of what happens, and one that lives.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate_proto::v1;
use tokio::task::JoinHandle;

use super::judge;
use crate::client::Client;

/// Between two looks at the cluster for the line that lives.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks between two lines of progress where there is no terminal.
const LOOKS_PER_LINE: u32 = 20;

/// Where the demo writes.
#[derive(Debug, Clone)]
pub struct Screen {
    bar: ProgressBar,
    began: Instant,
}

impl Screen {
    /// A bar on a terminal, plain lines elsewhere.
    #[must_use]
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        // As wide as the terminal, however long the message is: a line that wraps leaves traces.
        let template = "{spinner} {bar:12} {pos}/{len} jobs ended, {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, began: Instant::now() }
    }

    /// Since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// One line of what happens, with the time.
    pub fn say(&self, line: &str) {
        let elapsed = self.elapsed();
        let tenths = elapsed.subsec_millis() / 100;
        self.print(&format!("{:3}.{tenths} s  {line}", elapsed.as_secs()));
    }

    /// Text as it is. A reader that has gone away is no reason to leave a cluster half killed.
    pub fn print(&self, text: &str) {
        self.bar.suspend(|| writeln!(stdout(), "{text}").ok());
    }

    /// Takes the line that lives away.
    pub fn close(&self) {
        self.bar.finish_and_clear();
    }

    /// Follows a cluster with so many GPUs until the handle is dropped.
    #[must_use]
    pub fn follow(&self, client: Client, gpus: u32) -> Following {
        if stdout().is_terminal() && stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            // The cluster before may have finished it.
            self.bar.reset();
        }
        let screen = self.clone();
        Following(tokio::spawn(async move { screen.watch(&client, gpus).await }))
    }

    async fn watch(&self, client: &Client, gpus: u32) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        for look in 1_u32.. {
            ticks.tick().await;
            let message = match client.jobs().await {
                Ok(jobs) => {
                    let ended = jobs.iter().filter(|job| job.ended_ms.is_some()).count();
                    self.bar.set_length(u64::try_from(jobs.len()).unwrap_or(0));
                    self.bar.set_position(u64::try_from(ended).unwrap_or(0));
                    standing(&jobs, gpus)
                }
                Err(_) => "the coordinator is away".to_owned(),
            };
            self.bar.set_message(message.clone());
            self.bar.tick();
            if self.bar.is_hidden() && look.is_multiple_of(LOOKS_PER_LINE) {
                let (ended, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
                self.say(&format!("… {ended} of {all} jobs ended, {message}"));
            }
        }
    }
}

impl Default for Screen {
    fn default() -> Self {
        Self::new()
    }
}

fn standing(views: &[v1::JobView], of: u32) -> String {
    let Ok(jobs) = judge::parsed(views) else { return String::new() };
    let live = |view: &&v1::JobView| {
        let attempts = view.job.parse().ok().and_then(|id| jobs.get(&id));
        attempts.and_then(|attempts| attempts.last()).is_some_and(judge::Attempt::is_live)
    };
    let active: Vec<_> = views.iter().filter(live).collect();
    let gpus = active.iter().filter_map(|job| Some(job.spec.as_ref()?.gpus)).sum::<u32>();
    let waiting = views.iter().filter(|job| job.state() == v1::JobState::Pending).count();
    format!("{} active on {gpus} of {of} simulated GPUs, {waiting} waiting", active.len())
}

/// The line that lives; dropping it clears the line.
#[derive(Debug)]
pub struct Following(JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}
