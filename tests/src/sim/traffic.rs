//! What is written and read together, whatever the scheduler thinks of it: never more than a target may
//! carry.

use std::collections::BTreeMap;

use scheduler_core::Flow;
use tidegate_model::{Bandwidth, StorageName, TaskId};

use super::Planted;
use super::coordinator::SimEngine;
use super::permits::Asked;
use super::world::World;

/// How long anybody waits for an answer once nothing goes wrong any more: far above the policy's
/// patience, and what those before it may take.
const LONGEST_WAIT: u64 = 600_000;

/// What is summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    /// What permits allow; no limit is the most there is.
    Allows,
    /// What is written by those that write as fast as they can and may.
    Does,
}

/// Of each target, flow and measure the most that it may come to at the next look.
pub(super) type Most = BTreeMap<(StorageName, Flow, Measure), Bandwidth>;

impl Measure {
    pub(super) const ALL: [Self; 2] = [Self::Allows, Self::Does];

    /// Of an ask that was granted such a rate.
    fn of(self, asked: &Asked, rate: Option<Bandwidth>) -> Bandwidth {
        let rate = rate.unwrap_or(Bandwidth(u64::MAX));
        match self {
            Self::Allows => rate,
            Self::Does => rate.min(asked.speed),
        }
    }
}

impl World {
    /// What those that ask may write, and may read, never grows above the cap in force. After the cap
    /// became lower it comes down, as they hear of it, and does not grow meanwhile.
    pub(super) fn check_traffic(&mut self) -> Result<(), String> {
        self.note_lapses();
        let mut most = std::mem::take(&mut self.most);
        for ((storage, flow, measure), most) in &mut most {
            let now = self.sum(storage, *flow, |world, task, asked| {
                let may = world.may(task, asked);
                may.map_or(Bandwidth(0), |rate| measure.of(asked, rate))
            });
            let cap = self.coordinator.watch().cap(storage, *flow, self.at());
            let cap = cap.unwrap_or(Bandwidth(u64::MAX));
            if now > cap.max(*most) {
                return Err(self.overwritten(storage, *flow, cap.max(*most)));
            }
            if *most > cap {
                // What was granted before the cap was lowered may still be on its way, and so is that it
                // was: who was told a lower rate keeps to it.
                let issued = self.sum(storage, *flow, |world, task, asked| {
                    let issued =
                        world.coordinator.watch().issued(task, asked.number, asked.rated());
                    issued.map_or(Bandwidth(0), |rate| measure.of(asked, rate))
                });
                *most = (*most).min(issued.plus(self.admitted(storage, *flow)));
            }
            *most = cap.max(*most);
        }
        self.most = most;
        self.check_kept()
    }

    /// Nobody may write more than what is kept for it: what was given to others when a permit had run out, or
    /// was over, has run out on its node too.
    fn check_kept(&self) -> Result<(), String> {
        let all = Bandwidth(u64::MAX);
        // Who restores what is no checkpoint of ours goes through no gate.
        let gated = self.asked.iter().filter(|(_, asked)| asked.storage.is_some());
        for (task, asked) in gated {
            let Some(may) = self.may(*task, asked) else { continue };
            let issued = self.coordinator.watch().issued(*task, asked.number, asked.rated());
            let kept = issued.map_or(Bandwidth(0), |rate| rate.unwrap_or(all));
            if may.unwrap_or(all) > kept {
                return Err(format!("{task} may write {may:?}, and {kept} is kept: {asked:?}"));
            }
        }
        Ok(())
    }

    fn sum(
        &self,
        storage: &StorageName,
        flow: Flow,
        of: impl Fn(&Self, TaskId, &Asked) -> Bandwidth,
    ) -> Bandwidth {
        let here = self.asked.iter().filter(|(_, asked)| asked.goes_through(storage, flow));
        here.map(|(task, asked)| of(self, *task, asked)).sum()
    }

    /// What a task may write now, by its node's clock; none before it is granted.
    fn may(&self, task: TaskId, asked: &Asked) -> Option<Option<Bandwidth>> {
        let node = self.node_of(task).and_then(|index| self.nodes.get(index))?;
        asked.granted(node.clock.read(self.now))
    }

    /// What is kept for those that were told to save, and have not asked yet.
    fn admitted(&self, storage: &StorageName, flow: Flow) -> Bandwidth {
        match flow {
            Flow::Writes => self.coordinator.watch().admitted(storage),
            Flow::Reads => Bandwidth(0),
        }
    }

    fn overwritten(&self, storage: &StorageName, flow: Flow, most: Bandwidth) -> String {
        let here = self.asked.iter().filter(|(_, asked)| asked.goes_through(storage, flow));
        let told: Vec<_> = here
            .filter_map(|(task, asked)| {
                let (may, rated) = (self.may(*task, asked)?, asked.rated()?);
                let may = may.map_or_else(|| "all".to_owned(), |rate| format!("{} B/s", rate.0));
                let lapsed = if asked.has_lapsed { ", lapsed" } else { "" };
                Some(format!("{task} {may} of {rated}{lapsed}"))
            })
            .collect();
        format!("{storage}, {flow:?}: {} together, {most} at most", told.join("; "))
    }

    fn note_lapses(&mut self) {
        let mut lapsed = 0_u64;
        for (task, asked) in &mut self.asked {
            let name = self.truth.node_of(*task);
            let node = self.nodes.iter().find(|node| Some(&node.name) == name.as_ref());
            let is_over = node.is_some_and(|node| asked.is_over(node.clock.read(self.now)));
            if is_over && !std::mem::replace(&mut asked.has_lapsed, true) {
                lapsed = lapsed.saturating_add(1);
            }
        }
        if lapsed > 0 {
            self.count_many("permit lapsed".to_owned(), lapsed);
        }
    }

    /// Nobody waits for ever once nothing goes wrong any more.
    pub(super) fn check_waits(&self, calm_since: u64) -> Result<(), String> {
        let late = |asked: &&Asked| {
            let since = asked.since.max(calm_since);
            asked.rated().is_none() && self.now.saturating_sub(since) > LONGEST_WAIT
        };
        match self.asked.iter().find(|(_, asked)| late(asked)) {
            Some((task, asked)) => Err(format!("{task} waits for ever: {asked:?}")),
            None => Ok(()),
        }
    }

    /// At the end every ask is over.
    pub(super) fn check_asks_over(&self) -> Result<(), String> {
        let open = self.asked.iter().next();
        let open = open.map(|(task, asked)| format!("{task} is over, its ask is not: {asked:?}"));
        open.map_or(Ok(()), Err)
    }

    /// The planted bug: what a silent node's permit keeps is given to others at once.
    pub(super) fn forget_silent(&mut self) {
        if self.options.planted != Some(Planted::SilentForgotten) {
            return;
        }
        let now = self.at();
        let Some(engine) = self.coordinator.engine() else { return };
        let events: Vec<_> = forgotten(engine, now).collect();
        events.into_iter().for_each(|event| self.tell(event));
    }
}

fn forgotten(
    engine: &SimEngine,
    now: tidegate_model::Timestamp,
) -> impl Iterator<Item = scheduler_core::Event> + '_ {
    let books = engine.core().books();
    books.live_attempts().filter_map(move |attempt| {
        let permit = attempt.writing?.permit?;
        let node = books.nodes.get(&books.task(permit.task)?.place.node)?;
        let state = engine.core().node_state(now, node.id);
        (state == Some(scheduler_core::NodeState::Unreachable)).then_some(())?;
        let ask = tidegate_model::Ask {
            number: permit.ask,
            class: permit.class,
            bytes: tidegate_model::Bytes(1),
            files: 0,
            patience: None,
        };
        let seen = tidegate_model::AskSeen {
            ask,
            waited: tidegate_model::Span::ZERO,
            written: tidegate_model::Bytes(0),
            done: true,
            rated: tidegate_model::DecisionSeq(0),
        };
        Some(scheduler_core::Event::NodeReported {
            node: node.name.clone(),
            complete: false,
            facts: None,
            tasks: Vec::new(),
            saves: Vec::new(),
            commits: Vec::new(),
            asks: vec![(permit.task, seen)],
        })
    })
}
