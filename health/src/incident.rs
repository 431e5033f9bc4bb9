//! Signals of a node that belong together: those between two silences. Counted, not kept: a hundred
//! thousand lines of one fault are one entry.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{Span, Timestamp};

use crate::meaning::{Meaning, Own};
use crate::signal::{PciAddress, Signal};
use crate::table::{Again, Found, Table};

/// More devices than any node has. What comes of others counts for the node.
const MAX_DEVICES: usize = 64;

/// So many moments of one kind are told apart; whatever has more of them is no burst at a kill of ours.
const MAX_MOMENTS: usize = 256;

/// So many processes are named.
const MAX_PIDS: usize = 8;

/// Lines this near to each other are one occurrence.
const MOMENT: Span = Span::seconds(10);

/// What is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// An error of a GPU.
    Xid(u32),
    /// An error of a switch.
    Switch(u32),
    /// What a GPU asks for, read from the driver; none = it could not be read.
    Recovery(Option<u32>),
    /// Another line of the kernel.
    Line,
    /// A line about GPUs that nobody can read.
    Unreadable,
}

/// A row of the table, with what it was found for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) device: Option<PciAddress>,
    pub(crate) code: Code,
    /// Only where it is counted by links, or the other end is to blame.
    pub(crate) link: Option<u32>,
    pub(crate) meaning: Meaning,
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) peer: bool,
    pub(crate) needs_company: bool,
    pub(crate) own: Option<Own>,
    pub(crate) again: Option<Again>,
}

/// How often a kind was seen, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) count: u64,
    /// The earliest, as it was said.
    pub(crate) first: (Timestamp, String),
    pub(crate) last: Timestamp,
    pub(crate) pids: BTreeSet<u32>,
    moments: BTreeSet<u64>,
    /// There were more moments than are kept.
    crowded: bool,
}

/// Signals between two silences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Incident {
    kinds: BTreeMap<Kind, Seen>,
    devices: BTreeSet<PciAddress>,
    lines: u64,
}

impl Incident {
    /// Notes a signal, in the words that it came in. In whichever order they come, what is noted is the same.
    pub fn note(&mut self, table: &Table, at: Timestamp, signal: &Signal, said: &str) {
        let found = table.find(signal);
        let (device, code, link, pid) = match signal {
            Signal::Xid(xid) => (Some(xid.gpu), Code::Xid(xid.code), xid.link, xid.pid),
            Signal::Switch(error) => {
                (Some(error.switch), Code::Switch(error.code), error.link, None)
            }
            Signal::OffTheBus(gpu) => (Some(*gpu), Code::Line, None, None),
            Signal::Bus { device, .. } => (Some(*device), Code::Line, None, None),
            Signal::ProbeFailed => (None, Code::Line, None, None),
        };
        self.count(at, (device, code, link), found, (pid, said));
    }

    /// Notes a line about GPUs that cannot be read.
    pub fn note_unreadable(&mut self, table: &Table, at: Timestamp, said: &str) {
        self.count(at, (None, Code::Unreadable, None), table.unreadable(), (None, said));
    }

    /// Notes what a GPU asks for; none = it was asked and that failed, which is not "nothing".
    pub fn note_recovery(
        &mut self,
        table: &Table,
        at: Timestamp,
        gpu: PciAddress,
        value: Option<u32>,
    ) {
        let found = match value {
            Some(value) => table.recovery(value),
            None => Table::unread_recovery(),
        };
        self.count(at, (Some(gpu), Code::Recovery(value), None), found, (None, found.name));
    }

    fn count(
        &mut self,
        at: Timestamp,
        (device, code, link): (Option<PciAddress>, Code, Option<u32>),
        found: Found<'_>,
        (pid, said): (Option<u32>, &str),
    ) {
        self.lines = self.lines.saturating_add(1);
        let room = self.devices.len() < MAX_DEVICES;
        let device = device.filter(|one| self.devices.contains(one) || room);
        self.devices.extend(device);
        let by_link = found.again.is_some() || found.peer;
        let kind = Kind {
            device,
            code,
            link: link.filter(|_| by_link),
            meaning: found.meaning,
            name: found.name.to_owned(),
            source: found.source.to_owned(),
            peer: found.peer,
            needs_company: found.needs_company,
            own: found.own,
            again: found.again.cloned(),
        };
        let seen = self.kinds.entry(kind).or_insert_with(|| Seen::at(at, said));
        seen.add(at, said, pid);
    }

    /// How many lines and readings there were.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// From when until when; none before the first.
    #[must_use]
    pub fn times(&self) -> Option<(Timestamp, Timestamp)> {
        let first = self.kinds.values().map(|seen| seen.first.0).min()?;
        Some((first, self.kinds.values().map(|seen| seen.last).max()?))
    }

    /// Whether a signal at this instant belongs to it: it is not after the silence that ends it.
    #[must_use]
    pub fn goes_on_at(&self, table: &Table, at: Timestamp) -> bool {
        self.times().is_none_or(|(_, last)| at.since(last) <= table.silence())
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = (&Kind, &Seen)> {
        self.kinds.iter()
    }
}

impl Seen {
    fn at(at: Timestamp, said: &str) -> Self {
        Self {
            count: 0,
            first: (at, said.to_owned()),
            last: at,
            pids: BTreeSet::new(),
            moments: BTreeSet::new(),
            crowded: false,
        }
    }

    fn add(&mut self, at: Timestamp, said: &str, pid: Option<u32>) {
        self.count = self.count.saturating_add(1);
        if (at, said) < (self.first.0, self.first.1.as_str()) {
            self.first = (at, said.to_owned());
        }
        self.last = self.last.max(at);
        self.pids.extend(pid);
        if self.pids.len() > MAX_PIDS {
            self.pids.pop_last();
        }
        self.moments.insert(at.0 / MOMENT.0);
        if self.moments.len() > MAX_MOMENTS {
            self.moments.pop_last();
            self.crowded = true;
        }
    }

    /// How often it came, lines of one moment taken together.
    pub(crate) fn occurrences(&self) -> u32 {
        u32::try_from(self.moments.len()).unwrap_or(u32::MAX)
    }

    /// Whether it never came but near one of these instants.
    pub(crate) fn only_near(&self, all: &[Timestamp], within: Span) -> bool {
        let near = |moment: u64| {
            let (from, to) = (
                moment.saturating_mul(MOMENT.0),
                moment.saturating_add(1).saturating_mul(MOMENT.0),
            );
            all.iter().any(|at| {
                at.0.saturating_sub(MOMENT.0) <= to && from <= at.0.saturating_add(within.0)
            })
        };
        !self.crowded && self.moments.iter().all(|moment| near(*moment))
    }
}
