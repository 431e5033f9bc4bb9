//! What signals of a node's GPUs mean. Pure: lines and readings go in, meanings come out.

mod line;
mod signal;
mod table;

pub use line::{Unreadable, signal};
pub use signal::{NoAddress, PciAddress, Severity, Signal, SwitchError, Xid};
pub use table::{Action, Again, Class, Found, Meaning, Scope, Table, Wrong};
