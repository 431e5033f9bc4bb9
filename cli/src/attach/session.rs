//! One person at one job, over as many connections as it takes.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tidegate_model::{JobId, TaskId};
use tidegate_proto::v1;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use ulid::Ulid;
use v1::attach_reply::Message as Reply;
use v1::attach_request::Message as Ask;

use super::end::{End, Ended, Shown};
use super::{Opened, POLL, Seen, Viewer, open, why};
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobs::{broken, view};
use crate::keys::Keys;
use crate::retry::Patience;
use crate::screen::{self, Raw};
use crate::show::out::pass_on;

/// How long what was typed may take to arrive when somebody leaves, and the job to be looked at.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pieces of input that may wait for the job; then no key is taken.
const MAX_UNSENT: usize = 4;

pub(super) struct Session<'a> {
    api: &'a Api,
    job: JobId,
    raw: &'a Raw,
    typed: mpsc::Receiver<Vec<u8>>,
    keys: Keys,
    resized: Signal,
    /// What ends this program and not the job: a closed window, a TERM.
    ended: [Signal; 2],
    seen: Seen,
    viewer: Viewer,
}

/// How one connection is over.
enum Over {
    End(End),
    Lost(String),
}

impl<'a> Session<'a> {
    pub(super) fn new(api: &'a Api, job: JobId, raw: &'a Raw) -> Result<Self, Failure> {
        let failed = |why: io::Error| Failure::new(Exit::Failed, format!("the terminal: {why}"));
        let on = |kind| signal(kind).map_err(failed);
        Ok(Self {
            api,
            job,
            raw,
            typed: screen::typed().map_err(failed)?,
            keys: Keys::default(),
            resized: on(SignalKind::window_change())?,
            ended: [on(SignalKind::hangup())?, on(SignalKind::terminate())?],
            seen: Seen::default(),
            viewer: Viewer { name: Ulid::generate().to_string(), again: false },
        })
    }

    pub(super) fn viewer(&self) -> Viewer {
        self.viewer.clone()
    }

    /// Until the person leaves, while there is nothing to work in. No key is kept for the job.
    pub(super) async fn left(&mut self) {
        let [hangup, terminate] = &mut self.ended;
        tokio::select! {
            () = detach(&mut self.typed, &mut self.keys) => {}
            _ = hangup.recv() => {}
            _ = terminate.recv() => {}
        }
    }

    pub(super) async fn run(&mut self, mut opened: Opened) -> Result<End, Failure> {
        self.viewer.again = true;
        loop {
            let lost = match self.carry(opened).await? {
                Over::End(end) => return Ok(end),
                Over::Lost(why) => why,
            };
            opened = match self.again(&lost).await? {
                Some(opened) => opened,
                None => return Ok(End::Detached),
            };
        }
    }

    /// One connection, until it is over.
    async fn carry(&mut self, opened: Opened) -> Result<Over, Failure> {
        let Opened { to, mut from } = opened;
        let mut unsent: VecDeque<Ask> = screen::size().map(Ask::Size).into_iter().collect();
        let [hangup, terminate] = &mut self.ended;
        let mut here = Here { job: self.job, raw: self.raw, is_open: false };
        loop {
            tokio::select! {
                said = from.message() => match said {
                    Ok(Some(v1::AttachReply { message: Some(message) })) => {
                        if let Some(end) = here.heard(&mut self.seen, message)? {
                            return Ok(Over::End(end));
                        }
                    }
                    // What is not known here is of a later version.
                    Ok(Some(v1::AttachReply { message: None })) => {}
                    Ok(None) => return Ok(Over::Lost("it was closed".to_owned())),
                    Err(status) => return Ok(Over::Lost(status.message().to_owned())),
                },
                room = to.reserve(), if !unsent.is_empty() => {
                    let Ok(room) = room else { return Ok(Over::Lost("it was closed".to_owned())) };
                    room.send(v1::AttachRequest { message: unsent.pop_front() });
                }
                read = self.typed.recv(), if unsent.len() < MAX_UNSENT => {
                    let Some(read) = read else { return Ok(Over::End(End::Detached)) };
                    let typed = self.keys.take(&read);
                    if !typed.bytes.is_empty() {
                        unsent.push_back(Ask::Input(typed.bytes));
                    }
                    if typed.detach {
                        break;
                    }
                }
                _ = self.resized.recv() => {
                    // Only the newest counts.
                    unsent.retain(|ask| !matches!(ask, Ask::Size(_)));
                    unsent.extend(screen::size().map(Ask::Size));
                }
                _ = hangup.recv() => return Ok(Over::End(End::Detached)),
                _ = terminate.recv() => return Ok(Over::End(End::Detached)),
            }
        }
        leave(Opened { to, from }, unsent).await;
        Ok(Over::End(End::Detached))
    }

    /// The next connection; none if the person left meanwhile.
    async fn again(&mut self, lost: &str) -> Result<Option<Opened>, Failure> {
        let (api, job, seen) = (self.api, self.job, self.seen.clone());
        let viewer = self.viewer.clone();
        let raw = self.raw;
        let connecting = async {
            // Its end may be what closed it, and be known only now.
            sleep(POLL).await;
            let known = timeout(PATIENCE, view(api, &Patience::none(), job)).await;
            if !known.is_ok_and(|now| now.is_ok_and(|now| now.state.is_ended())) {
                raw.tell(&format!(
                    "the connection to {job} was lost ({lost}); the job goes on. Connecting \
                     again: keys are not passed on until then, Ctrl-] d leaves"
                ));
            }
            let mut told = String::new();
            loop {
                match open(api, job, &viewer, &seen).await {
                    Ok(opened) => return Ok(Some(opened)),
                    Err(failure) if failure.exit() == Exit::Unavailable => {
                        let words = why(api, job, &failure).await;
                        if words != told {
                            raw.tell(&words);
                            told = words;
                        }
                        sleep(POLL).await;
                    }
                    Err(failure) => return Err(failure),
                }
            }
        };
        tokio::select! {
            opened = connecting => opened,
            () = self.left() => Ok(None),
        }
    }
}

/// Lets what was typed before arrive, as far as that does not take long.
async fn leave(Opened { to, mut from }: Opened, unsent: VecDeque<Ask>) {
    let arriving = async {
        for ask in unsent {
            if to.send(v1::AttachRequest { message: Some(ask) }).await.is_err() {
                return;
            }
        }
        drop(to);
        // The coordinator closes its side when it has passed all on.
        while let Ok(Some(_)) = from.message().await {}
    };
    timeout(PATIENCE, arriving).await.ok();
}

/// Until the keys that detach are typed. All others are for a job that does not hear them.
async fn detach(typed: &mut mpsc::Receiver<Vec<u8>>, keys: &mut Keys) {
    while let Some(read) = typed.recv().await {
        if keys.take(&read).detach {
            return;
        }
    }
}

/// One connection, as far as its terminal is open.
struct Here<'a> {
    job: JobId,
    raw: &'a Raw,
    is_open: bool,
}

impl Here<'_> {
    /// Passes on what the job says; its end, if that is it.
    fn heard(&mut self, seen: &mut Seen, message: Reply) -> Result<Option<End>, Failure> {
        match message {
            Reply::Opened(task) => {
                self.is_open = true;
                if !seen.task.is_empty() {
                    self.raw.tell(&format!("connected to {} again", self.job));
                }
                if seen.task != task {
                    if !seen.task.is_empty() {
                        self.raw.tell(&format!("it was started again: this is {task}"));
                    }
                    *seen = Seen { task, after: None };
                }
            }
            Reply::Output(v1::TerminalOutput { offset, bytes }) => {
                if let Some(missed) = seen.after.map(|after| offset.saturating_sub(after))
                    && missed > 0
                {
                    let words = format!("{missed} bytes before this are only in `tidegate logs`");
                    self.raw.tell(&words);
                }
                pass_on(&bytes)?;
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                seen.after = Some(offset.saturating_add(length));
            }
            Reply::Taken(v1::TerminalTaken {}) => return Ok(Some(End::Taken)),
            Reply::Exit(exit) => {
                let exit = exit.try_into().map_err(|error| broken(&error))?;
                let task: Option<TaskId> = seen.task.parse().ok();
                let shown = match (self.is_open, seen.task.is_empty()) {
                    (true, _) => Shown::All,
                    (false, true) => Shown::Nothing,
                    (false, false) => Shown::Part,
                };
                let attempt = task.map(|task| task.attempt.number);
                return Ok(Some(End::Exit(Ended { exit, shown, attempt })));
            }
        }
        Ok(None)
    }
}
