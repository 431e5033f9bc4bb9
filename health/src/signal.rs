//! What was seen: a line of the kernel about a GPU, a switch or the bus.

use std::fmt;
use std::str::FromStr;

/// Where a device is on the bus. Of its functions there is one, and lines leave it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
}

/// Words that are no address on the bus.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address on the bus, such as 0000:3b:00")]
pub struct NoAddress(String);

impl FromStr for PciAddress {
    type Err = NoAddress;

    /// With a domain of four or eight digits or without, with a function or without, as drivers of
    /// different versions and NVML write it.
    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let wrong = || NoAddress(text.to_owned());
        let plain = text.strip_prefix("PCI:").unwrap_or(text);
        let plain = plain.split_once('.').map_or(plain, |(address, _function)| address);
        let mut parts = plain.rsplit(':');
        let mut next = || parts.next().filter(|part| !part.is_empty() && part.len() <= 8);
        let (device, bus) = (next().ok_or_else(wrong)?, next().ok_or_else(wrong)?);
        let domain = next().unwrap_or("0");
        if parts.next().is_some() {
            return Err(wrong());
        }
        let small = |text: &str| u8::from_str_radix(text, 16).ok();
        let domain = u32::from_str_radix(domain, 16).ok();
        let all = domain.zip(small(bus)).zip(small(device));
        let ((domain, bus), device) = all.ok_or_else(wrong)?;
        Ok(Self { domain, bus, device })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

/// The word of severity in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It goes on.
    NonFatal,
    /// It does not.
    Fatal,
}

/// One line, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    /// The driver's report of an error of a GPU.
    Xid(Xid),
    /// The same of a switch.
    Switch(SwitchError),
    /// A GPU does not answer on the bus, said without a code.
    OffTheBus(PciAddress),
    /// The bus itself reports an error of a device.
    Bus {
        /// Which.
        device: PciAddress,
        /// How bad it is.
        severity: Severity,
        /// Whether the GPUs' driver has it; else it may be any device.
        is_gpu: bool,
    },
    /// The driver found GPUs and could not take them.
    ProbeFailed,
}

impl fmt::Display for Signal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(Xid { gpu, code, .. }) => write!(out, "Xid {code} of {gpu}"),
            Self::Switch(SwitchError { switch, code, .. }) => {
                write!(out, "SXid {code} of {switch}")
            }
            Self::OffTheBus(gpu) => write!(out, "{gpu} has fallen off the bus"),
            Self::Bus { device, severity, is_gpu: _ } => {
                let bad = match severity {
                    Severity::NonFatal => "non-fatal",
                    Severity::Fatal => "fatal",
                };
                write!(out, "a {bad} error of the bus at {device}")
            }
            Self::ProbeFailed => write!(out, "the driver could not take a GPU"),
        }
    }
}

/// The driver's report of an error of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xid {
    /// Which.
    pub gpu: PciAddress,
    /// Its code.
    pub code: u32,
    /// The process that it is about; none = not said, or none.
    pub pid: Option<u32>,
    /// The words behind it.
    pub text: String,
    /// The word of severity, where there is one.
    pub severity: Option<Severity>,
    /// The link, where one is named.
    pub link: Option<u32>,
    /// The registers that are written out, in their order.
    pub registers: Vec<u32>,
    /// What the GPU asks for now (154).
    pub recovery: Option<u32>,
}

/// The driver's report of an error of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchError {
    /// Which.
    pub switch: PciAddress,
    /// Its code.
    pub code: u32,
    /// The word of severity, where there is one.
    pub severity: Option<Severity>,
    /// The link, where one is named.
    pub link: Option<u32>,
    /// The words behind it.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_has_one_address_however_it_is_written() {
        let wanted: PciAddress = "0000:3b:00".parse().unwrap();
        for text in ["PCI:0000:3b:00", "0000:3B:00.0", "00000000:3B:00.0", "3b:00", "3b:00.0"] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        assert_eq!(wanted.to_string(), "0000:3b:00");
        for text in ["", "3b", "1:0000:3b:00", "0000:3g:00", "0000:100:00", "::", "PCI:"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
