//! What signals of a node's GPUs mean. Pure: lines and readings go in, meanings come out.

mod incident;
mod judge;
mod line;
mod meaning;
mod signal;
mod table;
mod when;

pub use incident::{Code, Incident};
pub use judge::{Context, Holder, OwnAct, Past, Target, Verdict, judge, remembered};
pub use line::{Unreadable, signal};
pub use meaning::{Action, Class, Meaning, Own, Scope};
pub use signal::{NoAddress, PciAddress, Severity, Signal, SwitchError, Xid};
pub use table::{Again, Found, Table, Wrong};
pub use when::when;
