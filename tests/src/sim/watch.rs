//! Reads every record as it is appended, keeps books of its own by applying it, and holds each
//! decision against rules that are written down here once more, apart from the core's code.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use scheduler_core::{
    Books, Decision, Event, Flow, Outcome, Recipe, Rehearsal, SaveReason, Stamp, Standing,
    StopReason,
};
use tidegate_coordinator::journal::{Entry, codec, snapshot};
use tidegate_model::{
    AttemptId, Bandwidth, Bytes, Commit, DecisionSeq, JobSpec, Span, StorageName, TaskId, Timestamp,
};

use super::Planted;
use super::coordinator::SimEngine;
use super::permits::NODE_SPEED;
use super::saving::{BEGINS_AGAIN, SAVES_NOTHING};

/// What the journal's reader knows.
#[derive(Debug, Default)]
struct Seen {
    books: Books,
    met: BTreeMap<&'static str, u64>,
    /// The rates of permits that are not over, in order, with the ask of each.
    issued: BTreeMap<TaskId, (u64, Vec<Issued>)>,
    /// Who was told to save and has not asked yet, with what is kept for it.
    admitted: BTreeMap<AttemptId, Option<Bandwidth>>,
    violation: Option<String>,
}

/// A rate that was granted.
#[derive(Debug, Clone, Copy)]
struct Issued {
    record: DecisionSeq,
    /// None: no limit.
    rate: Option<Bandwidth>,
}

/// What of a job its processes go by.
#[derive(Debug, Clone)]
pub(super) struct JobFacts {
    /// Whether it asks before it writes.
    pub(super) asks: bool,
    pub(super) asks_within: Option<Span>,
    pub(super) storage: Option<StorageName>,
    /// The most that the gang can write in a second.
    pub(super) speed: Bandwidth,
    /// Of which recipe it is a rehearsal.
    pub(super) rehearses: Option<u64>,
}

/// Below it nobody can tell going on from beginning again.
const LEAST_STEPS: u64 = 2;

/// Attempts that a rehearsal may have.
const MOST_REHEARSED: usize = 6;

/// The journal's reader. One owner at a time: the journal within a turn, the simulation after it.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch {
    seen: Arc<Mutex<Seen>>,
}

/// Decisions that a run of some length must meet.
pub(super) const MET: [&str; 25] = [
    "SaveOrdered to a displaced attempt",
    "SaveOrdered to a drained attempt",
    "SaveWithdrawn",
    "SaveAdmitted",
    "CheckpointCommitted",
    "CommitsClosed",
    "StandingChanged to Protected",
    "StandingChanged to Funded",
    "StandingChanged to Free",
    "LimitCrossed",
    "ElderNamed",
    "ReservationMade",
    "JobParked",
    "AttemptEnded as Saved",
    "SaveTold",
    "SaveOrdered to a rehearsal",
    "RehearsalJudged as passed",
    "RehearsalJudged as failed",
    "PermitGranted",
    "WriteRated",
    "WriteRated of a silent node",
    "WriteEnded",
    "GateSet",
    "GatePaused",
    "GateResumed",
];

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A coordinator restored these books; they are those that its predecessors left.
    pub(super) fn restored(&self, books: &Books, compare: bool) -> Result<(), String> {
        let mut seen = self.lock();
        let is_first = seen.books == Books::default();
        if compare && !is_first && seen.books != *books {
            return Err("the restored books differ from those that were journaled".to_owned());
        }
        seen.books = books.clone();
        Ok(())
    }

    /// Records are appended.
    pub(super) fn appended(&self, batch: &[Entry]) {
        let mut seen = self.lock();
        for (seq, bytes) in batch {
            let read = codec::decode(*seq, bytes).map_err(|error| error.to_string());
            let held = read.and_then(|record| {
                record.decisions.iter().try_for_each(|decision| {
                    seen.hold(record.stamp.at, decision)?;
                    seen.note_rate(record.stamp, decision);
                    let applied = seen.books.evolve(record.stamp, decision);
                    applied.map_err(|broken| broken.to_string())
                })
            });
            if let (Err(why), None) = (held, &seen.violation) {
                seen.violation = Some(format!("{seq}: {why}"));
            }
        }
    }

    /// What was met since the last call; or the first rule that was broken.
    pub(super) fn report(&self) -> Result<BTreeMap<&'static str, u64>, String> {
        let mut seen = self.lock();
        match seen.violation.take() {
            Some(why) => Err(why),
            None => Ok(std::mem::take(&mut seen.met)),
        }
    }

    /// The engine's books follow from the records alone, and survive a snapshot.
    pub(super) fn look(&self, engine: &SimEngine) -> Result<(), String> {
        let books = engine.core().books();
        if self.lock().books != *books {
            return Err("the books differ from what their records say".to_owned());
        }
        let stamp = Stamp { at: engine.now(), seq: engine.last_seq() };
        let read = snapshot::decode(stamp.seq, &snapshot::encode(stamp, books));
        let (read, again) = read.map_err(|error| error.to_string())?;
        if (read, &again) != (stamp, books) {
            return Err("a snapshot reads back as other books".to_owned());
        }
        Ok(())
    }

    /// What an attempt's processes go by; none if no record speaks of it.
    pub(super) fn job(&self, attempt: AttemptId) -> Option<JobFacts> {
        let seen = self.lock();
        let job = seen.books.jobs.get(&attempt.job)?;
        let nodes = job.attempt(attempt.number)?.node_count();
        let offer = job.spec.checkpoint.as_ref();
        let speed = NODE_SPEED.0.saturating_mul(nodes) >> (attempt.job.0 % 3);
        Some(JobFacts {
            asks: match offer {
                Some(_) => !attempt.job.0.is_multiple_of(3),
                // Its file names no storage, and it asks all the same.
                None => attempt.job.0.is_multiple_of(7),
            },
            asks_within: offer.and_then(|offer| offer.asks_within).map(|within| within.span()),
            storage: offer.map(|offer| offer.storage.clone()),
            speed: Bandwidth(speed),
            rehearses: job.spec.rehearsal().and_then(|_| recipe_of(&job.spec)),
        })
    }

    /// The cap in force; none = no limit.
    pub(super) fn cap(
        &self,
        storage: &StorageName,
        flow: Flow,
        at: Timestamp,
    ) -> Option<Bandwidth> {
        self.lock().books.gates.get(storage)?.rule.cap_at(flow, at)
    }

    /// The most that an ask was granted from the record on that its shim has read; none = nothing. What a
    /// silent node was left ends what was granted before.
    pub(super) fn issued(
        &self,
        task: TaskId,
        ask: u64,
        read: Option<DecisionSeq>,
    ) -> Option<Option<Bandwidth>> {
        let seen = self.lock();
        let (_, rates) = seen.issued.get(&task).filter(|(of, _)| *of == ask)?;
        let unread = rates.iter().filter(|one| read.is_none_or(|read| one.record >= read));
        // No limit is the most.
        unread.map(|one| one.rate).max_by_key(|rate| rate.unwrap_or(Bandwidth(u64::MAX)))
    }

    /// What is kept at a target for those that were told to save and have not asked yet.
    pub(super) fn admitted(&self, storage: &StorageName) -> Bandwidth {
        let seen = self.lock();
        let here = |id: &AttemptId| {
            let job = seen.books.jobs.get(&id.job);
            let offer = job.and_then(|job| job.spec.checkpoint.as_ref());
            offer.is_some_and(|offer| offer.storage == *storage)
        };
        let kept = seen.admitted.iter().filter(|(id, _)| here(id));
        kept.map(|(_, rate)| rate.unwrap_or(Bandwidth(u64::MAX))).sum()
    }

    /// Whether its recipe has passed a rehearsal.
    pub(super) fn is_rehearsed(&self, spec: &JobSpec) -> bool {
        is_rehearsed(&self.lock().books, spec)
    }

    /// The planted bugs that are wrong decisions: the batch with one of them, where it can be.
    pub(super) fn spoilt(&self, planted: Planted, batch: &[Entry]) -> Option<Vec<Entry>> {
        let seen = self.lock();
        let wrong = seen.wrong(planted)?;
        let mut batch = batch.to_vec();
        let (seq, bytes) = batch.last_mut()?;
        let mut record = codec::decode(*seq, bytes).ok()?;
        // Before the others: it must fit the books as they are.
        record.decisions.insert(0, wrong);
        *bytes =
            codec::encode(record.stamp, record.epoch, &Event::DeadlineReached, &record.decisions);
        Some(batch)
    }
}

impl Seen {
    fn wrong(&self, planted: Planted) -> Option<Decision> {
        let mut attempts = self.books.jobs.values().flat_map(|job| &job.attempts);
        match planted {
            Planted::ProtectedAsked => {
                let one = attempts.find(|one| {
                    let leaves = one.save.is_some() || one.stop.is_some();
                    one.standing == Standing::Protected && one.is_live() && !leaves
                })?;
                let node = one.tasks.first()?.place.node;
                let why = SaveReason::Drained { node };
                Some(Decision::SaveOrdered { attempt: one.id, why })
            }
            Planted::ClosedCommits => {
                let attempt = attempts.find(|one| one.commits_closed)?.id;
                let (step, path) = (u64::MAX, "/late".to_owned());
                let commit = Commit { step, path, bytes: Bytes(1), request: None };
                Some(Decision::CheckpointCommitted { attempt, commit: Box::new(commit) })
            }
            Planted::PublishBeforeAppend
            | Planted::SyncDropped
            | Planted::GenerationIgnored
            | Planted::LedgerAfterReport
            | Planted::IntentAfterSpawn
            | Planted::ReleasedTooEarly
            | Planted::SilenceIsLoss
            | Planted::PledgeKept
            | Planted::LowerRateIgnored
            | Planted::SilentForgotten => None,
        }
    }

    fn meet(&mut self, what: &'static str) {
        let count = self.met.entry(what).or_insert(0);
        *count = count.saturating_add(1);
    }

    /// Holds a decision against the books before it.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the others have no rule here")]
    fn hold(&mut self, at: Timestamp, decision: &Decision) -> Result<(), String> {
        match decision {
            Decision::SaveOrdered { attempt, why } => self.save_ordered(at, *attempt, *why)?,
            Decision::StopOrdered { attempt, why } => self.stop_ordered(*attempt, *why)?,
            Decision::CheckpointCommitted { attempt, .. } => {
                let closed = self.books.attempt(*attempt).is_none_or(|one| one.commits_closed);
                if closed {
                    return Err(format!("{attempt} can commit nothing any more, and did"));
                }
                self.meet("CheckpointCommitted");
            }
            Decision::SaveWithdrawn(_) => self.meet("SaveWithdrawn"),
            Decision::SaveAdmitted { .. } => self.meet("SaveAdmitted"),
            Decision::CommitsClosed(_) => self.meet("CommitsClosed"),
            Decision::StandingChanged { to, .. } => self.meet(match to {
                Standing::Protected => "StandingChanged to Protected",
                Standing::Funded => "StandingChanged to Funded",
                Standing::Free => "StandingChanged to Free",
            }),
            Decision::JobAccepted { spec, .. } => self.rehearsed_before(spec)?,
            Decision::AttemptPlanned { attempt, .. } => self.rehearsal_goes_on(*attempt)?,
            Decision::RehearsalJudged { recipe, shown } => self.judged(*recipe, shown)?,
            Decision::SaveTold(_) => self.meet("SaveTold"),
            Decision::PermitGranted { .. } => self.meet("PermitGranted"),
            Decision::WriteRated { .. } => self.meet("WriteRated"),
            Decision::WriteEnded(_) => self.meet("WriteEnded"),
            Decision::GateSet { .. } => self.meet("GateSet"),
            Decision::GatePaused { .. } => self.meet("GatePaused"),
            Decision::GateResumed { .. } => self.meet("GateResumed"),
            Decision::LimitCrossed { .. } => self.meet("LimitCrossed"),
            Decision::ElderNamed { .. } => self.meet("ElderNamed"),
            Decision::ReservationMade { .. } => self.meet("ReservationMade"),
            Decision::JobParked { .. } => self.meet("JobParked"),
            Decision::AttemptEnded { outcome: Outcome::Saved, .. } => {
                self.meet("AttemptEnded as Saved");
            }
            _ => {}
        }
        Ok(())
    }

    /// Whoever is asked to leave may be asked: never one that is protected.
    fn save_ordered(
        &mut self,
        at: Timestamp,
        id: AttemptId,
        why: SaveReason,
    ) -> Result<(), String> {
        let victim = self.books.attempt(id).ok_or_else(|| format!("{id} is not known"))?;
        let rehearsed = why == SaveReason::Rehearsed;
        if victim.standing == Standing::Protected && !rehearsed {
            return Err(format!("{id} is protected, and is asked to save"));
        }
        if !victim.is_displaceable() && !rehearsed {
            return Err(format!("{id} is on its way out, and is asked to save"));
        }
        match why {
            // It ran free, and leaves for the nodes that its own job has reserved.
            SaveReason::Displaced { by, .. } if by.job == id.job => {
                let job = self.books.jobs.get(&id.job);
                let reserved = job.and_then(|job| job.reservation.as_ref());
                let due = reserved.is_some_and(|reserved| reserved.at <= at);
                if !due || victim.standing != Standing::Free {
                    return Err(format!("{id} has no reservation to leave for"));
                }
                self.meet("SaveOrdered to a run whose own reservation is due");
            }
            SaveReason::Displaced { by, .. } => {
                let heir = self.books.attempt(by).ok_or_else(|| format!("{by} is not known"))?;
                if heir.terms.standing != Standing::Protected {
                    return Err(format!("{by} may displace nobody, and displaces {id}"));
                }
                self.meet("SaveOrdered to a displaced attempt");
            }
            SaveReason::Drained { node } => {
                let drained = self.books.nodes.get(&node).is_some_and(|node| node.drain.is_some());
                if !drained || !victim.tasks.iter().any(|task| task.place.node == node) {
                    return Err(format!("{id} is asked to leave {node}, which does not drain it"));
                }
                self.meet("SaveOrdered to a drained attempt");
            }
            SaveReason::Rehearsed => {
                let job = self.books.jobs.get(&id.job);
                if job.is_none_or(|job| job.spec.rehearsal().is_none() || job.judged.is_some()) {
                    return Err(format!("{id} is no rehearsal, and is asked to save for one"));
                }
                self.meet("SaveOrdered to a rehearsal");
            }
        }
        Ok(())
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "the others set no rate")]
    fn note_rate(&mut self, stamp: Stamp, decision: &Decision) {
        match decision {
            Decision::PermitGranted { permit, rate, .. } => {
                self.admitted.remove(&permit.task.attempt);
                let first = Issued { record: stamp.seq, rate: *rate };
                self.issued.insert(permit.task, (permit.ask, vec![first]));
            }
            Decision::WriteRated { attempt, rate, pooled, still } => {
                // Time tells who is silent; the others hear of it.
                let silent = *pooled && still.is_none();
                let Some(task) = self.speaker(*attempt) else {
                    self.admitted.entry(*attempt).and_modify(|kept| *kept = Some(*rate));
                    return;
                };
                if let Some((_, rates)) = self.issued.get_mut(&task) {
                    // Of one record nobody hears but the last.
                    rates.retain(|one| one.record < stamp.seq && !silent);
                    rates.push(Issued { record: stamp.seq, rate: Some(*rate) });
                }
                if silent {
                    self.meet("WriteRated of a silent node");
                }
            }
            // Who writes by a permit goes on with it.
            Decision::SaveAdmitted { attempt, rate, .. } if self.speaker(*attempt).is_none() => {
                self.admitted.insert(*attempt, *rate);
            }
            Decision::WriteEnded(attempt) | Decision::AttemptEnded { attempt, .. } => {
                self.admitted.remove(attempt);
                if let Some(task) = self.speaker(*attempt) {
                    self.issued.remove(&task);
                }
            }
            _ => {}
        }
    }

    /// The task that holds an attempt's permit.
    fn speaker(&self, attempt: AttemptId) -> Option<TaskId> {
        Some(self.books.attempt(attempt)?.writing?.permit?.task)
    }

    /// Where rehearsals are required, who is accepted has passed one.
    fn rehearsed_before(&self, spec: &JobSpec) -> Result<(), String> {
        let most = self.books.policy.sharing.require_rehearsal;
        let needs = most.is_some_and(|most| spec.gpus > most)
            && spec.min_runtime > Span::ZERO
            && spec.rehearsal().is_none();
        if needs && !is_rehearsed(&self.books, spec) {
            return Err(format!("{:?} is accepted without a rehearsal", spec.command));
        }
        Ok(())
    }

    /// A rehearsal is not started again once it is judged, and is judged after so many attempts.
    fn rehearsal_goes_on(&self, id: AttemptId) -> Result<(), String> {
        let Some(job) = self.books.jobs.get(&id.job) else { return Ok(()) };
        let is_over = job.judged.is_some() || job.attempts.len() >= MOST_REHEARSED;
        if job.spec.rehearsal().is_some() && is_over {
            return Err(format!("{id} is one attempt of a rehearsal too many"));
        }
        Ok(())
    }

    /// A recipe passes only if its jobs do as they are asked.
    fn judged(&mut self, recipe: Recipe, shown: &Rehearsal) -> Result<(), String> {
        let job = self.books.jobs.get(&shown.job).ok_or_else(|| format!("{} ?", shown.job))?;
        if job.spec.rehearsal().is_none() || Recipe::of(&job.spec) != recipe {
            return Err(format!("{} is judged as a rehearsal of something else", shown.job));
        }
        // What begins again may come further than it was before anybody hears of it.
        let far = shown.save.is_some_and(|save| save.step >= LEAST_STEPS);
        let may = match recipe_of(&job.spec) {
            Some(SAVES_NOTHING) => false,
            Some(BEGINS_AGAIN) => far,
            Some(_) | None => true,
        };
        if shown.passed() && !may {
            return Err(format!("{} passed a rehearsal, and cannot have: {shown}", shown.job));
        }
        self.meet(if shown.passed() {
            "RehearsalJudged as passed"
        } else {
            "RehearsalJudged as failed"
        });
        Ok(())
    }

    /// What is protected ends by its owner, by itself, or because it never began.
    fn stop_ordered(&self, id: AttemptId, why: StopReason) -> Result<(), String> {
        let attempt = self.books.attempt(id).ok_or_else(|| format!("{id} is not known"))?;
        let may = match why {
            StopReason::Cancelled
            | StopReason::GangBroken
            | StopReason::StartTimeout
            | StopReason::PlanFailed => true,
            StopReason::Rehearsed => {
                self.books.jobs.get(&id.job).is_some_and(|job| job.judged.is_some())
            }
            // What is only rehearsed is asked, and so stopped, inside its protected time.
            StopReason::CannotSave | StopReason::GraceOver | StopReason::Stays => {
                let rehearsed = attempt.save.is_some_and(|save| save.why == SaveReason::Rehearsed);
                attempt.standing != Standing::Protected || rehearsed
            }
        };
        if may { Ok(()) } else { Err(format!("{id} is protected, and is stopped: {why}")) }
    }
}

/// Which of the simulation's recipes a job is of.
fn recipe_of(spec: &JobSpec) -> Option<u64> {
    spec.command.last()?.parse().ok()
}

/// The newest rehearsal of its recipe that says something of it has passed: on one node, that says nothing
/// of a job that is too large for any.
fn is_rehearsed(books: &Books, spec: &JobSpec) -> bool {
    let largest = books.nodes.values().map(|node| node.size()).max().unwrap_or_default();
    let several = spec.gpus > spec.gpus_per_node.unwrap_or(largest);
    let recipe = Recipe::of(spec);
    let all = books.rehearsals.iter().filter(|(of, _)| *of == recipe).map(|(_, shown)| shown);
    let says = all.filter(|shown| !several || shown.nodes > 1 || !shown.passed());
    says.max_by_key(|shown| (shown.at, shown.job)).is_some_and(Rehearsal::passed)
}
