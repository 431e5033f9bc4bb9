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

/// A size to one decimal of its largest unit: `68.0GiB`.
pub(crate) fn about(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, size)) = UNITS.iter().find(|(_, size)| bytes >= *size) else {
        return format!("{bytes}B");
    };
    let tenths = u128::from(bytes) * 10 / u128::from(*size);
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_in_one_unit() {
        for (bytes, expected) in [
            (0, "0B"),
            (1023, "1023B"),
            (1536, "1.5KiB"),
            (71_303_168, "68.0MiB"),
            (u64::MAX, "16777215.9TiB"),
        ] {
            assert_eq!(about(bytes), expected);
        }
    }

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
