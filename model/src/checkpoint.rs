//! How a job can be asked to save, and what is seen of it.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};
use std::str::FromStr;

use crate::ids::DecisionSeq;
use crate::job::MAX_GRACE;
use crate::names::StorageName;
use crate::time::Span;
use crate::units::Bytes;

/// A signal that a training process may have a handler for. Others end a process or cannot be
/// caught, so asking by them is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaveSignal {
    /// SIGTERM: Hugging Face, Megatron, `NeMo`, JAX.
    Term,
    /// SIGUSR1: Lightning.
    Usr1,
    /// SIGUSR2: submitit.
    Usr2,
    /// SIGHUP.
    Hup,
    /// SIGINT.
    Int,
}

/// Every signal a job may name, with its name.
const SIGNALS: [(SaveSignal, &str); 5] = [
    (SaveSignal::Term, "TERM"),
    (SaveSignal::Usr1, "USR1"),
    (SaveSignal::Usr2, "USR2"),
    (SaveSignal::Hup, "HUP"),
    (SaveSignal::Int, "INT"),
];

impl fmt::Display for SaveSignal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SIGNALS.iter().find(|(signal, _)| signal == self).map(|(_, name)| *name);
        out.pad(name.unwrap_or("TERM"))
    }
}

impl FromStr for SaveSignal {
    type Err = String;

    /// `USR1` or `SIGUSR1`.
    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("SIG").unwrap_or(text);
        let known = SIGNALS.iter().find(|(_, known)| *known == name).map(|(signal, _)| *signal);
        known.ok_or_else(|| {
            let given: String = text.chars().take(32).collect();
            format!(
                "{given:?} is no signal a job is asked by: TERM, USR1, USR2, HUP or INT is accepted"
            )
        })
    }
}

/// Which processes of a gang are signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaveTarget {
    /// Every rank: the topmost process of each RANK.
    Ranks,
    /// The rank with RANK 0 only.
    Rank0,
    /// The task's own process.
    Task,
}

/// What a job offers when it is asked to save (`[checkpoint]` of the job file).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointOffer {
    /// What it is asked by; none = by the file and the socket only.
    pub signal: Option<SaveSignal>,
    /// Who gets the signal.
    pub target: SaveTarget,
    /// From the signal to the end: the time in which it saves and leaves.
    pub grace: Span,
    /// Bytes of one checkpoint; none = not declared.
    pub bytes: Option<Bytes>,
    /// It asks before it writes, so long after it is told to save at the latest: a step of its
    /// training, as a rule. It is told by so much before its turn. None = not declared.
    pub asks_within: Option<AsksWithin>,
    /// Where it writes: the write gate that admits it.
    pub storage: StorageName,
    /// Exit codes by which the job says that it saved. Evidence only: commits decide.
    pub saved_codes: Vec<u8>,
    /// Of a rehearsal, which is started, asked to save, stopped, and started again to see whether it
    /// goes on: after which time it is asked, unless it commits before. None = it is none.
    pub rehearsal: Option<AskAfter>,
}

/// How long a rehearsal trains before it is asked to save, in whole seconds: it takes no room in a
/// job that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskAfter(NonZeroU16);

/// Shortest and longest of it: a step of training takes seconds, and what takes an hour to its first
/// steps is better asked when it has committed.
pub const ASK_AFTER_RANGE: (Span, Span) = (Span::seconds(1), Span::hours(1));

impl AskAfter {
    /// As long as that, to the second; none outside its range.
    #[must_use]
    pub fn of(span: Span) -> Option<Self> {
        let (least, most) = ASK_AFTER_RANGE;
        let seconds = Some(span).filter(|span| *span >= least && *span <= most)?.0 / 1000;
        NonZeroU16::new(u16::try_from(seconds).ok()?).map(Self)
    }

    /// How long.
    #[must_use]
    pub fn span(self) -> Span {
        Span::seconds(self.0.get().into())
    }
}

/// How long after it is told to save a job asks to write at the latest, in whole milliseconds: likewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AsksWithin(NonZeroU32);

impl AsksWithin {
    /// As long as that; none where it is no time, or more than any grace.
    #[must_use]
    pub fn of(span: Span) -> Option<Self> {
        let most = u32::try_from(Some(span).filter(|span| *span <= MAX_GRACE)?.0).ok()?;
        NonZeroU32::new(most).map(Self)
    }

    /// How long.
    #[must_use]
    pub fn span(self) -> Span {
        Span(self.0.get().into())
    }
}

/// The order to save, for one task. At most one signal per rank and request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Save {
    /// The journal record that ordered it: the request's id.
    pub request: DecisionSeq,
    /// What the ranks are asked by; none = by the file and the socket only.
    pub signal: Option<SaveSignal>,
    /// Who gets the signal.
    pub target: SaveTarget,
    /// From the moment the agent hears of the request to its end.
    pub grace: Span,
    /// For people, and in the file that announces the request.
    pub why: String,
}

/// What a node says of a request to save, for one task. Facts only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveSeen {
    /// Which request.
    pub request: DecisionSeq,
    /// How far it came.
    pub delivery: SaveDelivery,
}

/// How far a request to save came on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaveDelivery {
    /// Announced by file and socket; no rank was willing to be signalled yet.
    Announced,
    /// Signalled: so many ranks.
    Signalled {
        /// How many ranks of the task.
        ranks: u32,
    },
    /// A crash fell between the durable intent and the signal: it is never sent again.
    MaybeSent,
    /// The ranks ignore the signal: it is not sent.
    Unwilling,
}

/// A checkpoint that a job says is complete, as its agent has checked it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The training step; grows within a job.
    pub step: u64,
    /// Absolute path of the checkpoint.
    pub path: String,
    /// Bytes of the files it names, as stat says.
    pub bytes: Bytes,
    /// The request it answers; none = a periodic one.
    pub request: Option<DecisionSeq>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rehearsal_trains_for_a_second_to_an_hour() {
        let of = |span| AskAfter::of(span).map(AskAfter::span);
        assert_eq!(of(Span(999)), None);
        assert_eq!(of(Span(90_500)), Some(Span::seconds(90)));
        assert_eq!(of(Span::hours(1)), Some(Span::hours(1)));
        assert_eq!(of(Span(3_600_001)), None);
    }

    #[test]
    fn a_signal_reads_back_its_name_and_an_unknown_one_is_refused_with_what_is_accepted() {
        for (signal, name) in SIGNALS {
            assert_eq!(name.parse(), Ok(signal));
            assert_eq!(format!("SIG{name}").parse(), Ok(signal));
            assert_eq!(signal.to_string(), name);
        }
        let refused = "SIGKILL".parse::<SaveSignal>().unwrap_err();
        assert_eq!(
            refused,
            "\"SIGKILL\" is no signal a job is asked by: TERM, USR1, USR2, HUP or INT is accepted"
        );
    }
}
