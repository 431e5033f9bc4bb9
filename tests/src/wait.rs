//! Waiting for conditions: never for time alone.

use std::time::{Duration, Instant};

use anyhow::bail;

/// Between two looks at a condition.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks until `look` finds something, or fails when `within` has passed, saying what was awaited
/// and what was there instead.
///
/// # Errors
/// If nothing was found in time.
pub async fn until<T, L>(within: Duration, what: &str, look: L) -> anyhow::Result<T>
where
    L: AsyncFnMut() -> Result<T, String>,
{
    until_every(LOOK_EVERY, within, what, look).await
}

/// The same with a pause of one's own between two looks, for what is there only briefly.
///
/// # Errors
/// If nothing was found in time.
pub async fn until_every<T, L>(
    pause: Duration,
    within: Duration,
    what: &str,
    mut look: L,
) -> anyhow::Result<T>
where
    L: AsyncFnMut() -> Result<T, String>,
{
    let deadline = Instant::now() + within;
    let mut ticks = tokio::time::interval(pause);
    // A look that takes longer than the pause is not made up for by a burst of looks.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match look().await {
            Ok(found) => return Ok(found),
            Err(instead) if Instant::now() >= deadline => {
                bail!("waited {within:?} in vain for {what}; instead: {instead}")
            }
            Err(_) => {}
        }
    }
}
