//! Write gates, and who may write through them.

use tidegate_model::{AttemptId, Bandwidth, Bytes, Span};

use super::{Applied, Stamp, attempt_of, ensure};
use crate::books::{Books, PermitOf, Writing};
use crate::decision::Decision;
use crate::gate::{Adapted, Evidence, Flow, Pause};

impl Books {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    pub(super) fn evolve_gate(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::GateSet { storage, rule, by: _ } => {
                let gate = self.gates.entry(storage.clone()).or_default();
                (gate.rule, gate.adapted, gate.evidence) =
                    (rule.clone(), None, Evidence::default());
                Ok(())
            }
            Decision::CapAdapted { storage, cap } => {
                let gate = self.gates.get_mut(storage).ok_or("no such gate")?;
                let whole = gate.rule.cap_at(Flow::Writes, stamp.at).ok_or("it has no cap")?;
                gate.adapted = Some(Adapted::after(gate.adapted, stamp.at, *cap, whole));
                gate.evidence = Evidence::default();
                Ok(())
            }
            Decision::GatePaused { storage, by, reason } => {
                let pause = Pause { since: stamp.at, by: *by, reason: reason.clone() };
                self.gates.entry(storage.clone()).or_default().paused = Some(pause);
                Ok(())
            }
            Decision::GateResumed { storage, by: _ } => {
                let gate = self.gates.get_mut(storage).ok_or("no such gate")?;
                ensure(gate.paused.is_some(), "only a paused gate is resumed")?;
                gate.paused = None;
                Ok(())
            }
            _ => Err("not about a gate"),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    pub(super) fn evolve_write(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::SaveTold(attempt) => self.change_attempt(*attempt, |entry| {
                let save = entry.save.as_mut().ok_or("only who is to save is told")?;
                ensure(save.said().is_none(), "a request is told once")?;
                save.told = Some(stamp.at);
                Ok(())
            }),
            Decision::SaveAdmitted { attempt, bytes, rate } => {
                let writing = self.begun(stamp, *attempt, None, (*bytes, *rate))?;
                self.change_attempt(*attempt, |entry| {
                    let save = entry.save.as_mut().ok_or("only who is to save is admitted")?;
                    ensure(save.admitted.is_none(), "a request is admitted once")?;
                    save.admitted = Some(stamp.at);
                    // Who writes by a permit goes on with it.
                    let untold = entry.writing.is_none_or(|of| of.permit.is_some());
                    ensure(untold, "who writes is not told to")?;
                    entry.writing.get_or_insert(writing);
                    Ok(())
                })
            }
            Decision::PermitGranted { permit, bytes, rate, pooled } => {
                let id = permit.task.attempt;
                let writing = self.begun(stamp, id, Some(*permit), (*bytes, *rate))?;
                self.change_attempt(id, |entry| {
                    ensure(entry.is_live(), "what has ended writes nothing")?;
                    let asked = entry.writing.is_none_or(|writing| writing.permit.is_none());
                    ensure(asked, "one permit at a time")?;
                    if let Some(save) = &mut entry.save {
                        save.given_back = None;
                    }
                    entry.writing = Some(Writing { pooled: *pooled, ..writing });
                    Ok(())
                })
            }
            Decision::WriteRated { attempt, rate, pooled, still } => {
                let (job, entry) = self.with_job(*attempt).ok_or("no such attempt")?;
                let flow = entry.writing.ok_or("it does not write")?.flow();
                let safe = self.safe_rate(job, entry, flow);
                self.change_attempt(*attempt, |entry| {
                    let writing = entry.writing.as_mut().ok_or("it does not write")?;
                    (writing.rate, writing.pooled) = (Some(*rate), *pooled);
                    (writing.still, writing.rated) = (*still, stamp.seq);
                    writing.rerated = true;
                    writing.told(safe);
                    Ok(())
                })
            }
            Decision::WriteEnded(attempt) => {
                self.weigh(stamp, *attempt);
                self.change_job(attempt.job, |job| {
                    let entry = attempt_of(job, *attempt)?;
                    let writing = entry.writing.take().ok_or("it does not write")?;
                    let committed = entry.committed.is_some_and(|at| at >= writing.since);
                    if let Some(save) = entry.save.as_mut().filter(|_| writing.permit.is_none()) {
                        save.given_back = Some(writing).filter(|_| !committed);
                    }
                    let paced = writing.pace(stamp.at).zip(job.commits.as_mut());
                    if let Some(((does, granted), commits)) = paced {
                        commits.wrote(does, granted);
                    }
                    Ok(())
                })
            }
            _ => Err("not about an attempt"),
        }
    }

    /// What a permit that is over says of its target.
    fn weigh(&mut self, stamp: Stamp, id: AttemptId) {
        let Some((job, attempt)) = self.with_job(id) else { return };
        let gate = job.storage().and_then(|storage| self.gates.get(storage));
        let (Some(gate), Some(of)) = (gate, attempt.writing) else { return };
        let mut evidence = gate.evidence;
        evidence.of_permit(job, of, stamp.at);
        if let Some(gate) = job.storage().cloned().and_then(|storage| self.gates.get_mut(&storage))
        {
            gate.evidence = evidence;
        }
    }

    /// Who is let through at this instant.
    fn begun(
        &self,
        stamp: Stamp,
        id: AttemptId,
        permit: Option<PermitOf>,
        (bytes, rate): (Bytes, Option<Bandwidth>),
    ) -> Result<Writing, &'static str> {
        let (job, attempt) = self.with_job(id).ok_or("no such attempt")?;
        let mut writing = Writing {
            since: stamp.at,
            bytes,
            rate,
            pooled: false,
            permit,
            still: None,
            rated: stamp.seq,
            rerated: false,
            after: None,
            longest: Span::ZERO,
        };
        writing.told(self.safe_rate(job, attempt, writing.flow()));
        Ok(writing)
    }
}
