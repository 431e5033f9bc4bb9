//! What is known of a job's checkpoints.

use scheduler_core::{Attempt, Committed, Job, SaveOrder};
use tidegate_proto::v1;

use super::{attempt_state, commit, save};
use crate::view::View;

/// All commits that are kept, and what became of each request to save.
pub(in crate::ingress) fn of(view: &View, job: &Job) -> v1::ListCheckpointsReply {
    let counts = |one: &Committed| job.commit() == Some(one);
    let known = |one: &Committed| v1::CheckpointView {
        commit: Some(commit(one)),
        // Nobody else says so yet.
        source: v1::CommitSource::Job.into(),
        request: one.request.map(|request| request.to_string()).unwrap_or_default(),
        counts: counts(one),
    };
    let asked = job.attempts.iter().filter_map(|attempt| Some((attempt, attempt.save?)));
    let commits = job.commits.iter().flat_map(|commits| commits.iter());
    v1::ListCheckpointsReply {
        job: job.id.to_string(),
        checkpoints: commits.map(known).collect(),
        older: job.commits.as_ref().map_or(0, |commits| commits.older()),
        requests: asked.map(|(attempt, order)| story(view, attempt, order)).collect(),
    }
}

fn story(view: &View, attempt: &Attempt, order: SaveOrder) -> v1::SaveStory {
    v1::SaveStory {
        attempt: attempt.id.to_string(),
        save: Some(save(view, order)),
        acknowledged_ms: order.acknowledged.map(|at| at.0),
        first_byte_ms: order.first_byte.map(|at| at.0),
        committed_ms: order.committed.map(|at| at.0),
        ended_ms: attempt.ended.map(|(at, _)| at.0),
        state: attempt_state(attempt.state()).into(),
    }
}
