//! What tasks write, as the kernel counts it for their processes.
//!
//! `wchar` of `/proc/PID/io` counts every byte that was given to a write, on whatever: files, pipes and
//! sockets alike, network file systems too, which no counter of block devices has. What a child has
//! written becomes its parent's when it is waited for, and orphans are the shim's: so the sum over a
//! shim and all below it never falls, as long as the parent is read before its children.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use tidegate_model::{Bandwidth, Bytes, LEAST_SEEN, Span, TaskId};

use crate::procs::Procs;
use crate::task_dir::{State, TaskDir, load};

/// After so many looks every process is asked for its parent again: a pid may have been used anew in
/// between.
const LOOKS: u32 = 16;

/// Looks at the processes of tasks, once for each heartbeat while any task runs.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Every process there was, with its parent: only new ones are asked for it.
    parents: BTreeMap<i32, i32>,
    looks: u32,
    tasks: BTreeMap<TaskId, Counted>,
}

#[derive(Debug)]
struct Counted {
    shim: i32,
    /// The largest sum that was seen: a process that ends during a look is missing in one.
    sum: u64,
    at: Instant,
    rate: Bandwidth,
}

impl Writes {
    /// Looks at these tasks, whose directories are below `tasks`.
    pub(crate) fn look(&mut self, procs: &Procs, tasks: &Path, running: &[TaskId], now: Instant) {
        self.tasks.retain(|task, _| running.contains(task));
        if running.is_empty() {
            self.parents.clear();
            return;
        }
        // What cannot be read now is read at the next look.
        let Some(children) = self.children(procs) else { return };
        for task in running {
            let known = self.tasks.get(task).map(|counted| counted.shim);
            let Some(shim) = known.or_else(|| shim_of(tasks, *task)) else { continue };
            let sum = sum(procs, &children, shim);
            match self.tasks.get_mut(task) {
                Some(counted) => counted.count(sum, now),
                None => {
                    let first = Counted { shim, sum, at: now, rate: Bandwidth(0) };
                    self.tasks.insert(*task, first);
                }
            }
        }
    }

    /// What each writes in a second, of those that write.
    pub(crate) fn rates(&self) -> BTreeMap<TaskId, Bandwidth> {
        let writing = self.tasks.iter().filter(|(_, counted)| counted.rate >= LEAST_SEEN);
        writing.map(|(task, counted)| (*task, counted.rate)).collect()
    }

    fn children(&mut self, procs: &Procs) -> Option<BTreeMap<i32, Vec<i32>>> {
        let mut before = std::mem::take(&mut self.parents);
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) {
            before.clear();
        }
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        let pids: BTreeSet<i32> = procs.pids().ok()?.into_iter().collect();
        for pid in &pids {
            // Whose parent has ended has another now; 0 is the parent of the first ones.
            let lives = |parent: &i32| *parent == 0 || pids.contains(parent);
            let known = before.get(pid).copied().filter(lives);
            let parent = known.or_else(|| procs.stat(*pid).map(|stat| stat.parent));
            let Some(parent) = parent else { continue };
            self.parents.insert(*pid, parent);
            children.entry(parent).or_default().push(*pid);
        }
        Some(children)
    }
}

impl Counted {
    fn count(&mut self, sum: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        let grown = Bytes(sum.saturating_sub(self.sum));
        self.rate = Bandwidth::of(grown, span(passed)).unwrap_or(self.rate);
        self.sum = self.sum.max(sum);
        self.at = now;
    }
}

/// Parents before children.
fn sum(procs: &Procs, children: &BTreeMap<i32, Vec<i32>>, shim: i32) -> u64 {
    let mut sum = 0_u64;
    let mut open = vec![shim];
    while let Some(pid) = open.pop() {
        sum = sum.saturating_add(procs.written(pid).unwrap_or(0));
        open.extend(children.get(&pid).into_iter().flatten());
    }
    sum
}

fn shim_of(tasks: &Path, task: TaskId) -> Option<i32> {
    let state = load::<State>(&TaskDir::of(tasks, task).state()).ok().flatten()?;
    Some(state.shim.pid)
}

fn span(passed: Duration) -> Span {
    Span(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const T: &str = "job-1.1.0";

    /// A proc file system and a task whose shim is 10.
    struct Node {
        dir: tempfile::TempDir,
        writes: Writes,
        began: Instant,
    }

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let task = dir.path().join("tasks").join(T);
            fs::create_dir_all(&task).unwrap();
            let process = |pid| format!("{{\"pid\":{pid},\"start\":1}}");
            let (shim, main) = (process(10), process(11));
            let state = format!("{{\"boot_id\":\"b\",\"shim\":{shim},\"main\":{main}}}");
            fs::write(task.join("state.json"), state).unwrap();
            Self { dir, writes: Writes::default(), began: Instant::now() }
        }

        /// Processes as `(pid, parent, MiB written)` at a second; what the task writes, in MiB/s.
        fn check(&mut self, second: u64, processes: &[(i32, i32, u64)], expected: Option<u64>) {
            let proc = self.dir.path().join("proc");
            drop(fs::remove_dir_all(&proc));
            for (pid, parent, written) in processes {
                let process = proc.join(pid.to_string());
                fs::create_dir_all(&process).unwrap();
                let stat =
                    format!("{pid} (a) S {parent} 1 1 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 1 9\n");
                fs::write(process.join("stat"), stat).unwrap();
                let io = format!("rchar: 5\nwchar: {}\nsyscr: 1\n", written << 20);
                fs::write(process.join("io"), io).unwrap();
            }
            let now = self.began + Duration::from_secs(second);
            let (procs, tasks) = (Procs::at(proc), self.dir.path().join("tasks"));
            self.writes.look(&procs, &tasks, &[T.parse().unwrap()], now);
            let rate = self.writes.rates().get(&T.parse().unwrap()).map(|rate| rate.0 >> 20);
            assert_eq!(rate, expected, "{second}: {processes:?}");
        }
    }

    #[test]
    fn a_task_writes_what_its_processes_write_and_no_others() {
        let mut node = Node::new();
        node.check(0, &[(1, 0, 9), (10, 1, 0), (11, 10, 100), (12, 1, 0)], None);
        node.check(2, &[(1, 0, 9), (10, 1, 0), (11, 10, 110), (12, 1, 90)], Some(5));
        node.check(4, &[(1, 0, 9), (10, 1, 0), (11, 10, 110), (13, 11, 40)], Some(20));
        node.check(5, &[(1, 0, 9), (10, 1, 0), (11, 10, 110), (13, 11, 40)], None);
    }

    #[test]
    fn what_a_child_has_written_counts_once_when_it_ends_and_orphans_go_on() {
        let mut node = Node::new();
        node.check(0, &[(1, 0, 0), (10, 1, 0), (11, 10, 0), (12, 11, 50), (13, 12, 0)], None);
        // It was waited for during the look; then its parent has what it wrote.
        node.check(1, &[(1, 0, 0), (10, 1, 0), (11, 10, 0), (13, 10, 0)], None);
        node.check(2, &[(1, 0, 0), (10, 1, 0), (11, 10, 50), (13, 10, 3)], Some(3));
        node.check(3, &[(1, 0, 0), (10, 1, 53), (13, 10, 0)], None);
        node.check(4, &[(1, 0, 0), (10, 1, 53), (13, 10, 4)], Some(4));
    }
}
