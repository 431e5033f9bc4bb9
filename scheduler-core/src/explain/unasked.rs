//! Told to whose job said that it asks before it writes, and did not.

use tidegate_model::Timestamp;

use super::waiting::up_to_seconds;
use crate::books::{Attempt, Books};
use crate::decide::gate::{has_asked, kept_until};
use crate::observations::Observations;

pub(super) fn line(
    books: &Books,
    seen: &Observations,
    now: Timestamp,
    attempt: &Attempt,
) -> Option<String> {
    let job = books.jobs.get(&attempt.id.job)?;
    let offer = job.spec.checkpoint.as_ref()?;
    let (said, storage) = (offer.asks_within?.span(), &offer.storage);
    let given_back = attempt.save.is_some_and(|save| save.given_back.is_some());
    if has_asked(seen, attempt) {
        return None;
    }
    if given_back {
        return Some(format!(
            "it said that it asks within {said}, and it neither asked nor was seen to write: its \
             turn at {storage} is given back, and it waits for another when it asks"
        ));
    }
    let (_, until) = kept_until(books, job, attempt).filter(|(asks, _)| *asks <= now)?;
    let left = up_to_seconds(until.since(now));
    Some(format!(
        "it said that it asks within {said}, and has not asked: its turn at {storage} is kept for \
         {left}, in which it could write without asking"
    ))
}
