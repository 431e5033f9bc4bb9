//! `explain`: why a job is where it is, or was where it was.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_model::Timestamp;
use tidegate_proto::v1;

use crate::args::ExplainArgs;
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::retry::Patience;
use crate::show::out::{json, say};
use crate::show::text::plain;
use crate::show::{table, time};

/// One reason, with its numbers.
#[derive(Debug, Serialize)]
struct Explanation {
    job: String,
    reason: String,
    lines: Vec<String>,
    numbers: BTreeMap<String, u64>,
    #[serde(flatten)]
    past: Option<Past>,
}

/// What there is besides of an instant that is past.
#[derive(Debug, Serialize)]
struct Past {
    at_ms: u64,
    /// The oldest instant that could be asked for.
    since_ms: u64,
    /// What is assumed, for the journal does not hold it.
    assumed: Vec<String>,
    decided: Vec<Decided>,
}

/// A decision about the job, as the journal has it.
#[derive(Debug, Serialize)]
struct Decided {
    record: u64,
    at_ms: u64,
    told: String,
}

/// Says why a job is where it is, or was where it was.
///
/// # Errors
/// If there is or was no such job, the instant is none that the journal holds, or the coordinator
/// does not answer.
pub(crate) async fn explain(api: &Api, args: &ExplainArgs, as_json: bool) -> Result<(), Failure> {
    let now = time::now();
    let at_ms = args.at.map(|at| at.instant(now).0);
    let request = v1::ExplainRequest { job: args.job.to_string(), at_ms };
    let patience = if at_ms.is_some() { Patience::of_the_past() } else { Patience::of_reads() };
    let answer = api.ask(&patience, async |mut client| client.explain(request.clone()).await);
    let reply = answer.await?.value;
    if reply.at_ms != at_ms {
        let words = "the coordinator is older than this command and tells of now only";
        return Err(Failure::new(Exit::Refused, words));
    }
    let told = Explanation::from(reply);
    if as_json { json(&told) } else { say(&told.text(now)) }
}

impl From<v1::ExplainReply> for Explanation {
    fn from(reply: v1::ExplainReply) -> Self {
        let v1::ExplainReply { job, reason, lines, numbers, at_ms, assumed, decided, since_ms } =
            reply;
        let decided = decided.into_iter().map(|v1::PastDecision { record, at_ms, told }| Decided {
            record,
            at_ms,
            told,
        });
        let decided = decided.collect();
        let past = at_ms.map(|at_ms| Past { at_ms, since_ms, assumed, decided });
        Self { job, reason, lines, numbers: numbers.into_iter().collect(), past }
    }
}

impl Explanation {
    fn text(&self, now: Timestamp) -> String {
        let Self { job, reason, lines, numbers, past } = self;
        let Some(past) = past else {
            return table::explanation(&format!("{job}: {reason}"), lines, numbers, now);
        };
        let at = Timestamp(past.at_ms);
        let head = format!("{job} at {}: {reason}", time::rfc3339(at));
        let mut text = table::explanation(&head, lines, numbers, at);
        if !past.decided.is_empty() {
            text.push_str("\n\ndecided until then:");
        }
        for Decided { record, at_ms, told } in &past.decided {
            let at = time::rfc3339(Timestamp(*at_ms));
            text.push_str(&format!("\n  {at}  {}  (record {record})", plain(told)));
        }
        text.push('\n');
        for assumed in &past.assumed {
            text.push_str(&format!("\nassumed: {}", plain(assumed)));
        }
        text
    }
}
