//! What differs between two texts, line by line.

/// The lines that are expected and did not come, with `-`, and those that came and were not
/// expected, with `+`; empty if the texts are equal. By the longest common subsequence: texts of
/// scenarios have tens of lines.
#[must_use]
pub fn difference(expected: &str, got: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), got.lines().collect());
    let common = common_lengths(&old, &new);
    let length =
        |i: usize, j: usize| common.get(i).and_then(|row| row.get(j)).copied().unwrap_or_default();
    let (mut i, mut j) = (0, 0);
    let mut text = String::new();
    while i < old.len() || j < new.len() {
        let (a, b) = (old.get(i), new.get(j));
        let (sign, line) = if a.is_some() && a == b {
            (' ', a)
        } else if a.is_some() && (b.is_none() || length(i + 1, j) >= length(i, j + 1)) {
            ('-', a)
        } else {
            ('+', b)
        };
        i += usize::from(sign != '+');
        j += usize::from(sign != '-');
        if sign != ' ' {
            text.push_str(&format!("{sign} {}\n", line.copied().unwrap_or_default()));
        }
    }
    text
}

/// For each pair of tails, how many lines they have in common, in order.
fn common_lengths(old: &[&str], new: &[&str]) -> Vec<Vec<usize>> {
    let mut rows = vec![vec![0; new.len() + 1]];
    for line in old.iter().rev() {
        let below = rows.last().cloned().unwrap_or_default();
        let mut row = vec![0];
        for (j, other) in new.iter().enumerate().rev() {
            let right = row.last().copied().unwrap_or_default();
            let under = below.get(j).copied().unwrap_or_default();
            let diagonal = below.get(j + 1).copied().unwrap_or_default();
            row.push(if line == other { diagonal + 1 } else { right.max(under) });
        }
        row.reverse();
        rows.push(row);
    }
    rows.reverse();
    rows
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn only_lines_that_differ_are_shown() {
        assert_eq!(difference("a\nb\nc\n", "a\nb\nc\n"), "");
        assert_eq!(difference("a\nb\nc\n", "a\nx\nc\nd\n"), "- b\n+ x\n+ d\n");
        assert_eq!(difference("", "a\n"), "+ a\n");
    }
}
