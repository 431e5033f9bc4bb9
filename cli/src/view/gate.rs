//! Write gates: what a storage target may carry, who writes and who waits.

use serde::Serialize;
use tidegate_proto::{permit, v1};

use crate::view::users::Users;

/// A gate as shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Gate {
    pub(crate) storage: String,
    /// Whether it is the gate of what is read back; else that of what is written.
    pub(crate) reads: bool,
    /// What holds now; null = not limited.
    pub(crate) cap_bytes_per_s: Option<u64>,
    pub(crate) rule: Rule,
    /// Since when a lower cap than the rule's holds, by what the target proved to carry; null = it does not.
    pub(crate) adapted_since_ms: Option<u64>,
    pub(crate) paused: Option<Pause>,
    /// Kept for those who wait too long and for silent nodes; lent while there are none.
    pub(crate) pool_bytes_per_s: u64,
    pub(crate) admitted_bytes_per_s: u64,
    /// By the nodes' measure; null = no node has said.
    pub(crate) measured_bytes_per_s: Option<u64>,
    pub(crate) writers: Vec<Writer>,
    pub(crate) queue: Vec<Waiter>,
}

/// What an admin has set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Rule {
    pub(crate) cap_bytes_per_s: Option<u64>,
    /// Null = the policy's.
    pub(crate) writers: Option<u32>,
    pub(crate) files_per_s: Option<u32>,
    pub(crate) node_bytes_per_s: Option<u64>,
    /// What restores may read.
    pub(crate) reads_bytes_per_s: Option<u64>,
    /// The cap follows what the target proves to carry, down to this; null = it is fixed.
    pub(crate) floor_bytes_per_s: Option<u64>,
    pub(crate) hours: Vec<Hours>,
}

/// A cap at hours of the day, in minutes since midnight, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Hours {
    pub(crate) from_minute: u32,
    pub(crate) until_minute: u32,
    pub(crate) cap_bytes_per_s: u64,
}

/// Why nobody is let through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Pause {
    pub(crate) since_ms: u64,
    pub(crate) by: String,
    pub(crate) by_uid: u32,
    pub(crate) reason: String,
}

/// Somebody who writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Writer {
    pub(crate) attempt: String,
    pub(crate) user: String,
    pub(crate) uid: u32,
    pub(crate) gpus: u32,
    /// Null = it writes, and neither asked nor was told to.
    pub(crate) turn: Option<Turn>,
    pub(crate) measured_bytes_per_s: Option<u64>,
    /// A node of it that is not heard; null = all are.
    pub(crate) unheard_node: Option<String>,
}

/// What somebody may write, or is reckoned to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Turn {
    pub(crate) since_ms: u64,
    pub(crate) bytes: u64,
    /// Null = not limited.
    pub(crate) bytes_per_s: Option<u64>,
    pub(crate) pooled: bool,
    pub(crate) until_ms: u64,
    /// Null = it was told to save, and is reckoned, not held to it.
    pub(crate) class: Option<String>,
    /// When it should have written all: it is overdue once that is past. Null = an older coordinator.
    pub(crate) due_ms: Option<u64>,
    /// When it is stopped if it has not left; null = nobody has told it to leave.
    pub(crate) stopped_ms: Option<u64>,
}

/// Somebody who waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Waiter {
    pub(crate) attempt: String,
    pub(crate) user: String,
    pub(crate) uid: u32,
    pub(crate) gpus: u32,
    pub(crate) bytes: u64,
    pub(crate) since_ms: u64,
    /// Null while the gate is paused, or a node of it is not heard.
    pub(crate) from_ms: Option<u64>,
    pub(crate) until_ms: Option<u64>,
    /// Null = it was asked to leave, and trains on until its turn.
    pub(crate) class: Option<String>,
    /// The attempt that has its GPUs then.
    pub(crate) waited_for_by: Option<String>,
    /// A node of it that is not heard: nobody is let through there. Null = all are.
    pub(crate) unheard_node: Option<String>,
}

impl Gate {
    pub(crate) fn read(wire: v1::GateView, users: &mut Users) -> Self {
        Self {
            storage: wire.storage,
            reads: wire.reads,
            cap_bytes_per_s: wire.cap_bytes_per_s,
            rule: wire.rule.unwrap_or_default().into(),
            adapted_since_ms: wire.adapted_since_ms,
            paused: wire.paused.map(|pause| Pause {
                since_ms: pause.since_ms,
                by: users.name(pause.by),
                by_uid: pause.by,
                reason: pause.reason,
            }),
            pool_bytes_per_s: wire.pool_bytes_per_s,
            admitted_bytes_per_s: wire.admitted_bytes_per_s,
            measured_bytes_per_s: wire.measured_bytes_per_s,
            writers: wire.writers.into_iter().map(|writer| writer_of(writer, users)).collect(),
            queue: wire.queue.into_iter().map(|waiter| waiter_of(waiter, users)).collect(),
        }
    }
}

impl From<v1::GateRule> for Rule {
    fn from(wire: v1::GateRule) -> Self {
        let hours = |hours: v1::CapHours| Hours {
            from_minute: hours.from_minute,
            until_minute: hours.until_minute,
            cap_bytes_per_s: hours.cap_bytes_per_s,
        };
        Self {
            cap_bytes_per_s: wire.cap_bytes_per_s,
            writers: wire.writers,
            files_per_s: wire.files_per_s,
            node_bytes_per_s: wire.node_bytes_per_s,
            reads_bytes_per_s: wire.reads_bytes_per_s,
            floor_bytes_per_s: wire.floor_bytes_per_s,
            hours: wire.hours.into_iter().map(hours).collect(),
        }
    }
}

fn writer_of(wire: v1::GateWriter, users: &mut Users) -> Writer {
    Writer {
        attempt: wire.attempt,
        user: users.name(wire.user),
        uid: wire.user,
        gpus: wire.gpus,
        turn: wire.turn.map(|turn| Turn {
            since_ms: turn.since_ms,
            bytes: turn.bytes,
            bytes_per_s: turn.bytes_per_s,
            pooled: turn.pooled,
            until_ms: turn.until_ms,
            class: class(turn.class),
            due_ms: turn.due_ms,
            stopped_ms: turn.stopped_ms,
        }),
        measured_bytes_per_s: wire.measured_bytes_per_s,
        unheard_node: named(wire.unheard_node),
    }
}

fn waiter_of(wire: v1::GateWaiter, users: &mut Users) -> Waiter {
    Waiter {
        attempt: wire.attempt,
        user: users.name(wire.user),
        uid: wire.user,
        gpus: wire.gpus,
        bytes: wire.bytes,
        since_ms: wire.since_ms,
        from_ms: wire.from_ms,
        until_ms: wire.until_ms,
        class: class(wire.class),
        waited_for_by: named(wire.waited_for_by),
        unheard_node: named(wire.unheard_node),
    }
}

/// None = the field is empty.
fn named(wire: String) -> Option<String> {
    (!wire.is_empty()).then_some(wire)
}

/// None = it is not said.
fn class(wire: i32) -> Option<String> {
    let named = permit::class(wire, "class").map(|class| class.to_string());
    // A class that a newer coordinator knows is one all the same.
    (wire != 0).then(|| named.unwrap_or_else(|_| "unknown".to_owned()))
}
