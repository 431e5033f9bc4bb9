//! The newest output of a terminal, for who looks at it again.

use std::collections::VecDeque;

/// What is kept: a screen of 60 lines of 240 columns is 14 KiB of text, and with a change of
/// colour at every fourth character four times that.
const MAX_KEPT: usize = 64 << 10;

/// Where to look for the beginning of a line in what is left of a longer output.
const LINE: usize = 4 << 10;

/// A ring of bytes that knows how many went before.
#[derive(Debug, Default)]
pub(super) struct Scrollback {
    kept: VecDeque<u8>,
    /// All that was ever printed.
    length: u64,
}

impl Scrollback {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let newest = bytes.get(bytes.len().saturating_sub(MAX_KEPT)..).unwrap_or_default();
        let over = self.kept.len().saturating_add(newest.len()).saturating_sub(MAX_KEPT);
        self.kept.drain(..over);
        self.kept.extend(newest);
        self.length = self.length.saturating_add(count(bytes.len()));
    }

    /// How much was printed so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// What is kept of the output from `after` on, and where it begins. Who has seen nothing yet
    /// gets all, from the beginning of a line on: a cut may lie within a command to the terminal.
    pub(super) fn since(&mut self, after: Option<u64>) -> (u64, &[u8]) {
        let start = self.length.saturating_sub(count(self.kept.len()));
        let kept: &[u8] = self.kept.make_contiguous();
        let skip = match after {
            Some(after) => usize::try_from(after.saturating_sub(start)).unwrap_or(usize::MAX),
            None if start == 0 => 0,
            None => {
                let newline = kept.iter().take(LINE).position(|byte| *byte == b'\n');
                newline.map_or(0, |at| at.saturating_add(1))
            }
        };
        let skip = skip.min(kept.len());
        (start.saturating_add(count(skip)), kept.get(skip..).unwrap_or_default())
    }
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_seen_a_part_gets_the_rest_and_who_has_seen_nothing_gets_whole_lines() {
        let mut short = Scrollback::default();
        short.push(b"one\ntwo\n");
        assert_eq!(short.since(None), (0, &b"one\ntwo\n"[..]));
        assert_eq!(short.since(Some(4)), (4, &b"two\n"[..]));
        assert_eq!(short.since(Some(8)), (8, &b""[..]));
        assert_eq!(short.since(Some(99)), (8, &b""[..]), "of another terminal");
        let mut long = Scrollback::default();
        for _ in 0..20_000 {
            long.push(b"1234\n");
        }
        let length = count(long.since(None).1.len());
        assert_eq!(long.length(), 100_000);
        assert_eq!(long.since(None).0, 100_000 - length);
        assert!(long.since(None).1.starts_with(b"1234\n"), "not in the middle of a line");
        assert_eq!(long.since(Some(3)).0, 100_000 - 65_536, "older output is not kept");
    }

    #[test]
    fn one_piece_larger_than_all_that_is_kept_leaves_its_end() {
        let mut scrollback = Scrollback::default();
        scrollback.push(&[b'a'; 10]);
        scrollback.push(&[b'b'; MAX_KEPT + 1]);
        assert_eq!(scrollback.since(Some(0)), (11, &[b'b'; MAX_KEPT][..]));
    }
}
