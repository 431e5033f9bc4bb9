//! What the coordinator is known to have heard of this node, and so until when permits hold.
//!
//! A plan proves nothing of that kind: it may have been made before this agent, or this stream,
//! began. What is numbered and answered does. A permit holds for its length from the moment at
//! which the last answered report was sent; the coordinator counts from when it came.

use std::collections::BTreeMap;

use crate::since_boot::SinceBoot;

/// Reports whose answer is awaited. More are unanswered only if nobody answers at all.
const MAX_OPEN: usize = 64;

/// The numbers under which reports are answered; they grow over all streams of an agent.
#[derive(Debug, Default)]
pub(crate) struct Renewals {
    last: u64,
    sent: BTreeMap<u64, SinceBoot>,
}

impl Renewals {
    /// The number of a report that is sent now.
    pub(crate) fn next(&mut self, now: SinceBoot) -> u64 {
        self.last = self.last.saturating_add(1);
        self.sent.insert(self.last, now);
        while self.sent.len() > MAX_OPEN {
            self.sent.pop_first();
        }
        self.last
    }

    /// When the report that is answered was sent; none if that is not known any more.
    pub(crate) fn answered(&mut self, number: u64) -> Option<SinceBoot> {
        let sent = self.sent.get(&number).copied();
        self.sent.retain(|open, _| *open > number);
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_when_its_report_was_sent_and_drops_the_ones_before() {
        let mut renewals = Renewals::default();
        let numbers: Vec<_> = (1..=3).map(|at| renewals.next(SinceBoot(at))).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!(renewals.answered(2), Some(SinceBoot(2)));
        assert_eq!(renewals.answered(1), None, "overtaken");
        assert_eq!(renewals.answered(3), Some(SinceBoot(3)));
        assert_eq!(renewals.answered(9), None, "never sent");
    }
}
