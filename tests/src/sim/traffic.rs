//! What is written and read together, whatever the scheduler thinks of it: never more than a target may
//! carry.

use std::collections::BTreeMap;

use scheduler_core::Flow;
use tidegate_model::{Bandwidth, StorageName, TaskId};

use super::Planted;
use super::coordinator::SimEngine;
use super::world::World;

/// How long anybody waits for an answer once nothing goes wrong any more: far above the policy's
/// patience, and what those before it may take.
const LONGEST_WAIT: u64 = 600_000;

/// Of each target and flow the most that its permits may come to at the next look.
pub(super) type Allowed = BTreeMap<(StorageName, Flow), Bandwidth>;

impl World {
    /// What those that ask may write, and may read, never grows above the cap in force. After the cap
    /// became lower it comes down, as they hear of it, and does not grow meanwhile.
    pub(super) fn check_traffic(&mut self) -> Result<(), String> {
        self.note_lapses();
        let mut allowed = std::mem::take(&mut self.allowed);
        for ((storage, flow), most) in &mut allowed {
            let does = self.sum(storage, *flow, |_, _, may| may.unwrap_or_default());
            let cap = self.coordinator.watch().cap(storage, *flow, self.at());
            let cap = cap.unwrap_or(Bandwidth(u64::MAX));
            if does > cap.max(*most) {
                return Err(self.overwritten(storage, *flow, cap.max(*most)));
            }
            if *most > cap {
                // What was granted before the cap was lowered may still be on its way.
                *most = (*most).min(self.sum(storage, *flow, |world, task, may| {
                    world.issued(task).max(may.unwrap_or_default())
                }));
            }
            *most = cap.max(*most);
        }
        self.allowed = allowed;
        Ok(())
    }

    fn sum(
        &self,
        storage: &StorageName,
        flow: Flow,
        of: impl Fn(&Self, TaskId, Option<Bandwidth>) -> Bandwidth,
    ) -> Bandwidth {
        let here = self.asked.iter().filter(|(_, asked)| {
            asked.storage.as_ref() == Some(storage) && Flow::of(asked.class) == flow
        });
        here.map(|(task, asked)| {
            let clock = self.node_of(*task).and_then(|index| self.nodes.get(index));
            let at = clock.map(|node| node.clock.read(self.now));
            of(self, *task, at.and_then(|at| asked.may(at)))
        })
        .sum()
    }

    /// The most that a task's ask was granted and its shim has not heard the end of.
    fn issued(&self, task: TaskId) -> Bandwidth {
        let Some(asked) = self.asked.get(&task) else { return Bandwidth(0) };
        let issued = self.coordinator.watch().issued(task, asked.number, asked.rated());
        issued.map_or(Bandwidth(0), |rate| rate.unwrap_or(asked.speed))
    }

    fn overwritten(&self, storage: &StorageName, flow: Flow, most: Bandwidth) -> String {
        let of = |asked: &super::permits::Asked, task: TaskId| {
            let node = self.node_of(task).and_then(|index| self.nodes.get(index));
            let at = node.map(|node| node.clock.read(self.now))?;
            let may = asked.may(at)?;
            let lapsed = if asked.is_over(at) { ", lapsed" } else { "" };
            Some(format!("{task} {} of {:?}{lapsed}", may, asked.rated()))
        };
        let here = self.asked.iter().filter(|(_, asked)| {
            asked.storage.as_ref() == Some(storage) && Flow::of(asked.class) == flow
        });
        let told: Vec<_> = here.filter_map(|(task, asked)| of(asked, *task)).collect();
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
        let late = |asked: &&super::permits::Asked| {
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
