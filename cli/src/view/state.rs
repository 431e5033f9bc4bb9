//! Where jobs and attempts are in their lives, and how attempts stand.

use serde::Serialize;
use tidegate_proto::v1;

/// Where a job is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobState {
    Pending,
    Active,
    Done,
    Failed,
    Cancelled,
    /// A state that a newer coordinator knows.
    Unknown,
}

/// Where an attempt is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AttemptState {
    Planned,
    Granted,
    Starting,
    Running,
    Paced,
    Saving,
    Stopping,
    Verifying,
    Done,
    Failed,
    Saved,
    /// It left as if it had saved, and no commit of it is known.
    #[serde(rename = "unknown")]
    MaybeSaved,
    Unsaved,
    Lost,
    /// A state that a newer coordinator knows.
    Unknown,
}

/// Whether an attempt may be displaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    Protected,
    Funded,
    Free,
}

impl JobState {
    pub(crate) fn is_ended(self) -> bool {
        match self {
            Self::Done | Self::Failed | Self::Cancelled => true,
            Self::Pending | Self::Active | Self::Unknown => false,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
        }
    }
}

impl AttemptState {
    pub(crate) fn is_ended(self) -> bool {
        match self {
            Self::Done
            | Self::Failed
            | Self::Saved
            | Self::MaybeSaved
            | Self::Unsaved
            | Self::Lost => true,
            Self::Planned
            | Self::Granted
            | Self::Starting
            | Self::Running
            | Self::Paced
            | Self::Saving
            | Self::Stopping
            | Self::Verifying
            | Self::Unknown => false,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Granted => "granted",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paced => "paced",
            Self::Saving => "saving",
            Self::Stopping => "stopping",
            Self::Verifying => "verifying",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Saved => "saved",
            Self::MaybeSaved => "unknown",
            Self::Unsaved => "unsaved",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }
}

impl Standing {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Protected => "Protected",
            Self::Funded => "Funded",
            Self::Free => "Free",
        }
    }
}

pub(crate) fn job_state(wire: i32) -> JobState {
    match v1::JobState::try_from(wire) {
        Ok(v1::JobState::Pending) => JobState::Pending,
        Ok(v1::JobState::Active) => JobState::Active,
        Ok(v1::JobState::Done) => JobState::Done,
        Ok(v1::JobState::Failed) => JobState::Failed,
        Ok(v1::JobState::Cancelled) => JobState::Cancelled,
        Ok(v1::JobState::Unspecified) | Err(_) => JobState::Unknown,
    }
}

pub(crate) fn attempt_state(wire: i32) -> AttemptState {
    match v1::AttemptState::try_from(wire) {
        Ok(v1::AttemptState::Planned) => AttemptState::Planned,
        Ok(v1::AttemptState::Granted) => AttemptState::Granted,
        Ok(v1::AttemptState::Starting) => AttemptState::Starting,
        Ok(v1::AttemptState::Running) => AttemptState::Running,
        Ok(v1::AttemptState::Paced) => AttemptState::Paced,
        Ok(v1::AttemptState::Saving) => AttemptState::Saving,
        Ok(v1::AttemptState::Saved) => AttemptState::Saved,
        Ok(v1::AttemptState::Stopping) => AttemptState::Stopping,
        Ok(v1::AttemptState::Verifying) => AttemptState::Verifying,
        Ok(v1::AttemptState::Done) => AttemptState::Done,
        Ok(v1::AttemptState::Failed) => AttemptState::Failed,
        Ok(v1::AttemptState::Unsaved) => AttemptState::Unsaved,
        Ok(v1::AttemptState::Lost) => AttemptState::Lost,
        Ok(v1::AttemptState::Unknown) => AttemptState::MaybeSaved,
        Ok(v1::AttemptState::Unspecified) | Err(_) => AttemptState::Unknown,
    }
}

/// None of an attempt that is over, and of one whose standing a newer coordinator knows.
pub(crate) fn standing(wire: i32) -> Option<Standing> {
    match v1::Standing::try_from(wire) {
        Ok(v1::Standing::Protected) => Some(Standing::Protected),
        Ok(v1::Standing::Funded) => Some(Standing::Funded),
        Ok(v1::Standing::Free) => Some(Standing::Free),
        Ok(v1::Standing::Unspecified) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_state_is_shown_as_unknown() {
        assert_eq!(job_state(99), JobState::Unknown);
        assert_eq!(attempt_state(99), AttemptState::Unknown);
        assert_eq!(standing(99), None);
    }

    #[test]
    fn a_states_word_is_its_json() {
        let json = |state| serde_json::to_value(state).unwrap();
        for state in [JobState::Pending, JobState::Active, JobState::Cancelled, JobState::Unknown] {
            assert_eq!(json(state), state.word());
        }
    }
}
