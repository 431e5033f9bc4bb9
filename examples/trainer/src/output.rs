//! The two streams. Every line is flushed: a scheduler's log must show it before the next step.

use std::io::Write;

/// Prints a line of the run. A closed or full log must not end a training run, so a failure to
/// write is not an error.
pub(crate) fn say(line: &str) {
    write_line(&mut std::io::stdout().lock(), line);
}

/// Prints why something was refused or failed.
pub(crate) fn complain(line: &str) {
    write_line(&mut std::io::stderr().lock(), &format!("trainer: {line}"));
}

fn write_line(stream: &mut impl Write, line: &str) {
    // One write per line, so that lines of ranks that share a log do not mix.
    let line = format!("{line}\n");
    stream.write_all(line.as_bytes()).and_then(|()| stream.flush()).ok();
}
