//! Firm reservations: who gets one, when its nodes are its own, and when it moves.

use std::collections::BTreeSet;

use tidegate_model::{AttemptId, GpuCount, NodeId};

use super::{Pass, is_due};
use crate::books::{Attempt, Job, Reservation};
use crate::decision::{Decision, Grounds, MoveCause, Right, SaveReason, Standing};

impl<'books> Pass<'books> {
    /// Firm reservations: they start when their nodes can be had, and move only for a cause.
    pub(super) fn reserved(&self) -> Option<Vec<Decision>> {
        self.books.index.reservations.iter().find_map(|(_, id)| {
            let job = self.books.jobs.get(id)?;
            let held = job.reservation.as_ref()?;
            if let Some(run) = job.waiting_run() {
                return self.reserved_and_free(job, run, held);
            }
            if !is_due(job, self.now) {
                return None;
            }
            let due = held.at <= self.now;
            let own = due.then(|| held.nodes.iter().map(|(node, _)| *node).collect());
            let planned = own.and_then(|own| self.plan_any(job, Some(&own)));
            planned.or_else(|| self.plan_any(job, None)).or_else(|| self.moved(job, held))
        })
    }

    /// Its run turns protected where it may; else, when its instant comes, it leaves its GPUs for
    /// those that are its own.
    fn reserved_and_free(
        &self,
        job: &'books Job,
        run: &'books Attempt,
        held: &Reservation,
    ) -> Option<Vec<Decision>> {
        if let Some(decisions) = self.turn_in_place(job, run) {
            return Some(decisions);
        }
        if held.at > self.now {
            return self.moved(job, held);
        }
        let grounds = Grounds::plain(Right::Reservation);
        let number = run.id.number.saturating_add(1);
        let why = SaveReason::Displaced { by: AttemptId { job: job.id, number }, grounds };
        Some(vec![Decision::SaveOrdered { attempt: run.id, why }])
    }

    /// A reservation whose nodes left service, or were let go too late, has others; one whose own
    /// nodes are to be had earlier has them then.
    fn moved(&self, job: &'books Job, held: &Reservation) -> Option<Vec<Decision>> {
        let in_service = |node: &NodeId| self.spot(*node).is_some();
        let gone = !held.nodes.iter().all(|(node, _)| in_service(node));
        if !gone && held.at > self.now {
            return self.earlier(job, held);
        }
        let (nodes, at) = self.firm_place(job)?;
        let cause = if gone { MoveCause::NodeGone } else { MoveCause::LateRelease };
        let moved = nodes != held.nodes || at > held.at;
        (moved && at > self.now)
            .then(|| vec![Decision::ReservationMoved { job: job.id, nodes, at, cause }])
    }

    /// On its own nodes only: elsewhere it might come before others that were told their instants.
    fn earlier(&self, job: &'books Job, held: &Reservation) -> Option<Vec<Decision>> {
        let had = |(node, gpus): &(NodeId, GpuCount)| {
            self.spot(*node)?.firm_instant(self.books, job.id, *gpus, self.now)
        };
        let instants = held.nodes.iter().map(had).collect::<Option<Vec<_>>>()?;
        let at = instants.into_iter().max()?;
        // Less is not worth a record.
        let worth = at.plus(self.books.policy.sharing.pass_every) <= held.at;
        let (nodes, cause) = (held.nodes.clone(), MoveCause::Earlier);
        worth.then(|| vec![Decision::ReservationMoved { job: job.id, nodes, at, cause }])
    }

    /// Every funded elder starts, turns protected where it runs, or gets a firm reservation.
    pub(super) fn elders(&self) -> Option<Vec<Decision>> {
        let mut elders: Vec<_> =
            self.books.index.elders.values().flat_map(|of| of.iter()).copied().collect();
        elders.sort_unstable();
        elders.into_iter().find_map(|(_, id)| {
            let job = self.books.jobs.get(&id)?;
            if job.reservation.is_some() || self.array_full(job) {
                return None;
            }
            let run = job.waiting_run();
            let in_place = run.and_then(|run| self.turn_in_place(job, run));
            if in_place.is_some() || run.is_none() && !is_due(job, self.now) {
                return in_place;
            }
            let option = self.options(job).into_iter().find(|one| self.funded(one))?;
            let (nodes, at) = self.firm_place(job)?;
            if at <= self.now {
                // Its instant has come with its being funded: who is there yields. But who runs
                // free never displaces to move.
                let own = nodes.iter().map(|(node, _)| *node).collect();
                let planned = if run.is_none() { self.plan_any(job, Some(&own)) } else { None };
                if planned.is_some() || run.is_some() {
                    return planned;
                }
            }
            // An inherited promise is held by the reservation from now on.
            let pledge = option.weight.rate(job.spec.gpus).over(option.claimant.protect);
            Some(vec![Decision::ReservationMade { job: id, nodes, at, pledge }])
        })
    }

    /// A plan: on nodes whose firm reservation is due, where everybody yields, or by the job's
    /// ordinary rights.
    fn plan_any(&self, job: &'books Job, due: Option<&BTreeSet<NodeId>>) -> Option<Vec<Decision>> {
        self.options(job).into_iter().filter(|one| self.funded(one)).find_map(|one| {
            let choice = self.choose(&one, due)?;
            Some(self.planned(&one, &choice, Standing::Protected))
        })
    }
}
