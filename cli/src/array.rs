//! Arrays: one job for each number of a range, all of one spec.
//!
//! "At most ten at a time" is said to the coordinator in each of them, with the key of the array. All
//! keys come of one, so that an array that is handed over again makes no second jobs.

use std::str::FromStr;

use tidegate_model::{ArrayPlace, JobSpec, SubmitKey};

use crate::exit::Failure;

/// Most jobs of one array: a submit each, one after the other, is some seconds.
const MAX_ARRAY: u64 = 1000;

/// The bits of a key that are no instant.
const RANDOM_BITS: u128 = (1 << 80) - 1;

/// Odd, so that no two keys become one by it: 2^80 divided by the golden ratio.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39d;

/// What a job of an array finds in its environment.
const INDEX_ENV: &str = "ARRAY_INDEX";
const COUNT_ENV: &str = "ARRAY_COUNT";

/// Such as `0-99%10`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ArrayRange {
    first: u32,
    last: u32,
    /// So many at a time.
    at_a_time: Option<u32>,
}

impl FromStr for ArrayRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            let given: String = text.chars().take(64).collect();
            format!(
                "{given:?} is no range: expected a form like 0-99, or 0-99%10 for at most 10 at a \
                 time, of numbers from 0 to {}",
                u32::MAX
            )
        };
        let (range, at_a_time) = match text.split_once('%') {
            Some((range, most)) => (range, Some(most.parse().ok().ok_or_else(form)?)),
            None => (text, None),
        };
        let (first, last) = range.split_once('-').ok_or_else(form)?;
        let (first, last) = (number(first).ok_or_else(form)?, number(last).ok_or_else(form)?);
        if last < first {
            return Err(format!("{last} is before {first}; give the smaller number first"));
        }
        if at_a_time == Some(0) {
            return Err("0 at a time would never start; 1 or more is accepted".to_owned());
        }
        let jobs = u64::from(last) - u64::from(first) + 1;
        if jobs > MAX_ARRAY {
            return Err(format!("{jobs} jobs asked; 1 to {MAX_ARRAY} are accepted"));
        }
        Ok(Self { first, last, at_a_time })
    }
}

fn number(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

impl ArrayRange {
    pub(crate) fn indexes(self) -> impl Iterator<Item = u32> {
        self.first..=self.last
    }

    fn count(self) -> u32 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }

    /// The job of one number. `base` is the key of the array.
    ///
    /// # Errors
    /// If the spec sets what an array sets, or is over a limit with what is added.
    pub(crate) fn job(
        self,
        spec: &JobSpec,
        index: u32,
        base: SubmitKey,
    ) -> Result<JobSpec, Failure> {
        let mut spec = spec.clone();
        if let Some((name, _)) = spec.env.iter().find(|(name, _)| is_ours(name)) {
            let message = format!("env: {name} is set by --array; choose another name");
            return Err(Failure::refused(message));
        }
        spec.name = format!("{}[{index}]", spec.name);
        spec.env.push((INDEX_ENV.to_owned(), index.to_string()));
        spec.env.push((COUNT_ENV.to_owned(), self.count().to_string()));
        spec.env.sort();
        // Jobs that save into one directory would destroy each other's checkpoints.
        spec.checkpoint_dir = spec.checkpoint_dir.map(|dir| format!("{dir}/{index}").into());
        spec.array = self.at_a_time.map(|at_a_time| Box::new(ArrayPlace { key: base, at_a_time }));
        spec.fit_to_submit().map_err(|error| Failure::refused(error.to_string()))
    }
}

fn is_ours(name: &str) -> bool {
    [INDEX_ENV, COUNT_ENV].contains(&name)
}

/// The key of the job at a place, counted from 0. The first has the key of the array: a single job
/// under it, or another array, is then refused as a different job.
pub(crate) fn key_at(base: SubmitKey, place: usize) -> SubmitKey {
    let place = u128::try_from(place).unwrap_or(u128::MAX);
    if place == 0 {
        return base;
    }
    // Mixed twice, so that keys that are near each other have jobs far from each other.
    let mix = |bits: u128| {
        let bits = bits.wrapping_mul(SPREAD) & RANDOM_BITS;
        bits ^ bits >> 41
    };
    let random = mix(mix(base.0 & RANDOM_BITS).wrapping_add(place.wrapping_mul(SPREAD)));
    SubmitKey(base.0 & !RANDOM_BITS | random)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::jobfile;

    fn check(text: &str, expected: &str) {
        let told = text.parse::<ArrayRange>().map(|range| format!("{} jobs", range.count()));
        assert_eq!(told.unwrap_or_else(|error| error), expected, "{text}");
    }

    #[test]
    fn a_range_is_bounded_and_refused_with_what_is_accepted() {
        const FORM: &str = "is no range: expected a form like 0-99, or 0-99%10 for at most 10 at a time, of numbers from 0 to 4294967295";
        check("0-99", "100 jobs");
        check("7-7%1", "1 jobs");
        check("1-1000", "1000 jobs");
        check("0-1000", "1001 jobs asked; 1 to 1000 are accepted");
        check("0-9999999", "10000000 jobs asked; 1 to 1000 are accepted");
        check("0-4294967295", "4294967296 jobs asked; 1 to 1000 are accepted");
        check("9-0", "0 is before 9; give the smaller number first");
        check("0-9%0", "0 at a time would never start; 1 or more is accepted");
        for text in ["", "5", "-", "0-", "a-b", "0-9%", "0-9%x", "+1-2", "0-99999999999"] {
            check(text, &format!("{text:?} {FORM}"));
        }
    }

    fn spec(lines: &str) -> JobSpec {
        let root = std::path::Path::new("/data");
        let dirs = jobfile::Dirs { current: root, of_file: root };
        jobfile::parse(&format!("command = [\"eval\"]\n{lines}"), dirs).unwrap()
    }

    #[test]
    fn a_job_of_an_array_has_its_number_a_name_and_a_directory_of_its_own() {
        let range: ArrayRange = "5-9".parse().unwrap();
        let job =
            range.job(&spec("checkpoint_dir = \"ckpt\"\nenv = { B = \"b\" }"), 7, SubmitKey(1));
        let job = job.unwrap();
        assert_eq!(job.name, "eval[7]");
        assert_eq!(job.checkpoint_dir.as_deref(), Some("/data/ckpt/7"));
        let env: Vec<_> = job.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(env, ["ARRAY_COUNT=5", "ARRAY_INDEX=7", "B=b"]);
        assert_eq!(job.after, []);
    }

    #[test]
    fn a_job_says_of_which_array_it_is_only_if_that_runs_so_many_at_a_time() {
        let array = |text: &str| {
            let range: ArrayRange = text.parse().unwrap();
            range.job(&spec(""), 0, SubmitKey(1)).unwrap().array
        };
        assert_eq!(array("0-9%3"), Some(Box::new(ArrayPlace { key: SubmitKey(1), at_a_time: 3 })));
        assert_eq!(array("0-9"), None);
    }

    #[test]
    fn a_spec_that_sets_what_an_array_sets_is_refused() {
        let range: ArrayRange = "0-1".parse().unwrap();
        let told = range.job(&spec("env = { ARRAY_INDEX = \"1\" }"), 0, SubmitKey(1)).unwrap_err();
        assert_eq!(told.to_string(), "env: ARRAY_INDEX is set by --array; choose another name");
    }

    #[test]
    fn keys_of_an_array_are_all_different_and_come_of_one() {
        let base = 0x0123_4567_89ab_cdef_0123_4567_89ab_cfff_u128;
        let bases: Vec<_> = (0..50).chain([1 << 40, 1 << 79]).map(|bits| base ^ bits).collect();
        let places = |base| (0..1000).map(move |place| key_at(SubmitKey(base), place).0);
        let keys: BTreeSet<_> = bases.iter().flat_map(|base| places(*base)).collect();
        assert_eq!(keys.len(), bases.len() * 1000);
        assert_eq!(key_at(SubmitKey(base), 0), SubmitKey(base), "of another job it is refused");
        assert!(keys.iter().all(|key| key >> 80 == base >> 80), "the time of a key stays");
    }
}
