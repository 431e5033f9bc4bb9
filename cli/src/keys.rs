//! What is typed into the terminal of a job: all of it is the job's but the keys that detach.

/// Ctrl-], as of old the key to leave a terminal by.
const ESCAPE: u8 = 0x1d;

/// Tells the keys of the job from those of this program.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// The last key was the escape.
    escaped: bool,
}

/// What was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Typed {
    pub(crate) bytes: Vec<u8>,
    /// Then `Ctrl-] d`; what follows is nobody's.
    pub(crate) detach: bool,
}

impl Keys {
    /// Takes what was read. A lone escape waits for the key after it.
    pub(crate) fn take(&mut self, read: &[u8]) -> Typed {
        let mut typed = Typed { bytes: Vec::with_capacity(read.len()), detach: false };
        for byte in read {
            match (std::mem::take(&mut self.escaped), *byte) {
                (true, b'd') => {
                    typed.detach = true;
                    break;
                }
                (true, ESCAPE) => typed.bytes.push(ESCAPE),
                (true, other) => typed.bytes.extend([ESCAPE, other]),
                (false, ESCAPE) => self.escaped = true,
                (false, other) => typed.bytes.push(other),
            }
        }
        typed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(reads: &[&[u8]], bytes: &[u8], detach: bool) {
        let mut keys = Keys::default();
        let typed: Vec<Typed> = reads.iter().map(|read| keys.take(read)).collect();
        let all: Vec<u8> = typed.iter().flat_map(|typed| typed.bytes.clone()).collect();
        assert_eq!((&all[..], typed.iter().any(|t| t.detach)), (bytes, detach), "{reads:?}");
    }

    #[test]
    fn all_keys_are_the_jobs_but_the_two_that_detach() {
        check(&[b"ls\x03\x04"], b"ls\x03\x04", false);
        check(&[b"a\x1ddb"], b"a", true);
        check(&[b"a\x1d", b"d"], b"a", true);
        check(&[b"\x1d\x1dd"], b"\x1dd", false);
        check(&[b"\x1dx"], b"\x1dx", false);
        check(&[b"d"], b"d", false);
    }
}
