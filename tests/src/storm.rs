//! Figures of the storm benchmark: a row for each gate, cause and target.
//!
//! The model is the simulator's; here are storms on real storage (`real`), on what is named by
//! `target`, beside innocent users of it (`bystanders`).

mod bystanders;
pub mod real;
mod target;

use std::thread::JoinHandle;
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};
use serde::Serialize;
use simulator::storm::Figures;
use tidegate_model::Bandwidth;

use crate::figures::percentile;

pub use self::target::{Meter, Target};

/// One gate under one cause on one target. Ratios are in decimals of what would be best.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The gate.
    pub arm: String,
    /// The cause.
    pub storm: String,
    /// What was written to.
    pub target: String,
    /// Attempts that were asked to leave.
    pub victims: u32,
    /// What they had to write.
    pub bytes: u64,
    /// From the storm to the end of the last write, over what the bytes take at the cap.
    pub makespan_ratio: f64,
    /// The most in any second, over the cap.
    pub peak_over_cap: f64,
    /// Seconds above the cap.
    pub seconds_over_cap: u64,
    /// What a small synced write took at its 99th percentile, over the same on an idle target; none =
    /// not measured.
    pub bystander_p99_ratio: Option<f64>,
    /// The same in milliseconds; of fewer than 500 samples it is the most.
    pub bystander_p99_ms: Option<u64>,
    /// How many there were.
    pub bystander_samples: Option<u64>,
    /// GPU-time from each one's signal to its end, over what each would take alone.
    pub victims_idle_ratio: f64,
    /// Until the gang that waited ran; none = no gang waited, or it never ran.
    pub gang_wait_s: Option<f64>,
    /// Attempts that ended unsaved.
    pub unsaved: u32,
}

impl Row {
    /// The figures as ratios.
    #[must_use]
    pub fn of(arm: &str, storm: &str, target: &str, cap: Bandwidth, figures: &Figures) -> Self {
        let ratio = |part: u128, whole: u128| real(part) / real(whole.max(1));
        let best = cap.takes(figures.bytes);
        Self {
            arm: arm.to_owned(),
            storm: storm.to_owned(),
            target: target.to_owned(),
            victims: figures.victims,
            bytes: figures.bytes.0,
            makespan_ratio: ratio(figures.makespan.0.into(), best.0.into()),
            peak_over_cap: ratio(figures.peak.0.into(), cap.0.into()),
            seconds_over_cap: figures.seconds_over,
            bystander_p99_ratio: None,
            bystander_p99_ms: None,
            bystander_samples: None,
            victims_idle_ratio: ratio(figures.idle, figures.idle_bound),
            gang_wait_s: figures.gang_wait.map(|span| real(span.0.into()) / 1000.0),
            unsaved: figures.unsaved,
        }
    }
}

impl Row {
    /// With what bystanders waited, beside what they do on the idle target.
    #[must_use]
    pub fn beside(mut self, took: &[Duration], idle: &[Duration]) -> Self {
        let (late, usual) = (late(took), late(idle));
        self.bystander_p99_ratio = Some(real(late.as_micros()) / real(usual.as_micros().max(1)));
        self.bystander_p99_ms = u64::try_from(late.as_millis()).ok();
        self.bystander_samples = u64::try_from(took.len()).ok();
        self
    }
}

/// The 99th percentile where it means something, else the most.
#[must_use]
pub fn late(took: &[Duration]) -> Duration {
    let percent = if took.len() >= 500 { 99 } else { 100 };
    percentile(took, percent).unwrap_or_default()
}

/// What a thread came to; a panic of it goes on here.
fn joined<T>(thread: JoinHandle<anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Exact below 2^53: far above any figure here.
#[allow(clippy::cast_precision_loss, clippy::as_conversions, reason = "a ratio for people")]
fn real(number: u128) -> f64 {
    number as f64
}

/// For people.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new()).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "STORM",
        "ARM",
        "TARGET",
        "VICTIMS",
        "GB",
        "MAKESPAN",
        "PEAK",
        "OVER",
        "BYSTANDER",
        "IDLE",
        "GANG",
        "UNSAVED",
    ]);
    let or_dash = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
    for row in rows {
        table.add_row([
            row.storm.clone(),
            row.arm.clone(),
            row.target.clone(),
            row.victims.to_string(),
            format!("{:.2}", real(row.bytes.into()) / 1e9),
            format!("{:.2}", row.makespan_ratio),
            format!("{:.2}", row.peak_over_cap),
            format!("{} s", row.seconds_over_cap),
            or_dash(row.bystander_p99_ratio.map(|ratio| format!("{ratio:.1}"))),
            format!("{:.2}", row.victims_idle_ratio),
            or_dash(row.gang_wait_s.map(|wait| format!("{wait:.0} s"))),
            row.unsaved.to_string(),
        ]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in table.column_iter_mut().skip(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}
