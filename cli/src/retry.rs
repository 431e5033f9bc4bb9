//! Trying again. Only what may safely be asked twice comes here: reads, orders that name an end
//! state, and submits, which carry their key.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::exit::Failure;
use crate::progress::Progress;

/// A submit outlives a restart of the coordinator.
const SUBMIT_PATIENCE: Duration = Duration::from_secs(30);
/// A read outlives a lost connection; a person at a terminal wants to know soon.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// One request is answered within this, or counts as missed.
const DEADLINE: Duration = Duration::from_secs(10);
/// The whole journal is read for it: some seconds, on a slow disk more.
const PAST_DEADLINE: Duration = Duration::from_secs(120);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between tries: short against a restart of the coordinator.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a command keeps trying, and what it says meanwhile.
#[derive(Debug, Clone)]
pub(crate) struct Patience {
    pub(crate) total: Duration,
    /// What is added to "still trying", such as the key of a submit.
    pub(crate) detail: String,
    /// How long one try may take.
    pub(crate) deadline: Duration,
}

impl Patience {
    fn of(total: Duration) -> Self {
        Self { total, detail: String::new(), deadline: DEADLINE }
    }

    pub(crate) fn of_reads() -> Self {
        Self::of(READ_PATIENCE)
    }

    /// For what the coordinator reads its journal for.
    pub(crate) fn of_the_past() -> Self {
        Self { deadline: PAST_DEADLINE, ..Self::of_reads() }
    }

    pub(crate) fn of_submit(key: &str) -> Self {
        Self { detail: format!(" (key {key})"), ..Self::of(SUBMIT_PATIENCE) }
    }

    /// For what is asked again anyway.
    pub(crate) fn none() -> Self {
        Self::of(Duration::ZERO)
    }

    /// For what is followed until it ends, however long the coordinator is away.
    pub(crate) fn endless() -> Self {
        Self::of(Duration::MAX)
    }
}

/// Why one try failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Miss {
    /// Trying again may help: what to say meanwhile, and what to say at last.
    Away { meanwhile: String, failure: Failure },
    /// Trying again does not help.
    Final(Failure),
}

/// What was answered, and at which try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer<T> {
    pub(crate) value: T,
    pub(crate) tries: u32,
}

/// Tries until there is an answer, the failure is final or patience is at its end.
///
/// # Errors
/// The last failure.
pub(crate) async fn persist<T>(
    patience: &Patience,
    attempt: impl AsyncFn() -> Result<T, Miss>,
) -> Result<Answer<T>, Failure> {
    let since = Instant::now();
    let mut progress = Progress::new("waiting for the coordinator's answer");
    let mut pause = FIRST_PAUSE;
    let mut tries = 0_u32;
    loop {
        tries = tries.saturating_add(1);
        let (meanwhile, failure) = match progress.during(attempt()).await {
            Ok(value) => return Ok(Answer { value, tries }),
            Err(Miss::Final(failure)) => return Err(failure),
            Err(Miss::Away { meanwhile, failure }) => (meanwhile, failure),
        };
        let left = patience.total.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err(failure);
        }
        progress.set(format!("{meanwhile}, still trying{}", patience.detail));
        progress.during(sleep(pause.min(left))).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::exit::Exit;

    fn failure() -> Failure {
        Failure::new(Exit::Unavailable, "away")
    }

    async fn check(
        patience: Patience,
        outcome: fn(u32) -> Result<&'static str, Miss>,
        expected: Result<Answer<&'static str>, Failure>,
    ) -> Duration {
        let (tries, since) = (Cell::new(0), Instant::now());
        let told = persist(&patience, async || {
            tries.set(tries.get() + 1);
            outcome(tries.get())
        })
        .await;
        assert_eq!(told, expected);
        since.elapsed()
    }

    fn away() -> Miss {
        Miss::Away { meanwhile: "away".into(), failure: failure() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_after_misses_tells_at_which_try_it_came() {
        let outcome = |at| if at < 3 { Err(away()) } else { Ok("here") };
        let expected = Ok(Answer { value: "here", tries: 3 });
        let took = check(Patience::of_reads(), outcome, expected).await;
        assert_eq!(took, Duration::from_millis(300), "pauses of 100 ms and 200 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_lasts_its_whole_span_and_ends_with_the_last_failure() {
        let took = check(Patience::of_reads(), |_| Err(away()), Err(failure())).await;
        assert_eq!(took, READ_PATIENCE);
        let took = check(Patience::of_submit("K"), |_| Err(away()), Err(failure())).await;
        assert_eq!(took, SUBMIT_PATIENCE);
        let took = check(Patience::none(), |_| Err(away()), Err(failure())).await;
        assert_eq!(took, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_final_failure_is_not_tried_again() {
        let took =
            check(Patience::endless(), |_| Err(Miss::Final(failure())), Err(failure())).await;
        assert_eq!(took, Duration::ZERO);
    }
}
