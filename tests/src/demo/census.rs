//! The tasks' processes as the kernel shows them: who lives, and whether anybody lives twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_model::{AttemptId, JobId, TaskId};

/// Between two looks of the watchman: two looks at `/proc` take about 2 % of a core.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One process of a task. The kernel gives a pid again, but not with the same start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Its part.
    pub part: Part,
    /// Its process id.
    pub pid: u32,
    /// Its start, in ticks since the boot.
    pub start: u64,
}

/// What a process is in its gang. Only one may be it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The task that it belongs to.
    pub task: TaskId,
    /// Its rank; of a launcher the first of its node.
    pub rank: String,
    /// Whether it only starts the ranks of its node.
    pub launcher: bool,
}

/// All trainers of the tasks of the cluster in `dir`, but for the dead that nobody has reaped.
#[must_use]
pub fn census(dir: &Path) -> BTreeSet<Member> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| member(pid, dir)).collect()
}

fn member(pid: u32, dir: &Path) -> Option<Member> {
    // Only what trains: a shell or a child of one is no rank, though it has a rank's variables.
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    if !program.file_name()?.to_str()?.starts_with("trainer") {
        return None;
    }
    let environment = read(pid, "environ")?;
    let variable = |name: &str| {
        let mut pairs = environment.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
    };
    // Two clusters may both have a task job-1.1.0, in different directories.
    if !Path::new(variable("TIDEGATE_PREEMPT_FILE")?).starts_with(dir) {
        return None;
    }
    let task = variable("TIDEGATE_TASK")?.parse().ok()?;
    let rank = variable("RANK")?.to_owned();
    let launcher = read(pid, "cmdline")?.split('\0').any(|word| word == "--launch");
    let start = start_of_living(pid)?;
    Some(Member { part: Part { task, rank, launcher }, pid, start })
}

/// Fields of `/proc/PID/stat` after the program's name, which may hold anything.
fn start_of_living(pid: u32) -> Option<u64> {
    let stat = read(pid, "stat")?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let is_dead = matches!(fields.first().copied(), Some("Z" | "X"));
    if is_dead { None } else { fields.get(19)?.parse().ok() }
}

fn read(pid: u32, file: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Looks at all tasks' processes until it is asked what it has seen.
#[derive(Debug)]
pub struct Watchman {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Sightings>>,
}

impl Watchman {
    /// Begins to look, on a thread of its own.
    #[must_use]
    pub fn on_watch(dir: PathBuf) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut seen = Sightings::default();
            // A flag and no channel: it orders nothing, it only ends the watch.
            while !told.load(Ordering::Relaxed) {
                seen.look(census(&dir));
                thread::park_timeout(LOOK_EVERY);
            }
            seen
        });
        Self { over, thread: Some(thread) }
    }

    /// Ends the watch.
    #[must_use]
    pub fn report(mut self) -> Sightings {
        self.dismiss().unwrap_or_default()
    }

    fn dismiss(&mut self) -> Option<Sightings> {
        self.over.store(true, Ordering::Relaxed);
        let thread = self.thread.take()?;
        thread.thread().unpark();
        thread.join().ok()
    }
}

impl Drop for Watchman {
    fn drop(&mut self) {
        drop(self.dismiss());
    }
}

/// What the looks have shown. A process counts once it was there in three looks that followed
/// each other: between fork and exec it still looks like the one that started it, and on a busy
/// machine that lasts.
#[derive(Debug, Default)]
pub struct Sightings {
    /// The last look and the one before.
    last: [BTreeSet<Member>; 2],
    /// By part, all that ever had it.
    holders: BTreeMap<Part, BTreeSet<(u32, u64)>>,
    /// Ranks of jobs that lived twice at once.
    together: BTreeSet<(JobId, String, bool)>,
}

impl Sightings {
    fn look(&mut self, now: BTreeSet<Member>) {
        let mut by_rank: BTreeMap<_, u32> = BTreeMap::new();
        let [last, before] = &self.last;
        for member in now.intersection(last).filter(|member| before.contains(member)) {
            let Member { part, pid, start } = member.clone();
            let rank = (part.task.attempt.job, part.rank.clone(), part.launcher);
            let count = by_rank.entry(rank.clone()).or_default();
            *count = count.saturating_add(1);
            if *count > 1 {
                self.together.insert(rank);
            }
            self.holders.entry(part).or_default().insert((pid, start));
        }
        let [last, _] = std::mem::take(&mut self.last);
        self.last = [now, last];
    }

    /// Ranks that ran twice, in words: twice at once in any attempts, or one after the other in
    /// one attempt, which starts each of its tasks once.
    #[must_use]
    pub fn twice(&self) -> Vec<String> {
        let what = |launcher: bool| if launcher { "the launcher of rank" } else { "rank" };
        let together = self.together.iter().map(|(job, rank, launcher)| {
            format!("{} {rank} of {job} lived twice at once", what(*launcher))
        });
        let again = self.holders.iter().filter(|(_, holders)| holders.len() > 1);
        let again = again.map(|(part, holders)| {
            let Part { task, rank, launcher } = part;
            format!("{} {rank} of {task} was started {} times", what(*launcher), holders.len())
        });
        together.chain(again).collect()
    }

    /// How many processes had a part in an attempt.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.holders.values().map(BTreeSet::len).sum()
    }
}

/// Those that belong to an attempt.
pub fn of_attempt(
    members: &BTreeSet<Member>,
    attempt: AttemptId,
) -> impl Iterator<Item = &Member> + '_ {
    members.iter().filter(move |member| member.part.task.attempt == attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(task: &str, rank: u32, pid: u32) -> Member {
        let part = Part { task: task.parse().unwrap(), rank: rank.to_string(), launcher: false };
        Member { part, pid, start: u64::from(pid) }
    }

    fn check(looks: &[&[(&str, u32, u32)]], expected: &[&str]) {
        let mut seen = Sightings::default();
        for look in looks {
            seen.look(look.iter().map(|(task, rank, pid)| member(task, *rank, *pid)).collect());
        }
        assert_eq!(seen.twice(), expected);
    }

    #[test]
    fn a_rank_of_two_attempts_at_once_runs_twice() {
        let both: &[_] = &[("job-1.1.0", 0, 5), ("job-1.2.0", 0, 9)];
        check(&[both; 3], &["rank 0 of job-1 lived twice at once"]);
        check(&[[&both[..1]; 3], [&both[1..]; 3]].concat(), &[]);
    }

    #[test]
    fn a_task_started_twice_in_one_attempt_is_told() {
        let [first, second]: [&[_]; 2] = [&[("job-1.1.0", 0, 5)], &[("job-1.1.0", 0, 9)]];
        check(&[[first; 3], [second; 3]].concat(), &["rank 0 of job-1.1.0 was started 2 times"]);
    }

    #[test]
    fn a_child_before_its_exec_is_not_taken_for_its_parent() {
        let parent: &[_] = &[("job-1.1.0", 0, 5)];
        let forked: &[_] = &[("job-1.1.0", 0, 5), ("job-1.1.0", 0, 6)];
        check(&[parent, forked, forked, parent], &[]);
    }

    #[test]
    fn this_process_has_a_start_and_belongs_to_no_cluster() {
        assert!(start_of_living(std::process::id()).is_some());
        assert!(!census(Path::new("/nowhere")).iter().any(|one| one.pid == std::process::id()));
    }
}
