//! Wrong usage in one line, as every refusal is: what was wrong, what would be accepted, how the
//! command is used.

use clap::Error;
use clap::error::ErrorKind;

/// Whether it is a refusal, and not help or a version that was asked for.
pub(crate) fn is_wrong(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// The parser tells it in paragraphs: the first line, lists of arguments or values, tips, usage.
pub(crate) fn in_one_line(error: &Error) -> String {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(words).filter(|paragraph| !paragraph.is_empty());
    let first = paragraphs.next().unwrap_or_default();
    let mut line = first.strip_prefix("error: ").unwrap_or(&first).to_owned();
    for paragraph in paragraphs {
        if let Some(usage) = paragraph.strip_prefix("Usage: ") {
            line.push_str(&format!("; usage: {usage} (--help tells more)"));
        } else if !paragraph.starts_with("For more information") {
            line.push_str(&format!("; {paragraph}"));
        }
    }
    line
}

fn words(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Cli;

    fn check(line: &str, expected: &str) {
        let told = in_one_line(&Cli::try_parse_from(line.split(' ')).unwrap_err());
        assert_eq!(told, expected, "{line}");
        assert_eq!(told.lines().count(), 1);
    }

    #[test]
    fn wrong_usage_is_one_line_with_what_is_accepted_and_how_it_is_used() {
        check(
            "tidegate drain",
            "the following required arguments were not provided: --reason <TEXT> <NODE>; usage: \
             tidegate drain --reason <TEXT> <NODE> (--help tells more)",
        );
        check(
            "tidegate role set root ana chief",
            "invalid value 'chief' for '<ROLE>' [possible values: manager, member, reader, none]",
        );
        check(
            "tidegate jobs --mien",
            "unexpected argument '--mien' found; tip: a similar argument exists: '--mine'; usage: \
             tidegate jobs --mine (--help tells more)",
        );
    }

    #[test]
    fn help_that_was_asked_for_is_no_refusal() {
        for line in ["tidegate --help", "tidegate --version", "tidegate budget"] {
            assert!(!is_wrong(&Cli::try_parse_from(line.split(' ')).unwrap_err()), "{line}");
        }
    }
}
