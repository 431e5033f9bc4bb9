//! Permits to write a checkpoint: what a job asks, what it is answered, what its node sees of it.

use std::fmt;
use std::str::FromStr;

use crate::ids::DecisionSeq;
use crate::time::Span;
use crate::units::{Bandwidth, Bytes};

/// What nodes do not tell that a task writes is less than this: a log, a heartbeat.
pub const LEAST_SEEN: Bandwidth = Bandwidth(64 << 10);

/// A task that writes less than this has not begun to save, and is no writer worth a row: it writes a log.
pub const LEAST_SAVE: Bandwidth = Bandwidth(1 << 20);

/// What is written, or read, and so who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteClass {
    /// The save of an attempt that was asked to leave.
    Preemption,
    /// The last save of an attempt that is done.
    Final,
    /// A save that the job makes for itself.
    Periodic,
    /// Reading a checkpoint back: not against writes, but among reads.
    Restore,
}

/// Every class, with its name.
const CLASSES: [(WriteClass, &str); 4] = [
    (WriteClass::Preemption, "preemption"),
    (WriteClass::Final, "final"),
    (WriteClass::Periodic, "periodic"),
    (WriteClass::Restore, "restore"),
];

impl fmt::Display for WriteClass {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = CLASSES.iter().find(|(class, _)| class == self).map(|(_, name)| *name);
        out.pad(name.unwrap_or("periodic"))
    }
}

impl FromStr for WriteClass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = CLASSES.iter().find(|(_, name)| *name == text).map(|(class, _)| *class);
        known.ok_or_else(|| {
            let given: String = text.chars().take(32).collect();
            format!(
                "{given:?} is no class of writes: preemption, final, periodic or restore is accepted"
            )
        })
    }
}

/// May a task of an attempt write, or read? One speaks for its whole gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Grows within a task. A later one takes the place of the one before, which is over.
    pub number: u64,
    /// What for.
    pub class: WriteClass,
    /// Of the whole gang.
    pub bytes: Bytes,
    /// Files of the whole gang; zero = not said.
    pub files: u32,
    /// How long the job will wait: below the watchdog of its collectives. None = the policy's.
    pub patience: Option<Span>,
}

/// What a node says of its task's newest ask. Facts only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskSeen {
    /// What is asked.
    pub ask: Ask,
    /// How long ago, by the node's clock.
    pub waited: Span,
    /// What the job says it has written so far.
    pub written: Bytes,
    /// It writes no more, or no longer wants to.
    pub done: bool,
    /// `rated` of the newest grant that its job was told and that gave it no more than the one before;
    /// zero = none.
    pub rated: DecisionSeq,
}

/// The answer to an ask, as the node is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permit {
    /// It may.
    Granted {
        /// The ask.
        ask: u64,
        /// At most so much, the whole gang; none = not limited.
        rate: Option<Bandwidth>,
        /// For so long from the moment the ask was sent; renewed while the agent is heard.
        length: Span,
        /// What the gang may use once that is over and nobody was heard; none = not limited.
        after: Option<Bandwidth>,
        /// The journal record that set the rate.
        rated: DecisionSeq,
    },
    /// Not yet.
    Waits {
        /// The ask.
        ask: u64,
        /// So many are before it.
        position: u32,
        /// When its turn is expected, from the answer.
        expected: Span,
    },
    /// Not at all.
    Denied {
        /// The ask.
        ask: u64,
        /// Why, and what would be accepted.
        why: String,
        /// After which asking again is answered otherwise; none = that is not known, or it never is.
        retry_after: Option<Span>,
    },
}

impl Permit {
    /// Which ask it answers.
    #[must_use]
    pub fn ask(&self) -> u64 {
        match self {
            Self::Granted { ask, .. } | Self::Waits { ask, .. } | Self::Denied { ask, .. } => *ask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_reads_back_its_name_and_an_unknown_one_is_refused_with_what_is_accepted() {
        for (class, name) in CLASSES {
            assert_eq!(name.parse(), Ok(class));
            assert_eq!(class.to_string(), name);
        }
        assert_eq!(
            "urgent".parse::<WriteClass>().unwrap_err(),
            "\"urgent\" is no class of writes: preemption, final, periodic or restore is accepted"
        );
    }
}
