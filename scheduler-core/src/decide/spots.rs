//! The nodes as a pass sees them: what is idle, what is coming, who could yield, who has a
//! reservation there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_model::{
    AttemptId, Bandwidth, GpuCount, GpuUuid, JobId, NodeId, Span, StorageName, Timestamp,
};

use crate::accounts::AccountId;
use crate::books::{Attempt, Books, Job, Node, Place};
use crate::decide::gate;
use crate::decide::leave::left_or;
use crate::decide::victims::expected_restore;
use crate::decision::Standing;
use crate::gate::Flow;
use crate::observations::Observations;
use crate::policy::Kind;

/// One node that takes work.
#[derive(Debug, Clone)]
pub(crate) struct Spot<'books> {
    pub(crate) node: &'books Node,
    pub(crate) id: NodeId,
    pub(crate) kind: Kind,
    /// GPUs that nobody holds.
    pub(crate) idle: u32,
    /// GPUs whose holders are leaving, and that nobody inherits yet.
    pub(crate) coming: u32,
    /// When the last of them comes, at the latest.
    pub(crate) coming_by: Timestamp,
    /// Who holds the others, as far as nobody inherits them; the first to yield first.
    pub(crate) occupants: Vec<Occupant<'books>>,
    /// Of their GPUs those in the hands of Funded work, and of free work.
    funded: u32,
    free: u32,
    /// The firm reservations that have it, the oldest first, with their instants.
    pub(crate) firm: Vec<(Timestamp, JobId)>,
    /// Expected starts that need it: from when, and until when the last of them is protected.
    pub(crate) expected: Option<(Timestamp, Timestamp)>,
    /// GPUs that this pass has given away.
    pub(crate) taken: BTreeSet<GpuUuid>,
}

/// An attempt on a node that is not leaving. What is asked of it again and again stands here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupant<'books> {
    pub(crate) job: &'books Job,
    pub(crate) attempt: &'books Attempt,
    pub(crate) account: AccountId,
    pub(crate) standing: Standing,
    /// Its GPUs there that nobody inherits.
    pub(crate) gpus: u32,
    /// When a firm reservation may displace it.
    pub(crate) yields_at: Timestamp,
}

impl Occupant<'_> {
    /// Whether somebody entitled may displace it now.
    pub(crate) fn is_displaceable(&self) -> bool {
        self.standing != Standing::Protected
    }
}

/// All nodes that take work, in order of their numbers.
pub(crate) fn spots<'books>(
    books: &'books Books,
    seen: &Observations,
    backlog: &Backlog<'_>,
) -> Vec<Spot<'books>> {
    let now = backlog.now;
    let mut firm: BTreeMap<NodeId, Vec<(Timestamp, JobId)>> = BTreeMap::new();
    for (_, id) in &books.index.reservations {
        let reservation = books.jobs.get(id).and_then(|job| job.reservation.as_ref());
        for (node, _) in reservation.iter().flat_map(|one| &one.nodes) {
            let at = reservation.map_or(now, |one| one.at);
            firm.entry(*node).or_default().push((at, *id));
        }
    }
    // Neighbours are mostly alike, and a kind is told by searching a product's name.
    let mut last: Option<(&str, Kind)> = None;
    let spot = |node: &'books Arc<Node>| {
        let firm = firm.remove(&node.id).unwrap_or_default();
        let product = node.facts.gpus.first().map(|gpu| gpu.product.as_str());
        let known = last.filter(|(known, _)| Some(*known) == product);
        let kind = known.map_or_else(|| node.kind(&books.policy), |(_, kind)| kind);
        last = product.map(|product| (product, kind));
        Spot::without_occupants(node, kind, firm, now)
    };
    let mut spots = Vec::with_capacity(books.nodes.len());
    spots.extend(seen.ready(books, now).map(spot));
    for id in &books.index.live {
        if let Some((job, attempt)) = books.with_job(*id) {
            settle(&mut spots, books, (job, attempt), backlog);
        }
    }
    spots.iter_mut().for_each(|spot| spot.occupants.sort_by_key(|one| one.yields_at));
    spots
}

/// Notes an attempt on the nodes that it has tasks on.
fn settle<'books>(
    spots: &mut [Spot<'books>],
    books: &'books Books,
    (job, attempt): (&'books Job, &'books Attempt),
    backlog: &Backlog<'_>,
) {
    let now = backlog.now;
    let gone_by = is_leaving(attempt).then(|| backlog.gone_by(books, job, attempt));
    let yields_at = yields_at(attempt, start_limit(books, job), now);
    let (account, standing) = (job.account, attempt.standing);
    for tasks in attempt.tasks.chunk_by(|one, next| one.place.node == next.place.node) {
        let Some(node) = tasks.first().map(|task| task.place.node) else { continue };
        let at = spots.binary_search_by_key(&node, |spot| spot.id);
        let Some(spot) = at.ok().and_then(|index| spots.get_mut(index)) else { continue };
        let held = tasks.iter().filter(|task| !task.released);
        let gpus = held.map(|task| unpromised(spot.node, &task.place)).fold(0, u32::saturating_add);
        if gpus == 0 {
            continue;
        }
        if let Some(gone_by) = gone_by {
            spot.coming = spot.coming.saturating_add(gpus);
            spot.coming_by = spot.coming_by.max(gone_by);
            continue;
        }
        match standing {
            Standing::Protected => {}
            Standing::Funded => spot.funded = spot.funded.saturating_add(gpus),
            Standing::Free => spot.free = spot.free.saturating_add(gpus),
        }
        match spot.occupants.last_mut().filter(|one| one.attempt.id == attempt.id) {
            Some(known) => known.gpus = known.gpus.saturating_add(gpus),
            None => {
                let one = Occupant { job, attempt, account, standing, gpus, yields_at };
                spot.occupants.push(one);
            }
        }
    }
}

/// GPUs that a task there holds and nobody inherits. What it inherits itself is not its own yet.
fn unpromised(node: &Node, place: &Place) -> u32 {
    // Mostly nobody inherits any of what is held there, or somebody all.
    if node.heirs.len() >= node.held.len() {
        return 0;
    }
    let nobody = node.heirs.is_empty();
    let own = place.gpus.iter().filter(|gpu| nobody || !node.heirs.contains_key(*gpu));
    u32::try_from(own.count()).unwrap_or(u32::MAX)
}

fn is_leaving(attempt: &Attempt) -> bool {
    attempt.stop.is_some()
        || attempt.save.is_some()
        || attempt.is_broken()
        || attempt.tasks.iter().all(|task| task.exit.is_some())
}

/// Somebody who is asked to save, or writes.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    job: JobId,
    /// How long its place at the gate is taken, at the latest.
    takes: Span,
    own: Bandwidth,
}

/// Who is asked to save, or writes, by storage target.
pub(crate) struct Backlog<'books> {
    now: Timestamp,
    by_storage: BTreeMap<Option<&'books StorageName>, Vec<Leaving>>,
}

impl<'books> Backlog<'books> {
    pub(crate) fn of(books: &'books Books, now: Timestamp) -> Self {
        let mut by_storage: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let saving = books.index.saving.iter().map(|(_, id)| *id);
        let writes = gate::writing(books).filter(|(_, _, of)| of.flow() == Flow::Writes);
        let writing = writes.map(|(_, attempt, _)| attempt.id);
        for id in saving.chain(writing).collect::<BTreeSet<_>>() {
            if let Some((job, attempt)) = books.with_job(id) {
                let takes = gate_time(books, job, attempt);
                let own = gate::own_bandwidth(books, job, attempt);
                let one = Leaving { job: job.id, takes, own };
                by_storage.entry(job.storage()).or_default().push(one);
            }
        }
        Self { now, by_storage }
    }

    /// When an attempt that is leaving is gone at the latest: the rest of its grace, the time
    /// between TERM and KILL, then the time to verify. A request that the gate has not admitted
    /// counts its whole grace from when it is at the latest.
    pub(crate) fn gone_by(&self, books: &Books, job: &Job, attempt: &Attempt) -> Timestamp {
        let grace = save_grace(books, job, attempt);
        let verify = books.policy.sharing.verify_limit;
        let wait = permit_wait(books, job, attempt);
        let since = match attempt.save {
            Some(save) if wait > Span::ZERO => save.at.plus(wait),
            Some(save) => save.admitted.unwrap_or_else(|| self.admitted_by(books, job)),
            None => self.now.plus(wait),
        };
        let leaves = left_or(books, attempt, since.plus(grace));
        let kill = job.spec.grace;
        leaves.plus(kill).plus(verify).max(self.now)
    }

    /// When the write gate admits a request at the latest: after whole rounds of all the others.
    fn admitted_by(&self, books: &Books, job: &Job) -> Timestamp {
        let all = self.by_storage.get(&job.storage()).map_or(&[][..], Vec::as_slice);
        let others = all.iter().filter(|one| one.job != job.id);
        let mut round = Round::default();
        others.for_each(|one| round.add(one.takes, one.own));
        let width = gate::at_a_time(books, job.storage(), round.own);
        self.now.plus(Span(round.takes.0.saturating_mul(round.count / width)))
    }

    /// Requests to the job's storage target that the gate may still have before one made at `from`:
    /// none if all of them are through by then.
    pub(crate) fn outlasting(&self, books: &Books, job: &Job, from: Timestamp) -> Round {
        let all = self.by_storage.get(&job.storage()).map_or(&[][..], Vec::as_slice);
        let mut round = Round::default();
        all.iter().for_each(|one| round.add(one.takes, one.own));
        let width = gate::at_a_time(books, job.storage(), round.own);
        let rounds = Span(round.takes.0.saturating_mul(round.count.div_ceil(width)));
        if self.now.plus(rounds) > from { round } else { Round::default() }
    }
}

/// Those that go through a gate in rounds: how many, the longest that any of them takes, and the most
/// that any of them writes in a second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Round {
    pub(crate) count: u64,
    pub(crate) takes: Span,
    pub(crate) own: Bandwidth,
}

impl Round {
    pub(crate) fn add(&mut self, takes: Span, own: Bandwidth) {
        self.count = self.count.saturating_add(1);
        self.takes = self.takes.max(takes);
        self.own = self.own.max(own);
    }
}

impl Job {
    /// Where it saves, if it can.
    pub(crate) fn storage(&self) -> Option<&StorageName> {
        self.spec.checkpoint.as_ref().map(|offer| &offer.storage)
    }
}

/// The time an attempt has from the request to its end.
pub(crate) fn save_grace(books: &Books, job: &Job, attempt: &Attempt) -> Span {
    let free_grace = books.policy.sharing.free_grace;
    match &job.spec.checkpoint {
        None => Span::ZERO,
        // A rehearsal is to show what its grace is enough for.
        Some(offer) if attempt.was_protected() || job.spec.rehearsal().is_some() => offer.grace,
        Some(offer) => offer.grace.min(free_grace),
    }
}

/// How long a saving attempt's place at its gate is taken at the latest: its grace, the time between
/// TERM and KILL, and the time to verify that nothing of it writes any more.
pub(crate) fn gate_time(books: &Books, job: &Job, attempt: &Attempt) -> Span {
    let around = job.spec.grace.0.saturating_add(books.policy.sharing.verify_limit.0);
    let wait = permit_wait(books, job, attempt);
    Span(save_grace(books, job, attempt).0.saturating_add(around).saturating_add(wait.0))
}

/// How long after it is asked to leave the grace of an attempt that writes by a permit begins at the latest. Of one
/// whose job has asked for permits before nobody knows whether it has one by then.
pub(crate) fn permit_wait(books: &Books, job: &Job, attempt: &Attempt) -> Span {
    let holds = attempt.writing.is_some_and(|of| of.has_a_turn());
    let asks = holds || job.commits.as_ref().is_some_and(|commits| commits.pace().is_some());
    let may_hold = match attempt.save {
        Some(save) => holds && save.admitted.is_none(),
        None => asks,
    };
    if may_hold { save_grace(books, job, attempt) } else { Span::ZERO }
}

impl<'books> Spot<'books> {
    fn without_occupants(
        node: &'books Node,
        kind: Kind,
        firm: Vec<(Timestamp, JobId)>,
        now: Timestamp,
    ) -> Self {
        let held = u32::try_from(node.held.len()).unwrap_or(u32::MAX);
        Self {
            node,
            id: node.id,
            kind,
            idle: node.size().0.saturating_sub(held),
            coming: 0,
            coming_by: now,
            occupants: Vec::with_capacity(node.tasks.len()),
            funded: 0,
            free: 0,
            firm,
            expected: None,
            taken: BTreeSet::new(),
        }
    }

    /// What is idle, coming, or held by those of whom `yields` holds.
    pub(crate) fn with(&self, yields: impl Fn(&Occupant<'_>) -> bool) -> u32 {
        let yielding = self.occupants.iter().filter(|one| yields(one));
        let sum = self.idle.saturating_add(self.coming);
        yielding.map(|one| one.gpus).fold(sum, u32::saturating_add)
    }

    /// Everything that is not protected and not promised to another.
    pub(crate) fn most(&self) -> u32 {
        self.without_funded().saturating_add(self.funded)
    }

    /// What is idle, coming, or in the hands of free work.
    pub(crate) fn without_funded(&self) -> u32 {
        self.idle.saturating_add(self.coming).saturating_add(self.free)
    }

    /// Whether nobody who waits is to have it.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.firm.is_empty() && self.expected.is_none()
    }

    /// Whether work that is protected until then is over before anybody is expected to start here.
    pub(crate) fn before_expected(&self, until: Timestamp) -> bool {
        self.expected.is_none_or(|(at, _)| until <= at)
    }

    /// Likewise before the firm reservations that are older than the claimant's own.
    pub(crate) fn before_firm(&self, claimant: JobId, until: Timestamp) -> bool {
        let older = self.firm.iter().take_while(|(_, of)| *of != claimant);
        older.map(|(at, _)| *at).all(|at| until <= at)
    }

    /// When all that could yield here has left at the latest, if it were asked now.
    pub(crate) fn emptied_by(&self, books: &Books, backlog: &Backlog<'_>) -> Timestamp {
        let yields = self.occupants.iter().filter(|one| one.is_displaceable());
        let gone = yields.map(|one| backlog.gone_by(books, one.job, one.attempt));
        gone.chain([self.coming_by]).max().unwrap_or(self.coming_by)
    }

    /// When `wanted` GPUs of it are to be had by a firm reservation, at the latest.
    pub(crate) fn firm_instant(
        &self,
        books: &Books,
        job: JobId,
        wanted: GpuCount,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let own = self.instant(wanted.0, now, None, |_| true)?;
        // At the latest: limits, not what is expected.
        let around = |older: &Job| {
            let grace = older.spec.checkpoint.as_ref().map_or(Span::ZERO, |one| one.grace);
            Span(start_limit(books, older).0.saturating_add(grace.0))
        };
        Some(self.older_end(books, job, around).map_or(own, |ends| own.max(ends)))
    }

    /// When the reservations that are older than the job's own have had the node: each goes after
    /// those before it, starts, runs its min runtime and then yields, which takes `around` beside.
    pub(crate) fn older_end(
        &self,
        books: &Books,
        job: JobId,
        around: impl Fn(&Job) -> Span,
    ) -> Option<Timestamp> {
        let older = self.firm.iter().take_while(|(_, of)| *of != job);
        let ends = older.filter_map(|(at, of)| {
            let older = books.jobs.get(of)?;
            Some(at.plus(older.spec.min_runtime).plus(around(older)))
        });
        ends.max()
    }

    /// The instant by which `wanted` GPUs of it have come. Against an occupant of whom `entitled`
    /// does not hold the claimant has no right before `elder_at`.
    pub(crate) fn instant(
        &self,
        wanted: u32,
        now: Timestamp,
        elder_at: Option<Timestamp>,
        mut entitled: impl FnMut(&Occupant<'books>) -> bool,
    ) -> Option<Timestamp> {
        if self.idle >= wanted {
            return Some(now);
        }
        let (mut by_right, mut of_all) = (self.idle, self.idle);
        let mut as_elder = None;
        let (mut coming, mut occupants) = (Some(self.coming_by), self.occupants.iter().peekable());
        loop {
            let next = occupants.peek().map(|one| one.yields_at);
            let first = coming.filter(|at| next.is_none_or(|next| *at <= next));
            let (at, gpus, right) = if let Some(at) = first {
                coming = None;
                (at, self.coming, true)
            } else if let Some(one) = occupants.next() {
                (one.yields_at, one.gpus, entitled(one))
            } else {
                return as_elder;
            };
            if as_elder.is_some_and(|elder| elder <= at) {
                return as_elder;
            }
            of_all = of_all.saturating_add(gpus);
            by_right = by_right.saturating_add(if right { gpus } else { 0 });
            if by_right >= wanted {
                return Some(at);
            }
            if of_all >= wanted {
                as_elder = as_elder.or_else(|| elder_at.map(|elder| elder.max(at)));
            }
        }
    }

    /// Gives away GPUs that are idle or coming.
    pub(crate) fn take(&mut self, gpus: &[GpuUuid]) {
        for gpu in gpus {
            let of =
                if self.node.held.contains_key(gpu) { &mut self.coming } else { &mut self.idle };
            *of = of.saturating_sub(1);
        }
        self.taken.extend(gpus.iter().cloned());
    }

    /// GPUs of the node for a new task: idle ones, then those that are coming, then victims'.
    pub(crate) fn gpus(&self, wanted: u32, victims: &BTreeSet<AttemptId>) -> Vec<GpuUuid> {
        let stays = |id| self.occupants.iter().any(|one| one.attempt.id == id);
        let class = |gpu: &GpuUuid| match self.node.held.get(gpu) {
            _ if self.taken.contains(gpu) => None,
            None => Some(0_u8),
            Some(_) if self.node.heirs.contains_key(gpu) => None,
            Some(task) if victims.contains(&task.attempt) => Some(2),
            Some(task) if stays(task.attempt) => None,
            Some(_) => Some(1),
        };
        let all = self.node.facts.gpus.iter();
        let mut usable: Vec<_> =
            all.filter_map(|gpu| Some((class(&gpu.uuid)?, &gpu.uuid))).collect();
        usable.sort_by_key(|(class, _)| *class);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        usable.into_iter().take(wanted).map(|(_, gpu)| gpu.clone()).collect()
    }
}

/// From the instant an attempt has its GPUs to all its tasks running: the policy's limit, or twice
/// what the job took to start the last time, its restore included.
pub(crate) fn start_limit(books: &Books, job: &Job) -> Span {
    let restore = expected_restore(job);
    books.policy.start_timeout.max(Span(restore.0.saturating_mul(2)))
}

/// When an attempt may be displaced by a firm reservation.
pub(crate) fn yields_at(attempt: &Attempt, start_timeout: Span, now: Timestamp) -> Timestamp {
    match (attempt.standing, attempt.promised_until) {
        (Standing::Protected, Some(until)) => until.max(now),
        (Standing::Protected, None) => {
            let ready = attempt.ready.unwrap_or(now);
            ready.plus(start_timeout).plus(attempt.terms.protect).max(now)
        }
        (Standing::Funded | Standing::Free, _) => now,
    }
}
