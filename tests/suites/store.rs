//! The store: what is written reads back to the same books, and what cannot be right is refused.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cluster_tests::history::{self, CLUSTER, history, report, submit};
use prost::Message;
use redb::backends::InMemoryBackend;
use redb::{Database, TableDefinition};
use scheduler_core::{Event, Policy, Stamp};
use tidegate_coordinator::engine::{Answer, Engine};
use tidegate_coordinator::journal::redb_store::RedbJournal;
use tidegate_coordinator::journal::{Entry, Journal, JournalError, Sink, codec, snapshot};
use tidegate_coordinator::store;
use tidegate_model::{ClusterId, DecisionSeq, Epoch, JobId, Timestamp};
use tidegate_proto::journal::v1 as wire;

fn start(journal: RedbJournal) -> Engine<RedbJournal> {
    history::start(journal, Timestamp(0)).unwrap()
}

fn in_memory() -> RedbJournal {
    RedbJournal::on_backend(InMemoryBackend::new(), CLUSTER).unwrap()
}

#[test]
fn at_every_prefix_snapshot_and_journal_restore_equal_books() {
    let mut engine = start(in_memory());
    for (at, event) in history() {
        engine.turn(Timestamp(at), std::slice::from_ref(&event)).unwrap();
        assert_eq!(engine.core().audit(engine.now()), [], "after {event:?}");
        let stamp = Stamp { at: engine.now(), seq: engine.last_seq() };
        let bytes = snapshot::encode(stamp, engine.core().books());
        let (read, books) = snapshot::decode(stamp.seq, &bytes).unwrap();
        assert_eq!((read, &books), (stamp, engine.core().books()), "after {event:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let mut written = start(RedbJournal::open(&path, CLUSTER).unwrap());
    for (at, event) in history() {
        written.turn(Timestamp(at), &[event]).unwrap();
        let books = written.core().books().clone();
        drop(written);
        let journal = RedbJournal::open(&path, ClusterId(8)).unwrap();
        assert_eq!(journal.cluster(), CLUSTER, "a store keeps its identity");
        assert_eq!(*store::restore(&journal).unwrap().core.books(), books);
        drop(journal);
        written = start(RedbJournal::open(&path, CLUSTER).unwrap());
    }
    let epochs = u64::try_from(history().len()).unwrap() + 1;
    assert_eq!(written.epoch(), Epoch(epochs), "every start is a leadership of its own");
}

#[test]
fn the_history_of_these_tests_meets_nearly_every_kind_of_decision() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let mut engine = start(RedbJournal::open(&path, CLUSTER).unwrap());
    for (at, event) in history() {
        engine.turn(Timestamp(at), &[event]).unwrap();
    }
    drop(engine);
    let mut met = BTreeSet::new();
    let journal = RedbJournal::open(&path, CLUSTER).unwrap();
    journal
        .read(DecisionSeq(1), &mut |seq, bytes| {
            let decisions = codec::decode(seq, bytes)?.decisions;
            let kind = |told: String| told.split(['(', ' ']).next().unwrap_or_default().to_owned();
            met.extend(decisions.iter().map(|decision| kind(format!("{decision:?}"))));
            Ok(())
        })
        .unwrap();
    let missed: Vec<_> = KINDS.into_iter().filter(|kind| !met.contains(*kind)).collect();
    // The simulation meets these.
    assert_eq!(missed, ["SaveWithdrawn", "ReservationMoved"]);
    assert!(met.iter().all(|kind| KINDS.contains(&kind.as_str())), "{met:?}");
}

/// Decisions that are journaled.
const KINDS: [&str; 53] = [
    "EpochBegan",
    "PolicySet",
    "NodeAdmitted",
    "NodeRefreshed",
    "NodeRemoved",
    "DrainBegan",
    "DrainEnded",
    "JobAccepted",
    "JobCancelled",
    "JobRequeued",
    "JobEnded",
    "JobForgotten",
    "JobParked",
    "JobUnparked",
    "AttemptPlanned",
    "AttemptGranted",
    "AttemptRunning",
    "AttemptEnded",
    "StandingChanged",
    "StopOrdered",
    "SaveOrdered",
    "SaveWithdrawn",
    "SaveAdmitted",
    "SaveTold",
    "SaveNoted",
    "PermitGranted",
    "WriteRated",
    "WriteEnded",
    "GateSet",
    "CapAdapted",
    "GatePaused",
    "GateResumed",
    "CheckpointCommitted",
    "CommitsClosed",
    "RehearsalJudged",
    "TaskPrepared",
    "TaskStarted",
    "TaskEnded",
    "TaskIdled",
    "TaskReleased",
    "AccountMade",
    "AccountDeleted",
    "BudgetSet",
    "BudgetTransferred",
    "BudgetAsked",
    "BudgetAnswered",
    "RoleSet",
    "LimitCrossed",
    "ElderNamed",
    "ElderAllowed",
    "ReservationMade",
    "ReservationMoved",
    "ReservationDropped",
];

#[test]
fn a_new_store_has_its_policy_from_its_first_append_and_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let start = |policy: &Policy| {
        let journal = RedbJournal::open(&path, CLUSTER).unwrap();
        let restored = store::restore(&journal).unwrap();
        Engine::start(journal, restored, Timestamp(1), policy).unwrap()
    };
    let first = Policy { max_live_jobs: 7, ..Policy::default() };
    let engine = start(&first);
    assert_eq!((engine.last_seq(), &engine.core().books().policy), (DecisionSeq(2), &first));
    drop(engine);
    assert_eq!(start(&Policy::default()).core().books().policy, first);
}

#[test]
fn a_snapshot_and_the_records_after_it_are_enough() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let mut engine = start(RedbJournal::open(&path, CLUSTER).unwrap());
    history::until_the_log_is_cut(&mut engine).unwrap();
    let books = engine.core().books().clone();
    drop(engine);
    let journal = RedbJournal::open(&path, CLUSTER).unwrap();
    assert!(journal.oldest().unwrap() > Some(DecisionSeq(10_000)));
    let restored = store::restore(&journal).unwrap();
    assert_eq!(*restored.core.books(), books);
    assert!(restored.since_snapshot < 10_000, "{}", restored.since_snapshot);
}

#[test]
fn a_snapshot_whose_accounts_are_no_tree_is_refused_by_the_account() {
    let mut engine = start(in_memory());
    engine.turn(Timestamp(1), &history::accounts()).unwrap();
    let stamp = Stamp { at: Timestamp(1), seq: DecisionSeq(2) };
    let mut damaged =
        wire::Snapshot::decode(&*snapshot::encode(stamp, engine.core().books())).unwrap();
    let last = damaged.accounts.last_mut().unwrap();
    let expected = last.account;
    assert!(expected > 1, "accounts below the root");
    last.account = u32::MAX;
    let told = snapshot::decode(stamp.seq, &damaged.encode_to_vec()).unwrap_err().to_string();
    assert!(told.contains("account 4294967295 below account"), "{told}");
    assert!(told.contains(&format!("stands where account {expected} was expected")), "{told}");
}

#[test]
fn a_record_that_does_not_follow_is_refused_and_nothing_of_its_batch_is_kept() {
    let mut journal = in_memory();
    let entry = |seq| -> Entry { (DecisionSeq(seq), vec![1]) };
    journal.append(&[entry(1), entry(2)]).unwrap();
    let error = journal.append(&[entry(3), entry(5)]).unwrap_err().to_string();
    assert_eq!(error, "the store is damaged at record 3: the next record is not the next");
    let mut seen = Vec::new();
    journal
        .read(DecisionSeq(0), &mut |seq, _| {
            seen.push(seq.0);
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, [1, 2]);
}

#[test]
fn a_missing_or_unreadable_record_stops_the_restore_with_its_number() {
    let stamp = |seq| Stamp { at: Timestamp(1), seq: DecisionSeq(seq) };
    let good =
        |seq| (DecisionSeq(seq), codec::encode(stamp(seq), Epoch(1), &Event::LeaderStarted, &[]));
    let check = |entries: &[Entry], expected: &str| {
        let mut journal = in_memory();
        for entry in entries {
            journal.append(std::slice::from_ref(entry)).unwrap();
        }
        let told = store::restore(&journal).unwrap_err().to_string();
        assert!(told.contains(expected), "{told}");
    };
    check(&[good(2)], "damaged at record 2: it follows record 0");
    check(&[good(1), (DecisionSeq(2), vec![0xff])], "damaged at record 2: ");
    check(
        &[good(1), (DecisionSeq(2), good(1).1)],
        "damaged at record 2: it says that it is record 1",
    );
}

fn open_error(path: &Path) -> String {
    RedbJournal::open(path, CLUSTER).unwrap_err().to_string()
}

#[test]
fn a_store_in_use_or_of_a_newer_format_or_of_another_kind_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let journal = RedbJournal::open(&path, CLUSTER).unwrap();
    assert_eq!(
        open_error(&path),
        "another coordinator has this store open; one store serves one coordinator"
    );
    drop(journal);
    let database = Database::create(&path).unwrap();
    let writing = database.begin_write().unwrap();
    let meta = TableDefinition::<&str, &[u8]>::new("meta");
    writing.open_table(meta).unwrap().insert("format", 2_u32.to_be_bytes().as_slice()).unwrap();
    writing.commit().unwrap();
    drop(database);
    assert_eq!(open_error(&path), "the store has format 2; this version reads formats up to 1");
    fs::write(&path, "not a store").unwrap();
    assert_eq!(open_error(&path), "the store cannot be used");
}

#[test]
fn an_empty_file_is_no_new_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    fs::write(&path, "").unwrap();
    let told = open_error(&path);
    assert!(told.starts_with("the store is damaged: the file is empty"), "{told}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "it is left as it was");
}

#[test]
fn a_store_can_be_read_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    drop(RedbJournal::open(&path, CLUSTER).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// A journal whose storage fills up.
#[derive(Debug)]
struct Filling {
    inner: RedbJournal,
    room: usize,
}

impl Journal for Filling {
    fn cluster(&self) -> ClusterId {
        self.inner.cluster()
    }

    fn append(&mut self, batch: &[Entry]) -> Result<(), JournalError> {
        self.room = self.room.checked_sub(1).ok_or_else(|| {
            JournalError::storage(std::io::Error::from(std::io::ErrorKind::StorageFull))
        })?;
        self.inner.append(batch)
    }

    fn read(&self, from: DecisionSeq, each: Sink<'_>) -> Result<(), JournalError> {
        self.inner.read(from, each)
    }

    fn snapshot(&mut self, at: DecisionSeq, books: &[u8]) -> Result<(), JournalError> {
        self.inner.snapshot(at, books)
    }

    fn latest_snapshot(&self) -> Result<Option<Entry>, JournalError> {
        self.inner.latest_snapshot()
    }

    fn oldest(&self) -> Result<Option<DecisionSeq>, JournalError> {
        self.inner.oldest()
    }
}

#[test]
fn a_turn_that_is_not_durable_answers_nobody_and_is_not_there_after_the_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let inner = RedbJournal::open(&path, CLUSTER).unwrap();
    let mut engine = history::start(Filling { inner, room: 4 }, Timestamp(0)).unwrap();
    engine.turn(Timestamp(1), &[report(true, vec![])]).unwrap();
    engine.turn(Timestamp(1), &history::accounts()).unwrap();
    let outcome = engine.turn(Timestamp(2), &[submit(1, 1)]).unwrap();
    assert_eq!(outcome.answers, [Answer::Submitted { job: JobId(1), repeated: false }]);
    assert!(engine.turn(Timestamp(3), &[submit(2, 1)]).is_err());
    drop(engine);
    let mut engine = start(RedbJournal::open(&path, CLUSTER).unwrap());
    let jobs: Vec<_> = engine.core().books().jobs.keys().copied().collect();
    assert_eq!(jobs, [JobId(1)]);
    engine.turn(Timestamp(4), &[report(true, vec![])]).unwrap();
    let outcome = engine.turn(Timestamp(5), &[submit(2, 1)]).unwrap();
    assert_eq!(outcome.answers, [Answer::Submitted { job: JobId(2), repeated: false }]);
}
