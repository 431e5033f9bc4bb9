//! Told to whose job has a permit to write or to restore.

use tidegate_model::Timestamp;

use super::turn::{rounded, speed, what};
use super::waiting::up_to_seconds;
use crate::books::{Attempt, Books};
use crate::decide::gate::{is_unused, said_rate};
use crate::observations::Observations;

pub(super) fn line(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    attempt: &Attempt,
) -> Option<String> {
    let (job, of) = (books.jobs.get(&attempt.id.job)?, attempt.writing?);
    let (storage, permit) = (job.storage()?, of.permit?);
    // The journal has no asks: of the past only what they counted for is known.
    let ask = seen.ask_of(permit.task).map(|noted| noted.seen.ask);
    let bytes = ask.map_or(of.bytes, |ask| ask.bytes);
    let told = |rate| ask.map_or(rate, |ask| said_rate(ask, of.bytes, rate));
    let rate = of.rate.map(|rate| speed(told(rate)));
    let since = up_to_seconds(now.since(of.since));
    let has = format!("it has had a permit for {since}, to {}", what(permit.class));
    if !is_unused(books, seen, now, (job, attempt, of)) {
        let at = rate.map_or_else(|| "as fast as it can".to_owned(), |rate| format!("at {rate}"));
        return Some(format!("{has}: {} at {storage}, {at}", rounded(bytes.0)));
    }
    let keeps = match rate {
        Some(rate) => format!("it keeps to {rate}, its share of what is kept back"),
        None => "it is not counted as one that writes".to_owned(),
    };
    Some(format!(
        "{has}, and nothing is seen to be written by it at {storage}: until it writes or says that \
         it is done, {keeps}"
    ))
}
