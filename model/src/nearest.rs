//! The word that was meant: for refusals of a key, a command or a rule that nobody knows.

/// The known word nearest to the given one, if any is near enough that a suggestion helps more than it
/// puzzles: at most one slip in three characters. Of several as near, the first.
#[must_use]
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let given: Vec<char> = given.chars().collect();
    let slips = |word: &&'a str| {
        let word: Vec<char> = word.chars().collect();
        let longer = given.len().max(word.len());
        let slips = distance(&given, &word);
        (slips.saturating_mul(3) <= longer).then_some(slips)
    };
    let near = known.iter().filter_map(|word| slips(word).map(|slips| (slips, *word)));
    near.min_by_key(|(slips, _)| *slips).map(|(_, word)| word)
}

/// Slips between two words: a character too many, too few, another, or two that changed places. (Optimal
/// string alignment: Damerau 1964, each stretch edited once.)
fn distance(one: &[char], other: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut one_before = None;
    for (row, &a) in one.iter().enumerate() {
        let mut here = vec![row.saturating_add(1)];
        let mut other_before = None;
        for (column, &b) in other.iter().enumerate() {
            let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX);
            let another = at(&last, column).saturating_add(usize::from(a != b));
            let dropped = at(&last, column.saturating_add(1)).saturating_add(1);
            let added = at(&here, column).saturating_add(1);
            let swapped = (one_before == Some(b) && other_before == Some(a))
                .then(|| column.checked_sub(1).map(|column| at(&before_last, column)))
                .flatten()
                .map_or(usize::MAX, |before| before.saturating_add(1));
            here.push(another.min(dropped).min(added).min(swapped));
            other_before = Some(b);
        }
        before_last = std::mem::replace(&mut last, here);
        one_before = Some(a);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_stranger_finds_none() {
        let known = ["gpus", "gpus_per_node", "min_runtime", "jobs"];
        assert_eq!(nearest("gpu", &known), Some("gpus"));
        assert_eq!(nearest("min-runtime", &known), Some("min_runtime"));
        assert_eq!(nearest("jbos", &known), Some("jobs"), "two changed places: one slip");
        assert_eq!(nearest("priority", &known), None);
        assert_eq!(nearest("x", &[]), None);
    }

    #[test]
    fn slips_are_counted() {
        let check = |one: &str, other: &str, expected| {
            let count = |one: &str, other: &str| {
                distance(&one.chars().collect::<Vec<_>>(), &other.chars().collect::<Vec<_>>())
            };
            assert_eq!(
                (count(one, other), count(other, one)),
                (expected, expected),
                "{one} {other}"
            );
        };
        check("", "", 0);
        check("", "abc", 3);
        check("abc", "abc", 0);
        check("abc", "acb", 1);
        check("abc", "abd", 1);
        check("kitten", "sitting", 3);
        check("ca", "abc", 3);
    }
}
