//! The limits of a write gate as a message.

use scheduler_core::{CapHours, GateRule};
use tidegate_model::Bandwidth;
use tidegate_proto::{WireError, narrowed, v1 as wire};

pub(crate) fn gate_rule_message(rule: &GateRule) -> wire::GateRule {
    let hours = |hours: &CapHours| wire::CapHours {
        from_minute: hours.from.into(),
        until_minute: hours.until.into(),
        cap_bytes_per_s: hours.cap.0,
    };
    wire::GateRule {
        cap_bytes_per_s: rule.cap.map(|cap| cap.0),
        writers: rule.writers,
        files_per_s: rule.files,
        node_bytes_per_s: rule.node.map(|node| node.0),
        reads_bytes_per_s: rule.reads.map(|reads| reads.0),
        floor_bytes_per_s: rule.floor.map(|floor| floor.0),
        hours: rule.hours.iter().map(hours).collect(),
    }
}

pub(crate) fn gate_rule(message: wire::GateRule) -> Result<GateRule, WireError> {
    let hours = |hours: wire::CapHours| -> Result<CapHours, WireError> {
        Ok(CapHours {
            from: narrowed(hours.from_minute, "CapHours.from_minute")?,
            until: narrowed(hours.until_minute, "CapHours.until_minute")?,
            cap: Bandwidth(hours.cap_bytes_per_s),
        })
    };
    Ok(GateRule {
        cap: message.cap_bytes_per_s.map(Bandwidth),
        writers: message.writers,
        files: message.files_per_s,
        node: message.node_bytes_per_s.map(Bandwidth),
        reads: message.reads_bytes_per_s.map(Bandwidth),
        floor: message.floor_bytes_per_s.map(Bandwidth),
        hours: message.hours.into_iter().map(hours).collect::<Result<_, _>>()?,
    })
}
