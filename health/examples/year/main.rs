//! `cargo run --release -p tidegate-health --example year`: how often the policy is wrong in a year of nodes.
//!
//! The signals are drawn ([`world`]), the judge and the table are the real ones. What is not in it: the limits
//! of what is drained at once, and signals that only the driver's library has.

#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for people and CI logs"
)]

mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Parser;
use tidegate_health::{
    Class, Context, Incident, OwnAct, Signal, Table, Verdict, judge, remembered, signal,
};
use tidegate_model::{Span, Timestamp, UserId};

use self::world::{Came, Node, Options, Truth};

/// Counts wrong drains and missed faults over a simulated year.
#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, default_value_t = 128)]
    nodes: u32,
    #[arg(long, default_value_t = 365)]
    days: u64,
    /// False signals, as a multiple of the published rates.
    #[arg(long, default_value_t = 1.0)]
    rate: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Name each wrong drain and each missed fault.
    #[arg(long)]
    verbose: bool,
}

/// A fault is seen within this span of it, or it is missed.
const SOON: Span = Span::minutes(10);

#[derive(Default)]
struct Score {
    lines: u64,
    incidents: u64,
    /// Faults, and those that were not seen as what they are.
    faults: u64,
    missed: u64,
    /// Verdicts by which a node or a GPU leaves, for no fault; and of those the ones that many had at once.
    wrong: u64,
    wrong_shared: u64,
    told: u64,
    by_rule: BTreeMap<String, u64>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Arguments { nodes: count, days, rate, seed, verbose } = arguments;
    let table = Table::shipped().expect("it is one").for_driver(Some(580));
    let nodes = world::nodes(&Options { nodes: count, days, rate, seed });
    let crashes = crashes(&table, &nodes);
    let mut score = Score::default();
    for (number, node) in nodes.iter().enumerate() {
        Watch { table: &table, node, number, crashes: &crashes, verbose, score: &mut score }.year();
    }
    // In ten thousandths, for 100 node-days.
    let per = score.wrong * 1_000_000 / (u64::from(count) * days).max(1);
    println!("nodes {count}, days {days}, false signals x {rate}, seed {seed}");
    println!("lines {}, incidents {}", score.lines, score.incidents);
    println!("true faults {}, missed {} (goal 0)", score.faults, score.missed);
    println!(
        "wrong drains {}: {}.{:04} per 100 node-days (goal < 0.1); beside them {} when many nodes had the \
         same at once",
        score.wrong,
        per / 10_000,
        per % 10_000,
        score.wrong_shared
    );
    println!("told to on-call, nothing drained: {}", score.told);
    for (rule, count) in &score.by_rule {
        println!("    wrong by: {rule}: {count}");
    }
    if score.missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Where whose work made errors of programs, and when.
type Crashes = BTreeMap<UserId, Vec<(Timestamp, usize)>>;

/// As the coordinator knows it of all nodes.
fn crashes(table: &Table, nodes: &[Node]) -> Crashes {
    let mut crashes = Crashes::new();
    for (number, node) in nodes.iter().enumerate() {
        let mut holders = node.holders.clone();
        holders.sort_by_key(|holder| holder.from);
        for (at, came) in &node.came {
            let Came::Line(line) = came else { continue };
            let Ok(Some(signal)) = signal(line) else { continue };
            let Signal::Xid(xid) = &signal else { continue };
            if table.find(&signal).meaning.class != Class::Application {
                continue;
            }
            let begun = holders.partition_point(|holder| holder.from <= *at);
            let has = holders[..begun].iter().rev().take(64);
            let mut has = has.filter(|holder| holder.gpus.contains(&xid.gpu));
            if let Some(holder) = has.next() {
                crashes.entry(holder.user).or_default().push((*at, number));
            }
        }
    }
    crashes.values_mut().for_each(|all| all.sort_unstable());
    crashes
}

struct Watch<'a> {
    table: &'a Table,
    node: &'a Node,
    number: usize,
    crashes: &'a Crashes,
    verbose: bool,
    score: &'a mut Score,
}

impl Watch<'_> {
    fn year(mut self) {
        let (mut open, mut context) = (Incident::default(), Context::default());
        let mut seen = Vec::new();
        for (at, came) in &self.node.came {
            if !open.goes_on_at(self.table, *at) {
                seen.extend(self.close(&std::mem::take(&mut open), &mut context));
            }
            match came {
                Came::Line(line) => match signal(line) {
                    Ok(Some(signal)) => open.note(self.table, *at, &signal, line),
                    Ok(None) => continue,
                    Err(_) => open.note_unreadable(self.table, *at, line),
                },
                Came::Asks(gpu, value) => open.note_recovery(self.table, *at, *gpu, *value),
            }
            self.score.lines += 1;
        }
        seen.extend(self.close(&open, &mut context));
        self.score_faults(&seen);
    }

    /// Judges an incident, with what is known around it. From when until when it was, and its verdicts.
    fn close(
        &mut self,
        incident: &Incident,
        context: &mut Context,
    ) -> Option<(Timestamp, Timestamp, Vec<Verdict>)> {
        let (first, last) = incident.times()?;
        self.score.incidents += 1;
        let day = Span::hours(24);
        let near = |at: Timestamp| first.since(at) <= day && at <= last;
        let act = |act: &&OwnAct| near(act.at);
        context.own = self.node.own.iter().filter(act).cloned().collect();
        let had = self.node.holders.iter().filter(|one| {
            one.from <= last && one.until.is_none_or(|until| first.since(until) <= Span::minutes(1))
        });
        context.holders = had.cloned().collect();
        context.fail_elsewhere = self.fail_elsewhere(first, last);
        let memory = self.table.longest_memory();
        context.past.retain(|past| first.since(past.at) <= memory);
        let verdicts = judge(self.table, incident, context);
        context.past.extend(remembered(self.table, incident, context));
        self.score_drains(first, last, &verdicts);
        Some((first, last, verdicts))
    }

    /// Users whose work failed on another node in the day before.
    fn fail_elsewhere(
        &self,
        first: Timestamp,
        last: Timestamp,
    ) -> std::collections::BTreeSet<UserId> {
        let fails = |all: &Vec<(Timestamp, usize)>| {
            let begin = Timestamp(first.0.saturating_sub(Span::hours(24).0));
            let place = all.partition_point(|(at, _)| *at < begin);
            let near = all[place..].iter().take_while(|(at, _)| *at <= last);
            near.filter(|(_, node)| *node != self.number).count() >= 1
        };
        self.crashes.iter().filter(|(_, all)| fails(all)).map(|(user, _)| *user).collect()
    }

    fn score_drains(&mut self, first: Timestamp, last: Timestamp, verdicts: &[Verdict]) {
        let near = |at: Timestamp| at.0 <= last.0 + SOON.0 && first.0 <= at.0 + Span::hours(1).0;
        let is_true = self.node.truths.iter().any(|(at, _)| near(*at));
        let is_shared = self.node.shared.iter().any(|at| near(*at));
        for verdict in verdicts {
            self.score.told += u64::from(verdict.class == Class::Unknown);
            if verdict.class < Class::Degraded || is_true {
                continue;
            }
            if is_shared {
                self.score.wrong_shared += 1;
                continue;
            }
            self.score.wrong += 1;
            let why = verdict.why.as_deref().unwrap_or(&verdict.rule);
            *self.score.by_rule.entry(why.to_owned()).or_insert(0) += 1;
            if self.verbose {
                println!("node {} at {first:?}: wrong: {verdict:?}", self.number);
            }
        }
    }

    fn score_faults(&mut self, seen: &[(Timestamp, Timestamp, Vec<Verdict>)]) {
        for (at, truth) in &self.node.truths {
            self.score.faults += 1;
            let least = match truth {
                Truth::Degraded => Class::Degraded,
                Truth::Fatal => Class::Fatal,
            };
            let end = at.plus(SOON);
            let found = seen.iter().any(|(first, last, verdicts)| {
                *first <= end && last >= at && verdicts.iter().any(|one| one.class >= least)
            });
            if !found {
                self.score.missed += 1;
                if self.verbose {
                    println!("node {} at {at:?}: missed: {truth:?}", self.number);
                }
            }
        }
    }
}
