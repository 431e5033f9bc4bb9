//! The books as they were: the journal applied up to an instant, beside the engine and without
//! stopping it. What was seen and never journaled is assumed, and said to be.

pub(crate) mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scheduler_core::{Books, Core, Stamp};
use tidegate_model::{JobId, NodeId, Timestamp};
use tidegate_proto::journal::v1::event::Event as Kind;

use crate::journal::redb_store::Reading;
use crate::journal::{JournalError, codec};
use crate::replay;
use tidegate_model::rfc3339_ms;

/// Decisions about the job that are told, the newest: an attempt has about a dozen.
const MAX_TOLD: usize = 20;

/// Names of nodes in one sentence.
const NAMED: usize = 4;

/// A job and its cluster at an instant.
#[derive(Debug)]
pub struct Past {
    /// The books then, and nodes as they are assumed to have been.
    pub core: Core,
    /// The oldest instant that could be asked for.
    pub since: Timestamp,
    /// The newest decisions about the job, oldest first.
    pub decided: Vec<Decided>,
    /// What is assumed, in sentences.
    pub assumed: Vec<String>,
}

/// A decision about a job, with its rule and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    /// Its record.
    pub stamp: Stamp,
    /// In words.
    pub told: String,
}

/// Why nothing can be said of an instant.
#[derive(Debug, thiserror::Error)]
pub enum PastError {
    /// The log was cut, or begins later.
    #[error(
        "{asked} is before the oldest record that is kept; an instant from {oldest} on is accepted",
        asked = rfc3339_ms(*asked), oldest = rfc3339_ms(*oldest)
    )]
    TooEarly {
        /// The instant that was asked for.
        asked: Timestamp,
        /// The oldest that can be.
        oldest: Timestamp,
    },
    /// Whoever asked has gone.
    #[error("nobody waits for the answer")]
    Abandoned,
    /// The store cannot be read.
    #[error("the journal cannot be read: {0}")]
    Journal(#[from] JournalError),
}

/// What the journal says of the nodes' links, by name; empty again with each leadership.
#[derive(Debug, Default)]
struct Links {
    /// When the leadership began, if its record is kept.
    began: Option<Timestamp>,
    reported: BTreeSet<String>,
    /// Declared lost, which only a silent node can be, and not heard of since.
    lost: BTreeMap<String, Timestamp>,
}

/// Applies what is kept up to `at`, and looks out for `job`. `wanted` says whether somebody still
/// waits.
///
/// # Errors
/// [`PastError`].
pub fn as_of(
    reading: &Reading,
    at: Timestamp,
    job: JobId,
    wanted: &dyn Fn() -> bool,
) -> Result<Past, PastError> {
    let (start, mut books) = replay::base(reading)?;
    let mut since = (start.seq.0 > 0).then_some(start.at);
    let mut previous = start.seq;
    let (mut links, mut decided) = (Links::default(), VecDeque::new());
    let (mut abandoned, mut beyond) = (false, false);
    reading.read(replay::next(start.seq), &mut |seq, bytes| {
        let damaged = |why: String| JournalError::Damaged { at: seq.0, why };
        if replay::next(previous) != seq {
            return Err(damaged(format!("it follows record {}", previous.0)));
        }
        previous = seq;
        abandoned = abandoned || !wanted();
        if abandoned || beyond {
            return Ok(());
        }
        let record = codec::decode(seq, bytes)?;
        since = since.or(Some(record.stamp.at));
        beyond = record.stamp.at > at;
        if beyond {
            return Ok(());
        }
        let told = replay::events::told(bytes).map_err(|error| damaged(error.to_string()))?;
        links.note(record.stamp.at, &told);
        for decision in &record.decisions {
            let applied = books.evolve(record.stamp, decision);
            applied.map_err(|broken| damaged(broken.to_string()))?;
            if let Some(told) = words::about(&books, job, decision) {
                decided.push_back(Decided { stamp: record.stamp, told });
            }
        }
        while decided.len() > MAX_TOLD {
            decided.pop_front();
        }
        Ok(())
    })?;
    let since = since.unwrap_or(start.at);
    if abandoned {
        return Err(PastError::Abandoned);
    }
    if at < since {
        return Err(PastError::TooEarly { asked: at, oldest: since });
    }
    let (silent, assumed) = links.assume(&books);
    let core = Core::of_the_past(books, at, &silent);
    Ok(Past { core, since, decided: decided.into(), assumed })
}

impl Links {
    #[allow(clippy::wildcard_enum_match_arm, reason = "three of many say something of a link")]
    fn note(&mut self, at: Timestamp, event: &Kind) {
        match event {
            Kind::LeaderStarted(_) => *self = Self { began: Some(at), ..Self::default() },
            Kind::NodeReported(report) => {
                self.lost.remove(&report.node);
                self.reported.insert(report.node.clone());
            }
            Kind::NodeDeclaredLost(said) => {
                self.reported.remove(&said.node);
                self.lost.insert(said.node.clone(), at);
            }
            _ => {}
        }
    }

    /// Nodes that were silent, and what is assumed of the others.
    fn assume(&self, books: &Books) -> (BTreeSet<NodeId>, Vec<String>) {
        let is_lost = |name: &str| self.lost.contains_key(name);
        let nodes = || books.nodes.values();
        let silent = nodes().filter(|node| is_lost(node.name.as_str())).map(|node| node.id);
        let quiet: Vec<_> = nodes()
            .map(|node| node.name.as_str())
            .filter(|name| !is_lost(name) && !self.reported.contains(*name))
            .collect();
        let mut assumed = vec![
            "heartbeats are not kept: nodes are taken as heard and in service, but those that were \
             drained or declared lost"
                .to_owned(),
        ];
        if !quiet.is_empty() {
            let more = quiet.len().saturating_sub(NAMED);
            let named = quiet.get(..NAMED).unwrap_or(&quiet).join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let began = match self.began {
                Some(began) => format!("the coordinator started at {}", rfc3339_ms(began)),
                None => "the oldest record that is kept".to_owned(),
            };
            assumed.push(format!(
                "of {named}{more} the journal holds no report since {began}: so they are too"
            ));
        }
        assumed.extend(self.lost.iter().map(|(name, at)| {
            format!("{name} was declared lost at {}: it is taken as silent since", rfc3339_ms(*at))
        }));
        (silent.collect(), assumed)
    }
}
