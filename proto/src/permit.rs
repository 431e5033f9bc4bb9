//! Conversions of asks and permits to write, and of the limits of a storage target's gate.

use tidegate_model::{Ask, AskSeen, Bandwidth, Bytes, DecisionSeq, Permit, Span, WriteClass};

use crate::v1;
use crate::wire_error::{WireError, required};

/// The class, as messages have it.
#[must_use]
pub fn class_message(class: WriteClass) -> v1::WriteClass {
    match class {
        WriteClass::Preemption => v1::WriteClass::Preemption,
        WriteClass::Final => v1::WriteClass::Final,
        WriteClass::Periodic => v1::WriteClass::Periodic,
        WriteClass::Restore => v1::WriteClass::Restore,
    }
}

/// The inverse of [`class_message`].
///
/// # Errors
/// If it is missing or not known.
pub fn class(value: i32, field: &'static str) -> Result<WriteClass, WireError> {
    match v1::WriteClass::try_from(value) {
        Ok(v1::WriteClass::Preemption) => Ok(WriteClass::Preemption),
        Ok(v1::WriteClass::Final) => Ok(WriteClass::Final),
        Ok(v1::WriteClass::Periodic) => Ok(WriteClass::Periodic),
        Ok(v1::WriteClass::Restore) => Ok(WriteClass::Restore),
        Ok(v1::WriteClass::Unspecified) => Err(WireError::Missing { field }),
        Err(_) => Err(WireError::UnknownEnum { field, value }),
    }
}

impl TryFrom<v1::AskSeen> for AskSeen {
    type Error = WireError;

    fn try_from(wire: v1::AskSeen) -> Result<Self, WireError> {
        let ask = Ask {
            number: numbered(wire.number, "AskSeen.number")?,
            class: class(wire.class, "AskSeen.class")?,
            bytes: Bytes(wire.bytes),
            files: wire.files,
            patience: wire.patience_ms.map(Span),
        };
        let (waited, written) = (Span(wire.waited_ms), Bytes(wire.written));
        Ok(Self { ask, waited, written, done: wire.done, rated: DecisionSeq(wire.rated) })
    }
}

impl From<AskSeen> for v1::AskSeen {
    fn from(AskSeen { ask, waited, written, done, rated }: AskSeen) -> Self {
        Self {
            number: ask.number,
            class: class_message(ask.class).into(),
            bytes: ask.bytes.0,
            files: ask.files,
            patience_ms: ask.patience.map(|span| span.0),
            waited_ms: waited.0,
            written: written.0,
            done,
            rated: rated.0,
        }
    }
}

impl TryFrom<v1::Permit> for Permit {
    type Error = WireError;

    fn try_from(wire: v1::Permit) -> Result<Self, WireError> {
        use v1::permit::{Answer, Denied, Granted, Waits};
        let ask = numbered(wire.ask, "Permit.ask")?;
        Ok(match required(wire.answer, "Permit.answer")? {
            Answer::Granted(Granted { bytes_per_s, length_ms, after_bytes_per_s, rated }) => {
                let (rate, after) = (bytes_per_s.map(Bandwidth), after_bytes_per_s.map(Bandwidth));
                let (length, rated) = (Span(length_ms), DecisionSeq(rated));
                Self::Granted { ask, rate, length, after, rated }
            }
            Answer::Waits(Waits { position, expected_ms }) => {
                Self::Waits { ask, position, expected: Span(expected_ms) }
            }
            Answer::Denied(Denied { why, retry_after_ms }) => {
                Self::Denied { ask, why, retry_after: retry_after_ms.map(Span) }
            }
        })
    }
}

impl From<Permit> for v1::Permit {
    fn from(permit: Permit) -> Self {
        use v1::permit::{Answer, Denied, Granted, Waits};
        let ask = permit.ask();
        let answer = match permit {
            Permit::Granted { ask: _, rate, length, after, rated } => Answer::Granted(Granted {
                bytes_per_s: rate.map(|rate| rate.0),
                length_ms: length.0,
                after_bytes_per_s: after.map(|rate| rate.0),
                rated: rated.0,
            }),
            Permit::Waits { ask: _, position, expected } => {
                Answer::Waits(Waits { position, expected_ms: expected.0 })
            }
            Permit::Denied { ask: _, why, retry_after } => {
                Answer::Denied(Denied { why, retry_after_ms: retry_after.map(|span| span.0) })
            }
        };
        Self { ask, answer: Some(answer) }
    }
}

fn numbered(number: u64, field: &'static str) -> Result<u64, WireError> {
    if number == 0 { Err(WireError::Missing { field }) } else { Ok(number) }
}
