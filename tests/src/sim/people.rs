//! What people do: they keep the cluster busy, repeat what was not answered, cancel, drain, park,
//! and move budgets about.

use scheduler_core::{
    AccountRequest, Amount, Cut, Event, JobRequest, JobState, Policy, Role, Sharing, Size,
    Standing, WINDOW,
};
use simulator::plain_job;
use tidegate_model::{
    AccountPath, AskAfter, AsksWithin, CheckpointOffer, Dependency, GpuCount, JobId, JobSpec,
    SaveTarget, Span, SubmitKey, TaskLayout, UserId, WhileWaiting,
};

use super::gates::STORAGES;
use super::saving::{RECIPES, SAVED};
use super::world::{GRACE, Happening, World};

/// Jobs that people keep alive.
const ALIVE: usize = 24;
/// Who sees to nodes and budgets is root here: what they ask is allowed.
pub(super) const PERSON: UserId = UserId(0);
/// Who submits.
const USERS: [UserId; 3] = [UserId(1000), UserId(1001), UserId(1002)];
/// Where jobs run, with the largest share each may have.
const LEAVES: [(&str, u32); 4] =
    [("default", 300_000), ("small", 300_000), ("big/one", 500_000), ("big/two", 500_000)];

/// Spans are short, so that minutes hold what days hold elsewhere. Of every other seed all jobs of
/// a window are kept, so that an audit recounts to the microsecond what was spent.
pub(super) fn policy(seed: u64) -> Policy {
    let sharing = Sharing {
        small_floor: Amount::gpu_hours(1),
        settle: Span::minutes(1),
        patience: Span::seconds(20),
        elder_gap: Span::seconds(5),
        gang_cap: 1_000_000,
        free_grace: Span::seconds(2),
        leave_limit: Span::seconds(3),
        verify_limit: Span::seconds(5),
        spare_recent: Span::seconds(5),
        return_span: Span::minutes(1),
        pass_every: Span::seconds(5),
        gate_width: 1 + u32::try_from(seed % 4).unwrap_or(0) * 2,
        gate_patience: Span::seconds(20),
        require_rehearsal: (seed % 4 == 3).then_some(GpuCount(8)),
        ..Sharing::default()
    };
    Policy {
        start_timeout: Span::seconds(60),
        keep_ended: if seed.is_multiple_of(2) { Span::minutes(1) } else { WINDOW },
        silent_after: Span::seconds(2),
        restart_backoff_max: Span::seconds(10),
        sharing,
        ..Policy::default()
    }
}

fn path(account: &str) -> AccountPath {
    account.parse().unwrap_or_else(|_| unreachable!("a valid path"))
}

impl World {
    pub(super) fn person(&mut self) {
        let repeat: Vec<_> = self.coordinator.waiting.clone().into_iter().take(8).collect();
        for (key, (user, spec)) in repeat {
            self.tell(Event::JobSubmitted { key, user, spec: Box::new(spec) });
        }
        self.divide_if_undivided();
        let alive = self.coordinator.engine().map_or(ALIVE, |e| e.core().books().live_jobs());
        let alive = alive.saturating_add(self.coordinator.waiting.len());
        if self.calm.is_over() {
            self.let_all_end();
        } else {
            if alive < ALIVE {
                let (user, spec) = (self.rng.choice(USERS).unwrap_or(PERSON), self.new_job());
                let key = self.coordinator.await_answer(user, spec.clone());
                self.tell(Event::JobSubmitted { key, user, spec: Box::new(spec) });
            }
            self.meddle();
        }
        let node = self.rng.choice(&self.nodes).map(|node| node.name.clone());
        if let (9..=30, Some(node)) = (self.rng.u8(..), node) {
            self.tell(Event::ResumeRequested { node, by: PERSON });
        }
        let next = if self.calm.is_over() { 300 } else { self.rng.u64(20..200) };
        self.after(next, Happening::Person);
    }

    fn ask_of_accounts(&mut self, request: AccountRequest) {
        self.tell(Event::AccountRequested { by: PERSON, request });
    }

    fn set(&mut self, account: &str, size: Size, cut: Cut) {
        self.ask_of_accounts(AccountRequest::Set { account: path(account), size, cut });
    }

    /// The tree that jobs name; said until it is there.
    fn divide_if_undivided(&mut self) {
        let last = path("big/two");
        let is_there = |engine: &super::coordinator::SimEngine| {
            engine.core().books().accounts.find(&last).is_some()
        };
        if self.coordinator.engine().is_none_or(is_there) {
            return;
        }
        self.set("default", Size::Share(300_000), Cut::Now);
        self.set("small", Size::Fixed(Amount::gpu_hours(1)), Cut::Now);
        self.set("big", Size::Share(400_000), Cut::Now);
        self.set("big/one", Size::Share(500_000), Cut::Now);
        self.set("big/two", Size::Fixed(Amount::gpu_hours(2)), Cut::Now);
        self.limit_gates();
    }

    /// Budgets hold everything, and nothing stays parked.
    fn let_all_end(&mut self) {
        self.resume_gates();
        for (account, share) in LEAVES {
            self.set(account, Size::Share(share), Cut::Now);
        }
        let Some(engine) = self.coordinator.engine() else { return };
        let jobs = engine.core().books().jobs.values();
        let parked: Vec<JobId> =
            jobs.filter(|job| job.parked.is_some()).map(|job| job.id).collect();
        for job in parked {
            self.tell(Event::JobRequested { job, by: PERSON, request: JobRequest::Release });
        }
    }

    fn meddle(&mut self) {
        let node = self.rng.choice(&self.nodes).map(|node| node.name.clone());
        match (self.rng.u8(..), node) {
            (0..=5, _) => {
                if let Some(job) = self.any_job() {
                    self.tell(Event::CancelRequested { job, by: PERSON });
                }
            }
            (6..=8, Some(node)) => {
                let (reason, wanted_by) = ("maintenance".to_owned(), None);
                self.tell(Event::DrainRequested { node, by: PERSON, reason, wanted_by });
            }
            (9..=20, _) => {
                let requests = [
                    JobRequest::Park,
                    JobRequest::Release,
                    JobRequest::Release,
                    JobRequest::AllowElder,
                    JobRequest::DropReservation,
                ];
                if let Some((request, job)) = self.rng.choice(requests).zip(self.any_job()) {
                    self.tell(Event::JobRequested { job, by: PERSON, request });
                }
            }
            (21..=24, _) => self.squeeze(),
            (25..=52, _) => self.move_budgets(),
            (61..=75, _) => self.meddle_with_gates(),
            (53..=60, _) => {
                if let Some(job) = self.displacing_job() {
                    self.tell(Event::CancelRequested { job, by: PERSON });
                }
            }
            _ => {}
        }
    }

    fn any_job(&mut self) -> Option<JobId> {
        let engine = self.coordinator.engine()?;
        let jobs = engine.core().books().jobs.values().rev();
        let alive = jobs.filter(|job| !matches!(job.state, JobState::Ended { .. }));
        let alive: Vec<JobId> = alive.map(|job| job.id).take(ALIVE).collect();
        self.rng.choice(alive)
    }

    /// A job whose GPUs others still hold: when it goes, they may stay.
    fn displacing_job(&self) -> Option<JobId> {
        let engine = self.coordinator.engine()?;
        let waits = |one: &&scheduler_core::Attempt| one.ready.is_none() && one.stop.is_none();
        engine.core().books().live_attempts().find(waits).map(|attempt| attempt.id.job)
    }

    /// Takes the budget of a job that runs inside it, or at least what it has not spent: limits are
    /// crossed, and work becomes free.
    fn squeeze(&mut self) {
        let inside: Vec<_> = self.coordinator.engine().map_or_else(Vec::new, |engine| {
            let books = engine.core().books();
            let inside = books.live_attempts().filter(|one| one.standing != Standing::Free);
            let jobs = inside.filter_map(|one| books.jobs.get(&one.id.job));
            jobs.map(|job| job.spec.account.clone()).collect()
        });
        if let Some(account) = self.rng.choice(inside) {
            let size = Size::Fixed(Amount::ZERO);
            self.ask_of_accounts(AccountRequest::Set { account, size, cut: Cut::Now });
        }
    }

    fn move_budgets(&mut self) {
        let Some((account, most)) = self.rng.choice(LEAVES) else { return };
        let cut = if self.rng.bool() { Cut::Now } else { Cut::Gradual };
        let most_seconds = if self.rng.bool() { 300 } else { 7200 };
        let seconds = self.rng.u64(0..most_seconds);
        let amount = Amount(Amount::gpu_hours(seconds).0 / 3600);
        let share = self.rng.u32(0..=most);
        match self.rng.u8(0..8) {
            0..=2 => self.set(account, Size::Fixed(amount), cut),
            3 => self.set(account, Size::Share(share), cut),
            4 => {
                let to = self.rng.choice(LEAVES).map_or(account, |(other, _)| other);
                let (from, to, permanent) = (path(account), path(to), self.rng.bool());
                self.ask_of_accounts(AccountRequest::Transfer {
                    from,
                    to,
                    amount,
                    permanent,
                    key: None,
                });
            }
            5 => {
                let (account, by) = (path(account), self.rng.choice(USERS).unwrap_or(PERSON));
                let (size, reason) = (Size::Fixed(amount), "more".to_owned());
                let request = AccountRequest::Ask { account, size, reason };
                self.tell(Event::AccountRequested { by, request });
            }
            6 => {
                let asked_by = self.rng.choice(USERS).unwrap_or(PERSON);
                let (account, grant) = (path(account), self.rng.bool());
                self.ask_of_accounts(AccountRequest::Answer {
                    account,
                    asked_by,
                    grant,
                    size: None,
                });
            }
            _ => {
                let user = self.rng.choice(USERS).unwrap_or(PERSON);
                let role = self.rng.choice([None, None, Some(Role::Member), Some(Role::Manager)]);
                let (account, role) = (Some(path(account)), role.flatten());
                self.ask_of_accounts(AccountRequest::SetRole { account, user, role });
            }
        }
    }

    fn new_job(&mut self) -> JobSpec {
        let sizes: Vec<u32> = self.nodes.iter().map(|node| node.gpus).collect();
        let size = self.rng.choice(sizes.clone()).unwrap_or(1);
        let alike = sizes.iter().filter(|other| **other == size).count();
        let nodes = u32::try_from(self.rng.usize(1..=alike)).unwrap_or(1);
        let gang = size.saturating_mul(nodes);
        let small = self.rng.u32(1..=size);
        let is_gang = self.rng.u8(..) < 90;
        let account = self.rng.choice(LEAVES).map_or("default", |(account, _)| account);
        let recipe = self.rng.u64(0..RECIPES);
        JobSpec {
            gpus_per_node: is_gang.then_some(GpuCount(size)),
            layout: if self.rng.bool() { TaskLayout::PerNode } else { TaskLayout::PerGpu },
            min_runtime: self.min_runtime(),
            grace: GRACE,
            max_restarts: self.rng.u32(0..6),
            own_order: self.rng.i32(-1..=1),
            while_waiting: match self.rng.u8(..) {
                0..=60 => WhileWaiting::Wait,
                _ => WhileWaiting::Free,
            },
            checkpoint: self.offer(),
            after: self.dependencies(),
            command: vec!["train".to_owned(), recipe.to_string()],
            ..plain_job(path(account), GpuCount(if is_gang { gang } else { small }))
        }
    }

    /// Now and then a job waits for another.
    fn dependencies(&mut self) -> Vec<Dependency> {
        if self.rng.u8(..) >= 15 {
            return Vec::new();
        }
        let success = self.rng.bool();
        self.any_job().map(|job| Dependency { job, success }).into_iter().collect()
    }

    /// None, seconds within which tasks end, minutes and hours.
    fn min_runtime(&mut self) -> Span {
        match self.rng.u8(..) {
            0..=90 => Span::ZERO,
            91..=180 => Span(self.rng.u64(500..15_000)),
            181..=225 => Span::minutes(self.rng.u64(1..=5)),
            _ => Span::hours(self.rng.u64(1..=4)),
        }
    }

    fn offer(&mut self) -> Option<CheckpointOffer> {
        let [often, seldom] = STORAGES;
        let storage = if self.rng.u8(..) < 50 { seldom } else { often };
        let (asks, within) = (self.rng.u8(..) < 80, self.rng.u64(100..3000));
        let (rehearses, after) = (self.rng.u8(..) < 50, self.rng.u64(1..8));
        (self.rng.u8(..) < 180).then(|| CheckpointOffer {
            asks_within: AsksWithin::of(Span(within)).filter(|_| asks),
            signal: None,
            target: SaveTarget::Task,
            grace: Span::seconds(5),
            bytes: None,
            storage: storage.parse().unwrap_or_else(|_| unreachable!("a valid name")),
            saved_codes: vec![SAVED],
            rehearsal: AskAfter::of(Span::seconds(after)).filter(|_| rehearses),
        })
    }
}

/// Whether somebody whom this was said to tries something else.
pub(super) fn gives_up(refusal: &scheduler_core::Refusal) -> bool {
    use scheduler_core::Refusal;
    match refusal {
        Refusal::NoGpusYet | Refusal::QueueFull { .. } => false,
        Refusal::NoSuchJob(_)
        | Refusal::NoSuchNode(_)
        | Refusal::NotYours(_)
        | Refusal::AdminOnly
        | Refusal::WholeCluster
        | Refusal::KeyReused { .. }
        | Refusal::Unsatisfiable { .. }
        | Refusal::NoSuchAccount { .. }
        | Refusal::RoleMissing { .. }
        | Refusal::CannotHold { .. }
        | Refusal::PolicyMoved { .. }
        | Refusal::NotRehearsed { .. }
        | Refusal::ReasonMissing
        | Refusal::NodeNotSilent(_)
        | Refusal::NodeInUse(_) => true,
    }
}

/// A submit that waits for its answer.
pub(super) type Submitted = (UserId, JobSpec);

/// The key of the next submit.
pub(super) fn next_key(last: &mut u128) -> SubmitKey {
    let key = SubmitKey(*last);
    *last = last.saturating_add(1);
    key
}
