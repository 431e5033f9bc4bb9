//! Reads what people do with write gates.

use scheduler_core::{CapHours, GateRequest, GateRule};
use tidegate_model::{Bandwidth, StorageName};

/// `shared cap=10GiB writers=2`, `shared pause "why"` or `shared resume`.
pub(super) fn gate(line: &str, words: &[&str]) -> Result<(StorageName, GateRequest), String> {
    let (storage, rest) = words.split_first().ok_or("gate is followed by a storage target")?;
    let storage = storage.parse().map_err(|error| format!("{error}"))?;
    let plain: Vec<&str> = rest.iter().filter(|word| !word.starts_with("by=")).copied().collect();
    let request = match plain.as_slice() {
        ["pause", ..] => {
            let reason = line.split('"').nth(1).unwrap_or("because").to_owned();
            GateRequest::Pause { reason }
        }
        ["resume"] => GateRequest::Resume,
        limits => GateRequest::Set(rule(limits)?),
    };
    Ok((storage, request))
}

fn rule(limits: &[&str]) -> Result<GateRule, String> {
    let mut rule = GateRule::default();
    for limit in limits {
        let (key, value) = limit.split_once('=').ok_or("a limit is as cap=10GiB")?;
        match key {
            "cap" => rule.cap = Some(bandwidth(value)?),
            "node" => rule.node = Some(bandwidth(value)?),
            "reads" => rule.reads = Some(bandwidth(value)?),
            "floor" => rule.floor = Some(bandwidth(value)?),
            "writers" => rule.writers = Some(number(value)?),
            "files" => rule.files = Some(number(value)?),
            "hours" => rule.hours.push(hours(value)?),
            _ => {
                return Err(format!(
                    "{key:?}: cap, node, reads, floor, writers, files or hours is accepted"
                ));
            }
        }
    }
    Ok(rule)
}

/// `22:00-6:00:1GiB`.
fn hours(text: &str) -> Result<CapHours, String> {
    let wrong = || format!("{text:?}: hours are as 22:00-6:00:1GiB");
    let (span, cap) = text.rsplit_once(':').ok_or_else(wrong)?;
    let (from, until) = span.split_once('-').ok_or_else(wrong)?;
    let minute = |text: &str| -> Option<u16> {
        let (hours, minutes) = text.split_once(':')?;
        hours.parse::<u16>().ok()?.checked_mul(60)?.checked_add(minutes.parse().ok()?)
    };
    let from = minute(from).ok_or_else(wrong)?;
    Ok(CapHours { from, until: minute(until).ok_or_else(wrong)?, cap: bandwidth(cap)? })
}

fn bandwidth(text: &str) -> Result<Bandwidth, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_not_one| format!("{text:?} is no number"))
}
