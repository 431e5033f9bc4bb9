//! The pure scheduler of Tidegate.
//!
//! [`Core::apply`] takes one event at one instant and returns what it decided. Inside, `decide`
//! (policy, all the choices) reads, and `evolve` (bookkeeping, no choice left) writes; restoring
//! a coordinator is `evolve` over the journal.
//!
//! Where to look: *why does my job wait* → `explain`; *who gets which GPUs* → `decide::pass`;
//! *who is next* → `decide::walk`; *who can pay, who may displace whom* → `decide::money`; *who
//! has to leave* → `decide::victims`, `decide::leave`; *how a run stands* → `decide::standing`;
//! *when is a gang over* → `decide::attempt`; *what is a node told* → `wanted`; *what was charged*
//! → `charge`, `money`, `accounts`; *do the books add up* → `audit`.
//!
//! What is not here: IO, clocks, async, randomness, floats, hash maps, logging, wire formats.

mod accounts;
mod audit;
mod books;
mod charge;
mod commits;
mod core;
mod decide;
mod decision;
mod dry_run;
mod event;
mod evolve;
mod explain;
mod gate;
mod gate_status;
mod index;
mod money;
mod observations;
mod own_times;
mod policy;
mod rehearsal;
mod wanted;

pub use accounts::{
    Account, AccountId, Accounts, Cut, Edit, NoTree, Purse, ROOT, Role, Row, Sheet, Size, Transfer,
    WHOLE,
};
pub use audit::Violation;
pub use books::{
    Attempt, AttemptState, Books, BudgetAnswer, BudgetAsk, Cancelled, Drain, Held, Job, JobState,
    Node, PermitOf, Place, Reservation, SaveOrder, StopOrder, Task, Writing,
};
pub use charge::totals;
pub use commits::{Commits, Committed};
pub use core::Core;
pub use decide::leave::DrainTimes;
pub use decision::{
    Decision, Excuse, Excused, Grounds, JobOutcome, MoveCause, Outcome, ParkReason, Refusal, Right,
    SaveReason, SaveStep, Standing, StopReason, Terms,
};
pub use dry_run::DryRun;
pub use event::{AccountRequest, Event, GateRequest, JobRequest, Observation};
pub use evolve::{Broken, Stamp};
pub use explain::{Explanation, Reason};
pub use gate::{Adapted, CapHours, Evidence, Flow, Gate, GateRule, Pause};
pub use gate_status::{GateStatus, TurnStatus, WaiterStatus, WriterStatus};
pub use money::{Amount, Pledge, Rate, WINDOW, Weight, Window};
pub use observations::{NodeState, Observations, SeenNode};
pub use own_times::LongAsk;
pub use policy::{
    Author, GpuRule, Kind, Policy, PolicyChange, PolicyEdit, Sharing, SmallLimit, percent,
};
pub use rehearsal::{Recipe, Rehearsal, RehearsalFault, Rehearsals, RehearsedSave, Verdict};

#[cfg(test)]
mod tests;
