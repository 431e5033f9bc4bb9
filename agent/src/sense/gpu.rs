//! The node's GPUs, as NVML tells. One thread of its own: a driver may hang in any call, and a
//! call that hangs cannot be ended.
//!
//! What is not here: health (temperatures, errors, events), and what follows from an idle GPU
//! (`idle`).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use tidegate_model::{Bytes, Gpu, GpuUuid, TaskId};
use tidegate_proto::link::{MAX_GPUS_PER_NODE, MAX_TASKS_PER_NODE};

/// Between two readings of the list: a GPU that is hot-plugged or lost is told within it.
const REREAD: Duration = Duration::from_secs(60);

/// What the driver says there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GpuList {
    /// In the driver's order.
    pub(crate) gpus: Vec<Gpu>,
    /// Why there are none, or fewer.
    pub(crate) note: String,
}

/// Whether a task's GPUs can be set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No process has memory on them, as far as the driver can say.
    Unused,
    /// Somebody's process is on one of them; it may be ending.
    Busy(String),
    /// They are not here.
    Refused(String),
}

/// Said by the thread.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The list, at first and whenever it has changed.
    List(GpuList),
    /// The answer to a check.
    Verdict(TaskId, Verdict),
    /// How busy GPUs are, in percent of the driver's last sample period; one that cannot say, such
    /// as a MIG slice, is not there.
    Busy(BTreeMap<GpuUuid, u32>),
}

#[derive(Debug)]
enum Ask {
    Check(TaskId, Vec<GpuUuid>),
    Busy(Vec<GpuUuid>),
}

/// The way to ask.
#[derive(Debug)]
pub(crate) struct Gpus {
    asks: SyncSender<Ask>,
}

impl Gpus {
    /// Starts the thread. `tell` must not block for long.
    pub(crate) fn watch(
        library: Option<PathBuf>,
        tell: impl Fn(Heard) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (asks, asked) = sync_channel(MAX_TASKS_PER_NODE);
        let watch = move || Watch { library, nvml: None, last: None, tell }.run(&asked);
        thread::Builder::new().name("gpu".to_owned()).spawn(watch)?;
        Ok(Self { asks })
    }

    /// Asks for a verdict. False if it cannot even be asked: the driver has hung for long.
    pub(crate) fn check(&self, task: TaskId, gpus: Vec<GpuUuid>) -> bool {
        self.ask(Ask::Check(task, gpus))
    }

    /// Asks how busy GPUs are. False if it cannot be asked.
    pub(crate) fn sample(&self, gpus: Vec<GpuUuid>) -> bool {
        self.ask(Ask::Busy(gpus))
    }

    fn ask(&self, ask: Ask) -> bool {
        match self.asks.try_send(ask) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

struct Watch<T> {
    library: Option<PathBuf>,
    nvml: Option<Nvml>,
    last: Option<GpuList>,
    tell: T,
}

impl<T: Fn(Heard)> Watch<T> {
    fn run(mut self, asked: &Receiver<Ask>) {
        let mut due = Instant::now();
        loop {
            if due <= Instant::now() {
                self.reread();
                due = Instant::now().checked_add(REREAD).unwrap_or(due);
            }
            match asked.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Ask::Busy(gpus)) => (self.tell)(Heard::Busy(self.busy(gpus))),
                Ok(Ask::Check(task, gpus)) => {
                    let verdict = self.verdict(&gpus);
                    (self.tell)(Heard::Verdict(task, verdict));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn reread(&mut self) {
        let list = self.list();
        if self.last.as_ref() != Some(&list) {
            self.last = Some(list.clone());
            (self.tell)(Heard::List(list));
        }
    }

    fn list(&mut self) -> GpuList {
        let none = |note| GpuList { gpus: Vec::new(), note };
        if self.nvml.is_none() {
            match open(self.library.as_deref().map(AsRef::as_ref)) {
                Ok(nvml) => self.nvml = Some(nvml),
                Err(error) => return none(without_driver(&error)),
            }
        }
        let Some(nvml) = &self.nvml else { return none(String::new()) };
        match nvml.device_count() {
            Ok(0) => none("the driver knows no GPU".to_owned()),
            Ok(count) => listed(nvml, count),
            Err(error) => {
                // Opened anew at the next reading: the driver may have been reloaded.
                self.nvml = None;
                none(format!("the GPU driver fails: {error}"))
            }
        }
    }

    fn busy(&self, gpus: Vec<GpuUuid>) -> BTreeMap<GpuUuid, u32> {
        let Some(nvml) = &self.nvml else { return BTreeMap::new() };
        let busy = |uuid: GpuUuid| {
            let device = nvml.device_by_uuid(uuid.as_str()).ok()?;
            Some((uuid, device.utilization_rates().ok()?.gpu))
        };
        gpus.into_iter().filter_map(busy).collect()
    }

    fn verdict(&self, gpus: &[GpuUuid]) -> Verdict {
        for uuid in gpus {
            let Some(nvml) = &self.nvml else {
                return Verdict::Refused(format!("{uuid} is not on this node"));
            };
            let processes =
                nvml.device_by_uuid(uuid.as_str()).and_then(|d| d.running_compute_processes());
            match processes {
                Ok(processes) => {
                    if let Some(process) = processes.first() {
                        let pid = process.pid;
                        return Verdict::Busy(format!("process {pid} still uses {uuid}"));
                    }
                }
                Err(error) if cannot_say(&error) => {}
                Err(NvmlError::NotFound | NvmlError::InvalidArg) => {
                    return Verdict::Refused(format!("{uuid} is not on this node"));
                }
                Err(error) => return Verdict::Refused(format!("{uuid} cannot be used: {error}")),
            }
        }
        Verdict::Unused
    }
}

fn open(library: Option<&OsStr>) -> Result<Nvml, NvmlError> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        builder.lib_path(path);
    }
    builder.init()
}

fn listed(nvml: &Nvml, count: u32) -> GpuList {
    let mut list = GpuList { gpus: Vec::new(), note: String::new() };
    for index in 0..count {
        if list.gpus.len() >= MAX_GPUS_PER_NODE {
            list.note = format!("{count} GPUs; the first {MAX_GPUS_PER_NODE} are used");
            break;
        }
        let device = nvml.device_by_index(index).map_err(|error| error.to_string());
        match device.and_then(|device| described(&device)) {
            Ok(gpu) => list.gpus.push(gpu),
            Err(why) => list.note = format!("GPU {index} of {count} cannot be read: {why}"),
        }
    }
    list
}

fn described(device: &Device<'_>) -> Result<Gpu, String> {
    let words = |error: NvmlError| error.to_string();
    let uuid = device.uuid().map_err(words)?.parse::<GpuUuid>().map_err(|e| e.to_string())?;
    let product = device.name().map_err(words)?;
    // GPUs that share the host's memory have none of their own to tell.
    let memory = Bytes(device.memory_info().map_or(0, |memory| memory.total));
    Ok(Gpu { uuid, product, memory })
}

fn cannot_say(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported | NvmlError::NoPermission | NvmlError::FailedToLoadSymbol(_)
    )
}

fn without_driver(error: &NvmlError) -> String {
    if matches!(error, NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound) {
        return format!("no NVIDIA driver library: {error}");
    }
    format!("the NVIDIA driver does not start: {error}")
}
