//! The exported functions, by NVML's names and signatures (nvml.h; types of `nvml-wrapper-sys`).
//!
//! Each only translates: what is simulated is in `machine` and `events`, what a script does to a
//! call is in `simulation`.
#![allow(unsafe_code, reason = "exporting a C symbol is an unsafe attribute")]
#![allow(non_snake_case, reason = "the names are NVML's")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::time::Duration;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeAll, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as ARGUMENT_VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED,
    nvmlReturn_enum_NVML_SUCCESS as SUCCESS, nvmlReturn_t,
    nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU as TEMPERATURE_GPU, nvmlTemperatureSensors_t,
    nvmlUtilization_t,
};

use crate::control::NO_INSTANCE;
use crate::ffi::{ArrayOut, Out, TextIn, TextOut};
use crate::machine::{self, Gpu, PciAddress};
use crate::simulation;

/// CUDA 13.0, which driver branch 580 brings: 1000 * major + 10 * minor.
const CUDA_VERSION: c_int = 13_000;
const CUDA_MAJOR: c_int = CUDA_VERSION / 1_000;
/// What the driver keeps to itself: part of `used` in the first memory query, apart in the second.
const RESERVED_BYTES: u64 = 512 << 20;
/// An H100 SXM: device 0x2330 of vendor 0x10de.
const PCI_DEVICE_ID: c_uint = 0x2330_10de;
const PCI_SUBSYSTEM_ID: c_uint = 0x16c1_10de;

/// `NVML_STRUCT_VERSION(Memory, 2)` of nvml.h: size, and version in the top byte.
const MEMORY_V2_VERSION: c_uint = 40 | (2 << 24);
const _: () = assert!(size_of::<nvmlMemory_v2_t>() == 40, "MEMORY_V2_VERSION holds the size");

/// Exports functions that need an initialised library, and lists all names.
macro_rules! export {
    (without_machine: [$($other:ident),*];
     $(fn $name:ident($($argument:ident: $type:ty),*) = $answer:expr;)*) => {
        /// The functions a script can name.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($other),)* $(stringify!($name)),*];
        $(
            /// See nvml.h.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($argument: $type),*) -> nvmlReturn_t {
                simulation::call(stringify!($name), $answer)
            }
        )*
    };
}

export! {
    without_machine: [nvmlInit_v2, nvmlInitWithFlags, nvmlShutdown, nvmlEventSetWait_v2];

    fn nvmlSystemGetDriverVersion(version: TextOut, length: c_uint) =
        |machine| version.put(&machine.driver, length);
    fn nvmlSystemGetNVMLVersion(version: TextOut, length: c_uint) =
        |machine| version.put(&format!("{CUDA_MAJOR}.{}", machine.driver), length);
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) =
        |_| version.put(CUDA_VERSION);
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) =
        |_| version.put(CUDA_VERSION);

    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) =
        |machine| count.put(c_uint::try_from(machine.gpus.len()).unwrap_or(c_uint::MAX));
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<nvmlDevice_t>) =
        |machine| device.put(machine.handle_by_index(index)?);
    fn nvmlDeviceGetHandleByUUID(uuid: TextIn, device: Out<nvmlDevice_t>) =
        |machine| device.put(machine.handle_by_uuid(uuid.get()?)?);

    fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: TextOut, length: c_uint) =
        |machine| uuid.put(&machine.gpu(device)?.uuid, length);
    fn nvmlDeviceGetName(device: nvmlDevice_t, name: TextOut, length: c_uint) =
        |machine| name.put(&machine.gpu(device)?.name, length);
    fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: Out<nvmlPciInfo_t>) =
        |machine| pci.put(pci_info(machine.gpu(device)?.pci));
    fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<c_uint>) =
        |machine| index.put(machine.index(device)?);
    fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: Out<c_uint>) =
        |machine| minor.put(machine.index(device)?);

    fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: Out<nvmlMemory_t>) =
        |machine| memory.put(memory_info(machine.gpu(device)?));
    fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: Out<nvmlMemory_v2_t>) =
        |machine| {
            if memory.get()?.version != MEMORY_V2_VERSION {
                return Err(ARGUMENT_VERSION_MISMATCH);
            }
            memory.put(memory_info_v2(machine.gpu(device)?))
        };
    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t, count: Out<c_uint>, infos: ArrayOut<nvmlProcessInfo_t>
    ) = |machine| put_processes(machine.gpu(device)?, &count, &infos);
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, rates: Out<nvmlUtilization_t>) =
        |machine| {
            let gpu = machine.gpu(device)?;
            rates.put(nvmlUtilization_t { gpu: gpu.utilization, memory: gpu.memory_utilization })
        };
    fn nvmlDeviceGetTemperature(
        device: nvmlDevice_t, sensor: nvmlTemperatureSensors_t, degrees: Out<c_uint>
    ) = |machine| {
        let gpu = machine.gpu(device)?;
        if sensor == TEMPERATURE_GPU { degrees.put(gpu.temperature) } else { Err(INVALID_ARGUMENT) }
    };

    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, kinds: Out<c_ulonglong>) =
        |machine| {
            machine.gpu(device)?;
            kinds.put(c_ulonglong::from(nvmlEventTypeAll))
        };
    fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>) =
        |machine| set.put(machine.events.create());
    fn nvmlEventSetFree(set: nvmlEventSet_t) =
        |machine| machine.events.free(set);
    fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, kinds: c_ulonglong, set: nvmlEventSet_t) =
        |machine| {
            machine.gpu(device)?;
            if kinds & !c_ulonglong::from(nvmlEventTypeAll) != 0 {
                return Err(NOT_SUPPORTED);
            }
            let slot = machine::slot(device).ok_or(INVALID_ARGUMENT)?;
            machine.events.register(set, slot, kinds)
        };
}

/// See nvml.h.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    simulation::initialise("nvmlInit_v2")
}

/// See nvml.h. The flags, about nodes without GPUs and attaching them, change nothing here.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    simulation::initialise("nvmlInitWithFlags")
}

/// See nvml.h.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    simulation::shut_down("nvmlShutdown")
}

/// See nvml.h.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: Out<nvmlEventData_t>,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    let timeout = Duration::from_millis(u64::from(timeout_ms));
    let waited = simulation::wait_for_event("nvmlEventSetWait_v2", set, timeout);
    let put = waited.and_then(|event| {
        data.put(nvmlEventData_t {
            device: machine::handle(event.slot),
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: event.gpu_instance,
            computeInstanceId: event.compute_instance,
        })
    });
    put.err().unwrap_or(SUCCESS)
}

/// See nvml.h. Works at any time, and no script touches it: callers use it to report the others.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        13 => c"Function Not Found",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        18 => c"Driver/library version mismatch",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

fn pci_info(pci: PciAddress) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: fixed_text(&pci.legacy()),
        domain: pci.domain,
        bus: pci.bus,
        device: pci.device,
        pciDeviceId: PCI_DEVICE_ID,
        pciSubSystemId: PCI_SUBSYSTEM_ID,
        busId: fixed_text(&pci.long()),
    }
}

/// Cut to leave room for the zero at the end.
fn fixed_text<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut fixed = [0; LENGTH];
    for (place, byte) in fixed.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *place = byte.cast_signed();
    }
    fixed
}

fn memory_info(gpu: &Gpu) -> nvmlMemory_t {
    let memory = memory_info_v2(gpu);
    nvmlMemory_t { total: memory.total, free: memory.free, used: memory.used + memory.reserved }
}

fn memory_info_v2(gpu: &Gpu) -> nvmlMemory_v2_t {
    let total = gpu.memory_bytes;
    let used = gpu.used_bytes();
    let reserved = RESERVED_BYTES.min(total - used);
    let free = total - used - reserved;
    nvmlMemory_v2_t { version: MEMORY_V2_VERSION, total, reserved, free, used }
}

/// Without room for all, tells how many there are.
fn put_processes(
    gpu: &Gpu,
    count: &Out<c_uint>,
    infos: &ArrayOut<nvmlProcessInfo_t>,
) -> Result<(), nvmlReturn_t> {
    let room = usize::try_from(count.get()?).map_err(|_too_large| INVALID_ARGUMENT)?;
    let processes: Vec<_> = gpu
        .processes
        .iter()
        .map(|(pid, bytes)| nvmlProcessInfo_t {
            pid: *pid,
            usedGpuMemory: *bytes,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
        })
        .collect();
    count.put(c_uint::try_from(processes.len()).map_err(|_too_large| INSUFFICIENT_SIZE)?)?;
    infos.put(&processes, room)
}
