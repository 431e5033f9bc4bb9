//! Values within bounds. A refusal says which; the parser of the arguments adds the option and what
//! was given.

use tidegate_model::{Bytes, Span};

/// A whole number from `least` to `most`.
pub(super) fn count(
    least: u32,
    most: u32,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync {
    move |text| {
        let count = text.parse().ok().filter(|count| (least..=most).contains(count));
        count.ok_or_else(|| format!("a whole number from {least} to {most} is accepted"))
    }
}

/// A span up to `most`.
pub(super) fn span(most: Span) -> impl Fn(&str) -> Result<Span, String> + Clone + Send + Sync {
    move |text| {
        let span = text.parse().ok().filter(|span| *span <= most);
        span.ok_or_else(|| {
            format!("a span of time such as 90s, 30m or 1h30m, from 0 to {most}, is accepted")
        })
    }
}

/// A size from `least` to `most`.
pub(super) fn size(
    (least, most): (Bytes, Bytes),
) -> impl Fn(&str) -> Result<Bytes, String> + Clone + Send + Sync {
    move |text| {
        let size = text.parse().ok().filter(|size| (least..=most).contains(size));
        size.ok_or_else(|| {
            format!("a size such as 512KiB or 64MiB, from {least} to {most}, is accepted")
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::Cli;
    use crate::usage::in_one_line;

    fn check(line: &str, expected: &str) {
        let told = in_one_line(&Cli::try_parse_from(line.split(' ')).unwrap_err());
        assert_eq!(told, format!("invalid value {expected}"), "{line}");
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_its_option_itself_and_the_range() {
        let run = |option: &str, expected: &str| {
            let (name, value) = option.split_once(' ').unwrap();
            let expected = expected.replace("{}", &format!("'{value}' for '{name}"));
            check(&format!("tidegate run {option} -- true"), &expected);
        };
        let whole = "a whole number from";
        run("--gpus 99999999999", &format!("{{}} <N>': {whole} 1 to 4294967295 is accepted"));
        run("--gpus 0", &format!("{{}} <N>': {whole} 1 to 4294967295 is accepted"));
        run("--gpus -1", &format!("{{}} <N>': {whole} 1 to 4294967295 is accepted"));
        run("--max-restarts 1001", &format!("{{}} <N>': {whole} 0 to 1000 is accepted"));
        run("--max-blocks 65537", &format!("{{}} <N>': {whole} 1 to 65536 is accepted"));
        let span = "a span of time such as 90s, 30m or 1h30m, from 0 to";
        run("--min-runtime 9h", &format!("{{}} <SPAN>': {span} 8h, is accepted"));
        run("--min-runtime -1s", &format!("{{}} <SPAN>': {span} 8h, is accepted"));
        run("--grace 99999999999999999999h", &format!("{{}} <SPAN>': {span} 30m, is accepted"));
        let size = "a size such as 512KiB or 64MiB, from 64KiB to 16GiB, is accepted";
        run("--log-cap 99999999999TiB", &format!("{{}} <SIZE>': {size}"));
        let many = "5001 jobs asked; 1 to 1000 are accepted";
        run("--array 0-5000", &format!("{{}} <RANGE>': {many}"));
        check(
            "tidegate report --weeks 521",
            &format!("'521' for '--weeks <N>': {whole} 1 to 520 is accepted"),
        );
        check(
            "tidegate logs job-1 --attempt 0",
            &format!("'0' for '--attempt <N>': {whole} 1 to 4294967295 is accepted"),
        );
    }

    #[test]
    fn amounts_and_instants_out_of_range_are_refused_likewise() {
        let size = "expected a share of the parent such as 30%, from 0% to 100%, or GPU-hours of a \
                    window such as 1200h, from 0h to 1000000000h";
        for given in ["101%", "1000000001h", "99999999999999999999h", "-5%"] {
            let shown = format!("'{given}' for '<SIZE>': {given:?} is no size of a budget: {size}");
            check(&format!("tidegate budget set a {given}"), &shown);
        }
        let hours = "expected a form like 64h or 0.5h, from 0h to 1000000000h";
        for given in ["99999999999999999999", "-5h"] {
            let shown =
                format!("'{given}' for '<HOURS>': {given:?} is no number of GPU-hours: {hours}");
            check(&format!("tidegate budget transfer a b {given}"), &shown);
        }
        assert!(
            Cli::try_parse_from("tidegate budget transfer --permanent a b 5h".split(' ')).is_ok()
        );
        assert!(
            Cli::try_parse_from("tidegate budget transfer a b 5h --permanent".split(' ')).is_ok()
        );
        let by = "expected a span from now like 2h or 1h30m, from 0 to 3653d, or an instant like \
                  2026-12-01T08:00:00Z or 2026-12-01T08:00:00+01:00";
        for given in ["99999999999999999999h", "3653d1h", "-2h"] {
            let shown = format!("'{given}' for '--by <TIME|SPAN>': {given:?} is no time: {by}");
            check(&format!("tidegate drain n1 --reason x --by {given}"), &shown);
        }
    }
}
