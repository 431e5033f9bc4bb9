//! The pure scheduler of Tidegate.
//!
//! [`Core::apply`] takes one event at one instant and returns what it decided. Inside, `decide`
//! (policy, all the choices) reads, and `evolve` (bookkeeping, no choice left) writes; restoring
//! a coordinator is `evolve` over the journal.
//!
//! Where to look: *why does my job wait* → `explain`; *who gets which GPUs* → `decide::place`;
//! *when is a gang over* → `decide::attempt`; *what is a node told* → `wanted`; *do the books add
//! up* → `audit`.
//!
//! What is not here: IO, clocks, async, randomness, floats, hash maps, logging, wire formats.

mod audit;
mod books;
mod core;
mod decide;
mod decision;
mod event;
mod evolve;
mod explain;
mod observations;
mod policy;
mod wanted;

pub use audit::Violation;
pub use books::{Attempt, AttemptState, Books, Drain, Job, JobState, Node, Place, StopOrder, Task};
pub use core::Core;
pub use decision::{Decision, JobOutcome, Outcome, Refusal, StopReason};
pub use event::{Event, Observation};
pub use evolve::{Broken, Stamp};
pub use explain::{Explanation, Reason};
pub use observations::{NodeState, Observations, SeenNode};
pub use policy::Policy;

#[cfg(test)]
mod tests;
