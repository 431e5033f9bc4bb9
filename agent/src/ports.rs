//! A port for the rank 0 of a gang.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, TcpListener};
use std::str::FromStr;

/// Ports from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// Why a text is not a range of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortRangeError {
    given: String,
}

impl fmt::Display for PortRangeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = &self.given;
        write!(out, "{given:?} is not a range of ports: expected a form like 29500-29999")
    }
}

impl std::error::Error for PortRangeError {}

impl Default for PortRange {
    /// From torchrun's own default port on, below the kernel's range for outgoing connections.
    fn default() -> Self {
        Self { first: 29_500, last: 29_999 }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<Self, PortRangeError> {
        let parse = || {
            let (first, last) = text.split_once('-')?;
            let range = Self { first: first.parse().ok()?, last: last.parse().ok()? };
            (range.first > 0 && range.first <= range.last).then_some(range)
        };
        parse().ok_or_else(|| PortRangeError { given: text.chars().take(64).collect() })
    }
}

/// Hands out ports of a range in turn, so that one is not used again right after its last use.
#[derive(Debug)]
pub struct Ports {
    range: PortRange,
    next: u16,
}

impl Ports {
    /// Of this range.
    #[must_use]
    pub fn of(range: PortRange) -> Self {
        Self { range, next: range.first }
    }

    /// A port that is not in `taken` and that nothing on this node is bound to now; none if the
    /// whole range is in use.
    pub fn take(&mut self, taken: &BTreeSet<u16>) -> Option<u16> {
        let PortRange { first, last } = self.range;
        let in_turn = (self.next..=last).chain(first..self.next);
        let port = in_turn.into_iter().find(|port| !taken.contains(port) && is_unbound(*port))?;
        self.next = if port == last { first } else { port.saturating_add(1) };
        Some(port)
    }
}

fn is_unbound(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_bound_or_taken_is_not_given() {
        let bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = bound.local_addr().unwrap().port();
        let mut ports = Ports::of(PortRange { first: port, last: port });
        assert_eq!(ports.take(&BTreeSet::new()), None);
        drop(bound);
        assert_eq!(ports.take(&BTreeSet::from([port])), None);
        assert_eq!(ports.take(&BTreeSet::new()), Some(port));
    }

    #[test]
    fn a_range_reads_back_what_it_wrote() {
        assert_eq!("1-65535".parse::<PortRange>().unwrap().to_string(), "1-65535");
        for text in ["", "1", "0-5", "5-1", "1-65536", "a-b"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }
}
