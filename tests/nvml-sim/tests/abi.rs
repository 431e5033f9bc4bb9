//! The C ABI, through the same wrapper the agent uses. The state belongs to a process, so each
//! test runs in a process of its own: this executable again, with a description and a socket.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use serde_json::{Value, json};

const CHILD: &str = "NVML_SIM_TEST_CHILD";
const SOCKET: &str = "TIDEGATE_NVML_SIM_SOCKET";
/// Long enough for anything that is going to happen at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `body` in a process whose node is described by `description`.
fn on_a_node(test: &str, description: Option<Value>, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.json");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1");
    command.env(SOCKET, directory.path().join("control"));
    command.env_remove("TIDEGATE_NVML_SIM");
    if let Some(description) = description {
        std::fs::write(&file, description.to_string()).unwrap();
        command.env("TIDEGATE_NVML_SIM", &file);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Cargo puts the library beside the test executables.
fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libnvml_sim.so");
    assert!(path.exists(), "cargo builds {} with the tests", path.display());
    path
}

fn init() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library().as_os_str()).init()
}

/// Sends one command and returns the answer.
fn control(command: &Value) -> Value {
    let path = std::env::var_os(SOCKET).unwrap();
    let mut stream = UnixStream::connect(Path::new(&path)).unwrap();
    writeln!(stream, "{command}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn order(command: &Value) {
    let answer = control(command);
    assert_eq!(answer["ok"], true, "{command} answered {answer}");
}

fn check_refused(command: &Value, expected: &str) {
    let answer = control(command);
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(error.contains(expected), "{command} answered {answer}");
}

fn two_gpus() -> Option<Value> {
    Some(json!({ "driver": "580.95.05", "gpus": [
        { "uuid": "GPU-first", "name": "NVIDIA L4", "pci": "00000000:0A:00.0",
          "memory_bytes": 24_000_000_000_u64, "processes": [[4242, 1_000_000]] },
        { "uuid": "GPU-second" },
    ] }))
}

fn numbered(node: &str) -> Option<Value> {
    Some(json!({ "node": node, "gpus": 8 }))
}

#[test]
fn a_node_without_a_description_has_no_driver() {
    on_a_node("a_node_without_a_description_has_no_driver", None, || {
        assert!(matches!(init(), Err(NvmlError::DriverNotLoaded)));
    });
}

#[test]
fn a_description_with_a_mistake_is_no_node() {
    let description = Some(json!({ "gpus": [{ "uuid": "GPU-first", "colour": "green" }] }));
    on_a_node("a_description_with_a_mistake_is_no_node", description, || {
        assert!(matches!(init(), Err(NvmlError::Unknown)));
    });
}

#[test]
fn described_gpus_are_reported_as_described() {
    on_a_node("described_gpus_are_reported_as_described", two_gpus(), || {
        let nvml = init().unwrap();
        assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
        assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.95.05");
        assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
        assert_eq!(nvml.device_count().unwrap(), 2);
        let first = nvml.device_by_index(0).unwrap();
        assert_eq!(first.uuid().unwrap(), "GPU-first");
        assert_eq!(first.name().unwrap(), "NVIDIA L4 (simulated)");
        assert_eq!(first.index().unwrap(), 0);
        assert_eq!(first.minor_number().unwrap(), 0);
        let pci = first.pci_info().unwrap();
        assert_eq!((pci.bus_id.as_str(), pci.bus, pci.device), ("00000000:0A:00.0", 10, 0));
        let memory = first.memory_info().unwrap();
        assert_eq!((memory.total, memory.used), (24_000_000_000, 1_000_000));
        assert_eq!(memory.total, memory.free + memory.used + memory.reserved);
        let processes = first.running_compute_processes().unwrap();
        let processes: Vec<_> = processes
            .iter()
            .map(|process| (process.pid, process.used_gpu_memory.clone()))
            .collect();
        assert_eq!(processes, [(4242, UsedGpuMemory::Used(1_000_000))]);
        let second = nvml.device_by_uuid("GPU-second").unwrap();
        assert_eq!(second.index().unwrap(), 1);
        assert_eq!(second.name().unwrap(), "NVIDIA H100 80GB HBM3 (simulated)");
        assert_eq!(second.temperature(TemperatureSensor::Gpu).unwrap(), 34);
        assert_eq!(second.utilization_rates().unwrap().gpu, 0);
        assert!(second.running_compute_processes().unwrap().is_empty());
        assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));
        assert!(matches!(nvml.device_by_uuid("GPU-third"), Err(NvmlError::NotFound)));
    });
}

#[test]
fn numbered_gpus_have_uuids_of_their_node() {
    on_a_node("numbered_gpus_have_uuids_of_their_node", numbered("node-a"), || {
        let nvml = init().unwrap();
        let uuids: Vec<_> = (0..nvml.device_count().unwrap())
            .map(|index| nvml.device_by_index(index).unwrap().uuid().unwrap())
            .collect();
        assert_eq!(uuids.len(), 8);
        assert_eq!(uuids[0], "GPU-08676f2d-39d2-f260-4c2f-8c0c6ee6ba4b");
        for (index, uuid) in uuids.iter().enumerate() {
            assert!(!uuids[..index].contains(uuid), "{uuid} twice");
        }
    });
}

#[test]
fn another_node_has_other_uuids() {
    on_a_node("another_node_has_other_uuids", numbered("node-b"), || {
        let uuid = init().unwrap().device_by_index(0).unwrap().uuid().unwrap();
        assert_ne!(uuid, "GPU-08676f2d-39d2-f260-4c2f-8c0c6ee6ba4b");
    });
}

#[test]
fn a_lost_gpu_answers_nothing_until_it_recovers() {
    on_a_node("a_lost_gpu_answers_nothing_until_it_recovers", numbered("node-a"), || {
        let nvml = init().unwrap();
        let lost = nvml.device_by_index(3).unwrap();
        order(&json!({ "op": "lose", "gpu": 3 }));
        assert!(matches!(lost.uuid(), Err(NvmlError::GpuLost)));
        assert!(matches!(lost.memory_info(), Err(NvmlError::GpuLost)));
        assert!(matches!(nvml.device_by_index(3), Err(NvmlError::GpuLost)));
        assert_eq!(nvml.device_count().unwrap(), 8);
        assert!(nvml.device_by_index(4).unwrap().uuid().is_ok());
        order(&json!({ "op": "recover", "gpu": 3 }));
        assert!(lost.uuid().is_ok());
    });
}

#[test]
fn an_xid_reaches_the_set_registered_for_its_gpu() {
    on_a_node("an_xid_reaches_the_set_registered_for_its_gpu", numbered("node-a"), || {
        let nvml = init().unwrap();
        let xid = |gpu: u32| json!({ "op": "event", "gpu": gpu, "kind": 8, "data": 79 });
        let device = nvml.device_by_index(2).unwrap();
        assert!(device.supported_event_types().unwrap().contains(EventTypes::CRITICAL_XID_ERROR));
        let set = nvml.create_event_set().unwrap();
        let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
        assert_eq!(control(&xid(1))["delivered_sets"], 0);
        assert_eq!(control(&xid(2))["delivered_sets"], 1);
        let event = set.wait(1_000).unwrap();
        assert_eq!(event.device.uuid().unwrap(), device.uuid().unwrap());
        assert_eq!(event.event_type, EventTypes::CRITICAL_XID_ERROR);
        assert!(matches!(event.event_data, Some(XidError::Value(79))));
        assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
    });
}

#[test]
fn a_waiting_set_wakes_when_its_gpu_is_lost_after_what_was_queued() {
    let test = "a_waiting_set_wakes_when_its_gpu_is_lost_after_what_was_queued";
    on_a_node(test, numbered("node-a"), || {
        let nvml = init().unwrap();
        let set = nvml.create_event_set().unwrap();
        let device = nvml.device_by_index(0).unwrap();
        let set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| order(&json!({ "op": "lose", "gpu": 0 })));
            assert!(matches!(set.wait(20_000), Err(NvmlError::GpuLost)));
        });
        order(&json!({ "op": "event", "gpu": 0, "kind": 8, "data": 48 }));
        assert!(set.wait(0).is_ok());
        assert!(matches!(set.wait(0), Err(NvmlError::GpuLost)));
    });
}

#[test]
fn a_function_fails_with_the_scripted_code_until_it_is_cleared() {
    let test = "a_function_fails_with_the_scripted_code_until_it_is_cleared";
    on_a_node(test, numbered("node-a"), || {
        let nvml = init().unwrap();
        let device = nvml.device_by_index(0).unwrap();
        let fail = |code: u32| json!({ "op": "fail", "func": "nvmlDeviceGetName", "code": code });
        order(&fail(4));
        assert!(matches!(device.name(), Err(NvmlError::NoPermission)));
        assert!(device.uuid().is_ok());
        order(&fail(0));
        assert!(device.name().is_ok());
        order(&json!({ "op": "fail", "func": "*", "code": 999 }));
        assert!(matches!(device.name(), Err(NvmlError::Unknown)));
        assert!(matches!(init(), Err(NvmlError::Unknown)));
        order(&json!({ "op": "fail", "func": "*", "code": 0 }));
    });
}

#[test]
fn a_delayed_function_takes_its_time() {
    on_a_node("a_delayed_function_takes_its_time", numbered("node-a"), || {
        let nvml = init().unwrap();
        let device = nvml.device_by_index(0).unwrap();
        order(&json!({ "op": "delay", "func": "nvmlDeviceGetTemperature", "ms": 200 }));
        let began = Instant::now();
        device.temperature(TemperatureSensor::Gpu).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(200));
    });
}

#[test]
fn a_hanging_call_returns_when_released_and_holds_up_no_other() {
    let test = "a_hanging_call_returns_when_released_and_holds_up_no_other";
    on_a_node(test, numbered("node-a"), || {
        let nvml = init().unwrap();
        let device = nvml.device_by_index(0).unwrap();
        order(&json!({ "op": "hang", "func": "nvmlDeviceGetTemperature" }));
        let (done, returned) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                device.temperature(TemperatureSensor::Gpu).unwrap();
                done.send(()).unwrap();
            });
            let deadline = Instant::now() + PATIENCE;
            while control(&json!({ "op": "calls" }))["calls"]["nvmlDeviceGetTemperature"] != 1 {
                assert!(Instant::now() < deadline, "the call never came");
            }
            assert!(device.uuid().is_ok());
            assert!(returned.try_recv().is_err());
            order(&json!({ "op": "release" }));
            returned.recv_timeout(PATIENCE).unwrap();
        });
    });
}

#[test]
fn a_patch_changes_what_a_gpu_reports() {
    on_a_node("a_patch_changes_what_a_gpu_reports", numbered("node-a"), || {
        let nvml = init().unwrap();
        let device = nvml.device_by_index(5).unwrap();
        order(&json!({ "op": "patch", "gpu": 5, "set": {
            "processes": [[77, 1024], [78, 2048]], "temperature": 91, "utilization": 98,
            "name": "Another" } }));
        assert_eq!(device.running_compute_processes().unwrap().len(), 2);
        assert_eq!(device.memory_info().unwrap().used, 3072);
        assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 91);
        assert_eq!(device.utilization_rates().unwrap().gpu, 98);
        assert_eq!(device.name().unwrap(), "Another (simulated)");
        order(&json!({ "op": "driver", "version": "590.10" }));
        assert_eq!(nvml.sys_driver_version().unwrap(), "590.10");
    });
}

#[test]
fn a_script_in_the_description_runs_before_the_first_call() {
    let description = json!({ "node": "node-a", "gpus": 2, "script": [
        { "op": "lose", "gpu": 1 }, { "op": "fail", "func": "nvmlDeviceGetUUID", "code": 15 } ] });
    let test = "a_script_in_the_description_runs_before_the_first_call";
    on_a_node(test, Some(description), || {
        let nvml = init().unwrap();
        assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
        let present = nvml.device_by_index(0).unwrap();
        assert!(matches!(present.uuid(), Err(NvmlError::GpuLost)));
    });
}

#[test]
fn a_command_that_is_not_understood_is_told_what_would_be() {
    let test = "a_command_that_is_not_understood_is_told_what_would_be";
    on_a_node(test, numbered("node-a"), || {
        let _nvml = init().unwrap();
        check_refused(&json!({ "op": "explode" }), "expected one of `event`, `lose`");
        check_refused(&json!({ "op": "lose", "gpu": 8 }), "this node has 8");
        check_refused(&json!({ "op": "hang", "func": "nvmlNever" }), "nvmlDeviceGetName");
        check_refused(&json!({ "op": "patch", "gpu": 0, "set": { "hue": 1 } }), "`temperature`");
        check_refused(&json!({ "op": "lose", "gpu": 0, "ms": 1 }), "unknown field `ms`");
    });
}

#[test]
fn the_node_survives_a_shutdown_as_hardware_does() {
    on_a_node("the_node_survives_a_shutdown_as_hardware_does", numbered("node-a"), || {
        let nvml = init().unwrap();
        order(&json!({ "op": "lose", "gpu": 0 }));
        nvml.shutdown().unwrap();
        // The wrapper has unloaded the library, but its control thread still runs.
        assert_eq!(control(&json!({ "op": "calls" }))["calls"]["nvmlShutdown"], 1);
        let again = init().unwrap();
        assert!(matches!(again.device_by_index(0), Err(NvmlError::GpuLost)));
    });
}

#[test]
fn a_path_without_a_library_is_no_driver_either() {
    let missing = Nvml::builder().lib_path(OsStr::new("/nonexistent/libnvidia-ml.so.1")).init();
    assert!(matches!(missing, Err(NvmlError::LibloadingError(_))));
}
