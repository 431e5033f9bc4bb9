//! A core with a clock, a replayed copy of its books, and nodes that say what they are told to.
//! Every step audits the books, compares them with their replay, and looks for a fixpoint.

use std::collections::BTreeMap;

use tidegate_model::{
    AskSeen, AttemptId, Bytes, CheckpointOffer, Commit, DecisionSeq, Gpu, GpuCount, JobId, JobSpec,
    NodeFacts, NodeId, NodeName, Order, SaveSeen, SaveTarget, Span, SubmitKey, TaskExit, TaskId,
    TaskLayout, TaskSeen, Timestamp, UserId, WhileWaiting,
};

use super::rules;
use crate::{
    AccountRequest, Attempt, AttemptState, Books, Core, Cut, Decision, Event, Job, JobOutcome,
    JobState, NodeState, Observation, Policy, Reason, Refusal, Size, Stamp,
};

pub(super) const USER: UserId = UserId(1000);
const ROOT: UserId = UserId(0);

pub(super) struct Lab {
    pub(super) core: Core,
    pub(super) facts: BTreeMap<u32, NodeFacts>,
    replay: Books,
    at: Timestamp,
    seq: u64,
    key: u128,
}

pub(super) fn ended(exit: TaskExit) -> TaskSeen {
    TaskSeen::Ended { exit, released: true, ran: Span(1), idle: None }
}

fn name(node: u32) -> NodeName {
    format!("n{node}").parse().unwrap()
}

fn facts(node: u32, gpus: u32, block: &str, boot: u32) -> NodeFacts {
    let gpu = |index| Gpu {
        uuid: format!("GPU-{node}-{index}").parse().unwrap(),
        product: "simulated".into(),
        memory: Bytes(80 << 30),
    };
    NodeFacts {
        boot_id: format!("boot-{boot}"),
        gpus: (0..gpus).map(gpu).collect(),
        gpu_note: String::new(),
        address: format!("10.0.0.{node}"),
        block: block.into(),
        memory: Bytes(1 << 40),
        cpus: 64,
        only_user: None,
        closed: String::new(),
    }
}

impl Lab {
    pub(super) fn with_nodes(gpus: &[u32]) -> Self {
        let blocks: Vec<_> = gpus.iter().map(|gpus| (*gpus, "")).collect();
        Self::with_blocks(&blocks)
    }

    pub(super) fn with_blocks(nodes: &[(u32, &str)]) -> Self {
        let mut lab = Self {
            core: Core::default(),
            facts: BTreeMap::new(),
            replay: Books::default(),
            at: Timestamp(1_000_000),
            seq: 1,
            key: 1 << 64,
        };
        lab.apply(&Event::LeaderStarted);
        // Small clusters: a gang may have all of them.
        let mut policy = Policy::default();
        policy.sharing.gang_cap = 1_000_000;
        lab.apply(&Event::PolicyChanged(policy.into()));
        for (node, (gpus, block)) in (1..).zip(nodes) {
            lab.facts.insert(node, facts(node, *gpus, block, 1));
            lab.introduce(node);
        }
        lab
    }

    /// Applies one event, and checks all that must hold after it.
    pub(super) fn apply(&mut self, event: &Event) -> Vec<Decision> {
        let stamp = Stamp { at: self.at, seq: DecisionSeq(self.seq) };
        let decisions = self.core.apply(stamp, event).unwrap();
        for decision in decisions.iter().filter(|decision| decision.is_durable()) {
            rules::check(&self.replay, self.at, decision);
            self.replay.evolve(stamp, decision).unwrap();
        }
        self.seq += 1;
        assert_eq!(self.core.audit(self.at), [], "after {event:?}");
        assert_eq!(*self.core.books(), self.replay, "replayed, after {event:?}");
        let stamp = Stamp { at: self.at, seq: DecisionSeq(self.seq) };
        let again = self.core.clone().apply(stamp, &Event::DeadlineReached).unwrap();
        if !event.asks_for_a_pass() && decisions.iter().all(Decision::is_quiet) {
            // No pass was made: time alone may have brought somebody's turn.
            return decisions;
        }
        rules::nothing_idle_that_could_run(&self.core, self.at);
        let news: Vec<_> =
            again.iter().filter(|d| !matches!(d, Decision::JobForgotten(_))).collect();
        if !matches!(event, Event::LeaderStarted) && self.core.next_deadline(self.at).is_some() {
            assert!(news.is_empty() || self.overdue(), "a second pass decides {news:?}");
        }
        decisions
    }

    /// Whether a deadline passed that no event has worked off yet.
    fn overdue(&self) -> bool {
        let before = Timestamp(self.at.0.saturating_sub(Span::hours(200).0));
        self.core.next_deadline(before).is_some_and(|due| due <= self.at)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.at
    }

    pub(super) fn pass(&mut self, span: Span) {
        self.pass_with(span, &[]);
    }

    /// Time passes while some nodes are heard.
    pub(super) fn pass_with(&mut self, span: Span, heard: &[u32]) {
        self.at = self.at.plus(span);
        for node in heard {
            self.core.observe(self.at, &Observation::NodeHeard { node: name(*node) });
        }
        self.apply(&Event::DeadlineReached);
    }

    pub(super) fn introduce(&mut self, node: u32) {
        let facts = self.facts.get(&node).cloned();
        self.apply(&Event::NodeReported {
            node: name(node),
            complete: true,
            facts,
            tasks: vec![],
            saves: vec![],
            commits: vec![],
            asks: vec![],
        });
    }

    /// What a job's first node says of requests to save and of asks, and nothing else.
    pub(super) fn said(
        &self,
        job: JobId,
        saves: Vec<(TaskId, SaveSeen)>,
        asks: Vec<(TaskId, AskSeen)>,
    ) -> Event {
        Event::NodeReported {
            node: name(self.nodes_of(job)[0]),
            complete: false,
            facts: None,
            tasks: vec![],
            saves,
            commits: vec![],
            asks,
        }
    }

    pub(super) fn reboot(&mut self, node: u32) {
        if let Some(facts) = self.facts.get_mut(&node) {
            facts.boot_id.push('+');
        }
        self.introduce(node);
    }

    pub(super) fn restart(&mut self) {
        self.core = Core::restored(self.replay.clone());
        self.apply(&Event::LeaderStarted);
    }

    pub(super) fn spec(&self, gpus: u32) -> JobSpec {
        JobSpec {
            name: "j".into(),
            account: "default".parse().unwrap(),
            command: vec!["x".into()],
            working_dir: "/w".into(),
            env: vec![],
            gpus: GpuCount(gpus),
            gpus_per_node: None,
            layout: TaskLayout::PerNode,
            min_runtime: Span::ZERO,
            grace: Span::seconds(30),
            max_restarts: 3,
            checkpoint_dir: None,
            log_cap: Bytes(1 << 20),
            gpu_type: None,
            max_blocks: None,
            own_order: 0,
            while_waiting: WhileWaiting::Free,
            checkpoint: None,
            after: vec![],
            notify_url: None,
            pty: false,
            whole_cluster: false,
            array: None,
        }
    }

    pub(super) fn try_submit_spec(
        &mut self,
        key: u128,
        spec: JobSpec,
    ) -> Result<(JobId, bool), Refusal> {
        let (key, spec) = (SubmitKey(key), Box::new(spec));
        let decisions = self.apply(&Event::JobSubmitted { key, user: USER, spec });
        let answer = decisions.iter().find_map(Decision::answers).unwrap();
        answer.map_err(Clone::clone)
    }

    pub(super) fn try_submit(&mut self, key: u128, gpus: u32) -> Result<(JobId, bool), Refusal> {
        let spec = self.spec(gpus);
        self.try_submit_spec(key, spec)
    }

    pub(super) fn submit_with_key(&mut self, key: u128, gpus: u32) -> JobId {
        self.try_submit(key, gpus).unwrap().0
    }

    pub(super) fn submit(&mut self, gpus: u32) -> JobId {
        self.key += 1;
        self.submit_with_key(self.key, gpus)
    }

    pub(super) fn change_policy(&mut self, change: impl FnOnce(&mut Policy)) {
        let mut policy = self.core.books().policy.clone();
        change(&mut policy);
        self.apply(&Event::PolicyChanged(policy.into()));
    }

    pub(super) fn set(&mut self, account: &str, percent: u32) {
        let (account, size) = (account.parse().unwrap(), Size::Share(percent * 10_000));
        let request = AccountRequest::Set { account, size, cut: Cut::Now };
        self.apply(&Event::AccountRequested { by: ROOT, request });
    }

    pub(super) fn submit_as(&mut self, user: UserId, spec: JobSpec) -> Result<JobId, Refusal> {
        self.key += 1;
        let (key, spec) = (SubmitKey(self.key), Box::new(spec));
        let decisions = self.apply(&Event::JobSubmitted { key, user, spec });
        let answer = decisions.iter().find_map(Decision::answers).unwrap();
        answer.map(|(job, _)| job).map_err(Clone::clone)
    }

    pub(super) fn commit(&mut self, task: TaskId, step: u64) {
        let node = self.core.books().task(task).unwrap().place.node.0;
        let commit = Commit { step, path: "/c".into(), bytes: Bytes(1), request: None };
        self.apply(&Event::NodeReported {
            node: name(node),
            complete: false,
            facts: None,
            tasks: vec![],
            saves: vec![],
            commits: vec![(task, commit)],
            asks: vec![],
        });
    }

    pub(super) fn submit_spec(&mut self, spec: JobSpec) -> JobId {
        self.key += 1;
        self.try_submit_spec(self.key, spec).unwrap().0
    }

    pub(super) fn submit_running(&mut self, gpus: u32) -> JobId {
        let job = self.submit(gpus);
        self.run(job);
        job
    }

    /// Its nodes prepare and start all tasks of its newest attempt.
    pub(super) fn run(&mut self, job: JobId) {
        let tasks = self.job(job).attempts.last().unwrap().tasks.len();
        let tasks = u32::try_from(tasks).unwrap();
        (0..tasks).for_each(|index| self.report_prepared(job, index));
        (0..tasks).for_each(|index| self.report_running(job, index));
        assert_eq!(self.state(job), AttemptState::Running);
    }

    pub(super) fn cancel(&mut self, job: JobId) {
        self.apply(&Event::CancelRequested { job, by: USER });
    }

    pub(super) fn drain(&mut self, node: u32) {
        let reason = "test".into();
        self.apply(&Event::DrainRequested { node: name(node), by: ROOT, reason, wanted_by: None });
    }

    pub(super) fn resume(&mut self, node: u32) {
        self.apply(&Event::ResumeRequested { node: name(node), by: ROOT });
    }

    pub(super) fn declare_lost(&mut self, node: u32) {
        self.apply(&Event::NodeDeclaredLost { node: name(node), by: ROOT });
    }

    pub(super) fn remove(&mut self, node: u32) {
        self.apply(&Event::NodeRemovalRequested { node: name(node), by: ROOT });
    }

    /// A node says what it sees of tasks: (job, attempt, task, what).
    pub(super) fn report(&mut self, node: u32, said: &[(JobId, u32, u32, TaskSeen)]) {
        let task = |job, number, index| TaskId { attempt: AttemptId { job, number }, index };
        let tasks = said.iter().map(|(j, a, i, seen)| (task(*j, *a, *i), seen.clone())).collect();
        let node = name(node);
        self.apply(&Event::NodeReported {
            node,
            complete: false,
            facts: None,
            tasks,
            saves: vec![],
            commits: vec![],
            asks: vec![],
        });
    }

    pub(super) fn report_newest(&mut self, job: JobId, index: u32, seen: TaskSeen) {
        let attempt = self.job(job).attempts.last().unwrap();
        let number = attempt.id.number;
        let node = attempt.tasks[usize::try_from(index).unwrap()].place.node.0;
        self.report(node, &[(job, number, index, seen)]);
    }

    pub(super) fn report_prepared(&mut self, job: JobId, index: u32) {
        self.report_newest(job, index, TaskSeen::Prepared { port: 29_500 });
    }

    pub(super) fn report_running(&mut self, job: JobId, index: u32) {
        self.report_newest(job, index, TaskSeen::Running);
    }

    pub(super) fn report_ended(&mut self, job: JobId, index: u32, exit: TaskExit) {
        self.report_newest(job, index, ended(exit));
    }

    pub(super) fn report_missing(&mut self, job: JobId, index: u32) {
        self.report_newest(job, index, TaskSeen::Missing);
    }

    pub(super) fn job(&self, job: JobId) -> &Job {
        &self.core.books().jobs[&job]
    }

    pub(super) fn state(&self, job: JobId) -> AttemptState {
        self.job(job).attempts.last().unwrap().state()
    }

    pub(super) fn attempts(&self, job: JobId) -> usize {
        self.job(job).attempts.len()
    }

    pub(super) fn outcome(&self, job: JobId) -> Option<JobOutcome> {
        match self.job(job).state {
            JobState::Ended { outcome, .. } => Some(outcome),
            JobState::Pending { .. } | JobState::Active { .. } => None,
        }
    }

    pub(super) fn reason(&self, job: JobId) -> Reason {
        self.core.explain(self.at, job).unwrap().reason
    }

    pub(super) fn node_state(&self, node: u32) -> NodeState {
        self.core.node_state(self.at, NodeId(node)).unwrap()
    }

    pub(super) fn nodes_of_attempt(&self, attempt: &Attempt) -> Vec<u32> {
        attempt.tasks.iter().map(|task| task.place.node.0).collect()
    }

    pub(super) fn nodes_of(&self, job: JobId) -> Vec<u32> {
        let tasks = &self.job(job).attempts.last().unwrap().tasks;
        tasks.iter().map(|task| task.place.node.0).collect()
    }

    pub(super) fn wanted_on(&self, node: u32) -> Vec<String> {
        let verb = |order: &Order| match order {
            Order::Prepare(_) => "prepare",
            Order::Run(_) => "run",
            Order::Stop(_) => "stop",
            Order::Forget => "forget",
        };
        let wanted = self.core.wanted_of(NodeId(node));
        wanted.iter().map(|(task, wanted)| format!("{task} {}", verb(wanted))).collect()
    }
}

/// How a job saves, of which nothing is said but that it does.
pub(super) fn offer() -> CheckpointOffer {
    CheckpointOffer {
        asks_within: None,
        signal: None,
        target: SaveTarget::Ranks,
        grace: Span::minutes(10),
        bytes: None,
        storage: "shared".parse().unwrap(),
        saved_codes: vec![85],
        rehearsal: None,
    }
}
