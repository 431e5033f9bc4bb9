//! What may follow from a signal, in the words of the policy.

use serde::Deserialize;

/// How bad. In order: of several, the last counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Recorded; nothing follows.
    Harmless,
    /// Of the job's program.
    Application,
    /// Recorded, and on-call is told.
    Unknown,
    /// The scope empties.
    Degraded,
    /// The scope is out at once.
    Fatal,
}

/// What is out. In order: the larger counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// One GPU, or one switch's links.
    Gpu,
    /// All of the node.
    Node,
}

/// What brings it back. In order: the stronger counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Nothing needs to.
    None,
    /// The program is started again.
    RestartJob,
    /// A person looks at it.
    Look,
    /// The GPU is reset.
    Reset,
    /// The node is started again.
    Reboot,
    /// It is without power for a while.
    PowerCycle,
    /// It is replaced.
    Replace,
}

/// What follows from a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meaning {
    /// How bad.
    pub class: Class,
    /// What is out; of what drains nothing, none.
    pub scope: Option<Scope>,
    /// What brings it back.
    pub action: Action,
}

impl Class {
    /// As the policy and programs write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Harmless => "harmless",
            Self::Application => "application",
            Self::Unknown => "unknown",
            Self::Degraded => "degraded",
            Self::Fatal => "fatal",
        }
    }
}

impl Scope {
    /// As the policy and programs write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Node => "node",
        }
    }
}

impl Action {
    /// As the policy and programs write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::RestartJob => "restart-job",
            Self::Look => "look",
            Self::Reset => "reset",
            Self::Reboot => "reboot",
            Self::PowerCycle => "power-cycle",
            Self::Replace => "replace",
        }
    }
}

pub(crate) const HARMLESS: Meaning =
    Meaning { class: Class::Harmless, scope: None, action: Action::None };
pub(crate) const NOT_KNOWN: Meaning =
    Meaning { class: Class::Unknown, scope: None, action: Action::Look };

/// What we do ourselves that a driver reports as an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Own {
    /// A process on the GPU was ended.
    Kill,
    /// The GPU was reset.
    Reset,
}

impl Own {
    /// What it is, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Kill => "a process on it was ended by us",
            Self::Reset => "it was reset by us",
        }
    }
}
