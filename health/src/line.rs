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
    let is_gpu = line.contains("nvidia ");
    Some(Signal::Bus { device: addressed(line)?, severity, is_gpu })
}

/// The last address in a line: an error that a port reports names the device behind it.
fn addressed(line: &str) -> Option<PciAddress> {
    let words = line.split([' ', '(', ')', ',']);
    let bare = words.map(|word| word.trim_end_matches([':', '.']));
    let long = bare.filter(|word| word.matches(':').count() >= 2);
    long.rev().find_map(|word| word.parse().ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Signal {
        signal(line).unwrap().unwrap_or_else(|| panic!("{line} is not about a GPU"))
    }

    fn at(address: &str) -> PciAddress {
        address.parse().unwrap()
    }

    #[test]
    fn a_line_of_the_log_says_the_same_from_kmsg_and_dmesg() {
        let words = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has \
                     fallen off the bus.";
        for prefix in ["", "4,1234,5678901,-;", "[  123.456789] ", "Dec  1 12:00:00 n1 kernel: "] {
            let Signal::Xid(xid) = read(&format!("{prefix}{words}")) else { panic!("{prefix}") };
            assert_eq!((xid.gpu, xid.code, xid.pid), (at("3b:00"), 79, None));
        }
    }

    #[test]
    fn an_error_of_a_program_names_its_process() {
        let line = "NVRM: Xid (PCI:0000:5d:00): 31, pid=4711, name=python3, Ch 00000008, intr \
                    00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f2a_00000000";
        let Signal::Xid(xid) = read(line) else { panic!("{line}") };
        assert_eq!((xid.code, xid.pid, xid.severity), (31, Some(4711), None));
    }

    #[test]
    fn a_link_s_error_has_its_severity_link_and_registers() {
        let line = "NVRM: Xid (PCI:0000:ab:00): 149, pid=1, name=x, NETIR_LINK_EVT Fatal XC0 i0 \
                    Link 5 (0x004505c6 0x00000000 0x00000000)";
        let Signal::Xid(xid) = read(line) else { panic!("{line}") };
        assert_eq!((xid.severity, xid.link), (Some(Severity::Fatal), Some(5)));
        assert_eq!(xid.registers, [0x0045_05c6, 0, 0]);
        let line = "NVRM: Xid (PCI:0000:b7:00): 74, pid=9, name=x, NVLink: fatal error detected on \
                    link 6(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)";
        let Signal::Xid(xid) = read(line) else { panic!("{line}") };
        assert_eq!((xid.link, xid.registers.len()), (Some(6), 7));
    }

    #[test]
    fn what_a_gpu_asks_for_is_read_from_the_number_whatever_its_label() {
        for label in ["GPU Reset Required", "PF FLR"] {
            let line = format!(
                "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to \
                 0x1 ({label})"
            );
            let Signal::Xid(xid) = read(&line) else { panic!("{line}") };
            assert_eq!(xid.recovery, Some(1), "{label}");
        }
    }

    #[test]
    fn switches_the_bus_and_the_driver_are_heard_too() {
        let line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress \
                    non-posted PRIV error (First)";
        let Signal::Switch(error) = read(line) else { panic!("{line}") };
        assert_eq!((error.switch, error.code, error.link), (at("c1:00"), 12028, Some(32)));
        assert_eq!(error.severity, Some(Severity::NonFatal));
        let lost = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.";
        assert_eq!(read(lost), Signal::OffTheBus(at("3b:00")));
        let probe = "NVRM: The NVIDIA probe routine failed for 1 device(s).";
        assert_eq!(read(probe), Signal::ProbeFailed);
        let bus = "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0";
        let (device, severity) = (at("3b:00"), Severity::Fatal);
        assert_eq!(read(bus), Signal::Bus { device, severity, is_gpu: false });
        let gpu = "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal)";
        assert_eq!(read(gpu), Signal::Bus { device, severity, is_gpu: true });
    }

    #[test]
    fn what_is_not_about_gpus_is_nothing_and_what_cannot_be_read_is_told() {
        for line in ["", "usb 1-1: new device", "NVRM: loading NVIDIA UNIX Open Kernel Module"] {
            assert_eq!(signal(line), Ok(None), "{line}");
        }
        for line in ["NVRM: Xid (PCI:zz): 79", "NVRM: Xid (PCI:0000:3b:00): what, pid=1"] {
            assert!(signal(line).is_err(), "{line}");
        }
    }
}
