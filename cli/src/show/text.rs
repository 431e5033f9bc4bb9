//! Text from others, made safe for a terminal.

/// The text with control characters written out. Names and reasons are other people's words: they
/// must not clear a screen or forge a line.
pub(crate) fn plain(text: &str) -> String {
    let written = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(written).collect()
}

/// `1 task`, `3 tasks`.
pub(crate) fn counted(count: impl Into<u64>, noun: &str) -> String {
    match count.into() {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_written_out_and_other_letters_kept() {
        assert_eq!(plain("gr\u{fc}n \u{7}"), "gr\u{fc}n \\u{7}");
        assert_eq!(plain("a\tb\u{9b}"), "a\\tb\\u{9b}");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(1_u32, "task"), "1 task");
        assert_eq!(counted(0_u32, "task"), "0 tasks");
    }
}
