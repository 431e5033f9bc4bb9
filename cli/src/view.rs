//! What the coordinator shows, read once: past here nothing is absent that must be there, and
//! every view is also the JSON document of its command. Keys are stable: add, never rename.

pub(crate) mod job;
pub(crate) mod node;
pub(crate) mod users;
