//! The simulated node: its driver and its GPUs.

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as GPU_IS_LOST,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND, nvmlReturn_t,
};

use crate::events::EventSets;

/// A node as NVML sees it.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) driver: String,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) events: EventSets,
}

/// One GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) pci: PciAddress,
    pub(crate) memory_bytes: u64,
    /// Process ids and the bytes each holds.
    pub(crate) processes: Vec<(u32, u64)>,
    /// Degrees Celsius.
    pub(crate) temperature: u32,
    /// Percent of time with a kernel running.
    pub(crate) utilization: u32,
    /// Percent of time with memory in use.
    pub(crate) memory_utilization: u32,
    /// Fallen off the bus.
    pub(crate) lost: bool,
}

/// Where a GPU is on the PCI bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PciAddress {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl Machine {
    pub(crate) fn new(driver: String, gpus: Vec<Gpu>) -> Self {
        Self { driver, gpus, events: EventSets::default() }
    }

    /// The handle of the GPU at an index. As far as is known NVML counts a lost GPU, and refuses
    /// its handle.
    pub(crate) fn handle_by_index(&self, index: u32) -> Result<nvmlDevice_t, nvmlReturn_t> {
        let slot = usize::try_from(index).map_err(|_too_large| INVALID_ARGUMENT)?;
        let gpu = self.gpus.get(slot).ok_or(INVALID_ARGUMENT)?;
        gpu.ensure_present()?;
        Ok(handle(slot))
    }

    pub(crate) fn handle_by_uuid(&self, uuid: &str) -> Result<nvmlDevice_t, nvmlReturn_t> {
        let slot = self.gpus.iter().position(|gpu| gpu.uuid == uuid).ok_or(NOT_FOUND)?;
        self.gpus.get(slot).ok_or(NOT_FOUND)?.ensure_present()?;
        Ok(handle(slot))
    }

    /// The GPU of a handle, unless it is lost.
    pub(crate) fn gpu(&self, device: nvmlDevice_t) -> Result<&Gpu, nvmlReturn_t> {
        let gpu = slot(device).and_then(|slot| self.gpus.get(slot)).ok_or(INVALID_ARGUMENT)?;
        gpu.ensure_present()?;
        Ok(gpu)
    }

    /// The index of a handle's GPU, unless it is lost.
    pub(crate) fn index(&self, device: nvmlDevice_t) -> Result<u32, nvmlReturn_t> {
        self.gpu(device)?;
        slot(device).and_then(|slot| u32::try_from(slot).ok()).ok_or(INVALID_ARGUMENT)
    }

    /// For the control socket, which may also change lost GPUs.
    pub(crate) fn gpu_mut(&mut self, index: usize) -> Result<&mut Gpu, String> {
        let count = self.gpus.len();
        self.gpus
            .get_mut(index)
            .ok_or_else(|| format!("gpu {index}: this node has {count}, counted from 0"))
    }
}

impl Gpu {
    pub(crate) fn used_bytes(&self) -> u64 {
        let used = self.processes.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        used.min(self.memory_bytes)
    }

    fn ensure_present(&self) -> Result<(), nvmlReturn_t> {
        if self.lost { Err(GPU_IS_LOST) } else { Ok(()) }
    }
}

impl PciAddress {
    /// Of the form `00000000:01:00.0`, in hexadecimal; GPUs are function 0.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_suffix(".0")?.split(':');
        let mut next = |digits: usize| {
            let part = parts.next().filter(|part| part.len() <= digits)?;
            u32::from_str_radix(part, 16).ok()
        };
        let address = Self { domain: next(8)?, bus: next(2)?, device: next(2)? };
        parts.next().is_none().then_some(address)
    }

    pub(crate) fn long(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.0", self.domain, self.bus, self.device)
    }

    /// With the short domain of older interfaces.
    pub(crate) fn legacy(self) -> String {
        format!("{:04X}:{:02X}:{:02X}.0", self.domain & 0xffff, self.bus, self.device)
    }
}

/// Handles are opaque to callers: the place in the list, plus one so that none is null.
pub(crate) fn handle(slot: usize) -> nvmlDevice_t {
    std::ptr::without_provenance_mut(slot + 1)
}

pub(crate) fn slot(device: nvmlDevice_t) -> Option<usize> {
    device.addr().checked_sub(1)
}
