//! Opaque ids. `Display` and `FromStr` agree; an id of one kind never parses as another.

use std::fmt;
use std::str::FromStr;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdError {
    given: String,
    expected: &'static str,
}

impl IdError {
    fn new(given: &str, expected: &'static str) -> Self {
        // An id that came over the wire may be of any length; the message stays a line.
        Self { given: given.chars().take(64).collect(), expected }
    }
}

impl fmt::Display for IdError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} is not an id: expected {}", self.given, self.expected)
    }
}

impl std::error::Error for IdError {}

/// A decimal without sign, leading zeros or spaces, so that one id has one text.
fn canonical_number<N: FromStr>(text: &str) -> Option<N> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty), $prefix:literal, $example:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, concat!($prefix, "{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix)
                    .and_then(canonical_number)
                    .map(Self)
                    .ok_or_else(|| IdError::new(text, concat!("the form ", $example)))
            }
        }
    };
}

id!(/** A submitted job; kept for life, never reused. */ JobId(u64), "job-", "job-7");
id!(/** A node of this cluster; numbered in the order of enrolment. */ NodeId(u32), "node-", "node-3");
id!(
    /** A decision's place in the journal: the sequence number of its record. */
    DecisionSeq(u64), "decision-", "decision-12"
);

/// One run of a job: the job and the attempt's number, counted from 1. Text: `job-7.2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The job that runs.
    pub job: JobId,
    /// Counted from 1 within the job.
    pub number: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.job, self.number)
    }
}

impl FromStr for AttemptId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (job, number) = text.rsplit_once('.')?;
            Some(Self { job: job.parse().ok()?, number: canonical_number(number)? })
        };
        parse()
            .filter(|id| id.number > 0)
            .ok_or_else(|| IdError::new(text, "the form job-7.2 (job and attempt)"))
    }
}

/// One task of a gang: the attempt and the task's index, counted from 0. Text: `job-7.2.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The attempt whose gang it belongs to.
    pub attempt: AttemptId,
    /// Counted from 0 within the gang, in rank order.
    pub index: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.attempt, self.index)
    }
}

impl FromStr for TaskId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let parse = || {
            let (attempt, index) = text.rsplit_once('.')?;
            Some(Self { attempt: attempt.parse().ok()?, index: canonical_number(index)? })
        };
        parse().ok_or_else(|| IdError::new(text, "the form job-7.2.0 (job, attempt and task)"))
    }
}

/// A user of the cluster's hosts: the uid that the kernel or a certificate vouched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

impl fmt::Display for UserId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "uid-{}", self.0)
    }
}

/// A leadership of the coordinator over its store; grows by one with every start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// The version of one node's plan within an epoch; only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// The plan after this one. Saturates: 2^64 plans are never reached.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)
    }
}

/// Crockford's base 32, as ULIDs are written: no I, L, O or U.
const BASE32: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// 26 digits of 5 bits hold 130: the first digit of a 128-bit number is at most 7.
const ULID_DIGITS: u32 = 26;

fn write_ulid(out: &mut fmt::Formatter<'_>, value: u128) -> fmt::Result {
    for place in (0..ULID_DIGITS).rev() {
        let digit = (value >> (5 * place)) & 31;
        let digit = usize::try_from(digit).ok().and_then(|at| BASE32.get(at)).copied();
        write!(out, "{}", char::from(digit.unwrap_or(b'0')))?;
    }
    Ok(())
}

fn parse_ulid(text: &str) -> Option<u128> {
    if text.len() != 26 {
        return None;
    }
    text.bytes().try_fold(0_u128, |value, byte| {
        let digit = BASE32.iter().position(|&known| known == byte.to_ascii_uppercase())?;
        value.checked_mul(32)?.checked_add(u128::try_from(digit).ok()?)
    })
}

macro_rules! ulid {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        // Aligned as a u64: as a u128 it would pad what holds it, such as 100,000 waiting jobs.
        #[repr(Rust, packed(8))]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_ulid(out, self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_ulid(text)
                    .map(Self)
                    .ok_or_else(|| IdError::new(text, "a ULID of 26 characters"))
            }
        }
    };
}

ulid!(
    /// The identity of a store and of everything enrolled with it.
    ClusterId
);
ulid!(
    /// Made by the client: the same key and user answers the same job for 7 days.
    SubmitKey
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_what_it_wrote() {
        let task = TaskId { attempt: AttemptId { job: JobId(7), number: 2 }, index: 0 };
        assert_eq!(task.to_string(), "job-7.2.0");
        assert_eq!("job-7.2.0".parse(), Ok(task));
        assert_eq!("job-7.2".parse(), Ok(task.attempt));
        let key = SubmitKey(u128::MAX);
        assert_eq!(key.to_string(), "7ZZZZZZZZZZZZZZZZZZZZZZZZZ");
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(SubmitKey(0).to_string(), "00000000000000000000000000");
    }

    #[test]
    fn an_id_of_another_kind_or_form_is_refused() {
        for text in
            ["node-3", "job-", "job-07", "job-+7", "job--7", "7", "job-18446744073709551616"]
        {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
        assert!("job-7.0".parse::<AttemptId>().is_err(), "attempts count from 1");
        assert!("8ZZZZZZZZZZZZZZZZZZZZZZZZZ".parse::<ClusterId>().is_err(), "over 128 bits");
        let error = "node-3".parse::<JobId>().map(|id| id.to_string()).unwrap_err();
        assert_eq!(error.to_string(), "\"node-3\" is not an id: expected the form job-7");
    }
}
