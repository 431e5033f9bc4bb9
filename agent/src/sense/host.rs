//! The host's memory and CPUs.

use sysinfo::{CpuRefreshKind, System};
use tidegate_model::Bytes;

/// Main memory and logical CPUs; zeros if the kernel does not say.
pub(crate) fn memory_and_cpus() -> (Bytes, u32) {
    let Ok(mut system) = System::new() else { return (Bytes(0), 0) };
    system.refresh_memory();
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    (Bytes(system.total_memory()), u32::try_from(system.cpus().len()).unwrap_or(u32::MAX))
}
