//! From the start of a coordinator over a long store until it answers.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::store;
use tidegate_model::{ClusterId, Span, Timestamp};
use tidegate_proto::v1;

use super::history::{History, MIXED};
use super::report::{Figure, Goal, millis, number};
use crate::binaries::Binaries;
use crate::cluster::{Cluster, Plan, Role};
use crate::figures::percentile;
use crate::wait::until_every;

/// Records of the store.
const RECORDS: u64 = 100_000;
/// Starts over the same store; each adds a record.
const STARTS: usize = 5;
/// How long before now the store's history begins: it must not reach into the future.
const AGO: Span = Span::hours(24);
/// What a restart may take, in milliseconds.
const GOAL: Goal = Goal::AtMost(1_000.0);

/// Measures a store without a snapshot, where all is replayed, and one as the coordinator keeps it.
///
/// # Errors
/// If the store fails or the coordinator does not answer in time.
pub async fn measure(binaries: &Binaries) -> anyhow::Result<Vec<Figure>> {
    let mut figures = over(binaries, "no snapshot", false).await?;
    figures.extend(over(binaries, "snapshots as kept", true).await?);
    Ok(figures)
}

async fn over(binaries: &Binaries, how: &str, snapshots: bool) -> anyhow::Result<Vec<Figure>> {
    let mut cluster = Cluster::stopped(binaries.clone(), &Plan::nodes(1, 1))?;
    let dir = cluster.dir().join("store");
    fs::create_dir(&dir)?;
    let store = dir.join("store.redb");
    let (jobs, stall) = write(&store, snapshots).await?;
    let size = fs::metadata(&store)?.len();
    let (mut restored, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let began = Instant::now();
        let journal = RedbJournal::open(&store, ClusterId(0))?;
        let books = store::restore(&journal)?;
        restored.push(began.elapsed());
        drop((books, journal));
        answered.push(start(&mut cluster).await?);
        cluster.kill(Role::Coordinator)?;
    }
    let figure = |what: &str, value, unit, n, goal| {
        let what = format!("{what}, {how}");
        Figure { what, value, unit, n, goal }
    };
    let median = |samples: &[Duration]| percentile(samples, 50).map_or(f64::NAN, millis);
    let worst = answered.iter().max().copied().map_or(f64::NAN, millis);
    let mut figures = vec![
        figure("start to the first answer, median", median(&answered), "ms", STARTS, GOAL),
        figure("start to the first answer, slowest", worst, "ms", STARTS, GOAL),
        figure("opening and restoring alone, median", median(&restored), "ms", STARTS, Goal::None),
        figure("jobs in the books", number(u64::try_from(jobs)?), "", 1, Goal::None),
        figure("size of the store", number(size) / 1_048_576.0, "MiB", 1, Goal::None),
    ];
    if snapshots {
        let what = "slowest snapshot, in which the engine takes no turn";
        figures.push(figure(what, millis(stall), "ms", 1, Goal::None));
    }
    Ok(figures)
}

/// Writes a history of [`RECORDS`] records; answers how many jobs it is of, and how long the
/// slowest snapshot took.
async fn write(store: &Path, snapshots: bool) -> anyhow::Result<(usize, Duration)> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let begin = u64::try_from(wall.as_millis())?.saturating_sub(AGO.0);
    let journal = RedbJournal::open(store, ClusterId(1))?;
    let mut history = History::begin(journal, Timestamp(begin), MIXED)?;
    let mut slowest = Duration::ZERO;
    while history.records() < RECORDS {
        history.turn()?;
        if snapshots {
            let began = Instant::now();
            history.snapshot_if_due()?;
            slowest = slowest.max(began.elapsed());
        }
        // An interrupt is looked for.
        tokio::task::yield_now().await;
    }
    history.wind_up()?;
    Ok((history.jobs(), slowest))
}

async fn start(cluster: &mut Cluster) -> anyhow::Result<Duration> {
    let client = cluster.client()?;
    let began = Instant::now();
    cluster.start_role(Role::Coordinator)?;
    let (pause, within) = (Duration::from_millis(1), Duration::from_secs(60));
    until_every(pause, within, "the coordinator's first answer", async || {
        let status = client.api().status(v1::StatusRequest {}).await;
        status.map_err(|status| status.to_string())
    })
    .await?;
    Ok(began.elapsed())
}
