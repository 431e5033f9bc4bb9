//! Attempts and their tasks: from the plan to the last GPU released.

use tidegate_model::{AttemptId, Commit, GpuUuid, NodeId, Span, TaskExit, TaskId, Timestamp};

use super::{Applied, Stamp, attempt_of, ensure, task_of};
use crate::books::{Attempt, Books, Held, JobState, Place, SaveOrder, StopOrder, Task, Writing};
use crate::commits::Committed;
use crate::decision::{Decision, Excused, Outcome, SaveStep, Standing, Terms};

impl Books {
    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    pub(super) fn evolve_attempt(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::AttemptPlanned { attempt, places, terms } => {
                self.plan(stamp, *attempt, places, *terms)
            }
            Decision::AttemptGranted(attempt) => self.change_attempt(*attempt, |entry| {
                ensure(entry.granted.is_none(), "an attempt is granted once")?;
                ensure(entry.ready.is_some(), "an attempt is granted its own GPUs")?;
                let prepared = entry.tasks.iter().all(|task| task.port.is_some());
                ensure(prepared, "all tasks are prepared")?;
                entry.granted = Some(stamp.at);
                Ok(())
            }),
            Decision::AttemptRunning(attempt) => {
                self.change_attempt(*attempt, |entry| entry.begin_to_run(stamp.at))
            }
            Decision::StandingChanged { attempt, at, to, promised_until } => {
                self.change_job(attempt.job, |job| {
                    attempt_of(job, *attempt)?.stand(*at, *to, *promised_until)?;
                    if *to == Standing::Protected {
                        // It has its turn: an elder is one until it starts.
                        (job.elder, job.reservation, job.carried) = (None, None, None);
                    }
                    Ok(())
                })
            }
            Decision::StopOrdered { attempt, why } => self.change_attempt(*attempt, |entry| {
                ensure(entry.is_live(), "an ended attempt is not stopped")?;
                ensure(entry.stop.is_none(), "an attempt is told to stop once")?;
                entry.stop = Some(StopOrder { why: *why, decision: stamp.seq });
                Ok(())
            }),
            Decision::AttemptEnded { attempt, outcome, released, excused } => self
                .change_attempt(*attempt, |entry| {
                    entry.end(stamp.at, *outcome, *released, *excused)
                }),
            Decision::TaskPrepared { .. }
            | Decision::TaskStarted(_)
            | Decision::TaskEnded { .. }
            | Decision::TaskIdled { .. }
            | Decision::TaskReleased(_) => self.evolve_task(stamp, decision),
            _ => self.evolve_save(stamp, decision),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    fn evolve_task(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::TaskPrepared { task, port } => self.change_task(*task, |entry| {
                ensure(entry.port.is_none(), "a task is prepared once")?;
                entry.port = Some(*port);
                Ok(())
            }),
            Decision::TaskStarted(task) => {
                let granted = self.attempt(task.attempt).and_then(|entry| entry.granted);
                ensure(granted.is_some(), "starts follow the grant")?;
                self.change_task(*task, |entry| {
                    ensure(!entry.started, "a task starts once")?;
                    entry.started = true;
                    Ok(())
                })
            }
            Decision::TaskEnded { task, exit, ran } => self.end_task(stamp, *task, exit, *ran),
            Decision::TaskIdled { task, idle } => self.change_task(*task, |entry| {
                ensure(entry.exit.is_some(), "only of what has ended all is measured")?;
                entry.idle = Some(*idle);
                Ok(())
            }),
            Decision::TaskReleased(task) => self.release(stamp, *task),
            _ => Err("not about a task"),
        }
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "`evolve` sorts them, each variant once")]
    fn evolve_save(&mut self, stamp: Stamp, decision: &Decision) -> Applied {
        match decision {
            Decision::SaveOrdered { attempt, why } => self.change_attempt(*attempt, |entry| {
                ensure(entry.is_live() && entry.stop.is_none(), "only what runs on is to save")?;
                ensure(entry.save.is_none(), "an attempt is asked once at a time")?;
                let (decision, at) = (stamp.seq, stamp.at);
                let (why, none) = (*why, None);
                entry.save = Some(SaveOrder {
                    why,
                    decision,
                    at,
                    told: none,
                    admitted: none,
                    acknowledged: none,
                    first_byte: none,
                    committed: none,
                    given_back: None,
                });
                Ok(())
            }),
            Decision::SaveNoted { attempt, step } => self.change_attempt(*attempt, |entry| {
                let save = entry.save.as_mut().filter(|save| save.said().is_some());
                let save = save.ok_or("only what was told to save comes so far")?;
                let noted = match step {
                    SaveStep::Acknowledged => &mut save.acknowledged,
                    SaveStep::FirstByte => &mut save.first_byte,
                };
                ensure(noted.replace(stamp.at).is_none(), "a save comes so far once")?;
                if *step == SaveStep::FirstByte
                    && let Some(before) = save.given_back.take()
                {
                    entry.writing = Some(Writing { since: stamp.at, ..before });
                }
                Ok(())
            }),
            Decision::SaveWithdrawn(attempt) => self.change_attempt(*attempt, |entry| {
                let unsaid = entry.save.is_some_and(|save| save.said().is_none());
                ensure(unsaid, "only what nobody was told is withdrawn")?;
                entry.save = None;
                Ok(())
            }),
            Decision::CheckpointCommitted { attempt, commit } => {
                self.commit(stamp.at, *attempt, commit)
            }
            Decision::CommitsClosed(attempt) => self.change_attempt(*attempt, |entry| {
                entry.commits_closed = true;
                Ok(())
            }),
            _ => self.evolve_write(stamp, decision),
        }
    }

    fn commit(&mut self, at: Timestamp, attempt: AttemptId, commit: &Commit) -> Applied {
        self.change_job(attempt.job, |job| {
            let older = job.commit().is_none_or(|last| last.step < commit.step);
            ensure(older, "a commit goes beyond the last")?;
            let entry = attempt_of(job, attempt)?;
            ensure(!entry.commits_closed, "an old attempt commits nothing")?;
            entry.committed = Some(at);
            if let Some(save) =
                entry.save.as_mut().filter(|save| commit.request == Some(save.decision))
            {
                save.committed.get_or_insert(at);
            }
            let Commit { step, path, bytes, request } = commit.clone();
            let commit = Committed { attempt, step, path, bytes, at, request };
            job.commits.get_or_insert_default().add(commit);
            Ok(())
        })
    }

    fn plan(&mut self, stamp: Stamp, id: AttemptId, places: &[Place], terms: Terms) -> Applied {
        ensure(!places.is_empty(), "a gang has a task")?;
        self.change_job(id.job, |job| {
            ensure(matches!(job.state, JobState::Pending { .. }), "only a pending job is planned")?;
            let next = u32::try_from(job.attempts.len()).ok().and_then(|n| n.checked_add(1));
            ensure(next == Some(id.number), "attempts are numbered in order")?;
            job.attempts.push(Attempt::planned(id, stamp.at, places, terms));
            job.state = JobState::Active { attempt: id.number };
            if terms.standing == Standing::Protected {
                job.carried = None;
                job.reservation = None;
                job.elder = None;
            }
            Ok(())
        })?;
        for (index, place) in (0..).zip(places) {
            self.hold(TaskId { attempt: id, index }, place)?;
        }
        self.make_ready(stamp.at, id)
    }

    /// Gives the task its GPUs, or makes it the heir of those that others still hold.
    pub(super) fn hold(&mut self, task: TaskId, place: &Place) -> Applied {
        let node = self.node_mut(place.node)?;
        ensure(!place.gpus.is_empty(), "a task has a GPU")?;
        ensure(node.tasks.insert(task), "a task is placed once")?;
        for gpu in &place.gpus {
            let of = if node.held.contains_key(gpu) { &mut node.heirs } else { &mut node.held };
            ensure(of.insert(gpu.clone(), task).is_none(), "a GPU has one holder and one heir")?;
        }
        Ok(())
    }

    fn make_ready(&mut self, at: Timestamp, id: AttemptId) -> Applied {
        let Some(attempt) = self.attempt(id) else { return Err("no such attempt") };
        let own = |(task, entry): (TaskId, &Task)| {
            let node = self.nodes.get(&entry.place.node);
            let holds = |gpu: &GpuUuid| node.is_some_and(|n| n.held.get(gpu) == Some(&task));
            entry.released || entry.place.gpus.iter().all(holds)
        };
        if attempt.ready.is_some() || !attempt.tasks().all(own) {
            return Ok(());
        }
        self.change_attempt(id, |entry| {
            entry.ready = Some(at);
            Ok(())
        })
    }

    fn end_task(&mut self, stamp: Stamp, id: TaskId, exit: &TaskExit, ran: Span) -> Applied {
        self.change_attempt(id.attempt, |attempt| {
            let entry = task_of(attempt, id)?;
            ensure(entry.exit.is_none(), "a task ends once")?;
            entry.exit = Some(exit.clone());
            entry.ended_by = Some(stamp.seq);
            entry.ran = ran;
            Ok(())
        })
    }

    fn release(&mut self, stamp: Stamp, id: TaskId) -> Applied {
        self.change_task(id, |entry| {
            ensure(entry.exit.is_some(), "what has not ended is not released")?;
            ensure(!entry.released, "a task is released once")?;
            entry.released = true;
            Ok(())
        })?;
        let place = self.task(id).map(|task| task.place.clone()).ok_or("no such task")?;
        let heirs = self.let_go(id, place.node, &place.gpus)?;
        heirs.into_iter().try_for_each(|heir| self.make_ready(stamp.at, heir))
    }

    fn let_go(
        &mut self,
        task: TaskId,
        node: NodeId,
        gpus: &[GpuUuid],
    ) -> Result<Vec<AttemptId>, &'static str> {
        let node = self.node_mut(node)?;
        ensure(node.tasks.remove(&task), "a placed task is on its node")?;
        let mut heirs = Vec::new();
        for gpu in gpus {
            if node.held.get(gpu) != Some(&task) {
                let heir = node.heirs.remove(gpu);
                ensure(heir == Some(task), "a task lets go of what it holds or waits for")?;
                continue;
            }
            node.held.remove(gpu);
            if let Some(heir) = node.heirs.remove(gpu) {
                node.held.insert(gpu.clone(), heir);
                heirs.push(heir.attempt);
            }
        }
        heirs.dedup();
        Ok(heirs)
    }
}

impl Attempt {
    pub(crate) fn planned(id: AttemptId, at: Timestamp, places: &[Place], terms: Terms) -> Self {
        Self {
            id,
            planned: at,
            granted: None,
            running: None,
            stop: None,
            ended: None,
            terms,
            standing: terms.standing,
            promised_until: None,
            held: Vec::new(),
            excused: Vec::new(),
            ready: None,
            save: None,
            committed: None,
            commits_closed: false,
            writing: None,
            tasks: places.iter().cloned().map(Task::planned).collect(),
        }
    }

    fn begin_to_run(&mut self, at: Timestamp) -> Applied {
        ensure(self.granted.is_some(), "only a granted attempt runs")?;
        ensure(self.running.is_none(), "an attempt begins to run once")?;
        self.running = Some(at);
        self.held.push(Held { standing: self.standing, from: at, until: None });
        if self.standing == Standing::Protected {
            self.promised_until = Some(at.plus(self.terms.protect));
        }
        Ok(())
    }

    fn stand(&mut self, at: Timestamp, to: Standing, promised_until: Option<Timestamp>) -> Applied {
        ensure(self.is_live() && self.running.is_some(), "only what runs changes its standing")?;
        self.promised_until = promised_until;
        if self.standing == to {
            return Ok(());
        }
        self.standing = to;
        self.close(at);
        self.held.push(Held { standing: to, from: at, until: None });
        Ok(())
    }

    /// Nothing is held from `at` on.
    fn close(&mut self, at: Timestamp) {
        for held in &mut self.held {
            let until = held.until.map_or(at, |until| until.min(at));
            held.until = Some(until.max(held.from));
        }
        self.held.retain(|held| held.until != Some(held.from));
    }

    fn end(
        &mut self,
        at: Timestamp,
        outcome: Outcome,
        released: Timestamp,
        excused: Option<Excused>,
    ) -> Applied {
        ensure(self.is_live(), "an attempt ends once")?;
        ensure(self.tasks.iter().all(|task| task.released), "all tasks are released")?;
        ensure(released <= at, "what is released was released before")?;
        self.ended = Some((at, outcome));
        self.promised_until = None;
        self.writing = None;
        self.close(released);
        self.excused.extend(excused);
        Ok(())
    }
}
