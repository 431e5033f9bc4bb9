//! The word that was meant.

/// Below this likeness a suggestion would puzzle more than it helps.
const LEAST_LIKENESS: f64 = 0.75;

/// The known word that is most like the given one, if any is like it at all.
pub(crate) fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let likeness = |word: &&str| strsim::jaro_winkler(given, word);
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) >= LEAST_LIKENESS).then_some(*best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_a_stranger_finds_none() {
        let known = ["gpus", "gpus_per_node", "min_runtime"];
        assert_eq!(nearest("gpu", &known), Some("gpus"));
        assert_eq!(nearest("min-runtime", &known), Some("min_runtime"));
        assert_eq!(nearest("priority", &known), None);
        assert_eq!(nearest("x", &[]), None);
    }
}
