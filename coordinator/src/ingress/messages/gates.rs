//! Write gates as messages.

use scheduler_core::{Adapted, Flow, GateStatus, Pause, TurnStatus, WaiterStatus, WriterStatus};
use tidegate_model::NodeName;
use tidegate_proto::permit::class_message;
use tidegate_proto::v1;

use crate::translate::gate_rule_message;

pub(in crate::ingress) fn gate(status: GateStatus) -> v1::GateView {
    let lowered = |adapted: &Adapted| {
        status.flow == Flow::Writes && status.cap.is_some_and(|cap| adapted.cap <= cap)
    };
    let adapted = status.gate.adapted.filter(lowered);
    v1::GateView {
        storage: status.storage.to_string(),
        rule: Some(gate_rule_message(&status.gate.rule)),
        paused: status.gate.paused.map(pause),
        cap_bytes_per_s: status.cap.map(|cap| cap.0),
        pool_bytes_per_s: status.pool.0,
        admitted_bytes_per_s: status.admitted.0,
        measured_bytes_per_s: status.measured.map(|rate| rate.0),
        writers: status.writers.iter().map(writer).collect(),
        queue: status.queue.iter().map(waiter).collect(),
        reads: status.flow == Flow::Reads,
        adapted_since_ms: adapted.map(|adapted| adapted.since.0),
    }
}

fn pause(pause: Pause) -> v1::GatePause {
    v1::GatePause { since_ms: pause.since.0, by: pause.by.0, reason: pause.reason }
}

fn writer(status: &WriterStatus) -> v1::GateWriter {
    v1::GateWriter {
        attempt: status.attempt.to_string(),
        user: status.user.0,
        gpus: status.gpus.0,
        turn: status.turn.as_ref().map(turn),
        measured_bytes_per_s: status.measured.map(|rate| rate.0),
        unheard_node: name(status.unheard.as_ref()),
    }
}

fn name(node: Option<&NodeName>) -> String {
    node.map(ToString::to_string).unwrap_or_default()
}

fn turn(turn: &TurnStatus) -> v1::GateTurn {
    let writing = turn.writing;
    v1::GateTurn {
        since_ms: writing.since.0,
        bytes: turn.bytes.0,
        bytes_per_s: turn.rate.map(|rate| rate.0),
        pooled: writing.pooled,
        until_ms: turn.until.0,
        class: writing.permit.map_or(0, |permit| class_message(permit.class).into()),
        due_ms: Some(turn.due.0),
        stopped_ms: turn.stopped.map(|at| at.0),
    }
}

fn waiter(status: &WaiterStatus) -> v1::GateWaiter {
    v1::GateWaiter {
        attempt: status.attempt.to_string(),
        user: status.user.0,
        gpus: status.gpus.0,
        bytes: status.bytes.0,
        since_ms: status.since.0,
        from_ms: status.slot.map(|(from, _)| from.0),
        until_ms: status.slot.map(|(_, until)| until.0),
        class: status.class.map_or(0, |class| class_message(class).into()),
        waited_for_by: status.heir.map(|heir| heir.to_string()).unwrap_or_default(),
        unheard_node: name(status.unheard.as_ref()),
    }
}
