//! Which processes of a task are its ranks.
//!
//! A rank is the topmost process of its RANK: its data loaders inherit the variable and would die
//! of the signal. A launcher has the RANK of its first rank, as Tidegate has set it, and would
//! turn the signal into a kill: it is known by a rank below it that is another.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::procs::{ProcessId, Procs};

/// How far up a process is looked for the launchers it is below. No launcher starts its ranks
/// through more processes than these.
const ANCESTRY: usize = 64;

/// A process and what it was told of its rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    id: ProcessId,
    parent: i32,
    key: Option<Key>,
}

/// What tells ranks apart. A launcher with one rank has that rank's number; torchrun's ranks, and
/// not torchrun itself, have its run's id.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    rank: String,
    of_torchrun: bool,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rank {
    pub(super) rank: String,
    pub(super) process: ProcessId,
}

/// The living processes below `root`, itself not among them.
pub(super) fn below(procs: &Procs, root: i32) -> io::Result<Vec<Process>> {
    let mut children: BTreeMap<i32, Vec<ProcessId>> = BTreeMap::new();
    for pid in procs.pids()? {
        if let Some(stat) = procs.stat(pid).filter(|stat| !stat.is_dead) {
            children.entry(stat.parent).or_default().push(ProcessId { pid, start: stat.start });
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for id in children.remove(&parent).unwrap_or_default() {
            parents.push(id.pid);
            found.push(Process { id, parent, key: key(procs, id.pid) });
        }
    }
    Ok(found)
}

fn key(procs: &Procs, pid: i32) -> Option<Key> {
    let rank = procs.variable(pid, "RANK")?;
    Some(Key { rank, of_torchrun: procs.variable(pid, "TORCHELASTIC_RUN_ID").is_some() })
}

/// The ranks among the processes of a task.
pub(super) fn ranks(processes: &[Process]) -> Vec<Rank> {
    let by_pid: BTreeMap<i32, &Process> = processes.iter().map(|p| (p.id.pid, p)).collect();
    let launchers = launchers(&by_pid);
    let is_rank = |process: &&Process| {
        let parent = by_pid.get(&process.parent);
        let continues = parent
            .is_some_and(|parent| !launchers.contains(&parent.id.pid) && parent.key == process.key);
        !launchers.contains(&process.id.pid) && !continues
    };
    let ranks = processes.iter().filter(is_rank).filter_map(|process| {
        let rank = process.key.clone()?.rank;
        Some(Rank { rank, process: process.id })
    });
    ranks.collect()
}

/// The only child of a process; none if it has none, or more than one.
pub(super) fn only_child(processes: &[Process], parent: ProcessId) -> Option<ProcessId> {
    let mut children = processes.iter().filter(|process| process.parent == parent.pid);
    let first = children.next()?;
    children.next().is_none().then_some(first.id)
}

/// Those that have another rank below them.
fn launchers(by_pid: &BTreeMap<i32, &Process>) -> BTreeSet<i32> {
    let mut launchers = BTreeSet::new();
    for process in by_pid.values().filter(|process| process.key.is_some()) {
        let above = |child: &&Process| by_pid.get(&child.parent).copied();
        for ancestor in std::iter::successors(above(process), above).take(ANCESTRY) {
            if ancestor.key.is_some() && ancestor.key != process.key {
                launchers.insert(ancestor.id.pid);
            }
        }
    }
    launchers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes as `pid parent RANK`, `-` for none, `t` behind a rank of torchrun's.
    fn check(text: &str, expected: &[(i32, &str)]) {
        let process = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let key = (fields[2] != "-").then(|| Key {
                rank: fields[2].trim_end_matches('t').to_owned(),
                of_torchrun: fields[2].ends_with('t'),
            });
            let id = ProcessId { pid: fields[0].parse().unwrap(), start: 1 };
            Process { id, parent: fields[1].parse().unwrap(), key }
        };
        let processes: Vec<Process> = text.split(',').map(process).collect();
        let mut found: Vec<_> =
            ranks(&processes).into_iter().map(|rank| (rank.process.pid, rank.rank)).collect();
        found.sort();
        let expected: Vec<_> =
            expected.iter().map(|(pid, rank)| (*pid, (*rank).to_owned())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn the_topmost_process_of_each_rank_is_found_and_no_launcher_or_data_loader() {
        // A process alone, and one with data loaders.
        check("2 1 0", &[(2, "0")]);
        check("2 1 0, 3 2 0, 4 3 0", &[(2, "0")]);
        // A script, a launcher, two ranks, each with a data loader.
        let gang = "2 1 0, 3 2 0, 4 3 0, 5 3 1, 6 4 0, 7 5 1";
        check(gang, &[(4, "0"), (5, "1")]);
        // A launcher with one rank.
        check("2 1 8, 3 2 8t, 4 3 8t", &[(3, "8")]);
        // What a rank left behind is below the shim now.
        check("2 1 0, 3 2 0, 4 2 1, 9 1 1", &[(3, "0"), (4, "1"), (9, "1")]);
        check("2 1 -, 3 2 -", &[]);
    }
}
