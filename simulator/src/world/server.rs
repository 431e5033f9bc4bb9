//! A storage target that all writers share: who writes beside many writes slowly.

use std::collections::{BTreeMap, BTreeSet};

use scheduler_core::{Attempt, Observation};
use tidegate_model::{AttemptId, Bandwidth, Bytes, Span, TaskId, Timestamp};

use super::processes::Timer;
use super::{Observer, World};

/// One millionth.
const WHOLE: u128 = 1_000_000;

/// What a storage target can do.
#[derive(Debug, Clone, Copy)]
pub struct Server {
    /// With one writer.
    pub capacity: Bandwidth,
    /// By how many millionths each further writer slows all of them down.
    pub slower: u32,
    /// The most that one node writes.
    pub node: Bandwidth,
}

/// How much was written at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// From when.
    pub from: Timestamp,
    /// To when.
    pub until: Timestamp,
    /// All together.
    pub rate: Bandwidth,
}

/// Who writes, and what was written.
#[derive(Debug, Clone)]
pub(super) struct Traffic {
    server: Server,
    flows: BTreeMap<AttemptId, Flow>,
    at: Timestamp,
    /// Of the newest timer: older ones say nothing any more.
    version: u64,
    load: Vec<Load>,
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    left: Bytes,
    most: Bandwidth,
    rate: Bandwidth,
    then: Timer,
}

impl Traffic {
    /// Writes until `now`. Who has written all of it.
    fn advance(&mut self, now: Timestamp, runs: impl Fn(AttemptId) -> bool) -> Vec<Timer> {
        let span = now.since(self.at);
        let rate = self.flows.values().map(|flow| flow.rate).sum();
        if span > Span::ZERO && rate > Bandwidth(0) {
            self.load.push(Load { from: self.at, until: now, rate });
        }
        self.at = now;
        let mut done = Vec::new();
        self.flows.retain(|id, flow| {
            let written = flow.rate.over(span);
            flow.left = Bytes(flow.left.0.saturating_sub(written.0));
            // What is left of a millisecond is rounding.
            let rest = flow.rate.over(Span(1));
            let ends = span > Span::ZERO && flow.left <= rest;
            done.extend(ends.then_some(flow.then));
            !ends && runs(*id)
        });
        done
    }

    /// Gives everybody the same, but nobody more than it can use.
    fn share(&mut self) {
        let others = u128::try_from(self.flows.len().saturating_sub(1)).unwrap_or(0);
        let slower = WHOLE.saturating_add(others.saturating_mul(self.server.slower.into()));
        let whole = u128::from(self.server.capacity.0).saturating_mul(WHOLE) / slower;
        let mut left = u64::try_from(whole).unwrap_or(u64::MAX);
        let mut by_most: Vec<_> = self.flows.values_mut().collect();
        by_most.sort_by_key(|flow| flow.most);
        let mut waiting = u64::try_from(by_most.len()).unwrap_or(u64::MAX);
        for flow in by_most {
            let equal = left.checked_div(waiting).unwrap_or(0);
            flow.rate = flow.most.min(Bandwidth(equal));
            left = left.saturating_sub(flow.rate.0);
            waiting = waiting.saturating_sub(1);
        }
    }

    fn next(&self) -> Option<Timestamp> {
        self.flows.values().map(|flow| self.at.plus(flow.rate.takes(flow.left))).min()
    }
}

impl<O: Observer> World<O> {
    /// From now on checkpoints are written to this server, and take what it lets them take.
    pub fn serve(&mut self, server: Server) {
        let (flows, at) = (BTreeMap::new(), self.now);
        self.traffic = Some(Traffic { server, flows, at, version: 0, load: Vec::new() });
    }

    /// From now on checkpoints are written to one server that carries so much, however many write; or it
    /// carries so much from now on.
    pub fn carry(&mut self, capacity: Bandwidth) {
        if self.traffic.is_none() {
            return self.serve(Server { capacity, slower: 0, node: Bandwidth(u64::MAX) });
        }
        let done = self.advance();
        if let Some(traffic) = &mut self.traffic {
            traffic.server.capacity = capacity;
        }
        self.go_on(done);
    }

    /// Nodes measure what their tasks write.
    pub(super) fn measure(&mut self) {
        let flows = self.traffic.iter().flat_map(|traffic| &traffic.flows);
        let mut rates: BTreeMap<_, _> = flows.map(|(id, flow)| (*id, flow.rate)).collect();
        for attempt in self.permitted_ones() {
            let alone = || self.written_at(attempt);
            rates.entry(attempt).or_insert_with(alone);
        }
        let known: BTreeSet<_> = rates.keys().copied().collect();
        let before = std::mem::replace(&mut self.measured, known);
        before.into_iter().for_each(|id| _ = rates.entry(id).or_default());
        for (attempt, rate) in rates {
            let tasks = self.replay.attempt(attempt).map_or(0, |attempt| attempt.tasks.len());
            for index in 0..u32::try_from(tasks).unwrap_or(0) {
                // The first writes for all.
                let rate = if index == 0 { rate } else { Bandwidth(0) };
                let task = TaskId { attempt, index };
                self.core.observe(self.now, &Observation::TaskWrites { task, rate });
            }
        }
    }

    /// What was written so far.
    pub fn load(&self) -> &[Load] {
        self.traffic.as_ref().map_or(&[], |traffic| &traffic.load)
    }

    /// It writes so much, at most at that rate and as fast as its nodes can; `then` rings when it has.
    /// Whether there is a server.
    pub(super) fn flow(
        &mut self,
        attempt: AttemptId,
        bytes: Bytes,
        most: Option<Bandwidth>,
        then: Timer,
    ) -> bool {
        let nodes = self.replay.attempt(attempt).map_or(0, Attempt::node_count);
        let done = self.advance();
        let Some(traffic) = &mut self.traffic else { return false };
        let of_nodes = Bandwidth(traffic.server.node.0.saturating_mul(nodes));
        let most = most.map_or(of_nodes, |most| most.min(of_nodes));
        let fresh = Flow { left: bytes, most, rate: Bandwidth(0), then };
        traffic.flows.entry(attempt).and_modify(|flow| flow.most = most).or_insert(fresh);
        self.go_on(done);
        true
    }

    fn advance(&mut self) -> Vec<Timer> {
        let Some(mut traffic) = self.traffic.take() else { return Vec::new() };
        let done = traffic.advance(self.now, |id| self.first_runs(id));
        self.traffic = Some(traffic);
        done
    }

    /// Somebody may have written all.
    pub(super) fn served(&mut self, version: u64) {
        if self.traffic.as_ref().is_some_and(|traffic| traffic.version == version) {
            let done = self.advance();
            self.go_on(done);
        }
    }

    fn go_on(&mut self, done: Vec<Timer>) {
        done.into_iter().for_each(|timer| self.ring(timer));
        let Some(traffic) = &mut self.traffic else { return };
        traffic.share();
        traffic.version = traffic.version.saturating_add(1);
        let (next, version) = (traffic.next(), traffic.version);
        self.set(next, Timer::Served(version));
    }
}
