//! Figures beside their goals: a table for people, JSON for programs.

use std::fmt;
use std::fs;
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};
use serde_json::{Value, json};

use crate::figures::percentile;

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Not more than this, in the figure's unit.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
    /// It is only told.
    None,
}

/// One measurement of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// What was measured; the same words in every run.
    pub what: String,
    /// What it came to.
    pub value: f64,
    /// In which unit.
    pub unit: &'static str,
    /// From how many samples.
    pub n: usize,
    /// What it should be.
    pub goal: Goal,
}

/// One figure over all runs.
#[derive(Debug)]
struct Row {
    subject: &'static str,
    figure: Figure,
    values: Vec<f64>,
}

/// All figures, with the machine they were measured on.
#[derive(Debug)]
pub struct Board {
    rows: Vec<Row>,
    load_before: String,
    load_after: String,
}

impl Board {
    /// An empty board; the machine's load is noted.
    #[must_use]
    pub fn new() -> Self {
        Self { rows: Vec::new(), load_before: load(), load_after: String::new() }
    }

    /// Takes one run's figures of a subject.
    pub fn add(&mut self, subject: &'static str, figures: Vec<Figure>) {
        for figure in figures {
            let known = self
                .rows
                .iter_mut()
                .find(|row| row.subject == subject && row.figure.what == figure.what);
            match known {
                Some(row) => row.values.push(figure.value),
                None => {
                    let values = vec![figure.value];
                    self.rows.push(Row { subject, figure, values });
                }
            }
        }
    }

    /// Notes the machine's load at the end.
    pub fn finish(&mut self) {
        self.load_after = load();
    }

    /// Everything, for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let figures: Vec<_> = self.rows.iter().map(Row::to_json).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "debug_build": cfg!(debug_assertions),
            "machine": machine(),
            "load_before": self.load_before,
            "load_after": self.load_after,
            "figures": figures,
        })
    }
}

impl Default for Board {
    fn default() -> Self {
        Self::new()
    }
}

impl Row {
    /// The median over the runs, the least and the most.
    fn reduced(&self) -> (f64, f64, f64) {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        (at(sorted.len() / 2), at(0), at(sorted.len().saturating_sub(1)))
    }

    fn met(&self) -> Option<bool> {
        let (median, _, _) = self.reduced();
        match self.figure.goal {
            Goal::AtMost(limit) => Some(median <= limit),
            Goal::AtLeast(limit) => Some(median >= limit),
            Goal::None => None,
        }
    }

    fn cells(&self) -> [String; 7] {
        let Figure { what, unit, n, goal, .. } = &self.figure;
        let (median, least, most) = self.reduced();
        let goal = match goal {
            Goal::AtMost(limit) => format!("<= {} {unit}", shown(*limit)),
            Goal::AtLeast(limit) => format!(">= {} {unit}", shown(*limit)),
            Goal::None => "-".to_owned(),
        };
        let spread = match self.values.len() {
            1 => "1 run".to_owned(),
            runs => format!("{} to {}, {runs} runs", shown(least), shown(most)),
        };
        let met = match self.met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        let figure = format!("{} {unit}", shown(median));
        let subject = self.subject.to_owned();
        [subject, what.clone(), goal, figure, met.to_owned(), n.to_string(), spread]
    }

    fn to_json(&self) -> Value {
        let (median, least, most) = self.reduced();
        let goal = match self.figure.goal {
            Goal::AtMost(limit) => json!({ "at_most": limit }),
            Goal::AtLeast(limit) => json!({ "at_least": limit }),
            Goal::None => Value::Null,
        };
        json!({
            "subject": self.subject,
            "what": self.figure.what,
            "unit": self.figure.unit,
            "goal": goal,
            "met": self.met(),
            "median": median,
            "least": least,
            "most": most,
            "runs": self.values,
            "n_per_run": self.figure.n,
        })
    }
}

impl fmt::Display for Board {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["SUBJECT", "WHAT", "GOAL", "FIGURE", "MET", "N", "SPREAD"]);
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if matches!(at, 2 | 3 | 5) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in &self.rows {
            table.add_row(row.cells());
        }
        writeln!(out, "{table}")?;
        writeln!(out, "machine: {}", machine())?;
        let build = if cfg!(debug_assertions) { "DEBUG build" } else { "release build" };
        write!(out, "{build}; load {} before, {} after", self.load_before, self.load_after)
    }
}

/// Figures of the middle and the slowest samples, with a goal for each.
#[must_use]
pub fn percentiles(what: &str, samples: &[Duration], p50: Goal, p99: Goal) -> Vec<Figure> {
    let figure = |percent: u8, goal| {
        let value = percentile(samples, percent).map_or(f64::NAN, millis);
        let what = format!("{what}, p{percent}");
        Figure { what, value, unit: "ms", n: samples.len(), goal }
    };
    vec![figure(50, p50), figure(99, p99)]
}

/// A span in milliseconds.
#[must_use]
pub fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// A count as a number to calculate with; exact up to 2^53.
#[must_use]
pub fn number(count: u64) -> f64 {
    let part = |shift: u32| f64::from(u32::try_from(count >> shift & 0xffff_ffff).unwrap_or(0));
    part(32) * 4_294_967_296.0 + part(0)
}

/// The same of a length.
#[must_use]
pub fn length(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

/// Three digits that count.
fn shown(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// CPU, cores, memory, kernel, and the file system that holds the clusters' directories.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |path: &str, key: &str| {
        let text = read(path);
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.trim_start_matches([' ', '\t', ':']).to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}, {cores} cores, memory {}, Linux {}, {} on {}",
        value("/proc/cpuinfo", "model name"),
        value("/proc/meminfo", "MemTotal"),
        read("/proc/sys/kernel/osrelease").trim(),
        std::env::temp_dir().display(),
        file_system(&std::env::temp_dir().display().to_string(), &read("/proc/mounts")),
    )
}

/// The type of the file system with the longest mount point above `dir`.
fn file_system(dir: &str, mounts: &str) -> String {
    let rows = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let above = rows.filter(|(point, _)| *point == "/" || dir.starts_with(&format!("{point}/")));
    above.max_by_key(|(point, _)| point.len()).map_or("unknown", |(_, kind)| kind).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_over_runs_is_its_median_with_the_least_and_the_most() {
        let mut board = Board::new();
        for value in [4.0, 60.0, 5.0] {
            let what = "a wait".to_owned();
            let goal = Goal::AtMost(50.0);
            board.add("latency", vec![Figure { what, value, unit: "ms", n: 200, goal }]);
        }
        let row = &board.rows[0].cells().join(" | ");
        assert_eq!(
            row,
            "latency | a wait | <= 50.0 ms | 5.00 ms | yes | 200 | 4.00 to 60.0, 3 runs"
        );
    }

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount_point() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nx /tmpfoo xfs rw 0 0\n";
        assert_eq!(file_system("/tmp/x", mounts), "tmpfs");
        assert_eq!(file_system("/tmpother", mounts), "ext4");
    }

    #[test]
    fn a_count_becomes_the_same_number() {
        assert_eq!(number(3 << 32 | 5).to_string(), "12884901893");
    }
}
