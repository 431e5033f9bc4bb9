//! Words that people give, and words that they are given: both have an end.

use crate::decision::Refusal;

/// Most characters of a reason: a paragraph, which is told wherever the thing is.
const MAX_REASON_CHARS: usize = 1000;

/// Most names in a refusal; those beyond are counted.
pub(crate) const MAX_NAMED: usize = 8;

/// A reason as it is kept.
pub(super) fn reason(given: &str) -> Result<&str, Refusal> {
    let reason = given.trim();
    let chars = reason.chars().count();
    if chars == 0 {
        return Err(Refusal::ReasonMissing);
    }
    if chars > MAX_REASON_CHARS {
        let why =
            format!("a reason of {chars} characters given; 1 to {MAX_REASON_CHARS} are accepted");
        return Err(Refusal::CannotHold { why });
    }
    Ok(reason)
}

/// `a or b or c`, and how many more there are.
pub(super) fn any_of(names: impl IntoIterator<Item = String>) -> String {
    let mut names = names.into_iter();
    let named: Vec<_> = names.by_ref().take(MAX_NAMED).collect();
    let more = match names.count() {
        0 => String::new(),
        1 => " or 1 other".to_owned(),
        more => format!(" or {more} others"),
    };
    named.join(" or ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_a_few_and_counts_the_rest() {
        let told = |count: u32| any_of((1..=count).map(|number| format!("a{number}")));
        assert_eq!(told(2), "a1 or a2");
        assert_eq!(told(9), "a1 or a2 or a3 or a4 or a5 or a6 or a7 or a8 or 1 other");
        assert!(told(400).ends_with(" or a8 or 392 others"));
    }

    #[test]
    fn a_reason_has_words_and_an_end() {
        assert_eq!(reason(" why "), Ok("why"));
        assert_eq!(reason(" \n"), Err(Refusal::ReasonMissing));
        assert!(reason(&"\u{fc}".repeat(1000)).is_ok());
        let why = "a reason of 1001 characters given; 1 to 1000 are accepted".to_owned();
        assert_eq!(reason(&"\u{fc}".repeat(1001)), Err(Refusal::CannotHold { why }));
    }
}
