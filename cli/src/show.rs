//! What people and programs see: tables, JSON, times. Nothing here asks the coordinator.

pub(crate) mod out;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time;
