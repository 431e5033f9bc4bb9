//! A scripted `libnvidia-ml.so.1` with simulated GPUs, for tests and for demonstrations on
//! machines without GPUs. Programs load it by its path, in place of the driver's.
//!
//! | variable | meaning |
//! |---|---|
//! | `TIDEGATE_NVML_SIM` | a JSON file that describes the node, see [`description`]; unset: no driver |
//! | `TIDEGATE_NVML_SIM_SOCKET` | a Unix socket to make, which takes commands, see [`control`] |
//!
//! The state belongs to the process that loaded the library and begins anew with each process.
//! Within a process it survives `nvmlShutdown`, as hardware does.
//!
//! Not modelled: several Xids between two waits are queued and delivered one by one, where NVML
//! may report the last one several times.

pub mod control;
pub mod description;
mod events;
mod ffi;
mod machine;
mod simulation;
pub mod symbols;
