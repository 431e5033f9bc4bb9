//! Why a message is refused. Always names the message and the field.

use std::fmt::Display;
use std::str::FromStr;

use tidegate_model::SpecError;

/// A message that does not hold what it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field that must be there is not.
    #[error("{field} is missing")]
    Missing {
        /// `Message.field`.
        field: &'static str,
    },
    /// An enum value this version does not know.
    #[error("{field}: {value} is not a value this version knows")]
    UnknownEnum {
        /// `Message.field`.
        field: &'static str,
        /// The number on the wire.
        value: i32,
    },
    /// A text or number outside what is accepted.
    #[error("{field}: {why}")]
    Invalid {
        /// `Message.field`.
        field: &'static str,
        /// What was wrong and what would be accepted.
        why: String,
    },
    /// A job that breaks a limit.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// A field that must be present.
///
/// # Errors
/// [`WireError::Missing`] if it is not.
pub fn required<T>(value: Option<T>, field: &'static str) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { field })
}

/// A text that must parse as a typed id or name.
///
/// # Errors
/// [`WireError::Missing`] if it is empty, [`WireError::Invalid`] if it does not parse.
pub fn parsed<T>(text: &str, field: &'static str) -> Result<T, WireError>
where
    T: FromStr,
    T::Err: Display,
{
    if text.is_empty() {
        return Err(WireError::Missing { field });
    }
    text.parse().map_err(|error: T::Err| WireError::Invalid { field, why: error.to_string() })
}

/// As [`parsed`], of a text that may be empty: none then.
///
/// # Errors
/// [`WireError::Invalid`] if it does not parse.
pub fn optional<T>(text: &str, field: &'static str) -> Result<Option<T>, WireError>
where
    T: FromStr,
    T::Err: Display,
{
    if text.is_empty() { Ok(None) } else { parsed(text, field).map(Some) }
}

/// A number that must fit a smaller type.
///
/// # Errors
/// [`WireError::Invalid`] if it does not.
pub fn narrowed<N, T>(number: N, field: &'static str) -> Result<T, WireError>
where
    N: Copy + Display,
    T: TryFrom<N>,
{
    T::try_from(number).map_err(|_out_of_range| WireError::Invalid {
        field,
        why: format!("{number} is out of range"),
    })
}
