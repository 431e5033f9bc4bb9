//! Who changed the policy, and what it was changed from.

use std::fmt;

use tidegate_model::{DecisionSeq, Timestamp, UserId};

use super::Policy;

/// Who set a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Author {
    /// Releases before this was kept did not say.
    #[default]
    Unknown,
    /// A new store took it from the coordinator's configuration.
    Configuration,
    /// An admin.
    User(UserId),
}

impl fmt::Display for Author {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => out.write_str("somebody"),
            Self::Configuration => out.write_str("the coordinator's configuration"),
            Self::User(user) => user.fmt(out),
        }
    }
}

/// The change that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyEdit {
    /// Its record: the version of the policy.
    pub record: DecisionSeq,
    /// When.
    pub at: Timestamp,
    /// By whom.
    pub by: Author,
}

/// A policy that is to be in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChange {
    /// All of it.
    pub policy: Policy,
    /// Whose change it is.
    pub by: Author,
    /// The version that it was made from: with another in force it is refused. None = whatever is.
    pub read: Option<DecisionSeq>,
}

/// As a new store takes it.
impl From<Policy> for PolicyChange {
    fn from(policy: Policy) -> Self {
        Self { policy, by: Author::Configuration, read: None }
    }
}
