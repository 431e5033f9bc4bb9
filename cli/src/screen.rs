//! The terminal of the person: raw while a job has it, as it was before once that is over.

use std::env;
use std::io::{self, IsTerminal, Read, Write};
use std::thread;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tidegate_proto::v1::WindowSize;
use tokio::sync::mpsc;

use crate::exit::{Exit, Failure};
use crate::show::text::plain;

/// Pieces of input that may wait; then the terminal's own buffer fills, and beeps.
const MAX_WAITING: usize = 16;

/// Read at once: typing is short, and a paste comes in pieces.
const CHUNK: usize = 4 << 10;

/// A terminal whose keys are heard one by one. Dropped, it is as it was.
#[derive(Debug)]
pub(crate) struct Raw {
    before: Termios,
}

/// Whether there is a terminal to give to a job.
///
/// # Errors
/// If input or output is something else.
pub(crate) fn check() -> Result<(), Failure> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return Ok(());
    }
    Err(Failure::refused(
        "a job to work in needs a terminal, and standard input or output is none; `tidegate run \
         --follow` passes output on without one",
    ))
}

impl Raw {
    /// Takes the terminal while somebody waits: keys are heard and not shown, and Ctrl-C is still a
    /// signal.
    ///
    /// # Errors
    /// If it has gone.
    pub(crate) fn to_wait() -> Result<Self, Failure> {
        let before = tcgetattr(io::stdin()).map_err(|why| unusable(&why.into()))?;
        let mut waiting = before.clone();
        waiting.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        let taken = tcsetattr(io::stdin(), OptionalActions::Now, &waiting);
        taken.map_err(|why| unusable(&why.into()))?;
        Ok(Self { before })
    }

    /// Every key is the job's from now on, Ctrl-C too.
    ///
    /// # Errors
    /// If it has gone.
    pub(crate) fn to_work(&self) -> Result<(), Failure> {
        let mut raw = self.before.clone();
        raw.make_raw();
        let taken = tcsetattr(io::stdin(), OptionalActions::Flush, &raw);
        taken.map_err(|why| unusable(&why.into()))
    }

    /// Says something beside the job's output. A raw terminal does not begin a line by itself.
    pub(crate) fn tell(&self, text: &str) {
        let Self { before: _ } = self;
        write!(io::stderr().lock(), "\r\n[{}]\r\n", plain(text)).ok();
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        tcsetattr(io::stdin(), OptionalActions::Drain, &self.before).ok();
    }
}

/// How large the terminal is now; nothing useful if it does not say.
pub(crate) fn size() -> Option<WindowSize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0)
        .then_some(WindowSize { rows: size.ws_row.into(), columns: size.ws_col.into() })
}

/// How long a line of a result may be: as `COLUMNS` says, else as the window is. Nothing where no
/// window shows the result.
pub(crate) fn width() -> Option<usize> {
    let stated = env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let size = || usize::try_from(size()?.columns).ok();
    let width = if io::stdout().is_terminal() { stated.or_else(size) } else { None };
    width.filter(|width| *width > 0)
}

/// What is typed, until there is no terminal any more. In a thread of its own, which ends with
/// the process: a read of a terminal cannot be taken back.
pub(crate) fn typed() -> io::Result<mpsc::Receiver<Vec<u8>>> {
    let (send, typed) = mpsc::channel(MAX_WAITING);
    thread::Builder::new().name("keys".to_owned()).spawn(move || {
        let mut chunk = [0_u8; CHUNK];
        loop {
            match io::stdin().lock().read(&mut chunk) {
                Ok(count) if count > 0 => {
                    let read = chunk.get(..count).unwrap_or_default().to_vec();
                    if send.blocking_send(read).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => return,
            }
        }
    })?;
    Ok(typed)
}

fn unusable(why: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("the terminal cannot be used: {why}"))
}
