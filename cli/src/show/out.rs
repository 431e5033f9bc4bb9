//! The two streams. Results go to standard output, everything said about them to standard error.

use std::io::{self, Write};

use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::show::text::plain;

/// Prints lines of a result.
///
/// # Errors
/// [`Failure::OutputClosed`] if nobody reads any more, or why it cannot be written.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Prints bytes of a result as they are.
///
/// # Errors
/// As [`say`].
pub(crate) fn pass_on(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Prints a result as one JSON document.
///
/// # Errors
/// As [`say`].
pub(crate) fn json(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::new(Exit::Broken, format!("the result is not JSON: {error}")))?;
    say(&text)
}

/// Tells something about a result. A closed standard error is no reason to stop.
pub(crate) fn remark(text: &str) {
    writeln!(io::stderr().lock(), "{}", plain(text)).ok();
}

/// Passes on bytes of a job's standard error. As [`remark`], it does not fail.
pub(crate) fn pass_on_aside(bytes: &[u8]) {
    let mut out = io::stderr().lock();
    out.write_all(bytes).and_then(|()| out.flush()).ok();
}
