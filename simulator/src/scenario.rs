//! Scenarios: what happens to a cluster as text, and what is expected of it as text.
//!
//! The format is in docs/scenarios.md.

mod difference;
mod gates;
mod script;
mod stage;
mod values;
mod words;

use std::fmt;

pub use difference::difference;

/// The line between what happens and what is expected.
const FENCE: &str = "---";

/// Why a scenario cannot be run: the line, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for Unreadable {}

/// A scenario, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What happens, as it was given.
    pub given: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
}

impl Outcome {
    /// Whether it came as it was expected.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.expected == self.got
    }

    /// The scenario with what came in the place of what was expected.
    #[must_use]
    pub fn rewritten(&self) -> String {
        format!("{}{FENCE}\n{}", self.given, self.got)
    }
}

/// Runs a scenario.
///
/// # Errors
/// The first line that cannot be read.
pub fn run(text: &str) -> Result<Outcome, Unreadable> {
    let mut given = String::new();
    let mut lines = text.lines();
    for line in lines.by_ref().take_while(|line| line.trim() != FENCE) {
        given.push_str(line);
        given.push('\n');
    }
    let expected: String = lines.map(|line| format!("{}\n", line.trim_end())).collect();
    let got = stage::play(&script::parse(&given)?);
    Ok(Outcome { given, expected, got })
}
