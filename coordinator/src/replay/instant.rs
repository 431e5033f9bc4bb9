//! Instants as people give them: of their own, or by how long ago.

use tidegate_model::{Span, Timestamp, from_rfc3339};

/// An instant with a date and an offset as RFC 3339 has it, in milliseconds since 1970, or such as
/// `-2h`: so long before `last`.
///
/// # Errors
/// What would be accepted.
pub fn parse(text: &str, last: Timestamp) -> Result<Timestamp, String> {
    if let Ok(ms) = text.parse() {
        return Ok(Timestamp(ms));
    }
    let before = text.strip_prefix('-').and_then(|span| span.parse::<Span>().ok());
    if let Some(span) = before {
        return Ok(Timestamp(last.0.saturating_sub(span.0)));
    }
    from_rfc3339(text).ok_or_else(|| {
        let given: String = text.chars().take(64).collect();
        format!(
            "{given:?} is no time: expected an instant like 2026-12-01T08:00:00Z, milliseconds \
             since 1970, or -2h for two hours before the last record"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read_in_three_ways_and_others_refused_with_what_is_accepted() {
        let last = Timestamp(10_000_000);
        assert_eq!(parse("1970-01-02T01:00:00+01:00", last), Ok(Timestamp(86_400_000)));
        assert_eq!(parse("1234", last), Ok(Timestamp(1234)));
        assert_eq!(parse("-2h", last), Ok(Timestamp(2_800_000)));
        assert_eq!(parse("-20h", last), Ok(Timestamp(0)));
        let told = parse("tomorrow", last).unwrap_err();
        assert!(told.starts_with("\"tomorrow\" is no time: expected"), "{told}");
    }
}
