//! A virtual cluster over the real scheduler, on virtual time.
//!
//! [`World`] plays the agents and the training processes: it does what
//! [`Core::wanted_of`](scheduler_core::Core::wanted_of) orders, follows
//! [`Core::next_deadline`](scheduler_core::Core::next_deadline) to the millisecond, and holds every
//! step against the core's invariants. [`scenario`] is what happens to it as text, and what is
//!
//! What is not here: the link, the journal, the agents' real reconcile, faults between them; the
//! package `cluster-tests` simulates those.

mod agent;
mod cluster;
pub mod scenario;
pub mod storm;
pub mod week;
mod work;
mod world;

pub use cluster::{NodeForm, facts, job_spec, plain_job};
pub use work::{Asks, OnSave, Work};
pub use world::{EPOCH, Load, Observer, Server, World, Wrong};
