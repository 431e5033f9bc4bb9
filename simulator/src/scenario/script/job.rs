//! Reads what a job asks and how it behaves.

use tidegate_model::{
    ArrayPlace, AskAfter, AsksWithin, CheckpointOffer, GpuCount, JobSpec, Span, SubmitKey, UserId,
    WhileWaiting,
};

use super::{expand, user};
use crate::cluster::job_spec;
use crate::work::{Asks, OnSave, Work};

/// A job before it is submitted.
#[derive(Debug, Clone)]
pub(crate) struct JobForm {
    pub(crate) user: UserId,
    pub(crate) spec: JobSpec,
    pub(crate) work: Work,
    /// Jobs that must have ended, and whether done.
    pub(crate) after: Vec<(String, bool)>,
}

/// The account that has everything while nobody has divided it.
const FIRST_ACCOUNT: &str = "default";

/// `user=1 account=a gpus=8 min=2h run=5h save=90s no-free` and the like.
pub(super) fn form(options: &[&str]) -> Result<JobForm, String> {
    let account = FIRST_ACCOUNT.parse().map_err(|error| format!("{error}"))?;
    let spec = job_spec(account, GpuCount(1))?;
    let work = Work::lasting(Some(Span::hours(1)), Span::minutes(1));
    let mut form = JobForm { user: UserId(1), spec, work, after: Vec::new() };
    options.iter().try_for_each(|option| match option.split_once('=') {
        Some((key, value)) => form.set(key, value),
        None => form.flag(option),
    })?;
    form.spec = form.spec.checked().map_err(|error| error.to_string())?;
    Ok(form)
}

impl JobForm {
    fn flag(&mut self, name: &str) -> Result<(), String> {
        match name {
            "no-free" => self.spec.while_waiting = WhileWaiting::Wait,
            "whole-cluster" => self.spec.whole_cluster = true,
            "no-checkpoint" => self.spec.checkpoint = None,
            "asks" => self.work.asks = Asks::Writes,
            "restores" => self.work.asks = Asks::Restores,
            "keeps-permits" => self.work.asks = Asks::ForNothing,
            "ignores-saves" => self.work.on_save = OnSave::Ignore,
            "saves-and-stays" => self.work.on_save = OnSave::Stay,
            "forgets" => self.work.forgets = true,
            "leaves-unsaved" => self.work.on_save = OnSave::Leave,
            _ => return Err(format!("{name:?} is nothing that a job is")),
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "user" => self.user = user(value)?,
            "account" => {
                self.spec.account = value.parse().map_err(|error| format!("{error}"))?;
            }
            "gpus" => self.spec.gpus = GpuCount(number(key, value)?),
            "per-node" => self.spec.gpus_per_node = Some(GpuCount(number(key, value)?)),
            "blocks" => self.spec.max_blocks = Some(number(key, value)?),
            "restarts" => self.spec.max_restarts = number(key, value)?,
            "order" => {
                self.spec.own_order = value.parse().map_err(|_not_one| "order=-1".to_owned())?;
            }
            "type" => {
                self.spec.gpu_type = Some(value.parse().map_err(|error| format!("{error}"))?);
            }
            "array" => {
                let (key, at_a_time) = value.split_once('%').ok_or("array=7%2")?;
                let key = SubmitKey(number(key.trim(), key)?.into());
                let at_a_time = number("array", at_a_time)?;
                self.spec.array = Some(Box::new(ArrayPlace { key, at_a_time }));
            }
            "after" | "after-done" => {
                let jobs = expand(value)?.into_iter();
                self.after.extend(jobs.map(|job| (job, key == "after-done")));
            }
            "bytes" => {
                self.work.bytes = value.parse().map_err(|error| format!("{error}"))?;
                self.offer(key)?.bytes = Some(self.work.bytes);
            }
            "storage" => {
                self.offer(key)?.storage = value.parse().map_err(|error| format!("{error}"))?;
            }
            "run" if value == "forever" => self.work.run = None,
            _ => return self.set_span(key, span(key, value)?),
        }
        Ok(())
    }

    fn offer(&mut self, key: &str) -> Result<&mut CheckpointOffer, String> {
        let offer = self.spec.checkpoint.as_mut();
        offer.ok_or_else(|| format!("{key}= goes before no-checkpoint"))
    }

    fn set_span(&mut self, key: &str, value: Span) -> Result<(), String> {
        match key {
            "min" => self.spec.min_runtime = value,
            "run" => self.work.run = Some(value),
            "start" => self.work.start = value,
            "save" => self.work.save = value,
            "stop" => self.work.stop = value,
            "stop-grace" => self.spec.grace = value,
            "commit-every" => self.work.commit_every = Some(value),
            "grace" => self.offer(key)?.grace = value,
            "step" => {
                self.work.asks_after = value;
                self.offer(key)?.asks_within = AsksWithin::of(value);
            }
            "asks-after" => self.work.asks_after = value,
            "rehearse" => {
                let after = AskAfter::of(value).ok_or("rehearse is followed by 1s to 1h")?;
                self.offer(key)?.rehearsal = Some(after);
            }
            _ => return Err(format!("{key:?} is nothing that a job has")),
        }
        Ok(())
    }
}

fn number(key: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_not_one| format!("{key}: {value:?} is no number"))
}

fn span(key: &str, value: &str) -> Result<Span, String> {
    value.parse().map_err(|error| format!("{key}: {error}"))
}
