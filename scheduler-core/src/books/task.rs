//! The tasks of a gang, and where they are.

use tidegate_model::{DecisionSeq, GpuUuid, Idle, NodeId, Span, TaskExit};

/// A task's node and GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub node: NodeId,
    /// Which; never empty.
    pub gpus: Vec<GpuUuid>,
}

/// One task of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its node and GPUs.
    pub place: Place,
    /// The port set aside on its node, once it is prepared.
    pub port: Option<u16>,
    /// Whether its process was seen to run.
    pub started: bool,
    /// How it ended.
    pub exit: Option<TaskExit>,
    /// The journal record that says so.
    pub ended_by: Option<DecisionSeq>,
    /// How long it ran, by its node's monotonic clock.
    pub ran: Span,
    /// How long its GPUs were idle, once it has ended; none = nobody looked.
    pub idle: Option<Idle>,
    /// Whether its GPUs are idle again.
    pub released: bool,
}

impl Task {
    /// A task that is only planned.
    #[must_use]
    pub fn planned(place: Place) -> Self {
        Self {
            place,
            port: None,
            started: false,
            exit: None,
            ended_by: None,
            ran: Span::ZERO,
            idle: None,
            released: false,
        }
    }

    pub(super) fn ended_abnormally(&self) -> bool {
        self.exit.as_ref().is_some_and(|exit| !exit.is_success())
    }
}
