//! The coordinator: the shell around the pure scheduler.
//!
//! A request or report is checked at the edge (`ingress`), becomes an event, is decided by the
//! core in the engine thread (`engine`, `thread`), made durable (`journal`) and only then seen:
//! as plans for nodes (`outbox`) and as an immutable view for readers (`view`).
//!
//! Only `clock` reads the time, only `journal::redb_store` knows redb, only `ingress` knows tonic.

pub mod clock;
pub mod config;
pub mod engine;
pub mod ingress;
pub mod journal;
pub mod notices;
pub mod outbox;
pub mod past;
pub mod replay;
pub mod report;
pub mod run;
pub mod space;
pub mod store;
pub mod thread;
mod translate;
pub mod view;
