//! What rehearsals have shown: results of each recipe, kept after the jobs that showed them.
//!
//! What is not here: how a rehearsal is led and judged (`decide::rehearsal`).

use std::fmt;

use imbl::OrdMap;
use tidegate_model::{Bytes, GpuCount, JobId, JobSpec, Span, TaskLayout, Timestamp};

use crate::books::{Books, Job};

/// Results that are kept, the newest: a hundred and fifty people with two dozen recipes each.
const MAX_REHEARSALS: usize = 4096;

/// Variables that tell jobs of one array apart.
const OF_ARRAYS: [&str; 2] = ["ARRAY_INDEX", "ARRAY_COUNT"];

/// What jobs that save and resume in the same way have in common, as a 128-bit FNV-1a hash.
///
/// It tells apart what differs by chance. Whoever wants to mislead it need not find a collision:
/// the program that a recipe starts can be changed after its rehearsal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recipe(pub u128);

impl Recipe {
    /// Of a job: its command, directory, environment, tasks, and how it is stopped and asked to
    /// save. Where it runs, on how many GPUs and of which kind, for whom and for how long is left
    /// out: a job of a thousand GPUs can be rehearsed on eight.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        let mut hash = Fnv::new();
        hash.word("recipe 1");
        hash.count(spec.command.len());
        spec.command.iter().for_each(|word| hash.word(word));
        hash.word(&spec.working_dir);
        let env = || spec.env.iter().filter(|(name, _)| !OF_ARRAYS.contains(&name.as_str()));
        hash.count(env().count());
        for (name, value) in env() {
            hash.word(name);
            hash.word(value);
        }
        hash.word(match spec.layout {
            TaskLayout::PerNode => "per-node",
            TaskLayout::PerGpu => "per-gpu",
        });
        hash.number(spec.grace.0);
        if let Some(offer) = &spec.checkpoint {
            hash.word(&offer.signal.map(|signal| signal.to_string()).unwrap_or_default());
            hash.word(&format!("{:?}", offer.target));
            hash.number(offer.grace.0);
            hash.word(offer.storage.as_str());
            hash.bytes(&offer.saved_codes);
        }
        Self(hash.0)
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// FNV-1a of 128 bits (RFC 9923), each part with its length before it.
struct Fnv(u128);

impl Fnv {
    const PRIME: u128 = (1 << 88) + 0x13b;

    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn plain(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(Self::PRIME);
        }
    }

    fn number(&mut self, number: u64) {
        self.plain(&number.to_le_bytes());
    }

    fn count(&mut self, count: usize) {
        self.number(u64::try_from(count).unwrap_or(u64::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.plain(bytes);
    }

    fn word(&mut self, word: &str) {
        self.bytes(word.as_bytes());
    }
}

/// What one rehearsal has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsal {
    /// The job that it was.
    pub job: JobId,
    /// When it was judged.
    pub at: Timestamp,
    /// On how many GPUs it ran.
    pub gpus: GpuCount,
    /// On how many nodes.
    pub nodes: u32,
    /// How it saved; none = it did not.
    pub save: Option<RehearsedSave>,
    /// The first step that was committed after the new start; none = it did not come to that.
    pub resumed: Option<u64>,
    /// Why it failed; none = it passed.
    pub fault: Option<RehearsalFault>,
}

/// How a rehearsal was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It saved, left and went on.
    Passed,
    /// It did not.
    Failed,
}

/// How a rehearsal saved when it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RehearsedSave {
    /// The step of the checkpoint that counted when it had left.
    pub step: u64,
    /// Its size.
    pub bytes: Bytes,
    /// From the request until the write gate let it save.
    pub waited: Span,
    /// From there to the commit.
    pub took: Span,
    /// From there until nothing of it was left.
    pub left: Span,
}

/// What a rehearsal failed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RehearsalFault {
    /// An attempt ended by itself before it had saved.
    EndedEarly,
    /// All its ranks ignore the signal.
    Ignored,
    /// No rank had a handler for the signal within the grace.
    Unheard,
    /// It was asked, and committed nothing within the grace.
    Unsaved,
    /// It left as if it had saved, and committed nothing.
    LeftUnsaved,
    /// It committed, and had to be stopped when its grace was over.
    Stayed,
    /// It saved at so early a step that going on cannot be told from beginning again.
    TooEarly,
    /// After the new start it committed an earlier step than it had saved.
    BeganAgain,
    /// So many attempts were lost or did not start that nothing is known.
    Unsettled,
}

impl fmt::Display for RehearsalFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::EndedEarly => "it ended by itself before it had saved as asked",
            Self::Ignored => "its ranks ignore the signal that asks them to save",
            Self::Unheard => {
                "no rank had a handler for the signal that asks it to save before its grace was over"
            }
            Self::Unsaved => "it was asked to save, and committed nothing before its grace was over",
            Self::LeftUnsaved => "it left as if it had saved, and committed nothing",
            Self::Stayed => "it committed, but did not leave by itself",
            Self::TooEarly => {
                "it had trained too little when it saved to tell going on from beginning again"
            }
            Self::BeganAgain => "it did not go on from what it had saved: it began again",
            Self::Unsettled => "too many of its attempts were lost or did not start in time",
        })
    }
}

impl Rehearsal {
    /// Whether it was seen to save, to leave and to go on.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.fault.is_none()
    }

    /// In a word.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.passed() { Verdict::Passed } else { Verdict::Failed }
    }
}

/// What was seen, in one sentence with its numbers.
impl fmt::Display for Rehearsal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u32, noun: &str| {
            if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
        };
        let (gpus, nodes) = (plural(self.gpus.0, "GPU"), plural(self.nodes, "node"));
        write!(out, "{} on {gpus} of {nodes} ", self.job)?;
        match self.fault {
            None => out.write_str("passed")?,
            Some(fault) => write!(out, "failed: {fault}")?,
        }
        if let Some(RehearsedSave { step, bytes, waited, took, left }) = self.save {
            out.write_str("; ")?;
            if waited > Span::ZERO {
                write!(out, "told {waited} after the request, ")?;
            }
            write!(out, "it committed step {step} ({bytes}) in {took} and had left after {left}")?;
        }
        match self.resumed {
            Some(step) => write!(out, "; started again, it committed step {step}"),
            None => Ok(()),
        }
    }
}

/// What results of one recipe say the same of: whether it was on several nodes, and its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    several: bool,
    verdict: Verdict,
}

impl Kind {
    const ALL: [Self; 4] = [
        Self { several: false, verdict: Verdict::Passed },
        Self { several: false, verdict: Verdict::Failed },
        Self { several: true, verdict: Verdict::Passed },
        Self { several: true, verdict: Verdict::Failed },
    ];

    fn of(shown: &Rehearsal) -> Self {
        Self { several: shown.nodes > 1, verdict: shown.verdict() }
    }
}

/// Of each recipe the newest result of each kind: what passes on one node takes no place from what did
/// on several. And what each job has shown that is kept. A copy shares them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rehearsals {
    of_recipes: OrdMap<(Recipe, Kind), Rehearsal>,
    of_jobs: OrdMap<JobId, Rehearsal>,
}

impl Rehearsals {
    /// What was shown last of a recipe.
    #[must_use]
    pub fn of(&self, recipe: Recipe) -> Option<&Rehearsal> {
        newest(self.all_of(recipe))
    }

    fn all_of(&self, recipe: Recipe) -> impl Iterator<Item = &Rehearsal> {
        Kind::ALL.into_iter().filter_map(move |kind| self.of_recipes.get(&(recipe, kind)))
    }

    /// What was shown last of a job's recipe that says something of it. A failure on any number of nodes
    /// does; that it passed on one node says nothing of a job on `several`, which synchronises and saves
    /// in other ways.
    #[must_use]
    pub fn counting(&self, spec: &JobSpec, several: bool) -> Option<&Rehearsal> {
        if self.of_recipes.is_empty() { None } else { self.counting_of(Recipe::of(spec), several) }
    }

    fn counting_of(&self, recipe: Recipe, several: bool) -> Option<&Rehearsal> {
        let says = |shown: &&Rehearsal| !shown.passed() || shown.nodes > 1 || !several;
        newest(self.all_of(recipe).filter(says))
    }

    /// What was shown last of a job's recipe. Looks at the whole job only if anything was.
    #[must_use]
    pub fn of_job(&self, spec: &JobSpec) -> Option<&Rehearsal> {
        if self.of_recipes.is_empty() { None } else { self.of(Recipe::of(spec)) }
    }

    /// All that are kept.
    pub fn iter(&self) -> impl Iterator<Item = (Recipe, &Rehearsal)> {
        self.of_recipes.iter().map(|((recipe, _), shown)| (*recipe, shown))
    }

    /// What each job has shown that is kept.
    pub fn of_jobs(&self) -> impl Iterator<Item = &Rehearsal> {
        self.of_jobs.values()
    }

    /// Keeps what a job has shown, until that is forgotten.
    pub fn keep_of_job(&mut self, shown: Rehearsal) {
        self.of_jobs.insert(shown.job, shown);
    }

    pub(crate) fn forget(&mut self, job: JobId) {
        self.of_jobs.remove(&job);
    }

    /// Keeps a result in place of the one before of its kind; the oldest of all leaves when there are too
    /// many.
    pub fn keep(&mut self, recipe: Recipe, shown: Rehearsal) {
        self.of_recipes.insert((recipe, Kind::of(&shown)), shown);
        if self.of_recipes.len() > MAX_REHEARSALS {
            let oldest = self.of_recipes.iter().min_by_key(|(key, shown)| (shown.at, **key));
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.of_recipes.remove(&key);
            }
        }
    }

    /// What is wrong with them, if something is; `judged` are jobs that were, and are kept.
    pub(crate) fn violation(&self, judged: impl Fn(JobId) -> bool) -> Option<&'static str> {
        let holds = |shown: &Rehearsal| {
            let saved = shown.save.map(|save| save.step);
            !shown.passed() || shown.resumed.is_some() && shown.resumed >= saved && saved.is_some()
        };
        if self.of_recipes.len() > MAX_REHEARSALS {
            Some("more rehearsals are kept than may be")
        } else if !self.of_recipes.values().all(holds) {
            Some("a rehearsal passed that did not save and go on")
        } else if !self.of_jobs.keys().all(|job| judged(*job)) {
            Some("of a job that was not judged it is kept what it has shown")
        } else {
            None
        }
    }
}

fn newest<'all>(all: impl Iterator<Item = &'all Rehearsal>) -> Option<&'all Rehearsal> {
    all.max_by_key(|shown| (shown.at, shown.job))
}

impl Job {
    /// What it has shown as a rehearsal, as long as the job is kept.
    #[must_use]
    pub fn shown<'all>(&'all self, books: &'all Books) -> Option<&'all Rehearsal> {
        self.judged?;
        // A release before kept it with the recipe only.
        let with_recipe = || {
            let mut all = books.rehearsals.all_of(Recipe::of(&self.spec));
            all.find(|shown| shown.job == self.id)
        };
        books.rehearsals.of_jobs.get(&self.id).or_else(with_recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        let hash = |bytes: &[u8]| {
            let mut hash = Fnv::new();
            hash.plain(bytes);
            hash.0
        };
        assert_eq!(hash(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    fn shown(at: u64) -> Rehearsal {
        let save = RehearsedSave {
            step: 20,
            bytes: Bytes(1 << 30),
            waited: Span::ZERO,
            took: Span::seconds(3),
            left: Span::seconds(4),
        };
        Rehearsal {
            job: JobId(7),
            at: Timestamp(at),
            gpus: GpuCount(8),
            nodes: 1,
            save: Some(save),
            resumed: Some(21),
            fault: None,
        }
    }

    #[test]
    fn the_newest_results_are_kept_one_for_each_recipe() {
        let mut all = Rehearsals::default();
        for at in 0..5000_u64 {
            all.keep(Recipe(at.into()), shown(at));
        }
        all.keep(Recipe(4999), shown(5000));
        assert_eq!(all.iter().count(), 4096);
        assert_eq!(all.of(Recipe(903)), None, "the oldest have left");
        assert_eq!(all.of(Recipe(904)), Some(&shown(904)));
        assert_eq!(all.of(Recipe(4999)), Some(&shown(5000)));
        assert_eq!(all.violation(|_| true), None);
        all.keep(Recipe(1), Rehearsal { resumed: Some(19), ..shown(6000) });
        assert_eq!(all.violation(|_| true), Some("a rehearsal passed that did not save and go on"));
    }

    #[test]
    fn what_passed_on_several_nodes_is_kept_beside_later_results_on_one() {
        let mut all = Rehearsals::default();
        let keep = |all: &mut Rehearsals, at, nodes, fault| {
            all.keep(Recipe(1), Rehearsal { nodes, fault, ..shown(at) });
        };
        let at =
            |all: &Rehearsals, several| all.counting_of(Recipe(1), several).map(|one| one.at.0);
        keep(&mut all, 1, 1, None);
        assert_eq!((at(&all, false), at(&all, true)), (Some(1), None));
        keep(&mut all, 2, 2, None);
        assert_eq!((at(&all, false), at(&all, true)), (Some(2), Some(2)));
        keep(&mut all, 3, 1, None);
        assert_eq!((at(&all, false), at(&all, true)), (Some(3), Some(2)));
        keep(&mut all, 4, 1, Some(RehearsalFault::Ignored));
        assert_eq!((at(&all, false), at(&all, true)), (Some(4), Some(4)), "that says it of all");
        keep(&mut all, 5, 1, None);
        assert_eq!((at(&all, false), at(&all, true)), (Some(5), Some(4)));
        assert_eq!(all.of(Recipe(1)).map(|one| one.at.0), Some(5));
    }

    #[test]
    fn a_result_is_one_sentence_with_its_numbers() {
        assert_eq!(
            shown(1).to_string(),
            "job-7 on 8 GPUs of 1 node passed; it committed step 20 (1GiB) \
             in 3s and had left after 4s; started again, it committed step 21"
        );
        let fault = Some(RehearsalFault::Ignored);
        let failed = Rehearsal { save: None, resumed: None, fault, gpus: GpuCount(1), ..shown(1) };
        assert_eq!(
            failed.to_string(),
            "job-7 on 1 GPU of 1 node failed: its ranks ignore the signal that asks them to save"
        );
    }
}
