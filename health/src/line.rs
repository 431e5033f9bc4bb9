//! One line of the kernel's log, as `/dev/kmsg`, `dmesg` or a journal has it.
//!
//! What is not here: what it means (`table`), and which lines are one incident (`judge`).

use crate::signal::{PciAddress, Severity, Signal, SwitchError, Xid};

/// A line that speaks of an error of a GPU in words that are not known: another driver's, perhaps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an error of a GPU that cannot be read: {0}")]
pub struct Unreadable(String);

/// More of a line is not kept.
const MAX_TEXT: usize = 512;

/// What a line says; none if it is not about GPUs.
///
/// # Errors
/// It is, and cannot be understood.
pub fn signal(line: &str) -> Result<Option<Signal>, Unreadable> {
    let unreadable = || Unreadable(cut(line));
    if let Some((_, rest)) = line.split_once("NVRM: Xid (") {
        return xid(rest).map(|xid| Some(Signal::Xid(xid))).ok_or_else(unreadable);
    }
    if let Some((_, rest)) = line.split_once(": SXid (") {
        return switch(rest).map(|error| Some(Signal::Switch(error))).ok_or_else(unreadable);
    }
    if !line.contains("NVRM") && !line.contains("AER:") {
        return Ok(None);
    }
    if line.contains("fallen off the bus") {
        return addressed(line).map(|gpu| Some(Signal::OffTheBus(gpu))).ok_or_else(unreadable);
    }
    if line.contains("probe routine failed") {
        return Ok(Some(Signal::ProbeFailed));
    }
    Ok(bus(line))
}

/// Behind `Xid (`: `PCI:0000:3b:00): 79, pid=1234, name=python3, words`.
fn xid(rest: &str) -> Option<Xid> {
    let (address, rest) = rest.split_once("): ")?;
    let (code, text) = rest.split_once(',').unwrap_or((rest, ""));
    let text = text.trim();
    let pid = after(text, "pid=").and_then(|rest| number(rest.trim_start_matches(['\'', '"'])));
    let registers = registers(text);
    Some(Xid {
        gpu: address.parse().ok()?,
        code: code.trim().parse().ok()?,
        pid,
        severity: severity(text),
        link: link(text),
        recovery: after(text, " to 0x").and_then(hexadecimal),
        registers,
        text: cut(text),
    })
}

/// Behind `SXid (`: `PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 words`.
fn switch(rest: &str) -> Option<SwitchError> {
    let (address, rest) = rest.split_once("): ")?;
    let (code, text) = rest.split_once(',').unwrap_or((rest, ""));
    let text = text.trim();
    Some(SwitchError {
        switch: address.parse().ok()?,
        code: code.trim().parse().ok()?,
        severity: severity(text),
        link: link(text),
        text: cut(text),
    })
}

/// `nvidia 0000:3b:00.0: AER: … severity=Uncorrected (Fatal)`, or the port that it hangs on. What was
/// corrected is nothing.
fn bus(line: &str) -> Option<Signal> {
    let (_, said) = line.split_once("AER:")?;
    let severity = if said.contains("(Fatal)") {
        Severity::Fatal
    } else if said.contains("(Non-Fatal)") {
        Severity::NonFatal
    } else {
        return None;
    };
    Some(Signal::Bus { device: addressed(line)?, severity })
}

/// The last address in a line: an error that a port reports names the device behind it.
fn addressed(line: &str) -> Option<PciAddress> {
    let words = line.split([' ', '(', ')', ',']);
    let bare = words.map(|word| word.trim_end_matches([':', '.']));
    let long = bare.filter(|word| word.matches(':').count() >= 2);
    long.filter_map(|word| word.parse().ok()).last()
}

fn severity(text: &str) -> Option<Severity> {
    let mut words = text.split([' ', ',', ':']);
    words.find_map(|word| match word.to_ascii_lowercase().as_str() {
        "fatal" => Some(Severity::Fatal),
        "non-fatal" | "nonfatal" => Some(Severity::NonFatal),
        _ => None,
    })
}

fn link(text: &str) -> Option<u32> {
    let rest = after(text, "Link ").or_else(|| after(text, "link "))?;
    number(rest)
}

/// The numbers in the last brackets that hold any: `(0x004505c6 0x00000000 …)`.
fn registers(text: &str) -> Vec<u32> {
    let brackets = text.rsplit('(').map(|rest| rest.split(')').next().unwrap_or_default());
    let read = |inside: &str| -> Vec<u32> {
        let words = inside.split([' ', ',']).filter_map(|word| word.trim().strip_prefix("0x"));
        words.filter_map(|word| u32::from_str_radix(word, 16).ok()).collect()
    };
    brackets.map(read).find(|found| !found.is_empty()).unwrap_or_default()
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(_, rest)| rest)
}

fn number(text: &str) -> Option<u32> {
    let end = text.find(|one: char| !one.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

fn hexadecimal(text: &str) -> Option<u32> {
    let end = text.find(|one: char| !one.is_ascii_hexdigit()).unwrap_or(text.len());
    u32::from_str_radix(text.get(..end)?, 16).ok()
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}
