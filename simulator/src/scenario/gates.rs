//! Write gates, as `show gates` says them.

use scheduler_core::{Core, Flow, GateStatus};
use tidegate_model::{NodeName, Timestamp};

use super::values::instant_text;
use super::words::Words;

pub(super) fn texts(core: &Core, now: Timestamp, words: &Words) -> Vec<String> {
    core.gates(now).iter().map(|gate| text(gate, now, words)).collect()
}

fn text(gate: &GateStatus, now: Timestamp, words: &Words) -> String {
    let cap = gate.cap.map_or_else(|| "no cap".to_owned(), |cap| format!("cap {cap}"));
    let paused = if gate.gate.paused.is_some() { ", paused" } else { "" };
    let (of, does) = match gate.flow {
        Flow::Writes => ("", "writes"),
        Flow::Reads => (" (restores)", "restores"),
    };
    let mut text = format!("{}{of}: {cap}{paused}, admitted {}", gate.storage, gate.admitted);
    for writer in &gate.writers {
        let until = writer.turn.as_ref().map(|turn| match turn.overdue(now) {
            None => format!(" until {}", instant_text(turn.until)),
            Some(_) => format!(", overdue since {}", instant_text(turn.due)),
        });
        text += &format!(", {} {does}{}", words.attempt(writer.attempt), until.unwrap_or_default());
        text += &unheard(writer.unheard.as_ref());
    }
    for waiter in &gate.queue {
        let from = waiter.slot.map(|(from, _)| format!(" until {}", instant_text(from)));
        text += &format!(", {} waits{}", words.attempt(waiter.attempt), from.unwrap_or_default());
        text += &unheard(waiter.unheard.as_ref());
    }
    text
}

fn unheard(node: Option<&NodeName>) -> String {
    node.map(|node| format!(" on {node}, which is not heard")).unwrap_or_default()
}
