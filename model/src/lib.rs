//! The vocabulary of Tidegate: ids, units, time, what a job asks for, what a node says.
//!
//! A leaf crate: every other crate speaks in these types, and past the edge no id is a string
//! and no number is without a unit. What is not here: anything that reads a clock, a file or a
//! socket, and any rule of scheduling.

mod checkpoint;
mod ids;
mod instant;
mod job;
mod names;
mod nearest;
mod order;
mod permit;
mod task;
mod time;
mod units;

pub use checkpoint::{
    ASK_AFTER_RANGE, AskAfter, AsksWithin, CheckpointOffer, Commit, Save, SaveDelivery, SaveSeen,
    SaveSignal, SaveTarget,
};
pub use ids::{
    AttemptId, ClusterId, DecisionSeq, Epoch, Generation, IdError, JobId, NodeId, SubmitKey,
    TaskId, UserId,
};
pub use instant::{from_rfc3339, rfc3339, rfc3339_ms};
pub use job::{
    ArrayPlace, Dependency, JobSpec, LOG_CAP_RANGE, MAX_BLOCKS, MAX_DEPENDENCIES, MAX_GRACE,
    MAX_MIN_RUNTIME, MAX_RESTARTS, MAX_SPEC_BYTES, SpecError, TaskLayout, WhileWaiting,
};
pub use names::{AccountPath, GpuType, GpuUuid, NameError, NodeName, StorageName};
pub use nearest::nearest;
pub use order::{Launch, Order, Stop};
pub use permit::{Ask, AskSeen, LEAST_SAVE, LEAST_SEEN, Permit, WriteClass};
pub use task::{Gpu, Idle, NodeFacts, TaskExit, TaskSeen};
pub use time::{Span, SpanError, Timestamp};
pub use units::{Bandwidth, Bytes, GpuCount, GpuTime, UnitError};
