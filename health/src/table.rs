//! The policy: what each signal means, read from one TOML file and checked as a whole.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::signal::{Severity, Signal, SwitchError, Xid};

/// What the agent has where a site has no own.
const SHIPPED: &str = include_str!("../policy.toml");

/// From this version on the unit's number is in other bits of the interrupt word.
const NEW_WORDS: u32 = 575;

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

/// A row of the table, as it is found for a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found<'table> {
    /// What follows.
    pub meaning: Meaning,
    /// In words.
    pub name: &'table str,
    /// Where the row is from.
    pub source: &'table str,
    /// The other end of the link is to blame.
    pub peer: bool,
    /// Only together with a GPU or a link that failed; alone it is harmless.
    pub needs_company: bool,
    /// What it is when it comes again.
    pub again: Option<&'table Again>,
}

/// A file that is no table.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// It is not written as one.
    #[error("{0}")]
    Text(#[from] toml::de::Error),
    /// Rows contradict each other, or themselves.
    #[error("{row}: {why}")]
    Row {
        /// Which.
        row: String,
        /// What is wrong, and what would be accepted.
        why: String,
    },
}

/// What a signal is from its second time on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// So often ...
    pub times: u32,
    /// ... within this span, such as `24h`.
    pub within: String,
    class: Class,
    scope: Option<Scope>,
    action: Action,
}

/// A row as it is written. Which keys it may have depends on its table; all have the last four.
macro_rules! row {
    ($(#[$about:meta])* $name:ident { $($key:ident: $type:ty),* $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($key: $type,)*
            class: Class,
            scope: Option<Scope>,
            action: Action,
            source: String,
        }

        impl $name {
            fn meaning(&self) -> Meaning {
                Meaning { class: self.class, scope: self.scope, action: self.action }
            }
        }
    };
}

row! {
    /// Of the driver's errors of a GPU.
    XidRow { codes: Vec<u32>, name: String, again: Option<Again> }
}
row! {
    /// Of the first register of a 74.
    RegisterRow { bits: Vec<u32>, name: String }
}
row! {
    /// Of a unit of a Blackwell GPU's links.
    UnitRow {
        xid: u32,
        unit: String,
        sub: Sub,
        reasons: Option<Vec<u32>>,
        status: Option<Vec<u32>>,
        peer: Option<bool>,
    }
}
row! {
    /// Of the driver's errors of a switch.
    SwitchRow { codes: Vec<u32>, ranges: Option<Vec<Range>>, name: String, with: Option<Company> }
}
row! {
    /// Of what a GPU asks for.
    RecoveryRow { value: u32, name: String }
}

/// A unit's number in the interrupt word, by the driver's version.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sub {
    before_575: u32,
    since_575: u32,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    first: u32,
    last: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Company {
    GpuOrLink,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    xid: Vec<XidRow>,
    xid74: Vec<RegisterRow>,
    nvlink5: Vec<UnitRow>,
    sxid: Vec<SwitchRow>,
    recovery: Vec<RecoveryRow>,
}

/// The table, whole and without contradictions.
#[derive(Debug, Clone)]
pub struct Table {
    file: File,
    /// The row of each code.
    xids: BTreeMap<u32, usize>,
}
