//! Tables for people: no borders, columns two spaces apart, numbers to the right.

mod accounts;
mod checkpoints;
mod dry_runs;
mod gates;
mod jobs;
mod nodes;
mod rehearsals;
mod reports;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};

pub(crate) use self::accounts::{accounts, budget, roles};
pub(crate) use self::checkpoints::checkpoints;
pub(crate) use self::dry_runs::dry_runs;
pub(crate) use self::gates::{gate, gates};
pub(crate) use self::jobs::{explanation, job, jobs};
pub(crate) use self::nodes::{cluster, nodes, reasons};
pub(crate) use self::rehearsals::rehearsal;
pub(crate) use self::reports::report;
use crate::show::text::plain;

/// A column's heading and how its cells are aligned.
type Column = (&'static str, CellAlignment);

const LEFT: CellAlignment = CellAlignment::Left;
const RIGHT: CellAlignment = CellAlignment::Right;

/// Most jobs of a node that a table names; more are counted.
const MAX_JOBS_NAMED: usize = 3;

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Headings of what a narrow window does without, the first of them first. What is not here stays,
/// and so does the first column of each table: it says what the row is about.
const LEAST_WORTH: [&str; 24] = [
    "BLOCK",
    "MIN-RUNTIME",
    "OVERHEAD",
    "CREDITED",
    "SMALL",
    "ELDER",
    "FREE",
    "PLEDGED",
    "LIMIT",
    "SHARE",
    "PLANNED",
    "ACCOUNT",
    "STANDING",
    "DISPLACED",
    "LOST",
    "AGE",
    "CUT",
    "WHEN",
    "EMPTY-BY",
    "TIMESTAMP",
    "ATTEMPT",
    "USER",
    "NAME",
    "RAN",
];

/// Between two columns.
const GAP: usize = 2;

/// What a last column of words may be squeezed to before a column beside it is given up.
const FEW_WORDS: usize = 24;

/// How many columns the window has; not set where no window shows the output.
static WIDTH: OnceLock<usize> = OnceLock::new();

/// No line of a table is longer from now on. Where this is not said nothing is cut: what is piped
/// on is searched with grep.
pub(crate) fn fit_into(width: usize) {
    WIDTH.get_or_init(|| width);
}

/// Names and values, one pair a line.
pub(crate) fn pairs<'a>(facts: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut table = bare(WIDTH.get().copied());
    for (name, value) in facts {
        table.add_row([name.to_owned(), plain(&value)]);
    }
    spaced(&mut table);
    table.trim_fmt()
}

fn table<const N: usize>(columns: &[Column; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<_> = rows.map(|row| row.map(|cell| plain(&cell))).collect();
    fitted(columns, &rows, WIDTH.get().copied())
}

fn fitted<const N: usize>(
    columns: &[Column; N],
    rows: &[[String; N]],
    width: Option<usize>,
) -> String {
    let left_out = width.map(|width| left_out(columns, rows, width)).unwrap_or_default();
    let is_kept = |index: &usize| !left_out.contains(index);
    let mut table = bare(width);
    table.set_header(
        (0..N).filter(is_kept).filter_map(|index| columns.get(index)).map(|(heading, _)| *heading),
    );
    for row in rows {
        table.add_row((0..N).filter(is_kept).filter_map(|index| row.get(index)));
    }
    spaced(&mut table);
    let alignments = (0..N).filter(is_kept).filter_map(|index| columns.get(index));
    for (column, (_, alignment)) in table.column_iter_mut().zip(alignments) {
        column.set_cell_alignment(*alignment);
    }
    table.trim_fmt()
}

/// The places of the columns that a window of that width does without.
fn left_out<const N: usize>(
    columns: &[Column; N],
    rows: &[[String; N]],
    width: usize,
) -> BTreeSet<usize> {
    let longest = |index: usize, heading: &str| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(String::as_str);
        cells.chain([heading]).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: BTreeMap<usize, usize> = columns
        .iter()
        .enumerate()
        .map(|(index, (heading, _))| (index, longest(index, heading).saturating_add(GAP)))
        .collect();
    if let Some((_, last)) = widths.iter_mut().next_back() {
        *last = (*last).min(FEW_WORDS);
    }
    let mut left_out = BTreeSet::new();
    for heading in LEAST_WORTH {
        if widths.values().sum::<usize>() <= width.saturating_add(GAP) {
            break;
        }
        let place = columns.iter().skip(1).position(|(other, _)| *other == heading);
        if let Some(index) = place.map(|place| place.saturating_add(1)) {
            widths.remove(&index);
            left_out.insert(index);
        }
    }
    left_out
}

/// A table below what was said before it; nothing where it would have no rows.
fn below<const N: usize>(text: &mut String, columns: &[Column; N], rows: Vec<[String; N]>) {
    if !rows.is_empty() {
        text.push_str("\n\n");
        text.push_str(&table(columns, rows.into_iter()));
    }
}

fn bare(width: Option<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    match width.and_then(|width| u16::try_from(width.saturating_add(GAP)).ok()) {
        // What is still too long is wrapped in its column.
        Some(width) => {
            table.set_width(width).set_content_arrangement(ContentArrangement::Dynamic);
        }
        // A row stays one line: rows are searched with grep.
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    table
}

fn spaced(table: &mut Table) {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
}

#[cfg(test)]
mod tests;
