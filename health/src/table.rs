//! The policy: what each signal means, read from one TOML file and checked as a whole.

use std::collections::BTreeSet;

use serde::Deserialize;
use tidegate_model::Span;

use crate::meaning::{Action, Class, Meaning, NOT_KNOWN, Own, Scope};
use crate::signal::{Severity, Signal, SwitchError, Xid};

/// What the agent has where a site has no own.
const SHIPPED: &str = include_str!("../policy.toml");

/// From this version on the unit's number is in other bits of the interrupt word.
const NEW_WORDS: u32 = 575;

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
    /// What of ours makes such a signal.
    pub own: Option<Own>,
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// So often, moments that are near each other taken together ...
    pub times: u32,
    within: Within,
    class: Class,
    scope: Option<Scope>,
    action: Action,
}

impl Again {
    /// ... within this span.
    #[must_use]
    pub fn within(&self) -> Span {
        self.within.0
    }

    /// What it is then.
    #[must_use]
    pub fn meaning(&self) -> Meaning {
        Meaning { class: self.class, scope: self.scope, action: self.action }
    }
}

/// A span as it is written, such as `24h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
struct Within(Span);

impl TryFrom<String> for Within {
    type Error = tidegate_model::SpanError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
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
    XidRow { codes: Vec<u32>, name: String, again: Option<Again>, own: Option<Own> }
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

row! {
    /// Of other lines of the kernel.
    KernelRow { line: Line, name: String }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    OffTheBus,
    ProbeFailed,
    BusFatal,
    BusFatalOfGpu,
    BusNonFatal,
    Unreadable,
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

/// What signals are one incident, and when work is not to blame any more.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    silence: Within,
    own_within: Within,
    users: usize,
    users_within: Within,
    #[expect(dead_code, reason = "for people: where the numbers are from")]
    source: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    incident: Limits,
    xid: Vec<XidRow>,
    xid74: Vec<RegisterRow>,
    nvlink5: Vec<UnitRow>,
    sxid: Vec<SwitchRow>,
    recovery: Vec<RecoveryRow>,
    kernel: Vec<KernelRow>,
}

/// The table, whole and without contradictions.
#[derive(Debug, Clone)]
pub struct Table {
    file: File,
    /// The driver's major version; none = not known, then a new one.
    driver: Option<u32>,
}

impl Table {
    /// That which the agent has where a site has no own.
    ///
    /// # Errors
    /// Never, as a test has read it.
    pub fn shipped() -> Result<Self, Wrong> {
        Self::parse(SHIPPED)
    }

    /// Reads a table.
    ///
    /// # Errors
    /// If it is none, a code is in two rows, or a row says what cannot be.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let file: File = toml::from_str(text)?;
        file.check()?;
        Ok(Self { file, driver: None })
    }

    /// The same for signals of such a driver, by its major version.
    #[must_use]
    pub fn for_driver(self, driver: Option<u32>) -> Self {
        Self { driver, ..self }
    }

    /// What a signal means, by the row that it is found in.
    #[must_use]
    pub fn find(&self, signal: &Signal) -> Found<'_> {
        match signal {
            Signal::Xid(xid) => self.xid(xid),
            Signal::Switch(error) => self.switch(error),
            Signal::OffTheBus(_) => self.kernel(Line::OffTheBus),
            Signal::ProbeFailed => self.kernel(Line::ProbeFailed),
            Signal::Bus { severity: Severity::Fatal, is_gpu: true, .. } => {
                self.kernel(Line::BusFatalOfGpu)
            }
            Signal::Bus { severity: Severity::Fatal, .. } => self.kernel(Line::BusFatal),
            Signal::Bus { severity: Severity::NonFatal, .. } => self.kernel(Line::BusNonFatal),
        }
    }

    /// What a line means that nobody can read.
    #[must_use]
    pub fn unreadable(&self) -> Found<'_> {
        self.kernel(Line::Unreadable)
    }

    /// What it means that a GPU asks for this.
    #[must_use]
    pub fn recovery(&self, value: u32) -> Found<'_> {
        let row = self.file.recovery.iter().find(|row| row.value == value);
        row.map_or(UNKNOWN_RECOVERY, |row| Found::of(row.meaning(), &row.name, &row.source))
    }

    /// That a GPU was asked what it asks for, and that this failed.
    #[must_use]
    pub fn unread_recovery() -> Found<'static> {
        Found::of(NOT_KNOWN, "what the GPU asks for could not be read", "no row")
    }

    /// A silence that ends an incident is longer than this.
    #[must_use]
    pub fn silence(&self) -> Span {
        self.file.incident.silence.0
    }

    /// So long what was before may count.
    #[must_use]
    pub fn longest_memory(&self) -> Span {
        let again = self.file.xid.iter().filter_map(|row| Some(row.again.as_ref()?.within()));
        again.fold(self.users().1, Ord::max)
    }

    /// So long after an act of ours its signals come.
    #[must_use]
    pub fn own_within(&self) -> Span {
        self.file.incident.own_within.0
    }

    /// The work of so many users, failing on one device within this span, makes the device suspect.
    #[must_use]
    pub fn users(&self) -> (usize, Span) {
        (self.file.incident.users, self.file.incident.users_within.0)
    }

    fn xid(&self, xid: &Xid) -> Found<'_> {
        let closer = match xid.code {
            74 => self.registers(xid),
            144..=150 => self.unit(xid),
            154 => return xid.recovery.map_or(UNKNOWN_RECOVERY, |value| self.recovery(value)),
            _ => None,
        };
        let row = || self.file.xid.iter().find(|row| row.codes.contains(&xid.code));
        let plain = || {
            let row = row()?;
            let found = Found::of(row.meaning(), &row.name, &row.source);
            Some(Found { again: row.again.as_ref(), own: row.own, ..found })
        };
        closer.or_else(plain).unwrap_or(UNKNOWN_CODE)
    }

    /// The worst bit of the first register.
    fn registers(&self, xid: &Xid) -> Option<Found<'_>> {
        let first = *xid.registers.first()?;
        let set = |row: &&RegisterRow| {
            row.bits.iter().any(|bit| first.checked_shr(*bit).is_some_and(|rest| rest & 1 == 1))
        };
        let rows = self.file.xid74.iter().filter(set);
        let worst = rows.max_by_key(|row| row.meaning())?;
        Some(Found::of(worst.meaning(), &worst.name, &worst.source))
    }

    /// The first row that fits the unit, its reason and its status.
    fn unit(&self, xid: &Xid) -> Option<Found<'_>> {
        let (word, status) = (*xid.registers.first()?, xid.registers.get(1).copied());
        let old = self.driver.is_some_and(|driver| driver < NEW_WORDS);
        let sub = if old { word >> 5 & 0x1f } else { word & 0x7f };
        let reason = word >> 20 & 0x3f;
        let fits = |row: &&UnitRow| {
            let own = if old { row.sub.before_575 } else { row.sub.since_575 };
            let is_reason = row.reasons.as_ref().is_none_or(|all| all.contains(&reason));
            let has = |status: u32| row.status.as_ref().is_none_or(|all| all.contains(&status));
            row.xid == xid.code && own == sub && is_reason && status.is_none_or(has)
        };
        let row = self.file.nvlink5.iter().find(fits)?;
        let found = Found::of(row.meaning(), &row.unit, &row.source);
        Some(Found { peer: row.peer == Some(true), ..found })
    }

    fn switch(&self, error: &SwitchError) -> Found<'_> {
        let within = |range: &Range| (range.first..=range.last).contains(&error.code);
        let holds = |row: &&SwitchRow| {
            row.codes.contains(&error.code) || row.ranges.iter().flatten().any(within)
        };
        let Some(row) = self.file.sxid.iter().find(holds) else { return UNKNOWN_CODE };
        let mut found = Found::of(row.meaning(), &row.name, &row.source);
        found.needs_company = row.with == Some(Company::GpuOrLink);
        if error.severity == Some(Severity::Fatal) && found.meaning.class < Class::Degraded {
            found.meaning = SAID_FATAL;
        }
        found
    }

    fn kernel(&self, line: Line) -> Found<'_> {
        let row = self.file.kernel.iter().find(|row| row.line == line);
        row.map_or(UNKNOWN_CODE, |row| Found::of(row.meaning(), &row.name, &row.source))
    }
}

/// A switch's own word is taken where it is worse than the table's.
const SAID_FATAL: Meaning =
    Meaning { class: Class::Degraded, scope: Some(Scope::Node), action: Action::Look };

const UNKNOWN_CODE: Found<'static> =
    Found::of(NOT_KNOWN, "a code that the table does not have", "no row");

const UNKNOWN_RECOVERY: Found<'static> = Found::of(
    Meaning { class: Class::Degraded, scope: Some(Scope::Gpu), action: Action::Look },
    "the GPU asks for something that the table does not have",
    "no row",
);

impl<'table> Found<'table> {
    const fn of(meaning: Meaning, name: &'table str, source: &'table str) -> Self {
        Self { meaning, name, source, peer: false, needs_company: false, again: None, own: None }
    }
}

impl File {
    fn check(&self) -> Result<(), Wrong> {
        let mut codes = BTreeSet::new();
        for row in &self.xid {
            told(&row.name, row.meaning())?;
            for code in &row.codes {
                once(&mut codes, *code, &row.name)?;
            }
        }
        let mut bits = BTreeSet::new();
        for row in &self.xid74 {
            told(&row.name, row.meaning())?;
            for bit in &row.bits {
                let why = "bits: 0 to 31 is accepted";
                ensure(*bit < u32::BITS, &row.name, why)?;
                once(&mut bits, *bit, &row.name)?;
            }
        }
        for row in &self.nvlink5 {
            told(&row.unit, row.meaning())?;
            ensure((144..=150).contains(&row.xid), &row.unit, "xid: 144 to 150 is accepted")?;
        }
        self.check_switches()?;
        let mut values = BTreeSet::new();
        for row in &self.recovery {
            told(&row.name, row.meaning())?;
            once(&mut values, row.value, &row.name)?;
        }
        let mut lines = BTreeSet::new();
        for row in &self.kernel {
            told(&row.name, row.meaning())?;
            ensure(lines.insert(row.line), &row.name, "line: another row has it, too")?;
        }
        Ok(())
    }

    fn check_switches(&self) -> Result<(), Wrong> {
        let mut codes = BTreeSet::new();
        for row in &self.sxid {
            told(&row.name, row.meaning())?;
            for Range { first, last } in row.ranges.iter().flatten() {
                ensure(first <= last, &row.name, "ranges: first is not above last")?;
                ensure(last - first <= MAX_RANGE, &row.name, "ranges: at most 1,000 codes long")?;
            }
            let spans = row.ranges.iter().flatten().flat_map(|range| range.first..=range.last);
            for code in row.codes.iter().copied().chain(spans) {
                once(&mut codes, code, &row.name)?;
            }
        }
        Ok(())
    }
}

/// Codes of a range: all that a switch has are fewer.
const MAX_RANGE: u32 = 999;

/// What drains says what, and what does not says nothing of it.
fn told(row: &str, meaning: Meaning) -> Result<(), Wrong> {
    let drains = meaning.class >= Class::Degraded;
    let why = "scope: gpu or node with class degraded or fatal, none with another";
    ensure(drains == meaning.scope.is_some(), row, why)
}

fn once(seen: &mut BTreeSet<u32>, number: u32, row: &str) -> Result<(), Wrong> {
    let why = || Wrong::Row { row: row.to_owned(), why: format!("{number} is in two rows") };
    if seen.insert(number) { Ok(()) } else { Err(why()) }
}

fn ensure(holds: bool, row: &str, why: &str) -> Result<(), Wrong> {
    let wrong = || Wrong::Row { row: row.to_owned(), why: why.to_owned() };
    if holds { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line;

    fn found(words: &str, driver: u32) -> (Class, bool, String) {
        let line = format!("NVRM: Xid (PCI:0000:3b:00): {words}");
        let signal = line::signal(&line).unwrap().unwrap();
        let table = Table::shipped().unwrap().for_driver(Some(driver));
        let found = table.find(&signal);
        (found.meaning.class, found.peer, found.name.to_owned())
    }

    fn class(words: &str) -> Class {
        found(words, 575).0
    }

    #[test]
    fn the_table_that_is_shipped_is_one() {
        assert!(Table::shipped().is_ok(), "{:?}", Table::shipped().err());
    }

    #[test]
    fn codes_are_of_their_classes_and_one_that_nobody_knows_is_unknown() {
        assert_eq!(class("31, pid=1, name=x, MMU Fault"), Class::Application);
        assert_eq!(class("63, row remap"), Class::Harmless);
        assert_eq!(class("94, contained"), Class::Degraded);
        assert_eq!(class("79, GPU has fallen off the bus."), Class::Fatal);
        assert_eq!(class("999, new"), Class::Unknown);
    }

    #[test]
    fn a_link_s_unit_is_in_other_bits_with_older_drivers() {
        // TLW_RX pipe 1: 11 in the new word; the old one has 10 in its higher bits.
        let status = "0x00000004";
        let new = found(&format!("146, x Fatal Link 1 (0x0000000b {status})"), 580);
        let old = found(&format!("146, x Fatal Link 1 (0x00000143 {status})"), 570);
        assert_eq!((new.0, new.2.as_str()), (Class::Fatal, "TLW_RX, pipe 1"));
        assert_eq!((old.0, old.2.as_str()), (Class::Fatal, "TLW_RX, pipe 0"));
        let unknown = found(&format!("146, x Link 1 (0x0000007f {status})"), 580);
        assert_eq!(unknown.0, Class::Unknown);
    }

    #[test]
    fn a_link_that_its_peer_took_down_blames_the_peer() {
        let reason = |reason: u32| format!("{:#010x}", reason << 20 | 17);
        let by_peer = found(&format!("149, x Link 5 ({} 0x0)", reason(0x20)), 580);
        assert_eq!((by_peer.0, by_peer.1), (Class::Degraded, true));
        let own = found(&format!("149, x Link 5 ({} 0x0)", reason(4)), 580);
        assert_eq!((own.0, own.1), (Class::Degraded, false));
    }

    #[test]
    fn the_worst_bit_of_a_register_counts() {
        let weak = class("74, x, NVLink: on link 6(0x200001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)");
        assert_eq!(weak, Class::Degraded);
        let none = class("74, x, NVLink: on link 6(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)");
        assert_eq!(none, Class::Harmless);
    }

    #[test]
    fn what_a_gpu_asks_for_is_never_nothing_if_it_is_not_known() {
        let asks = |value: u32| class(&format!("154, changed from 0x0 (None) to {value:#x} (?)"));
        assert_eq!(
            [asks(0), asks(1), asks(4), asks(99)],
            [Class::Harmless, Class::Fatal, Class::Degraded, Class::Degraded]
        );
    }

    #[test]
    fn a_table_that_contradicts_itself_is_refused_in_words() {
        let with = |old: &str, new: &str| {
            let text = SHIPPED.replacen(old, new, 1);
            assert_ne!(text, SHIPPED, "{old}");
            Table::parse(&text).unwrap_err().to_string()
        };
        assert!(with("codes = [63]", "codes = [64]").contains("64 is in two rows"));
        let why = "scope: gpu or node with class degraded or fatal";
        assert!(with("class = \"harmless\"", "class = \"fatal\"").contains(why));
        assert!(with("class = \"harmless\"", "class = \"bad\"").contains("unknown variant `bad`"));
        assert!(
            with("codes = [63]", "codes = [63]\ncolour = 1").contains("unknown field `colour`")
        );
    }
}
