//! Names that people give: nodes, accounts, GPUs. Checked once, at the edge.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    given: String,
    expected: &'static str,
}

impl fmt::Display for NameError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} is not a name: expected {}", self.given, self.expected)
    }
}

impl std::error::Error for NameError {}

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    (1..=63).contains(&text.len()) && text.bytes().all(inner) && !text.starts_with(['-', '_'])
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        ///
        /// Copies share the text.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as people write it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    let given = text.chars().take(64).collect();
                    Err(NameError { given, expected: $expected })
                }
            }
        }
    };
}

name!(
    /// A node's name: what `hostname` prints, in lower case.
    NodeName,
    "at most 253 of a-z 0-9 - _ in labels joined by dots",
    |text| text.len() <= 253 && text.split('.').all(is_label)
);
name!(
    /// A node of the budget tree, named by its path: `olmo/pretrain`.
    AccountPath,
    "at most 8 labels of a-z 0-9 - _ joined by slashes",
    |text| text.split('/').count() <= 8 && text.split('/').all(is_label)
);
name!(
    /// A GPU's identity for life, as the driver gives it: `GPU-…`. An index is for display only.
    GpuUuid,
    "GPU- and at most 76 of a-z A-Z 0-9 -",
    |text| text.strip_prefix("GPU-").is_some_and(|rest| {
        (1..=76).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    })
);

name!(
    /// A kind of GPU as policy names it: `h100`. One gang is of one type.
    GpuType,
    "1 to 63 of a-z 0-9 - _",
    is_label
);
name!(
    /// A storage target that checkpoints are written to; each has a write gate of its own.
    StorageName,
    "1 to 63 of a-z 0-9 - _",
    is_label
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_escape_a_path_or_a_line_are_refused() {
        for text in ["", ".", "..", "a/b", "a b", "A", "a\n", "-a", "a..b"] {
            assert!(text.parse::<NodeName>().is_err(), "{text:?}");
        }
        for text in ["", "/", "a//b", "../a", "a/", "1/2/3/4/5/6/7/8/9"] {
            assert!(text.parse::<AccountPath>().is_err(), "{text:?}");
        }
        assert!("olmo/pretrain".parse::<AccountPath>().is_ok());
        assert!("gpu-01.lab.example".parse::<NodeName>().is_ok());
        assert!("GPU-".parse::<GpuUuid>().is_err());
    }
}
