//! Tables for people: no borders, columns two spaces apart, numbers to the right.

mod accounts;
mod jobs;
mod nodes;
mod rehearsals;
mod reports;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};

pub(crate) use self::accounts::{accounts, budget, roles};
pub(crate) use self::jobs::{explanation, job, jobs};
pub(crate) use self::nodes::{cluster, nodes, reasons};
pub(crate) use self::rehearsals::rehearsals;
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

/// Names and values, one pair a line.
pub(crate) fn pairs<'a>(facts: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut table = bare();
    for (name, value) in facts {
        table.add_row([name.to_owned(), plain(&value)]);
    }
    spaced(&mut table);
    table.trim_fmt()
}

fn table<const N: usize>(columns: &[Column; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = bare();
    table.set_header(columns.map(|(heading, _)| heading));
    for row in rows {
        table.add_row(row.map(|cell| plain(&cell)));
    }
    spaced(&mut table);
    for (column, (_, alignment)) in table.column_iter_mut().zip(columns) {
        column.set_cell_alignment(*alignment);
    }
    table.trim_fmt()
}

/// A table below what was said before it; nothing where it would have no rows.
fn below<const N: usize>(text: &mut String, columns: &[Column; N], rows: Vec<[String; N]>) {
    if !rows.is_empty() {
        text.push_str("\n\n");
        text.push_str(&table(columns, rows.into_iter()));
    }
}

fn bare() -> Table {
    let mut table = Table::new();
    // A row stays one line, whatever the terminal's width: rows are searched with grep.
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn spaced(table: &mut Table) {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
}

#[cfg(test)]
mod tests;
